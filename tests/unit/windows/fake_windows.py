"""The calls of Windows by hand: one process in one job object, what it uses, and what its completion port says.

It keeps what it is handed over, byte for byte and in order: a test can read back what a Windows would have held.
"""

from __future__ import annotations

import threading
import time
from ctypes import Structure, memmove, sizeof
from typing import Any

import pytest

from ringfence.windows import host, system

JOB, PORT, EVENT, PROCESS, THREAD, TOKEN, REDUCED = 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70
PID = 4242
EXTENDED, ACCOUNTING, PROCESSES, UI, PORT_OF, CPU_RATE = 9, 8, 3, 4, 7, 15
PENDING = 258


class FakeWindows:
    """``messages``: what the port says, in order. When all are said the process ends with ``exit_code``; None: never by
    itself. ``tells``: limits can be read back; Wine answers with zeros."""

    def __init__(self, messages: tuple[int, ...] = (), exit_code: int | None = 0, *, tells: bool = True) -> None:
        self.messages, self.exit_code, self.tells = list(messages), exit_code, tells
        self.ended, self.code = False, 259
        self.called: list[str] = []
        self.handed: dict[int, bytes] = {}
        """Structures of the job object, by kind."""
        self.token: dict[int, bytes] = {}
        """Of the token with which the process was made."""
        self.flags = 0
        self.used = {"memory": 0, "handles": 0, "cpu_units": 0, "written": 0}
        self._event = threading.Event()

    def install(self, patch: pytest.MonkeyPatch, known: host.Host) -> FakeWindows:
        names = (name for calls in system._LIBRARIES.values() for name in calls)
        patch.setattr(system, "_found", {name: self._call(name) for name in names})
        patch.setattr(host, "_found", [known])
        return self

    def _call(self, name: str) -> Any:
        def answer(*arguments: Any) -> int:
            self.called.append(name)
            return int(getattr(self, f"do_{name}", lambda *_: 1)(*arguments))

        return answer

    # ---- the job object

    def do_CreateJobObjectW(self, *_: Any) -> int:
        return JOB

    def do_CreateIoCompletionPort(self, *_: Any) -> int:
        return PORT

    def do_SetInformationJobObject(self, handle: int, kind: int, value: Any, size: int) -> int:
        assert handle == JOB and size == sizeof(value._obj)
        self.handed[kind] = bytes(value._obj)
        return 1

    def do_QueryInformationJobObject(self, handle: int, kind: int, value: Any, size: int, _: Any) -> int:
        found: Structure = value._obj
        if kind in self.handed and self.tells:
            memmove(value, self.handed[kind], min(size, len(self.handed[kind])))
        if kind == ACCOUNTING:
            found.active_processes = int(not self.ended)
        if kind == PROCESSES and not self.ended:
            found.listed, found.pids[0] = 1, PID
        return 1

    def do_GetQueuedCompletionStatus(self, port: int, number: Any, key: Any, pid: Any, wait_ms: int) -> int:
        if not self.messages:
            if self.exit_code is not None and not self.ended:
                self.ended, self.code = True, self.exit_code
            time.sleep(min(wait_ms, 1) / 1000)
            return 0
        number._obj.value, key._obj.value, pid._obj.value = self.messages.pop(0), JOB, PID
        return 1

    def do_TerminateJobObject(self, handle: int, code: int) -> int:
        if not self.ended:
            self.ended, self.code = True, code
        return 1

    # ---- the process

    def do_OpenProcessToken(self, _: int, access: int, token: Any) -> int:
        token._obj.value = TOKEN
        return 1

    def do_CreateRestrictedToken(self, own: Any, flags: int, *rest: Any) -> int:
        assert flags == 1, "DISABLE_MAX_PRIVILEGE"
        rest[-1]._obj.value = REDUCED
        return 1

    def do_SetTokenInformation(self, token: int, kind: int, value: Any, size: int) -> int:
        assert token == REDUCED
        self.token[kind] = bytes(value._obj) if hasattr(value, "_obj") else bytes(value)
        return 1

    def do_CreateProcessAsUserW(self, token: int, *rest: Any) -> int:
        assert token == REDUCED
        self.flags, made = rest[5], rest[-1]._obj
        made.process, made.thread, made.pid = PROCESS, THREAD, PID
        return 1

    def do_InitializeProcThreadAttributeList(self, room: Any, count: int, flags: int, size: Any) -> int:
        size._obj.value = 64
        return int(room is not None)

    def do_DuplicateHandle(self, _: int, handle: int, __: int, copy: Any, *rest: Any) -> int:
        copy._obj.value = handle + 0x1000
        return 1

    def do_OpenProcess(self, *_: Any) -> int:
        return PROCESS

    def do_IsProcessInJob(self, process: int, job: int, answer: Any) -> int:
        answer._obj.value = 1
        return 1

    def do_GetExitCodeProcess(self, process: int, code: Any) -> int:
        code._obj.value = self.code
        return 1

    def do_GetProcessTimes(self, process: int, born: Any, gone: Any, kernel: Any, user: Any) -> int:
        user._obj.value = self.used["cpu_units"]
        return 1

    def do_GetProcessIoCounters(self, process: int, counted: Any) -> int:
        counted._obj.write_bytes = self.used["written"]
        return 1

    def do_K32GetProcessMemoryInfo(self, process: int, counted: Any, size: int) -> int:
        counted._obj.committed = self.used["memory"]
        return 1

    def do_GetProcessHandleCount(self, process: int, count: Any) -> int:
        count._obj.value = self.used["handles"]
        return 1

    # ---- waiting

    def do_CreateEventW(self, *_: Any) -> int:
        return EVENT

    def do_SetEvent(self, _: int) -> int:
        self._event.set()
        return 1

    def do_WaitForSingleObject(self, handle: int, wait_ms: int) -> int:
        if handle == EVENT:
            return 0 if self._event.wait(wait_ms / 1000) else PENDING
        return 0 if self.ended else PENDING

    def do_ResumeThread(self, thread: int) -> int:
        assert thread == THREAD
        return 0
