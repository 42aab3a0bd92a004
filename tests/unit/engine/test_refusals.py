"""A limit that made a job fail is its status because the kernel says so, whoever prints what; and twice the same."""

from __future__ import annotations

import os
import sys

import pytest

import ringfence
from ringfence import Outcome, SandboxPolicy, run
from ringfence.backends import groups

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

PYTHON = (sys.executable, "-I", "-S", "-c")
SMALL = {"mem_bytes": 200 << 20, "wall_time_s": 60, "cpu_time_s": 50}
LEVELS = ("process", "strict")


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch) -> str:
    """Without a control group, whoever runs the test: an ordinary user has none here, root has."""
    monkeypatch.setattr(groups, "make", lambda policy, **_: None)
    return str(request.param)


def _python(code: str, level: str, **changes: object) -> Outcome:
    return run([*PYTHON, code], SandboxPolicy.from_dict({**SMALL, "isolation": level, **changes}))


def _told(outcome: Outcome) -> tuple[str, int, tuple[str, ...]]:
    return str(outcome.status), outcome.rc, outcome.limits_hit


SILENT = "import os\ntry:\n {0}\nexcept BaseException: pass\nos._exit(4)"
BLOCK = "x = bytearray(400 << 20)"
MANY = "x = []\n while True: x.append(bytes(1000))"
DESCRIPTORS = "while True: os.open('/dev/null', 0)"


@pytest.mark.parametrize(("code", "told"), (
    (BLOCK, ("MEM_LIMIT", 137, ("memory",))),
    ("x = []\nwhile True: x.append(bytes(1000))", ("MEM_LIMIT", 137, ("memory",))),
    (SILENT.format(BLOCK), ("MEM_LIMIT", 137, ("memory",))),
    (SILENT.format(MANY), ("MEM_LIMIT", 137, ("memory",))),
    ("import os\nwhile True: os.open('/dev/null', 0)", ("NOFILE_LIMIT", 1, ("nofile",))),
    ("x = []\nwhile True: x.append(open('/dev/null'))", ("NOFILE_LIMIT", 1, ("nofile",))),
    (SILENT.format(DESCRIPTORS), ("NOFILE_LIMIT", 4, ("nofile",))),
    ("import os\ntry: x = bytearray(400 << 20)\nexcept MemoryError: pass", ("OK", 0, ("memory",))),
    ("import time\nx = []\ntry:\n while True: x.append(b'x' * (4 << 20))\nexcept MemoryError: time.sleep(0.2)",
     ("OK", 0, ("memory",))),
    ("import os\npid = os.fork()\nif pid == 0: x = bytearray(400 << 20)\nos._exit(os.waitpid(pid, 0)[1] >> 8)",
     ("MEM_LIMIT", 137, ("memory",))),
), ids=("block", "small objects", "block in silence", "small objects in silence", "descriptors", "files",
        "descriptors in silence", "caught", "caught with all of it in use", "a child"))  # fmt: skip
def test_what_a_limit_refused_is_seen_and_not_read(code: str, told: tuple[object, ...], level: str) -> None:
    first, second = (_told(_python(code, level)) for _ in range(2))
    assert first == second == told
    if told[2] == ("memory",) and "while" not in code:  # the control: with room the same program is not refused
        assert _python(code, level, mem_bytes=1 << 30).limits_hit == ()


@pytest.mark.parametrize(("line", "code"), (
    ("curl: Resource temporarily unavailable", 7), ("MemoryError", 3), ("Too many open files", 2),
    ("No space left on device", 5), ("File too large", 6), ("out of memory", 1),
))  # fmt: skip
def test_a_program_that_only_says_it_keeps_its_own_end(line: str, code: int, level: str) -> None:
    policy = SandboxPolicy(isolation=level, file_bytes=1 << 20, disk_bytes=1 << 30)
    assert _told(run(["sh", "-c", f"echo '{line}' >&2; exit {code}"], policy)) == ("FAILED", code, ())


def test_a_thread_too_many_is_a_task_too_many_before_it_is_memory(level: str) -> None:
    code = "import _thread, time\nfor _ in range(100): _thread.start_new_thread(time.sleep, (9,))\ntime.sleep(9)"
    for _ in range(3):
        assert _told(_python(code, level, mem_bytes=512 << 20)) == ("PIDS_LIMIT", 137, ("pids",))


def test_a_file_too_large_is_told_of_a_program_that_ignores_the_signal(level: str) -> None:
    code = "with open('f', 'wb') as file:\n for _ in range(4): file.write(bytes(1 << 20))"
    assert _told(_python(code, level, file_bytes=1 << 20)) == ("FILE_SIZE_LIMIT", 1, ("file_size",))
    assert _told(_python(code, level, file_bytes=8 << 20)) == ("OK", 0, ())
    shell = run(["sh", "-c", "head -c 4000000 /dev/zero > f; exit $?"],
                SandboxPolicy(isolation=level, file_bytes=1 << 20))  # fmt: skip
    assert _told(shell) == ("FILE_SIZE_LIMIT", 153, ("file_size",))


def test_a_child_that_used_its_processor_time_is_told_though_the_job_ends_well(level: str) -> None:
    shell = f"{sys.executable} -I -S -c 'while True: pass'; exit 0"
    outcome = run(["sh", "-c", shell], SandboxPolicy(isolation=level, cpu_time_s=1, wall_time_s=60))
    assert _told(outcome) == ("OK", 0, ("cpu_time",))


@pytest.mark.parametrize("level", LEVELS)
def test_in_a_box_a_visit_is_told_what_refused_it(level: str, monkeypatch) -> None:
    monkeypatch.setattr(groups, "make", lambda policy, **_: None)
    with ringfence.open(SandboxPolicy.from_dict({**SMALL, "isolation": level})) as box:
        assert _told(box.run([*PYTHON, SILENT.format(BLOCK)])) == ("MEM_LIMIT", 137, ("memory",))
        assert _told(box.run([*PYTHON, SILENT.format(DESCRIPTORS)])) == ("NOFILE_LIMIT", 4, ("nofile",))
        assert _told(box.run(["sh", "-c", "exit 7"])) == ("FAILED", 7, ())


@pytest.mark.parametrize("level", LEVELS)
def test_in_a_pool_a_python_job_is_told_what_refused_it(level: str, monkeypatch) -> None:
    monkeypatch.setattr(groups, "make", lambda policy, **_: None)
    with ringfence.Pool(SandboxPolicy.from_dict({**SMALL, "isolation": level}), warm=1) as pool:
        assert _told(pool.run_source(BLOCK)) == ("MEM_LIMIT", 137, ("memory",))
        files = "x = []\nwhile True: x.append(open('/dev/null'))"
        assert _told(pool.run_source(files)) == ("NOFILE_LIMIT", 1, ("nofile",))
        assert _told(pool.run_source("raise SystemExit(3)")) == ("FAILED", 3, ())


INNER = """
import ringfence
from ringfence import SandboxPolicy, run
outcome = run(["sh", "-c", "chroot / true; exit 5"], SandboxPolicy(isolation="strict"))
print(outcome.status, outcome.rc, outcome.recorder["complete"])
"""


def test_a_strict_sandbox_inside_says_that_nobody_is_told_since_the_outer_one_listens() -> None:


    source = os.path.dirname(os.path.dirname(ringfence.__file__))
    policy = SandboxPolicy(pids_max=500, mem_bytes=2 << 30, wall_time_s=120, environment={"PYTHONPATH": source})
    outcome = run([sys.executable, "-c", INNER], policy)
    assert outcome.stdout == b"FAILED 5 False\n", (outcome.reason, outcome.stderr)


@pytest.mark.parametrize("size", (1, 100, 1 << 20))
def test_less_memory_than_any_program_needs_is_no_mere_crash(size: int, level: str) -> None:
    assert _told(_python("print(1)", level, mem_bytes=size)) == ("MEM_LIMIT", 137, ("memory",))
    assert _python("print(1)", level).stdout == b"1\n"
