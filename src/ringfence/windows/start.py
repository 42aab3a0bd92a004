"""Starts a process of a job object: suspended, with nothing inherited but what is named, and without privileges.

Nothing of it runs before it is in the job: ``started`` leaves it suspended, and ``resume`` lets it go.
"""

from __future__ import annotations

from _collections_abc import Iterator, Sequence
from _thread import allocate_lock
from contextlib import contextmanager
from ctypes import (
    Array,
    addressof,
    byref,
    c_char,
    c_size_t,
    c_uint32,
    c_void_p,
    create_string_buffer,
    create_unicode_buffer,
    sizeof,
)

from ringfence.model.record import record
from ringfence.windows import integrity
from ringfence.windows.structures import ProcessInformation, StartupInfo
from ringfence.windows.system import call, close, failure, try_call

_SUSPENDED, _NEW_GROUP, _UNICODE, _EXTENDED, _NO_WINDOW = 0x4, 0x200, 0x400, 0x80000, 0x08000000
_FLAGS = _SUSPENDED | _NEW_GROUP | _UNICODE | _EXTENDED | _NO_WINDOW
_USE_HANDLES = 0x100
_HANDLE_LIST = 0x20002
_SAME_ACCESS = 0x2
_OPEN, _PIPE = 0x1, 0x8
_DUPLICATE_QUERY_ASSIGN, _ADJUST_DEFAULT = 0x2 | 0x8 | 0x1, 0x80
_DISABLE_MAX_PRIVILEGE = 0x1
_TOKEN_PRIVILEGES = 3
_starting = allocate_lock()
"""While handles are inheritable, no other start of ours may run."""


@record
class Started:
    """A process and its first thread, suspended."""

    process: int
    thread: int
    pid: int

    def resume(self) -> None:
        if try_call("ResumeThread", self.thread) == 0xFFFFFFFF:
            raise failure("ResumeThread")


def started(program: str, line: str, environment: str, folder: str, streams: Sequence[int], token: int = 0) -> Started:
    """Create the process with these handles as 0, 1, 2 and, where there are more, 3 and so on; ``token``: whose rights
    it has, 0: the caller's."""
    with _starting, _inheritable(streams) as handles, _attributes(handles) as attributes:
        info = StartupInfo(size=sizeof(StartupInfo), flags=_USE_HANDLES, stdin=handles[0], stdout=handles[1],
                           stderr=handles[2], attributes=attributes)  # fmt: skip
        more = _inherited_descriptors(handles)
        if len(handles) > 3:
            info.more_bytes, info.more = len(more), addressof(more)
        made = ProcessInformation()
        variables = create_unicode_buffer(environment)
        words = (program, create_unicode_buffer(line), None, None, 1, _FLAGS, variables, folder, byref(info),
                 byref(made))  # fmt: skip
        if token:
            call("CreateProcessAsUserW", token, *words)
        else:
            call("CreateProcessW", *words)
    return Started(process=made.process, thread=made.thread, pid=made.pid)


def _inherited_descriptors(handles: Sequence[int]) -> Array[c_char]:
    """How descriptors are passed to the C runtime: their number, then a byte of flags and a handle for each."""
    flags = bytes([_OPEN | _PIPE] * len(handles))
    values = b"".join(handle.to_bytes(8, "little") for handle in handles)
    data = len(handles).to_bytes(4, "little") + flags + values
    return create_string_buffer(data, len(data))


def duplicated(handle: int, *, inherited: bool = False) -> int:
    """Return another handle of the same thing."""
    this, copy = try_call("GetCurrentProcess"), c_void_p()
    call("DuplicateHandle", this, handle, this, byref(copy), 0, inherited, _SAME_ACCESS)
    return copy.value or 0


@contextmanager
def _inheritable(streams: Sequence[int]) -> Iterator[list[int]]:
    """Copies that a child may inherit, only while it is created: another thread's child could inherit them too."""
    copies: list[int] = []
    try:
        for stream in streams:
            copies.append(duplicated(stream, inherited=True))
        yield copies
    finally:
        close(*copies)


@contextmanager
def _attributes(handles: Sequence[int]) -> Iterator[int]:
    """The list of what is inherited: these handles and nothing else."""
    size = c_size_t()
    try_call("InitializeProcThreadAttributeList", None, 1, 0, byref(size))
    room = create_string_buffer(size.value)
    call("InitializeProcThreadAttributeList", room, 1, 0, byref(size))
    try:
        listed = (c_void_p * len(handles))(*handles)
        call("UpdateProcThreadAttribute", room, 0, _HANDLE_LIST, listed, sizeof(listed), None, None)
        yield addressof(room)
    finally:
        try_call("DeleteProcThreadAttributeList", room)


def privileges(token: int) -> int:
    """Return how many privileges a token has, enabled or not."""
    room, size = (c_uint32 * 1024)(), c_uint32()
    call("GetTokenInformation", token, _TOKEN_PRIVILEGES, byref(room), sizeof(room), byref(size))
    return int(room[0])


def reduced_token(*, low: bool = False) -> int:
    """Return the caller's token with no privilege except to traverse directories; ``low``: and with low integrity."""
    own, reduced = c_void_p(), c_void_p()
    access = _DUPLICATE_QUERY_ASSIGN | (_ADJUST_DEFAULT if low else 0)
    call("OpenProcessToken", try_call("GetCurrentProcess"), access, byref(own))
    try:
        call("CreateRestrictedToken", own, _DISABLE_MAX_PRIVILEGE, 0, None, 0, None, 0, None, byref(reduced))
    finally:
        close(own.value or 0)
    token = reduced.value or 0
    if low:
        try:
            integrity.lower(token)
        except OSError:
            close(token)
            raise
    return token
