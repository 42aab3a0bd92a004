"""What STRICT refuses to promise, what it does not copy, and what it does where the kernel can do less."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence import SandboxPolicy, UnavailableError, run
from ringfence.backends.strict import StrictBackend
from ringfence.kernel.proc import processes
from ringfence.roles import first_process
from ringfence.sandbox import host
from ringfence.steps.executor import StepFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import GroupPaths, VisitRequest

pytestmark = pytest.mark.privileges


@pytest.mark.parametrize("below", ["", "/deep/down"])
def test_a_hidden_path_in_a_writable_folder_is_refused_and_named(tmp_path: Path, below: str) -> None:
    hidden = f"{tmp_path}{below}/answer"
    policy = SandboxPolicy(isolation="strict", writable_paths=(str(tmp_path),), hidden_paths=(hidden,))
    with pytest.raises(UnavailableError, match="hidden_paths") as refused:
        run(["true"], policy)
    assert "writable directories without secrets" in refused.value.hint
    (lack,) = [lack for lack in StrictBackend().lacks(policy) if lack.capability == "hidden_paths"]
    assert os.path.realpath(hidden) in lack.missing


@pytest.mark.parametrize("path", ["/proc/version", "/dev/null"])
def test_what_the_sandbox_makes_itself_can_not_be_hidden(path: str) -> None:
    lacks = StrictBackend().lacks(SandboxPolicy(isolation="strict", hidden_paths=(path,)))
    assert [lack.capability for lack in lacks] == ["hidden_paths"]


def test_a_file_that_is_not_for_everybody_is_not_copied(tmp_path: Path) -> None:
    for name, mode in (("open", 0o644), ("closed", 0o640)):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    os.symlink("closed", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    copied = {os.path.basename(path): (content, link) for path, content, link in host._copied(str(tmp_path)) or []}
    assert copied == {"open": (b"open", ""), "link": (b"", "closed")}


def test_a_folder_with_too_much_in_it_is_shown_and_not_copied(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(host._COPIED_BYTES + 1))
    assert host._copied(str(tmp_path)) is None
    (tmp_path / "large").unlink()
    for number in range(host._COPIED_FILES + 1):
        (tmp_path / str(number)).touch()
    assert host._copied(str(tmp_path)) is None


def _request(group: str) -> VisitRequest:
    enter = [f"{group}/cgroup.procs", "/v1/memory/x/cgroup.procs"]
    groups: GroupPaths = {"group": group, "enter": enter, "cgroups": []}
    return {"namespaces": ["mount"], "groups": groups, "plan": [], "limits": {}, "scratch": ""}


def test_a_kernel_that_can_not_fork_into_a_group_enters_it_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_without(namespaces: int, group: str = "") -> int:
        if group:
            raise OSError(22, "Invalid argument")
        return 4711

    monkeypatch.setattr(processes, "fork_into", only_without)
    entrances = ["/v2/x/cgroup.procs", "/v1/memory/x/cgroup.procs"]
    assert first_process._clone(_request("/v2/x")) == (4711, entrances)


def test_who_is_born_in_a_group_does_not_enter_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "fork_into", lambda namespaces, group="": 4711)
    assert first_process._clone(_request("/v2/x")) == (4711, ["/v1/memory/x/cgroup.procs"])


def test_namespaces_that_are_refused_are_a_named_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(namespaces: int, group: str = "") -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(processes, "fork_into", refused)
    with pytest.raises(StepFailed) as failed:
        first_process._clone(_request(""))
    assert (failed.value.step, failed.value.errno) == ("enter namespaces", 1)
