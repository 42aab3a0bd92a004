"""STRICT on hosts that really have no user namespaces: refused with the fix, or what is left where less is allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import SandboxPolicy
from ringfence.backends import confined, walls
from ringfence.backends.facts import PythonJobs, Traits
from ringfence.errors import UnavailableError
from ringfence.kernel.mount import namespaces
from ringfence.steps import wall_steps as confinement

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

HOST = Path(__file__).with_name("blocked_host.py")
BLOCKED = {
    "filter": ("a filter of system calls", "--security-opt seccomp=FILE"),
    "limit": ("user.max_user_namespaces = 0", "sudo sysctl -w user.max_user_namespaces=15000"),
}
NO_NAMESPACES = ("user namespaces", "a command")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A working directory that every id can enter, with a secret beside it."""
    with tempfile.TemporaryDirectory(prefix="blocked-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "secret").write_text("the answer")
        (place / "work").mkdir()
        (place / "work" / "plain").write_text("plain text")
        (place / "work" / "hidden").write_text("the answer")
        yield place


def ringfence(how: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HOST), how, sys.executable, "-P", "-m", "ringfence", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder / "work", timeout=60)


@pytest.mark.parametrize("how", BLOCKED)
def test_strict_is_refused_and_says_what_is_missing_and_the_fix(how: str, folder: Path) -> None:
    done = ringfence(how, folder, "run", "--strict", "--", "echo", "ran")
    problem, fix = BLOCKED[how]
    assert done.returncode == 2
    assert done.stdout == ""
    assert problem in done.stderr
    assert fix in done.stderr
    assert "allow_partial" in done.stderr


def test_where_nothing_blocks_them_strict_is_held_whole(folder: Path) -> None:
    done = ringfence("open", folder, "run", "--strict", "--json", "--", "echo", "ran")
    told = json.loads(done.stdout)
    assert (told["stdout"], told["partial"]) == ("ran\n", False)
    assert confined.NAMESPACES not in told["enforced"]


@pytest.mark.parametrize("how", BLOCKED)
def test_what_is_left_is_applied_and_said_to_be_less(how: str, folder: Path) -> None:
    done = ringfence(how, folder, "run", "--strict", "--allow-partial", "--json", "--", "cat", "plain")
    told = json.loads(done.stdout)
    assert (told["status"], told["stdout"], told["partial"]) == ("OK", "plain text", True)
    assert told["reason"].startswith("PARTIAL_ENFORCEMENT")
    enforced = told["enforced"]
    assert not enforced["namespaces"]["applied"]
    assert BLOCKED[how][0] in enforced["namespaces"]["details"]
    assert BLOCKED[how][1] in enforced["namespaces"]["details"]
    assert all(entry["applied"] for name, entry in enforced.items() if name != "namespaces")
    assert enforced["readable_paths"]["mechanism"].startswith("Landlock")
    assert enforced["network"]["mechanism"] == "seccomp"


@pytest.mark.parametrize("how", BLOCKED)
def test_a_file_that_is_not_granted_is_refused(how: str, folder: Path) -> None:
    secret = str(folder / "secret")
    shut = ringfence(how, folder, "run", "--strict", "--allow-partial", "--", "cat", secret)
    assert "the answer" not in shut.stdout
    assert "Permission denied" in shut.stderr
    refused = ringfence(how, folder, "run", "--", "cat", secret)
    assert refused.returncode == 2 and BLOCKED[how][1] in refused.stderr and not refused.stdout, "no silent step down"
    assert refused.stderr.endswith("--isolation process\n"), "the way down is said"
    assert "the answer" in ringfence(how, folder, "run", "--isolation", "process", "--", "cat", secret).stdout


@pytest.mark.parametrize("how", BLOCKED)
def test_a_hidden_file_is_refused_and_said_not_to_be_absent(how: str, folder: Path) -> None:
    policy = folder / "policy.yaml"
    hidden = folder / "work" / "hidden"
    policy.write_text(f"isolation: strict\nallow_partial: true\nhidden_paths:\n  - {hidden}\n")
    script = "cat hidden; ls -l hidden; cat plain"
    done = ringfence(how, folder, "run", "--policy", str(policy), "--json", "--", "sh", "-c", script)
    told = json.loads(done.stdout)
    assert "the answer" not in told["stdout"]
    assert "plain text" in told["stdout"]
    assert "hidden" in told["stdout"]
    enforced = told["enforced"]
    assert enforced["hidden_paths"]["applied"] and "not absent" in enforced["hidden_paths"]["details"]
    assert not enforced["hidden_absence"]["applied"] and BLOCKED[how][1] in enforced["hidden_absence"]["details"]


@pytest.mark.parametrize("how", BLOCKED)
def test_the_probe_names_what_is_missing_and_the_fix(how: str, folder: Path) -> None:
    told = json.loads(ringfence(how, folder, "probe", "--json").stdout)
    entry = told["mechanisms"]["user namespaces"]
    problem, fix = BLOCKED[how]
    assert not entry["available"] and problem in entry["missing"] and fix in entry["fix"]
    assert not told["levels"]["strict"]["capabilities"]["namespaces"]["applied"]
    plain = ringfence(how, folder, "probe").stdout
    assert problem in plain and fix in plain


def test_on_an_open_host_the_probe_finds_them(folder: Path) -> None:
    told = json.loads(ringfence("open", folder, "probe", "--json").stdout)
    assert told["mechanisms"]["user namespaces"]["available"]


@pytest.mark.parametrize("how", BLOCKED)
def test_the_job_has_no_capability_and_is_not_the_hosts_root(how: str, folder: Path) -> None:
    script = "id -u; grep -E 'CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs' /proc/self/status"
    done = ringfence(how, folder, "run", "--strict", "--allow-partial", "--", "sh", "-c", script)
    user, *lines = done.stdout.splitlines()
    assert [int(line.split()[1], 16) for line in lines] == [0, 0, 0, 0, 1]
    # As root, and where there are other ids, it has one of its own; in a namespace of one id root is that user.
    own = os.geteuid() == 0 and how == "filter"
    assert int(user) >= namespaces.FIRST_HOST_ID if own else int(user) == os.geteuid()


def test_a_program_in_a_closed_folder_runs_for_its_user_and_is_refused_to_roots_own_id(folder: Path) -> None:
    program = folder / "closed" / "program"
    program.parent.mkdir(mode=0o700)
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    command = ("run", "--strict", "--allow-partial", "--", str(program))
    if os.geteuid() == 0:
        shut = ringfence("filter", folder, *command)
        assert (shut.returncode, shut.stdout) == (2, "")
        assert f"chmod o+x {program.parent}" in shut.stderr
        program.parent.chmod(0o711)
    assert ringfence("filter", folder, *command).stdout == "ran\n"


def lacking(policy: SandboxPolicy, *, abi: int = 7, seccomp: bool = True) -> set[str]:
    found = walls.Kernel(landlock_abi=abi, seccomp=seccomp)
    table = confined.enforcement(policy, NO_NAMESPACES, found)
    names = {lack.capability for lack in confined.lacks(policy, NO_NAMESPACES, found)}
    assert names == {name for name, entry in table.items() if not entry.applied}
    return names


PLAIN = SandboxPolicy(isolation="strict", allow_partial=True)


@pytest.mark.parametrize(
    ("host", "missing"),
    [
        ({}, {"namespaces"}),
        ({"abi": 5}, {"namespaces", "signals"}),
        ({"abi": 2}, {"namespaces", "signals", "writable_paths"}),
        ({"abi": 0}, {"namespaces", "signals", "writable_paths", "readable_paths"}),
        ({"seccomp": False}, {"namespaces", "network", "syscalls"}),
    ],
    ids=["all", "old Landlock", "older Landlock", "no Landlock", "no seccomp"],
)
def test_each_thing_that_a_kernel_lacks_is_named(host: dict[str, int], missing: set[str]) -> None:
    assert lacking(PLAIN, **host) == missing  # type: ignore[arg-type]


def test_hidden_paths_lack_absence_and_without_landlock_everything() -> None:
    policy = PLAIN.with_changes(hidden_paths=("/nowhere",))
    assert lacking(policy) == {"namespaces", "hidden_absence"}
    assert lacking(policy, abi=0) >= {"hidden_absence", "hidden_paths"}


def test_nothing_stands_by_unconfined() -> None:
    box = confined.open_box(PLAIN, NO_NAMESPACES, Traits())
    with pytest.raises(UnavailableError):
        box.prewarm(PythonJobs())
    box.close()


def test_a_grant_leaves_out_what_is_hidden_and_keeps_what_lies_beside_it(tmp_path: Path) -> None:
    for name in ("a/b/hidden/x", "a/b/beside", "a/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "link").symlink_to("b")
    granted = confinement.grants([str(tmp_path / "a")], [], (str(tmp_path / "a/b/hidden"),))
    below = {path for path, _ in granted if path.startswith(str(tmp_path))}
    assert below == {str(tmp_path / "a/b/beside"), str(tmp_path / "a/c")}
    whole = confinement.grants([str(tmp_path / "a")], [], ())
    assert (str(tmp_path / "a"), "read") in whole


def test_the_first_folder_that_others_cannot_enter_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    closed = tmp_path / "closed"
    (closed / "deep").mkdir(parents=True)
    closed.chmod(0o750)
    found = confinement.closed_to_others(str(closed / "deep"))
    assert found in (str(closed), *map(str, closed.parents))
    assert confinement.closed_to_others("/usr/bin/env") == ""
