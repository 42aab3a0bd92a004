"""Files without a name are found wherever a process holds them; what can't be told of them is said to be unknown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.escape.raw_calls import WITHOUT_ITS_FIRST_THREAD
from tests.patience import eventually

from ringfence.kernel.proc import procfs
from ringfence.kernel.proc.held_files import HeldFiles, _devices_in_memory

pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere"),
]
MIB = 1 << 20
_START = (
    "import ctypes, os, socket, sys, threading, time\nlibc = ctypes.CDLL(None)\n"
    "def unnamed(name='f'):\n"
    " file = os.open(name, os.O_CREAT | os.O_RDWR); os.write(file, os.urandom(1 << 20)); os.unlink(name); return file\n"
    "def map_it(file): libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file, ctypes.c_long(0))\n"
    "def ready(): print(flush=True); time.sleep(60)\n"
)
_AS_IF_MAPPED = "file = unnamed(); map_it(file); os.close(file); ready()\n"
_IN_FLIGHT = (
    "a, b = socket.socketpair(); file = unnamed()\nsocket.send_fds(a, [b'x'], [file]); os.close(file); ready()\n"
)
_NOT_ACCEPTED = (
    "door = socket.socket(socket.AF_UNIX); door.bind('door'); door.listen()\n"
    "visitor = socket.socket(socket.AF_UNIX); visitor.connect('door'); file = unnamed()\n"
    "socket.send_fds(visitor, [b'x'], [file]); os.close(file); ready()\n"
)
_OTHER_TABLE = (
    "file = unnamed(); apart = threading.Event()\n"
    "def own_table(): assert libc.unshare(0x400) == 0; apart.set(); time.sleep(60)\n"
    "threading.Thread(target=own_table, daemon=True).start(); apart.wait(); os.close(file); ready()\n"
)


@contextmanager
def running(program: str, folder: Path) -> Iterator[int]:
    command = [sys.executable, "-c", _START + WITHOUT_ITS_FIRST_THREAD + program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=folder) as child:
        try:
            assert child.stdout is not None and child.stdout.readline()
            row = procfs.stat(child.pid)
            assert row is not None
            yield row.asked
        finally:
            child.kill()


def held_by(*asked: int) -> tuple[int, bool]:
    found = HeldFiles()
    for _ in found.pieces(asked):
        pass
    return found.bytes, found.has_more


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    with open("/proc/self/mountinfo", "rb") as file:
        in_memory = set(_devices_in_memory(file.read()))
    if tmp_path.stat().st_dev in in_memory:
        pytest.skip("temporary directories lie in memory here")
    return tmp_path


@pytest.mark.parametrize(
    "program",
    [
        "file = unnamed(); ready()\n",
        "file = unnamed(); twin = os.dup(file); map_it(file); ready()\n",
        _OTHER_TABLE,
        "file = unnamed(); go_on_without_first(ready)\n",
    ],
    ids=["a descriptor", "a descriptor and a mapping", "the table of another thread", "no first thread any more"],
)
def test_what_a_descriptor_holds_is_counted_once(program: str, on_disk: Path) -> None:
    with running(program, on_disk) as asked:
        assert held_by(asked) == (MIB, False)
        assert held_by(asked, asked) == (MIB, False)


def test_what_only_a_mapping_holds_is_counted_by_root_and_else_known_to_be_there(on_disk: Path) -> None:
    with running(_AS_IF_MAPPED, on_disk) as asked:
        assert held_by(asked) == ((MIB, False) if os.geteuid() == 0 else (0, True))


def test_a_program_is_counted_that_nothing_holds_but_that_it_runs(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can unmap all of itself; here nobody looks at mappings."""
    own = on_disk / "sleep"
    own.write_bytes(Path("/bin/sleep").read_bytes())
    own.chmod(0o755)
    with subprocess.Popen([str(own), "60"]) as child:
        try:
            eventually(lambda: os.readlink(f"/proc/{child.pid}/exe") == str(own))
            room = own.stat().st_blocks * 512
            monkeypatch.setattr(HeldFiles, "_mappings", lambda self, asked: iter(()))
            assert held_by(child.pid) == (0, False), "the control: it has a name"
            own.unlink()
            assert held_by(child.pid, child.pid) == (room, False)
        finally:
            child.kill()


@pytest.mark.parametrize("program", [_IN_FLIGHT, _NOT_ACCEPTED], ids=["in a queue", "before it is accepted"])
def test_what_is_under_way_is_known_to_be_there(program: str, on_disk: Path) -> None:
    with running(program, on_disk) as asked:
        assert held_by(asked) == (0, True)


@pytest.mark.parametrize(
    "program",
    [
        "file = os.memfd_create('m'); os.write(file, bytes(1 << 20)); map_it(file); os.close(file); ready()\n",
        "file = unnamed('/dev/shm/held-' + str(os.getpid())); map_it(file); ready()\n",
        "file = os.open('named', os.O_CREAT | os.O_RDWR); os.write(file, bytes(1 << 20)); map_it(file); ready()\n",
        "a, b = socket.socketpair(); a.send(b'x'); ready()\n",
    ],
    ids=["a file in memory", "shared memory", "a file with a name", "a message without files"],
)
def test_what_takes_no_room_that_nobody_sees_is_no_matter(program: str, on_disk: Path) -> None:
    with running(program, on_disk) as asked:
        assert held_by(asked) == (0, False)


def test_processes_that_are_gone_hold_nothing() -> None:
    assert held_by(1 << 22) == (0, False)
