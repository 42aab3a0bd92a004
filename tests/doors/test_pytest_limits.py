"""A limit that made tests fail is the status of a pytest run, whoever prints what and whatever plug-ins there are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringfence import SandboxPolicy, run_pytests_v2
from ringfence.model.outcome import Enforcement, Outcome, Status
from ringfence.pytest_runner.refusals import with_refusals

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

NO_HYPOTHESIS = ["-p", "no:hypothesispytest", "-p", "no:_hypothesis_pytestplugin"]
MEMORY = "blocks = []\ndef test_a():\n while True: blocks.append(bytearray(16 << 20))\n"
FILE = "def test_a():\n with open('big', 'wb') as f: f.write(bytes(8 << 20))\n"
DISK = (
    "import os\ndef test_a():\n"
    " with open('big', 'wb') as f:\n"
    "  for _ in range(200):\n   f.write(os.urandom(1 << 20))\n   f.flush()\n   os.fsync(f.fileno())\n"
)
FILES = "import os\nkept = []\ndef test_a():\n while True: kept.append(os.open('/dev/null', os.O_RDONLY))\n"
THREADS = (
    "import threading, time\ndef test_a():\n"
    " for _ in range(200):\n  threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n time.sleep(20)\n"
)
FORKS = (
    "import os, time\ndef test_a():\n for _ in range(200):\n  if os.fork() == 0:\n   time.sleep(20)\n   os._exit(0)\n"
    " time.sleep(20)\n"
)
LIMITS: dict[str, tuple[str, dict[str, int], str, int | None]] = {
    "memory": (MEMORY, {"mem_bytes": 256 << 20}, "MEM_LIMIT", 137),
    "file_size": (FILE, {"file_bytes": 1 << 20}, "FILE_SIZE_LIMIT", 1),
    "nofile": (FILES, {"nofile": 64}, "NOFILE_LIMIT", 1),
    # pytest's own code where a group refused it, 137 where there is none.
    "pids": (THREADS, {"pids_max": 16, "mem_bytes": 8 << 30}, "PIDS_LIMIT", None),
    "pids of processes": (FORKS, {"pids_max": 16}, "PIDS_LIMIT", None),
    "disk": (DISK, {"disk_bytes": 16 << 20}, "DISK_LIMIT", None),
}


def _run(folder: Path, body: str, policy: SandboxPolicy, arguments: list[str]) -> dict[str, object]:
    (folder / "test_it.py").write_text(body)
    return dict(run_pytests_v2(["test_it.py"], policy, arguments=arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("level", ["process", "strict"])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_fails_a_test_is_the_status_of_the_run(folder: Path, limit: str, level: str) -> None:
    body, change, status, rc = LIMITS[limit]
    policy = SandboxPolicy.from_dict({"isolation": level, "wall_time_s": 120, **change})
    results = [_run(folder, body, policy, arguments) for arguments in ([], NO_HYPOTHESIS)]
    ends = {(result["status"], result["rc"], tuple(result["limits_hit"])) for result in results}
    assert ends == {(status, rc or results[0]["rc"] or "not 0", (limit.split()[0],))}, results


@pytest.mark.parametrize("arguments", [["-n", "1"], []], ids=["xdist", "alone"])
@pytest.mark.parametrize("body", [
    FILES,
    "import os\nkept = []\nwhile True: kept.append(os.open('/dev/null', os.O_RDONLY))\n",
    "import os, unittest\nkept = []\nclass TestIt(unittest.TestCase):\n def test_a(self):\n  with self.subTest():\n"
    "   while True: kept.append(os.open('/dev/null', os.O_RDONLY))\n",
    "import os\nkept = []\ndef test_a():\n try:\n  while True: kept.append(os.open('/dev/null', os.O_RDONLY))\n"
    " except OSError as error: raise ValueError('no more') from error\n",
], ids=["test", "module", "subtest", "cause"])  # fmt: skip
def test_it_is_told_wherever_it_is_raised(folder: Path, body: str, arguments: list[str]) -> None:
    policy = SandboxPolicy(nofile=64, pids_max=64, mem_bytes=2 << 30, wall_time_s=120)
    result = _run(folder, body, policy, [*arguments, *NO_HYPOTHESIS])
    # The code of a module that can't be imported differs with xdist and is pytest's own.
    assert (result["status"], result["limits_hit"]) == ("NOFILE_LIMIT", ["nofile"]), result


@pytest.mark.parametrize(("body", "status"), [
    ("import socket\ndef test_a():\n a, b = socket.socketpair()\n a.setblocking(False)\n a.recv(1)\n", "FAILED"),
    ("import threading\ndef test_a():\n t = threading.Thread(target=int)\n t.start()\n t.start()\n", "FAILED"),
    ("import os\ndef test_a():\n os.waitpid(os.fork() or os._exit(0), 0)\n raise RuntimeError('mine')\n", "FAILED"),
    ("def test_a(): raise RuntimeError(\"can't start new thread\")\n", "FAILED"),
    ("def test_a():\n print('MemoryError')\n assert False\n", "FAILED"),
    ("def test_a(): raise OSError(27, 'File too large')\n", "FAILED"),
    ("import pytest\n@pytest.mark.xfail\ndef test_a(): raise MemoryError\n", "OK"),
    ("import pytest\n@pytest.mark.xfail\ndef test_a(): raise MemoryError\ndef test_b(): assert False\n", "FAILED"),
], ids=["socket", "twice", "after a fork", "text", "printed", "not in force", "expected", "another"])  # fmt: skip
def test_other_failures_stay_what_they_are(folder: Path, body: str, status: str) -> None:
    result = _run(folder, body, SandboxPolicy(wall_time_s=120), ["-s"])
    assert (result["status"], result["rc"]) == (status, int(status == "FAILED")), result
    assert result["limits_hit"] == (["memory"] if "raise MemoryError" in body else [])


def _ended(status: Status, rc: int, **applied: bool) -> Outcome:
    enforced = {
        name: Enforcement(requested=1, applied=held, mechanism="some", details="") for name, held in applied.items()
    }
    return Outcome(status=status, rc=rc, reason="", argv=(sys.executable,), run_id="", enforced=enforced)


def test_the_word_of_a_guest_makes_no_success_and_hides_no_other_end() -> None:
    for status, rc in ((Status.OK, 0), (Status.TIMEOUT, 124), (Status.CRASHED, 139)):
        outcome = with_refusals(_ended(status, rc, memory=True), {"MemoryError"}, {"MemoryError"})
        assert (outcome.status, outcome.rc, outcome.limits_hit) == (status, rc, ("memory",))
    unheld = with_refusals(_ended(Status.FAILED, 1, memory=False), {"MemoryError"}, {"MemoryError"})
    assert (unheld.status, unheld.rc, unheld.limits_hit) == (Status.FAILED, 1, ())


def test_the_same_limit_decides_whatever_was_told_first() -> None:
    told = {"EMFILE", "ENOSPC", "EAGAIN"}
    outcome = with_refusals(_ended(Status.FAILED, 1, nofile=True, disk=True, pids=True), told, told)
    assert (outcome.status, outcome.rc, outcome.limits_hit) == (Status.PIDS_LIMIT, 137, ("pids", "disk", "nofile"))
