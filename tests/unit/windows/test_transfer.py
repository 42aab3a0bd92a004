"""Files of a box on Windows: the program that carries them, and the names that it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.windows.fake_windows import FakeWindows
from tests.unit.windows.test_visit_by_hand import ASKED, WINDOWS

from ringfence.backends.on_windows import transfer
from ringfence.backends.on_windows.process import WindowsBackend, WindowsBox
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.roles.file_transfer import NO_REGULAR_FILE

pytestmark = pytest.mark.system


def _carried(folder: Path, *words: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    command = [sys.executable, "-I", "-S", transfer.__file__, *words]
    done = subprocess.run(command, input=given, cwd=folder, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_file_comes_and_goes(tmp_path: Path) -> None:
    assert _carried(tmp_path, "put file", "a/b.txt", given=b"one\r\n\x1atwo" * 300_000) == (0, b"", b"")
    assert _carried(tmp_path, "get file", "a/b.txt", "7") == (0, b"one\r\n\x1at", b"")
    assert _carried(tmp_path, "put file", "a/b.txt", given=b"") == (0, b"", b"")
    assert _carried(tmp_path, "get file", "a/b.txt", "7") == (0, b"", b"")
    assert os.listdir(tmp_path / "a") == ["b.txt"]


def test_why_it_fails_is_said(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert _carried(tmp_path, "get file", "none", "9")[::2] == (2, b"No such file or directory")
    for name in ("folder", "link"):
        assert _carried(tmp_path, "get file", name, "9") == (NO_REGULAR_FILE, b"", b"it is not a regular file")
    assert _carried(tmp_path, "put file", "folder", given=b"x")[0] > 0 and os.listdir(tmp_path / "folder") == []


def _box(patch: pytest.MonkeyPatch) -> WindowsBox:
    FakeWindows().install(patch, WINDOWS)
    return WindowsBackend().open(SandboxPolicy.from_dict(ASKED))


@pytest.mark.parametrize("name", [
    "a.txt:hidden", "NUL", "sub/com1.log", "a.", "..\\x", "\\\\.\\pipe\\x", "C:x", "\\x", "C:\\a\\..\\b", "C:\\CON",
])  # fmt: skip
def test_a_name_that_is_something_else_reaches_no_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    box = _box(monkeypatch)
    monkeypatch.setattr(box, "start", lambda *_: pytest.fail("it was started"))
    with pytest.raises(UsageError):
        box.start_steps([("put file", name)], ())


@pytest.mark.parametrize(("name", "given"), [("a/b.txt", "a/b.txt"), ("c:/x//y", "C:\\x\\y")])
def test_a_transfer_is_a_job_of_the_box(name: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    box, jobs = _box(monkeypatch), []
    monkeypatch.setattr(box, "start", lambda job, streams: jobs.append(job))
    box.start_steps([("get file", name, 12)], ())
    (job,) = jobs
    assert isinstance(job, Job) and job.argv[-3:] == ("get file", given, "12") and job.argv[0] == sys.executable
