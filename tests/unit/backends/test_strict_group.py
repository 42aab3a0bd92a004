"""Bytes a second under STRICT, on whatever control groups this machine has; cgroup v2 is tried in tests/hosts."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringfence import IsolationLevel, Job, Outcome, SandboxPolicy, Status, run
from ringfence.backends.strict import StrictBackend
from ringfence.engine.run import refuse
from ringfence.errors import UnavailableError
from ringfence.kernel.cgroup import group as cgroups

pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's"),
]
MIB = 1 << 20
READ = (
    "import mmap, os, time\nstart, fd = time.monotonic(), os.open('data', os.O_RDONLY | os.O_DIRECT)\n"
    "buffer, done = mmap.mmap(-1, 1 << 17), 0\nwhile done < 4 << 20: done += os.preadv(fd, [buffer], done)\n"
    "print(time.monotonic() - start)"
)


@pytest.fixture
def workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="workspace-", dir="/var/tmp") as name:
        with (Path(name) / "data").open("wb") as file:
            file.write(os.urandom(4 * MIB))
            os.fsync(file.fileno())
        yield Path(name)


def _run(folder: Path, source: str, **policy: object) -> Outcome:
    job = Job(argv=(sys.executable, "-I", "-S", "-c", source), cwd=str(folder))
    return run(job, SandboxPolicy(isolation=IsolationLevel.STRICT, wall_time_s=120, **policy))  # type: ignore[arg-type]


def _missing(folder: Path) -> tuple[str, str] | None:
    place = os.environ.get("TMPDIR") or "/tmp"
    return cgroups.probe().missing("io") or cgroups.no_disk((place, str(folder)))


def test_reads_are_slowed_to_the_limit_or_the_policy_is_refused(workspace: Path) -> None:
    missing = _missing(workspace)
    if missing:
        with pytest.raises(UnavailableError) as refused:
            _run(workspace, READ, io_bytes_per_s=MIB)
        assert missing[0] in str(refused.value)
        assert missing[1] in refused.value.hint
        return
    slow, free = _run(workspace, READ, io_bytes_per_s=MIB), _run(workspace, READ)
    assert slow.status is Status.OK, slow.stderr
    assert slow.enforced["io"].mechanism.startswith("cgroup v")
    assert float(slow.stdout) > 3, "four mebibytes at one a second, and a first burst"
    assert float(free.stdout) < float(slow.stdout) / 2


def test_what_a_refusal_says_is_a_sentence_with_one_fix_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(missing=lambda capability: ("/x is not this user's", f"mend {capability}"))
    monkeypatch.setattr(cgroups, "probe", lambda: found)
    with pytest.raises(UnavailableError) as refused:
        refuse(StrictBackend(), SandboxPolicy(isolation=IsolationLevel.STRICT, cpu_share=1, io_bytes_per_s=MIB))
    said = "cpu_share (--cpu-share) needs a control group (/x is not this user's); io_bytes_per_s (--io) needs"
    assert said in str(refused.value)
    assert refused.value.fixes[:2] == ("cpu_share: mend cpu_share", "io_bytes_per_s: mend io")
    assert "--allow-partial" in refused.value.fixes[-1]


def test_a_private_folder_in_memory_is_refused(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        monkeypatch.setenv("TMPDIR", memory)
        with pytest.raises(UnavailableError) as refused:
            _run(workspace, "pass", io_bytes_per_s=MIB)
        partial = _run(workspace, "pass", io_bytes_per_s=MIB, allow_partial=True)
    assert refused.value.missing == ("io",)
    assert not partial.enforced["io"].applied
    assert partial.reason.startswith("PARTIAL_ENFORCEMENT")


def test_a_workspace_in_memory_is_refused_or_said(workspace: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        with pytest.raises(UnavailableError) as refused:
            _run(Path(memory), "pass", io_bytes_per_s=MIB)
        partial = _run(Path(memory), "pass", io_bytes_per_s=MIB, allow_partial=True)
    assert refused.value.missing == ("io",)
    assert not partial.enforced["io"].applied
    assert partial.reason.startswith("PARTIAL_ENFORCEMENT")
    assert "io" not in _run(workspace, "pass").enforced, "what nobody asked for is not in the table"
