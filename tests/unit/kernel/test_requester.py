"""Who asked: read from /proc without trusting what stands there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ringfence.kernel.proc import requester
from ringfence.kernel.proc.requester import CALLS, identify
from ringfence.kernel.syscall_numbers import NUMBERS

pytestmark = [
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]


@pytest.mark.system
def test_a_process_is_named_with_its_arguments_and_start_time() -> None:
    process = subprocess.Popen(["/bin/sleep", "60"])
    try:
        time.sleep(0.1)
        found = identify(process.pid)
        assert (found.pid, found.comm, found.argv) == (process.pid, "sleep", ("/bin/sleep", "60"))
        assert found.start_ticks > 0
    finally:
        process.kill()
        process.wait()


def test_a_thread_is_reported_as_its_process() -> None:
    found: list[requester.Requester] = []
    thread = threading.Thread(target=lambda: found.append(identify(threading.get_native_id())))
    thread.start()
    thread.join()
    assert found[0].pid == os.getpid()


@pytest.mark.system
def test_a_call_that_waits_is_named_with_the_path_that_it_was_given(tmp_path: Path) -> None:
    fifo = tmp_path / "wait-é-here"
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-c", f"open({os.fspath(fifo)!r}, 'wb')"])
    try:
        deadline = time.monotonic() + 10
        found = identify(process.pid)
        while found.syscall != "openat" and time.monotonic() < deadline:
            time.sleep(0.05)
            found = identify(process.pid)
        assert (found.syscall, found.asked, found.writes) == ("openat", (os.fspath(fifo),), True)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1])
def test_a_process_that_is_not_there_is_nobody(pid: int) -> None:
    found = identify(pid)
    assert (found.comm, found.argv, found.syscall, found.start_ticks) == ("", (), "", 0)


@pytest.mark.system
def test_a_dead_process_is_not_confused_with_the_next_of_its_number() -> None:
    process = subprocess.Popen(["/bin/sleep", "60"])
    folder = os.open(f"/proc/{process.pid}", os.O_RDONLY | os.O_DIRECTORY)
    process.kill()
    process.wait()
    try:
        assert requester._describe(folder, 7) == requester.Requester(pid=7)
    finally:
        os.close(folder)


def test_a_name_with_brackets_and_newlines_does_not_move_the_start_time() -> None:
    fields = b" S " + b" ".join(b"%d" % number for number in range(4, 60))
    assert requester._parse_stat(b"12 (a) S 1 (\n) x)" + fields) == ("a) S 1 (\n) x", 22)
    assert requester._parse_stat(b"") == ("", 0)


def test_arguments_are_bounded_and_need_not_be_text() -> None:
    assert requester._parse_argv(b"a\0\xff\0\0") == ("a", "\udcff", "")
    assert len(requester._parse_argv(b"x\0" * 5000)) == requester.MAX_ARGS
    assert requester._parse_argv(b"") == ()


@pytest.mark.system
def test_a_million_arguments_are_read_to_the_bound_only() -> None:
    process = subprocess.Popen(["/bin/sleep", "60", *["x" * 1000] * 100], stderr=subprocess.DEVNULL)
    try:
        found = identify(process.pid)
        assert sum(map(len, found.argv)) <= requester.MAX_ARGV_BYTES
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_two_calls_share_a_number(machine: str) -> None:
    numbers = [getattr(call, machine) for call in CALLS if getattr(call, machine) >= 0]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_are_those_of_the_filters(machine: str) -> None:
    ours = {call.name: getattr(call, machine) for call in CALLS if getattr(call, machine) >= 0}
    assert ours == {name: NUMBERS[machine].get(name) for name in ours}
    assert not [call.name for call in CALLS if getattr(call, machine) < 0 and call.name in NUMBERS[machine]]


def test_the_numbers_of_this_machine_are_those_of_its_kernel_headers() -> None:
    machine = "aarch64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    headers = ("/usr/include/asm-generic/unistd.h", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    path = Path(headers[machine == "x86_64"])
    if not path.exists():
        pytest.skip("kernel headers are not installed")
    lines = [line.split() for line in path.read_text().splitlines()]
    defined = {words[1]: words[2] for words in lines if len(words) > 2 and words[1].startswith("__NR")}
    known = {name.removeprefix("__NR_").removeprefix("__NR3264_"): number for name, number in defined.items()}
    ours = {call.name: getattr(call, machine) for call in CALLS if getattr(call, machine) >= 0}
    if machine == "aarch64":
        known["newfstatat"] = known["fstatat"]
    theirs = {name: int(known[name]) for name in ours if known.get(name, "").isdigit()}
    assert theirs == {name: ours[name] for name in theirs}
    assert len(theirs) > 30


# What /proc shows of a box: number of a process, its name, its parent, its filters.
_BOX = {
    1: ("init", 0, 0), 2: ("visit 1", 1, 0), 3: ("sh", 2, 1), 4: ("visit 9", 3, 1),
    5: ("visit 2", 1, 0), 6: ("x", 5, 1),
    # Their reaper has gone, and they call themselves what they like.
    7: ("visit 2", 1, 1), 8: ("child", 7, 1), 9: ("visit 2", 1, 2),
    10: ("restored", 1, 0), 11: ("visit x", 1, 0), 12: ("lost", 99, 1), 13: ("round", 13, 1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("asks", "visit"), [(3, 1), (4, 1), (6, 2), (7, 0), (8, 0), (9, 0), (10, 0), (11, 0), (12, 0), (13, 0), (77, 0)]
)
def test_the_visit_is_known_by_the_reaper_that_a_process_is_below(asks: int, visit: int, tmp_path: Path) -> None:
    for number, (name, parent, filters) in _BOX.items():
        (tmp_path / str(number)).mkdir()
        status = f"Name:\t{name}\nPPid:\t{parent}\nSeccomp:\t2\nSeccomp_filters:\t{filters}\n"
        (tmp_path / str(number) / "status").write_text(status)
    proc = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert requester.visit_of(asks, proc) == visit
    finally:
        os.close(proc)
