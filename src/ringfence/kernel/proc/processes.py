"""What ties processes to each other: who adopts orphans, who dies with whom, who may look inside."""

from __future__ import annotations

import os
from _collections_abc import Callable
from struct import Struct

from ringfence.kernel import syscalls

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_PR_SET_NAME = 15
_SIGKILL = 9


def _prctl(option: int, value: int | bytes) -> None:
    """By libc's own function: this much is to work on every architecture."""
    if syscalls.libc().prctl(option, value, None, None, None) != 0:
        raise syscalls.failure(f"prctl {option}")


_CLONE_INTO_CGROUP, _SIGCHLD = 0x200000000, 17
AS_SIBLING = 0x8000
"""Beside the flags of namespaces: the child becomes our parent's, which is told of its end as of ours."""
_CLONE_ARGS = Struct("11Q")


def fork_into(namespaces: int, group: str = "") -> int:
    """fork, with the child in new namespaces and a v2 control group from its first instruction. 0 in the child.

    Entering a group afterwards waits for every processor, some 10 ms. OSError where the kernel can't (before 5.7)
    or may not do it. C library and interpreter are not told of the fork: only for a process with one thread, and
    for a child that starts no thread and forks again, properly, before it runs anything of note.
    """
    told = 0 if namespaces & AS_SIBLING else _SIGCHLD
    if not group:
        return _clone3(_CLONE_ARGS.pack(namespaces, 0, 0, 0, told, 0, 0, 0, 0, 0, 0))
    folder = os.open(group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = namespaces | _CLONE_INTO_CGROUP
        return _clone3(_CLONE_ARGS.pack(flags, 0, 0, 0, told, 0, 0, 0, 0, 0, folder))
    finally:
        os.close(folder)


_make: list[Callable[..., int]] = []


def bind() -> None:
    """Look up what ``fork_into`` needs: a process that forks does it once for all."""
    import ctypes

    # Not through libc(), whose calls let go of the interpreter lock that both sides must hold.
    _make[:] = [syscalls.entrance(ctypes.PyDLL(None, use_errno=True))]


def _clone3(arguments: bytes) -> int:
    if not _make:
        bind()
    child = _make[0](syscalls.number("clone3"), arguments, len(arguments), *(None,) * 4)
    if child < 0:
        raise syscalls.failure("clone3")
    return child


def can_close_ranges() -> bool:
    """Whether the kernel closes any range of descriptors in one call (since 5.9)."""
    return close_from(0xFFFFFFFF)


def close_from(first: int) -> bool:
    """Close every descriptor from this one on. False where the kernel can't (before 5.9)."""
    try:
        syscalls.call("close_range", first, 0xFFFFFFFF, 0)
    except OSError:
        return False
    return True


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process, also after setsid and two forks."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = _SIGKILL) -> None:
    """Get this signal when the parent ends; the caller then checks that it had not ended before."""
    _prctl(_PR_SET_PDEATHSIG, number)


FORKER, LEADER, WARDEN = "ringfence-fork", "ringfence-lead", "ringfence-ward"
"""What processes of ours are called. Others may use these names: only a process's place in the tree proves anything."""


def set_name(name: str) -> None:
    """What ps and top call this process; a program that it becomes has its own."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def hide_memory() -> None:
    """No other process of the user may trace this one or read its memory, environment, descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """No program started from here on gains anything by its set-user-id bit or file capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def show_memory() -> None:
    """Undo ``hide_memory``, for as long as the process must write its own files in /proc."""
    _prctl(_PR_SET_DUMPABLE, 1)


OWN_NAME = "init"
"""What processes of ours inside a sandbox call themselves."""


def forget_command_line(name: str) -> None:
    """Overwrite what /proc shows of this process: its arguments and its first environment tell of the host."""
    import ctypes

    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arguments, arguments_end, environment, environment_end = (int(field) for field in fields[45:49])
    for start, end in ((arguments, arguments_end), (environment, environment_end)):
        if 0 < start < end:
            ctypes.memset(start, 0, end - start)
    if arguments:
        shown = name.encode()[: arguments_end - arguments - 1]
        ctypes.memmove(arguments, shown, len(shown))
    set_name(name)


def pid_of(pidfd: int) -> int:
    """The pid by which we know the process behind a pidfd; 0 when it has ended."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        for line in file:
            if line.startswith(b"Pid:"):
                return max(0, int(line[4:]))
    return 0
