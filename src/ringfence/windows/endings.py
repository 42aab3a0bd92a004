"""What the end of a job means: messages of its completion port, and exit codes that are an NTSTATUS. Pure tables.

A message comes from the kernel. An exit code is what the program chose, or the status that ended it, and nothing tells
the two apart: a program can make one failure look like another, but never like a success.
"""

from __future__ import annotations

from _collections_abc import Iterable

from ringfence.model.record import record

MESSAGES = {
    1: "END_OF_JOB_TIME", 2: "END_OF_PROCESS_TIME", 3: "ACTIVE_PROCESS_LIMIT", 4: "ACTIVE_PROCESS_ZERO",
    6: "NEW_PROCESS", 7: "EXIT_PROCESS", 8: "ABNORMAL_EXIT_PROCESS", 9: "PROCESS_MEMORY_LIMIT",
    10: "JOB_MEMORY_LIMIT", 11: "NOTIFICATION_LIMIT", 12: "JOB_CYCLE_TIME_LIMIT",
}  # fmt: skip
"""JOB_OBJECT_MSG_…"""
CAPABILITY_OF = {1: "cpu_time", 2: "cpu_time", 3: "pids", 9: "memory", 10: "memory", 12: "cpu_time"}
"""The limit that a message reports."""

SIGILL, SIGTRAP, SIGABRT, SIGFPE, SIGKILL, SIGSEGV, SIGINT = 4, 5, 6, 8, 9, 11, 2
STATUSES = {
    0x80000003: ("STATUS_BREAKPOINT", SIGTRAP),
    0x80000004: ("STATUS_SINGLE_STEP", SIGTRAP),
    0xC0000005: ("STATUS_ACCESS_VIOLATION", SIGSEGV),
    0xC0000006: ("STATUS_IN_PAGE_ERROR", SIGSEGV),
    0xC000001D: ("STATUS_ILLEGAL_INSTRUCTION", SIGILL),
    0xC0000025: ("STATUS_NONCONTINUABLE_EXCEPTION", SIGABRT),
    0xC000008E: ("STATUS_FLOAT_DIVIDE_BY_ZERO", SIGFPE),
    0xC0000094: ("STATUS_INTEGER_DIVIDE_BY_ZERO", SIGFPE),
    0xC0000095: ("STATUS_INTEGER_OVERFLOW", SIGFPE),
    0xC0000096: ("STATUS_PRIVILEGED_INSTRUCTION", SIGILL),
    0xC00000FD: ("STATUS_STACK_OVERFLOW", SIGSEGV),
    0xC000013A: ("STATUS_CONTROL_C_EXIT", SIGINT),
    0xC0000374: ("STATUS_HEAP_CORRUPTION", SIGABRT),
    0xC0000409: ("STATUS_STACK_BUFFER_OVERRUN", SIGABRT),
    0xC0000420: ("STATUS_ASSERTION_FAILURE", SIGABRT),
}
"""Of a program that was ended: its name, and the signal by which POSIX tells the same."""
FAILURES = {
    0xC0000017: "STATUS_NO_MEMORY",
    0xC0000044: "STATUS_QUOTA_EXCEEDED",
    0xC000007B: "STATUS_INVALID_IMAGE_FORMAT",
    0xC000012D: "STATUS_COMMITMENT_LIMIT",
    0xC0000135: "STATUS_DLL_NOT_FOUND",
    0xC0000142: "STATUS_DLL_INIT_FAILED",
}
"""Of a program that could not go on, or not start; it has exited."""
_BYTE = 0xFF


@record
class Ending:
    """How the first process of a job ended, in the words of POSIX, with the platform's own beside them."""

    exit_code: int | None = None
    signal: int | None = None
    hits: tuple[str, ...] = ()
    """Capabilities whose limit the kernel reported, in order."""
    native: str = ""
    """NTSTATUS and messages, for the reason."""


def ending(code: int, messages: Iterable[int] = ()) -> Ending:
    """Return what the exit code, as an unsigned number, and the job's messages mean."""
    told = [number for number in dict.fromkeys(messages) if number in CAPABILITY_OF]
    hits = tuple(dict.fromkeys(CAPABILITY_OF[number] for number in told))
    words = [f"JOB_OBJECT_MSG_{MESSAGES[number]}" for number in told]
    name, signal = STATUSES.get(code, ("", None))
    name = name or FAILURES.get(code, "")
    native = "; ".join([*words, *([f"{name} (0x{code:08X})"] if name else [])])
    if signal is not None:
        return Ending(signal=signal, hits=hits, native=native)
    return Ending(exit_code=exit_status(code), hits=hits, native=native)


def exit_status(code: int) -> int:
    """Return an exit code as a byte, as everywhere: a larger one that would look like success becomes 1."""
    return code if code <= _BYTE else (code & _BYTE) or 1
