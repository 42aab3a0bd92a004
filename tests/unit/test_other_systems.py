"""Every module of the package imports on Windows and macOS, where much that Linux has is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.other_systems import SYSTEMS, modules

from ringfence.macos.seatbelt import real

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [pytest.mark.system, pytest.mark.unmeasured]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_module_imports(system: str) -> None:
    done = _run("-m", "tests.other_systems", system)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_both_ways_to_set_up_compile_the_package() -> None:
    shell = (ROOT / "make.cmd").read_bytes()
    assert b"%PYTHON% -m compileall -q src\\ringfence" in shell
    assert "-m compileall -q src/ringfence" in (ROOT / "Makefile").read_text()
    assert shell.count(b"\n") == shell.count(b"\r\n")


MISSING = {
    "windows": ("import fcntl", "os.O_NOFOLLOW", "os.fork", "select.poll", "signal.SIGKILL", "socket.AF_UNIX",
                "from _signal import SIGSTOP", "os.WEXITED"),
    "macos": ("os.pidfd_open", "os.SPLICE_F_MOVE", "select.epoll", "socket.SO_PEERCRED", "signal.pidfd_send_signal"),
}  # fmt: skip
_TRY = """
import os, select, signal, socket
from tests.other_systems import SYSTEMS
SYSTEMS[{system!r}]()
for line in {lines!r}:
    try:
        exec(line)
    except (ImportError, AttributeError):
        continue
    print(line)
"""


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_a_system_lacks_is_lacking(system: str) -> None:
    """Else the test above shows nothing."""
    done = _run("-c", _TRY.format(system=system, lines=MISSING[system]))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_all_modules_are_tried() -> None:
    found = set(modules())
    assert {"ringfence", "ringfence.backends.process", "ringfence.egress.relay", "ringfence.container.images"} <= found
    assert len(found) > 400


def test_the_process_level_runs_without_anything_of_linux() -> None:
    """As on macOS: no module of ``kernel``, no /proc, no pidfd, no epoll."""
    done = _run("-m", "tests.other_systems", "run")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {name: (outcome["status"], outcome["rc"]) for name, outcome in told.items()} == {
        "ok": ("OK", 0),
        "failed": ("FAILED", 3),
        "endless": ("TIMEOUT", 124),
        "busy": ("CPU_LIMIT", 152),
        "large": ("MEM_LIMIT", 137),
        "many": ("PIDS_LIMIT", 137),
        "files": ("FAILED", 1),  # nobody saw how many descriptors it had
        "loud": ("OK", 0),
    }
    assert told["loud"]["hit"] == ["output"] and told["loud"]["stdout"] < 1100
    assert told["ok"]["by"] == {
        "wall_time": ["deadline"], "cpu_time": ["rlimit", "watchdog"], "memory": ["watchdog"], "pids": ["watchdog"],
        "nofile": ["rlimit"], "output": ["pipe_reader"],
    }  # fmt: skip


Told = tuple[Path, dict[str, Any]]
STAND_IN = ROOT / "tests" / "programs" / "sandbox_exec.py"


@pytest.fixture(scope="module")
def behind_seatbelt(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("seatbelt")
    for name in ("holds", "takes", "refuses"):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{STAND_IN.read_text()}")
        (folder / name).chmod(0o755)
    for name in ("out", "work"):
        (folder / name).mkdir()
    (folder / "secret").write_text("secret")
    done = _run("-m", "tests.other_systems", "seatbelt", str(folder))
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_a_job_on_macos_goes_behind_a_seatbelt_profile(behind_seatbelt: Told) -> None:
    """``sandbox-exec`` is a stand-in that notes what it is given: that a profile holds, only a Mac can show."""
    folder, told = behind_seatbelt
    found = told["holds"]
    assert (found["status"], found["stdout"]) == ("OK", "a b\n")
    held = {name for name, by in found["by"].items() if by == ["seatbelt"]}
    assert held == {"network", "writable_paths", "hidden_paths"}
    *_, job, put, get = [json.loads(line) for line in (folder / "holds.json").read_text().splitlines()]
    assert job[0] == "-p" and job[2].endswith("/sh") and job[3:] == ["-c", 'echo "$1"', "sh", "a b"]
    place = real(str(folder))
    for noted in (job, put, get):
        rules = noted[1].splitlines()
        assert rules[-1].startswith("(deny file* process-exec* ")
        assert f'(subpath "{place}/secret")' in rules[-1], "the name that its directory lists"
        assert "(deny network*)" in rules and "(deny file-write*)" in rules
        written = next(rule for rule in rules if rule.startswith("(allow file-write* ") and "/out" in rule)
        assert f'(subpath "{place}/out")' in written
    assert f'(subpath "{place}/work")' in job[1] and f'(subpath "{place}/work")' not in put[1]
    assert "No such file" in str(found["no program"])


def test_files_of_a_box_come_and_go_behind_the_same_profile(behind_seatbelt: Told) -> None:
    folder, told = behind_seatbelt
    assert told["holds"]["got"] == "content"
    *_, put, get = [json.loads(line) for line in (folder / "holds.json").read_text().splitlines()]
    assert put[-2:] == ["put file", "a/b"] and get[-3:-1] == ["get file", "a/b"]


@pytest.mark.parametrize(("name", "why"), [
    ("takes", "all the same"), ("refuses", "unbound variable"), ("absent", "is not there"),
])  # fmt: skip
def test_a_seatbelt_that_does_not_hold_is_not_used(name: str, why: str, behind_seatbelt: Told) -> None:
    found = behind_seatbelt[1][name]
    assert found["missing"] == ["hidden_paths", "network", "writable_paths"] and why in str(found["message"])
    assert found["plain"] == "plain\n"
    assert not {"hidden_paths", "network", "writable_paths"} & set(found["applied"])
