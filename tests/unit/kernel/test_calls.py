"""A table of calls does the same whoever executes it."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import eventually

from ringfence.kernel.calls import execute, native
from ringfence.kernel.calls.described import described
from ringfence.kernel.calls.table import ANY_ERROR, CALL, HEAD, OPERATIONS, Slot, Table
from ringfence.kernel.mount import mounts, namespaces
from ringfence.kernel.proc import procfs
from ringfence.kernel.syscall_numbers import NUMBERS, architecture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
AT = -100


@pytest.fixture(params=["native", "ctypes"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of executing; a failure in one of them only says which."""
    monkeypatch.setattr(native, "_library", [native._opened()] if request.param == "native" else [None])
    if request.param == "native" and native.library() is None:
        pytest.skip("the native part is not built")
    return str(request.param)


def run(table: Table, **values: int) -> dict[str, int]:
    found = execute.execute(table.compiled(), {int(table.slot(name)): value for name, value in values.items()})
    return {name: found[int(slot)] for name, slot in table.slots.items()}


def test_what_a_call_returns_is_there_for_the_next(either: str, tmp_path: object) -> None:
    table = Table()
    place, written = table.slot("place"), table.slot("written")
    table.call("openat", AT, f"{tmp_path}/file", os.O_CREAT | os.O_RDWR, 0o600, store=place)
    table.call("write", place, b"content", 7, store=written)
    table.call("close", place)
    assert run(table)["written"] == 7
    assert Path(f"{tmp_path}/file").read_bytes() == b"content"


def test_a_call_that_fails_is_named(either: str) -> None:
    table = Table()
    table.step = "first"
    table.call("getpid")
    table.step = "second"
    table.call("openat", AT, "/nonexistent/file", os.O_RDONLY, 0)
    table.call("exit_group", 3)
    with pytest.raises(execute.CallFailed) as failed:
        run(table)
    assert (failed.value.number, failed.value.errno) == (1, errno.ENOENT)
    assert table.calls[failed.value.number].step == "second"


def test_an_allowed_error_is_no_end_and_success_skips(either: str, tmp_path: object) -> None:
    def made(name: str) -> list[str]:
        table = Table()
        first = table.call("mkdirat", AT, f"{tmp_path}/{name}", 0o700, allowed=(errno.EEXIST,))
        table.call("mkdirat", AT, f"{tmp_path}/{name}-was-there", 0o700)
        table.skip_from(first)
        table.call("mkdirat", AT, f"{tmp_path}/{name}-end", 0o700)
        run(table)
        return sorted(os.listdir(str(tmp_path)))

    os.mkdir(f"{tmp_path}/b")
    assert made("a") == ["a", "a-end", "b"]
    assert made("b") == ["a", "a-end", "b", "b-end", "b-was-there"]


def test_a_failure_that_is_allowed_can_skip_too(either: str) -> None:
    table = Table()
    first = table.call("openat", AT, "/nonexistent", 0, 0, allowed=(errno.ENOENT,))
    table.call("openat", AT, "/nonexistent", 0, 0)
    table.skip_failed_from(first)
    assert table.calls[0].skip == -1
    table.call("getpid", store=table.slot("own"))
    assert run(table)["own"] == os.getpid()


def test_slots_are_given_and_stay_where_nothing_is_stored(either: str) -> None:
    table = Table()
    table.call("openat", AT, "/nonexistent", 0, 0, store=table.slot("kept"), allowed=(errno.ENOENT,))
    table.call("getpid", store=table.slot("own"))
    found = run(table, kept=77)
    assert found == {"kept": 77, "own": os.getpid()} and run(table)["kept"] == -1


def test_numbers_go_into_blocks(either: str, tmp_path: object) -> None:
    table = Table()
    path = table.block(b"/proc/self/fd/" + bytes(24))
    words = table.block(b"told")
    vector = table.block(bytes(16))
    table.call("decimal", type(path)(path + 14), table.slot("target"))
    table.call("openat", AT, path, os.O_WRONLY, 0, store=table.slot("again"))
    table.point(vector, 0, words)
    table.point(vector, 8, 4)
    table.call("writev", table.slot("again"), vector, 1)
    table.call("close", table.slot("again"))
    with open(f"{tmp_path}/file", "wb") as file:
        run(table, target=file.fileno())
    assert Path(f"{tmp_path}/file").read_bytes() == b"told"


def test_what_the_kernel_wrote_is_held_against_what_is_wanted(either: str) -> None:
    def look(kind: int) -> dict[str, int]:
        table = Table()
        found = table.block(bytes(256))
        table.call("statx", AT, "/", 0, 1, found)
        table.call("get", type(found)(found + 28), 2, store=table.slot("mode"))
        table.call("expect", table.slot("mode"), 0o170000, kind, errno.ENOTDIR)
        return run(table)

    assert look(0o040000)["mode"] & 0o170000 == 0o040000
    with pytest.raises(execute.CallFailed) as failed:
        look(0o100000)
    assert (failed.value.number, failed.value.errno) == (2, errno.ENOTDIR)


def test_any_error_can_be_allowed(either: str) -> None:
    table = Table()
    table.call("openat", AT, "/nonexistent", 0, 0, allowed=(ANY_ERROR,))
    run(table)


@pytest.mark.parametrize("broken", [b"", b"call", bytes(24), bytes(4096)])
def test_what_is_no_table_is_refused(either: str, broken: bytes) -> None:
    with pytest.raises(execute.CallFailed) as failed:
        execute.execute(broken, {})
    assert failed.value.errno == errno.EINVAL


@pytest.mark.parametrize("cut", [1, 8, 72])
def test_a_table_that_was_cut_off_is_refused(either: str, cut: int) -> None:
    table = Table()
    table.call("exit_group", 3, "some text")
    with pytest.raises(execute.CallFailed):
        execute.execute(table.compiled()[:-cut], {})


def test_a_table_is_made_for_either_machine() -> None:
    for machine in NUMBERS:
        table = Table(machine)
        table.call("openat2", AT, "x", bytes(24), 24)
        row = CALL.unpack_from(table.compiled(), HEAD.size)
        assert row[6] == NUMBERS[machine]["openat2"]


def test_a_table_is_compiled_to_the_same_bytes_again() -> None:
    table = Table()
    table.call("openat2", table.slot("root"), "usr", bytes(24), 24, store=table.slot("target"))
    assert table.compiled() == table.compiled()


def test_a_reader_sees_arguments_by_their_names() -> None:
    table = Table()
    table.step = "show /usr"
    first = table.call("openat2", table.slot("root"), "a\x1b\"b", bytes(2), 24, store=table.slot("target"),
                       allowed=(errno.ENOENT,))  # fmt: skip
    table.call("mount", None, "x" * 3, 1 << 32)
    table.skip_from(first)
    assert [(step, call.text) for step, call in described(table)] == [
        ("show /usr", 'openat2(<root>, "a\\x1b\\"b", {0000}, 24) = target or ENOENT, then skip 1'),
        ("show /usr", 'mount(NULL, "xxx", 0x100000000)'),
    ]


def test_a_text_with_nul_is_no_argument() -> None:
    with pytest.raises(ValueError, match="NUL"):
        Table().call("chdir", "a\0b")


HARMLESS = ("getpid", "getppid", "getuid", "gettid", "sched_yield", "umask")


def _random_table(source: random.Random) -> bytes:
    """Anything but calls that do something: numbers of harmless ones, of none, and operations with wild arguments."""
    slots = source.choice([0, 1, 3])
    memory = source.randbytes(source.randrange(5) * 8) + bytes(slots * 8)
    wild = [0, 1, -1, 7, 8, len(memory), len(memory) - 1, 2**31, -(2**63), 2**63 - 1, 2**62]
    numbers = [NUMBERS[architecture()][name] for name in HARMLESS]
    numbers += [-2, -2, -3, -3, -4, -4, -5, -5, -6, -(2**31), 2**31 - 1, 5000]
    rows = []
    for _ in range(source.randrange(6)):
        store, skip = (source.choice([-1, 0, 1, 2, 3, -5, 2**31 - 1, -(2**31)]) for _ in range(2))
        rows.append(CALL.pack(*(source.choice(wild) for _ in range(6)), source.choice(numbers), store, skip,
                              *(source.choice([0, 1, 1, 2, 3, 255]) for _ in range(6)),
                              *(source.choice([0, 22, 38, 255]) for _ in range(6))))  # fmt: skip
    head = HEAD.pack(0x63616C6C, source.choice([3, 3, 3, 3, 1]), len(rows) + source.choice([0, 0, 0, 0, 1]), slots,
                     len(memory) + source.choice([0, 0, 0, 0, 1, -1, 2**40]) if memory else 0)  # fmt: skip
    return head + b"".join(rows) + memory


def _came_to(table: bytes) -> tuple[object, ...]:
    mask = os.umask(0o022)
    try:
        found = execute.execute(table, {})
        own = {os.getpid(): "pid", os.getppid(): "ppid", os.getuid(): "uid"}
        return tuple(own.get(value, value) if value >= 0 else value for value in found)
    except execute.CallFailed as failed:
        return ("failed", failed.number, failed.errno)
    finally:
        os.umask(mask)


@pytest.mark.system
def test_no_table_crashes_the_executor_and_both_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native._opened()
    if library is None:
        pytest.skip("the native part is not built")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for seed in range(6000):
                table = _random_table(random.Random(seed))
                results = []
                for each in (library, None):
                    native._library[:] = [each]
                    results.append(_came_to(table))
                if results[0] != results[1]:
                    os.write(2, f"seed {seed}: native {results[0]}, ctypes {results[1]}\n".encode())
                    os._exit(2)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


TRACED = """
import sys
from ringfence.kernel import syscalls
from ringfence.kernel.calls import execute, native
from ringfence.kernel.calls.described import described
native._library[:] = [native._opened() if sys.argv[1] == "native" else None]
assert (native.library() is not None) == (sys.argv[1] == "native")
syscalls.bind()
native.address_of(bytearray(8))
import ctypes
table = sys.stdin.buffer.read()
begin = bytes.fromhex(sys.argv[2])
execute.execute(begin, {}); execute.execute(table, {0: 99}); execute.execute(begin, {})
"""


@pytest.mark.system
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_native_and_ctypes_make_the_same_calls(tmp_path: object) -> None:
    if native._opened() is None:
        pytest.skip("the native part is not built")
    table = Table()
    table.slot("given")
    table.call("openat", AT, "/", os.O_PATH | os.O_DIRECTORY, 0, store=table.slot("root"))
    first = table.call("openat2", table.slot("root"), "usr", struct.pack("QQQ", os.O_PATH, 0, 0x16), 24,
                       store=table.slot("target"), allowed=(errno.ENOENT,))  # fmt: skip
    table.call("mkdirat", table.slot("root"), "usr", 0o755)
    table.skip_from(first)
    path = table.block(b"/proc/self/fd/" + bytes(24))
    table.call("decimal", type(path)(path + 14), table.slot("target"))
    table.call("readlinkat", AT, path, table.block(bytes(64)), 64)
    table.call("close", table.slot("given"), allowed=(errno.EBADF,))
    table.call("prctl", 38, 1, 0, 0, 0)
    table.call("setrlimit", 4, struct.pack("QQ", 1, 1))
    table.call("close", table.slot("target"))
    mark = Table()
    mark.call("getpgid", 0)
    seen = {}
    for way in ("native", "ctypes"):
        output = f"{tmp_path}/{way}"
        subprocess.run(["strace", "-o", output, sys.executable, "-c", TRACED, way, mark.compiled().hex()],
                       input=table.compiled(), check=True, timeout=60)  # fmt: skip
        lines = Path(output).read_text().splitlines()
        marks = [number for number, line in enumerate(lines) if line.startswith("getpgid(")]
        seen[way] = [line for line in lines[marks[0] + 1 : marks[1]]
                     if not line.startswith(("brk", "mmap", "munmap", "rt_sig", "futex"))]  # fmt: skip
    assert seen["native"] == seen["ctypes"]
    assert len(seen["native"]) == len(table.calls) - 2, seen["native"]


def test_a_library_of_another_version_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION", 99)
    assert native._opened() is None


def test_a_library_that_is_not_there_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FOLDER", "/nonexistent")
    assert native._opened() is None


def test_the_operations_have_numbers_that_no_call_has() -> None:
    assert all(number < 0 for number in OPERATIONS.values())
    assert Slot(3) == 3 and signal.SIGCHLD == 17


@pytest.mark.system
def test_a_mapping_of_ids_is_the_same_either_way_and_leaves_no_process(either: str, tmp_path: Path) -> None:
    identity = namespaces.host_id(os.getpid(), 7)
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            namespaces.mapping_namespace(0, 0, identity)
        return
    (tmp_path / "file").touch()
    before = {*procfs.children(os.getpid())}
    tree, idmap = mounts.clone(str(tmp_path)), namespaces.mapping_namespace(0, 0, identity)
    try:
        mounts.set_attributes(tree, mounts.READ_ONLY, idmap=idmap)
        found = os.stat("file", dir_fd=tree)
        assert (found.st_uid, found.st_gid) == (identity, identity)
    finally:
        os.close(idmap)
        os.close(tree)
    assert {*procfs.children(os.getpid())} <= before


@pytest.mark.system
def test_a_clone_that_does_nothing_ends_with_its_parent() -> None:
    library = native.library()
    if library is None:
        pytest.skip("the native part is not built")
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.write(writer, b"%d" % library.idle_clone(0))
        signal.pause()
    child = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert procfs.stat(child) is not None, "control: it lives as long as its parent"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    eventually(lambda: (row := procfs.stat(child)) is None or row.zombie)
