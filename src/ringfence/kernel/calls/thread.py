"""What a split needs to know of the process that forks sandboxes: found out once, and true in all its forks.

The C library keeps the number of its thread, a list of locks and a restartable sequence, and tells the kernel where. A
child that takes over its parent's memory must tell the kernel anew, so the addresses are needed.
"""

from __future__ import annotations

import os

from ringfence.kernel import syscalls
from ringfence.kernel.calls import native
from ringfence.kernel.syscall_numbers import AARCH64, X86_64, architecture

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

_GET_TID_ADDRESS = 40
_SEQUENCE_BYTES = (32, 64)
_SIGNATURE = {X86_64: 0x53053053, AARCH64: 0xD428BC00}
_UNREGISTER = 1
_FLOOR = 40
"""Above every number that a job's descriptors get."""
_MEMFD_CLOEXEC, _MEMFD_SEALING, _MEMFD_EXEC = 1, 2, 0x10
_ADD_SEALS, _ALL_SEALS = 1033, 0xF


def facts() -> dict[str, int]:
    """Return the slots of a table that concern this thread and the memory of this process."""
    return {**_shown_memory(), **_of_thread()}


def can_split() -> bool:
    """Whether the thread's number can be put right in a child that shares its memory."""
    return native.library() is not None and "tid" in _of_thread()


def _of_thread() -> dict[str, int]:
    word = bytearray(8)
    try:
        syscalls.prctl(_GET_TID_ADDRESS, native.address_of(word))
    except OSError:  # a kernel without checkpoint and restore
        return {}
    return {"tid": int.from_bytes(word, "little"), "robust list": _robust_list(), **_sequence()}


def _robust_list() -> int:
    head, length = bytearray(8), bytearray(8)
    try:
        syscalls.call("get_robust_list", 0, native.address_of(head), native.address_of(length))
    except OSError:
        return 0
    return int.from_bytes(head, "little")


def _sequence() -> dict[str, int]:
    """Where the restartable sequence is; nothing if the C library has none, or one of a size that is not known here."""
    library = native.library()
    offset = _variable("__rseq_offset")
    if library is None or offset is None or not _variable("__rseq_size"):
        return {}
    place, signature = library.thread_pointer() + offset, _SIGNATURE[architecture()]
    for length in _SEQUENCE_BYTES:
        try:
            syscalls.call("rseq", place, length, _UNREGISTER, signature)
        except OSError:
            continue
        syscalls.call("rseq", place, length, 0, signature)
        return {"rseq": place, "rseq bytes": length, "rseq signature": signature}
    return {}


def _variable(name: str) -> int | None:
    import ctypes

    kind: type[ctypes.c_ssize_t] = ctypes.c_ssize_t if name == "__rseq_offset" else ctypes.c_uint  # type: ignore[assignment]
    try:
        return kind.in_dll(syscalls.libc(), name).value
    except ValueError:
        return None


def _shown_memory() -> dict[str, int]:
    """Where the arguments and the environment that /proc shows are in memory."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arguments, arguments_end, environment, environment_end = (int(field) for field in fields[45:49])
    return {"arguments": arguments, "arguments bytes": arguments_end - arguments,
            "environment": environment, "environment bytes": environment_end - environment}  # fmt: skip


def open_init() -> int:
    """Return a descriptor of the program that pid 1 becomes, in memory and sealed; -1 where it can't be executed.

    Nobody may read it, so the kernel lets nobody look into the process from the moment of its exec; and no file of the
    host could be reached through it.
    """
    try:
        with open(native.init_path(), "rb") as file:
            content = file.read()
        opened = _in_memory(content)
    except OSError:
        return -1
    if _runs(opened):
        return opened
    os.close(opened)
    return -1


def _in_memory(content: bytes) -> int:
    import fcntl

    flags = _MEMFD_CLOEXEC | _MEMFD_SEALING
    try:
        written = os.memfd_create("init", flags | _MEMFD_EXEC)
    except OSError:  # before Linux 6.3
        written = os.memfd_create("init", flags)
    try:
        os.write(written, content)
        os.fchmod(written, 0o111)
        fcntl.fcntl(written, _ADD_SEALS, _ALL_SEALS)
        # Opened anew: what somebody can write is not executed.
        again = os.open(f"/proc/self/fd/{written}", os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(written)
    try:
        return fcntl.fcntl(again, fcntl.F_DUPFD_CLOEXEC, _FLOOR)
    finally:
        os.close(again)


def _runs(program: int) -> bool:
    """Whether the kernel executes the program. The program ends at once when it has no children."""
    try:
        child = os.posix_spawn(f"/proc/self/fd/{program}", ["init"], {})
    except OSError:
        return False
    return os.waitpid(child, 0)[1] == 0
