"""The calls of Windows that are made here, with their types; the libraries are loaded when a call is first made.

A handle is a plain number. Every call that fails is an OSError with the words of Windows.
"""

from __future__ import annotations

import ctypes
import sys
from _collections_abc import Callable
from ctypes import POINTER, c_int, c_int64, c_size_t, c_uint32, c_void_p, c_wchar_p

from ringfence.errors import UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Call: TypeAlias = Callable[..., int | None]

INVALID = 2**64 - 1
"""INVALID_HANDLE_VALUE."""
BROKEN_PIPE, NO_MORE_FILES, HANDLE_EOF, INSUFFICIENT_BUFFER, MORE_DATA = 109, 18, 38, 122, 234
IO_INCOMPLETE, IO_PENDING, OPERATION_ABORTED, WAIT_TIMEOUT, NOT_FOUND = 996, 997, 995, 258, 1168
FILE_NOT_FOUND, ACCESS_DENIED, BAD_EXE_FORMAT, NO_DATA, PIPE_NOT_CONNECTED = 2, 5, 193, 232, 233
_POINTER_TO_NUMBER = POINTER(c_uint32)
_KERNEL: dict[str, tuple[object, tuple[object, ...]]] = {
    "AssignProcessToJobObject": (c_int, (c_void_p, c_void_p)),
    "CancelIoEx": (c_int, (c_void_p, c_void_p)),
    "CloseHandle": (c_int, (c_void_p,)),
    "CreateEventW": (c_void_p, (c_void_p, c_int, c_int, c_wchar_p)),
    "CreateFileW": (c_void_p, (c_wchar_p, c_uint32, c_uint32, c_void_p, c_uint32, c_uint32, c_void_p)),
    "CreateIoCompletionPort": (c_void_p, (c_void_p, c_void_p, c_size_t, c_uint32)),
    "CreateJobObjectW": (c_void_p, (c_void_p, c_wchar_p)),
    "CreateNamedPipeW": (c_void_p, (c_wchar_p, *(c_uint32,) * 6, c_void_p)),
    "CreateProcessW": (c_int, (c_wchar_p, c_void_p, c_void_p, c_void_p, c_int, c_uint32, c_void_p, c_wchar_p, c_void_p,
                               c_void_p)),
    "DeleteProcThreadAttributeList": (None, (c_void_p,)),
    "DuplicateHandle": (c_int, (c_void_p, c_void_p, c_void_p, POINTER(c_void_p), c_uint32, c_int, c_uint32)),
    "FindClose": (c_int, (c_void_p,)),
    "FindFirstStreamW": (c_void_p, (c_wchar_p, c_int, c_void_p, c_uint32)),
    "FindNextStreamW": (c_int, (c_void_p, c_void_p)),
    "GetCurrentProcess": (c_void_p, ()),
    "GetExitCodeProcess": (c_int, (c_void_p, _POINTER_TO_NUMBER)),
    "GetOverlappedResult": (c_int, (c_void_p, c_void_p, _POINTER_TO_NUMBER, c_int)),
    "GetProcessHandleCount": (c_int, (c_void_p, _POINTER_TO_NUMBER)),
    "GetProcessIoCounters": (c_int, (c_void_p, c_void_p)),
    "GetProcessTimes": (c_int, (c_void_p, *(POINTER(c_int64),) * 4)),
    "GetQueuedCompletionStatus": (c_int, (c_void_p, _POINTER_TO_NUMBER, POINTER(c_size_t), POINTER(c_void_p),
                                          c_uint32)),
    "InitializeProcThreadAttributeList": (c_int, (c_void_p, c_uint32, c_uint32, POINTER(c_size_t))),
    "IsProcessInJob": (c_int, (c_void_p, c_void_p, POINTER(c_int))),
    "K32GetProcessMemoryInfo": (c_int, (c_void_p, c_void_p, c_uint32)),
    "LocalFree": (c_void_p, (c_void_p,)),
    "OpenProcess": (c_void_p, (c_uint32, c_int, c_uint32)),
    "QueryInformationJobObject": (c_int, (c_void_p, c_int, c_void_p, c_uint32, _POINTER_TO_NUMBER)),
    "ReadFile": (c_int, (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)),
    "ResetEvent": (c_int, (c_void_p,)),
    "ResumeThread": (c_uint32, (c_void_p,)),
    "SetEvent": (c_int, (c_void_p,)),
    "SetInformationJobObject": (c_int, (c_void_p, c_int, c_void_p, c_uint32)),
    "TerminateJobObject": (c_int, (c_void_p, c_uint32)),
    "TerminateProcess": (c_int, (c_void_p, c_uint32)),
    "UpdateProcThreadAttribute": (c_int, (c_void_p, c_uint32, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)),
    "VirtualAllocEx": (c_void_p, (c_void_p, c_void_p, c_size_t, c_uint32, c_uint32)),
    "WaitForMultipleObjects": (c_uint32, (c_uint32, POINTER(c_void_p), c_int, c_uint32)),
    "WaitForSingleObject": (c_uint32, (c_void_p, c_uint32)),
    "WriteFile": (c_int, (c_void_p, c_void_p, c_uint32, c_void_p, c_void_p)),
}  # fmt: skip
_SECURITY: dict[str, tuple[object, tuple[object, ...]]] = {
    "CreateProcessAsUserW": (c_int, (c_void_p, *_KERNEL["CreateProcessW"][1])),
    "CreateRestrictedToken": (c_int, (c_void_p, c_uint32, c_uint32, c_void_p, c_uint32, c_void_p, c_uint32, c_void_p,
                                      POINTER(c_void_p))),
    "DuplicateTokenEx": (c_int, (c_void_p, c_uint32, c_void_p, c_int, c_int, POINTER(c_void_p))),
    "GetTokenInformation": (c_int, (c_void_p, c_int, c_void_p, c_uint32, _POINTER_TO_NUMBER)),
    "OpenProcessToken": (c_int, (c_void_p, c_uint32, POINTER(c_void_p))),
    "RevertToSelf": (c_int, ()),
    "SetThreadToken": (c_int, (c_void_p, c_void_p)),
    "SetTokenInformation": (c_int, (c_void_p, c_int, c_void_p, c_uint32)),
}  # fmt: skip
_SECURITY |= {
    "GetNamedSecurityInfoW": (c_uint32, (c_wchar_p, c_int, c_uint32, *(c_void_p,) * 5)),
    "SetNamedSecurityInfoW": (c_uint32, (c_wchar_p, c_int, c_uint32, *(c_void_p,) * 4)),
}
"""These return an error code, 0: none."""
_LIBRARIES = {"kernel32": _KERNEL, "advapi32": _SECURITY}
_found: dict[str, Call] = {}


def failure(name: str, code: int | None = None) -> OSError:
    """Return Windows' message for this thread's last failed call, or for this code."""
    if sys.platform != "win32":
        return OSError(code or 0, name)
    error = ctypes.WinError(ctypes.get_last_error() if code is None else code)
    error.strerror = f"{name}: {error.strerror}"
    return error


def last_error() -> int:
    """Return the code of the call of this thread that failed last."""
    if sys.platform != "win32":
        return 0
    return ctypes.get_last_error()


def try_call(name: str, *arguments: object) -> int:
    """Make a call and return what it returns; 0: it failed, or says no."""
    if name not in _found:
        _found[name] = _bound(name)
    return _found[name](*arguments) or 0


def call(name: str, *arguments: object) -> int:
    """Make a call that must succeed."""
    result = try_call(name, *arguments)
    if result in (0, INVALID):
        raise failure(name)
    return result


def check(name: str, *arguments: object) -> None:
    """Make a call that returns an error code, and must succeed."""
    code = try_call(name, *arguments)
    if code:
        raise failure(name, code)


def close(*handles: int) -> None:
    for handle in handles:
        if handle:
            try_call("CloseHandle", handle)


def _bound(name: str) -> Call:
    if sys.platform != "win32":
        raise UnavailableError(f"{name} is a call of Windows", missing=("Windows",))
    library, calls = next((library, calls) for library, calls in _LIBRARIES.items() if name in calls)
    bound = getattr(ctypes.WinDLL(library, use_last_error=True), name)
    bound.restype, bound.argtypes = calls[name]
    found: Call = bound
    return found
