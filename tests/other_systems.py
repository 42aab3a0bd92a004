"""This interpreter as one of Windows or macOS has it, as far as what is missing there goes.

``python -m tests.other_systems windows`` imports every module of the package so, and prints what fails;
``python -m tests.other_systems run`` runs jobs of the process level as on macOS and prints how they ended;
``python -m tests.other_systems seatbelt`` the same behind a stand-in for ``sandbox-exec``. Modules of
the standard library and of others are loaded before anything is taken away: they have their own ways on each system.
"""

from __future__ import annotations

import ast
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests.programs.windows_imports import is_of_others

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "ringfence"

POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses",
                 "_posixsubprocess", "posix")  # fmt: skip
"""What CPython for Windows does not have."""

_WINDOWS_OS = """
DirEntry F_OK O_APPEND O_BINARY O_CREAT O_EXCL O_NOINHERIT O_RANDOM O_RDONLY O_RDWR O_SEQUENTIAL O_SHORT_LIVED
O_TEMPORARY O_TEXT O_TRUNC O_WRONLY P_DETACH P_NOWAIT P_NOWAITO P_OVERLAY P_WAIT PathLike R_OK SEEK_CUR SEEK_END
SEEK_SET TMP_MAX W_OK X_OK abc abort access add_dll_directory altsep chdir chmod close closerange cpu_count curdir
defpath device_encoding devnull dup dup2 environ error execl execle execlp execlpe execv execve execvp execvpe
extsep fdopen fsdecode fsencode fspath fstat fsync ftruncate get_blocking get_exec_path get_handle_inheritable
get_inheritable get_terminal_size getcwd getcwdb getenv getlogin getpid getppid isatty kill lchmod fchmod linesep link
listdir listdrives listmounts listvolumes lseek lstat makedirs mkdir name open pardir path pathsep pipe popen
process_cpu_count putenv read readlink remove removedirs rename renames replace rmdir scandir sep set_blocking
set_handle_inheritable set_inheritable spawnl spawnle spawnv spawnve st startfile stat stat_result statvfs_result
strerror supports_bytes_environ supports_dir_fd supports_effective_ids supports_fd supports_follow_symlinks symlink sys
system terminal_size times times_result truncate umask uname_result unlink unsetenv urandom utime waitpid
waitstatus_to_exitcode walk write
"""
WINDOWS_OS = frozenset(_WINDOWS_OS.split())
"""The names of ``os`` there, of any version from 3.11 to 3.14. Some came late, and must be asked for."""
LATE_ON_WINDOWS = frozenset({"lchmod", "fchmod", "get_blocking", "set_blocking", "process_cpu_count"})

WINDOWS_SIGNALS = frozenset({"SIGABRT", "SIGBREAK", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL",
                             "SIG_IGN"})  # fmt: skip
POSIX_SIGNAL_CALLS = ("pthread_sigmask", "pthread_kill", "sigwait", "sigwaitinfo", "sigtimedwait", "sigpending",
                      "pause", "alarm", "setitimer", "getitimer", "siginterrupt", "pidfd_send_signal")  # fmt: skip
POSIX_SOCKETS = ("AF_UNIX", "AF_NETLINK", "AF_VSOCK", "AF_PACKET", "CMSG_LEN", "CMSG_SPACE", "MSG_DONTWAIT",
                 "MSG_NOSIGNAL", "MSG_CMSG_CLOEXEC", "SCM_RIGHTS", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED",
                 "SO_PASSCRED", "SO_RCVTIMEO", "SO_SNDTIMEO", "send_fds", "recv_fds", "sethostname")  # fmt: skip
POSIX_CLOCKS = ("clock_gettime", "clock_gettime_ns", "clock_settime", "clock_getres", "pthread_getcpuclockid", "tzset",
                "CLOCK_MONOTONIC", "CLOCK_REALTIME", "CLOCK_BOOTTIME", "CLOCK_PROCESS_CPUTIME_ID",
                "CLOCK_THREAD_CPUTIME_ID")  # fmt: skip

LINUX_OS = ("pidfd_open", "memfd_create", "eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK",
            "splice", "SPLICE_F_MOVE", "SPLICE_F_NONBLOCK", "pipe2", "getxattr", "setxattr", "listxattr", "removexattr",
            "sched_getaffinity", "sched_setaffinity", "unshare", "setns", "copy_file_range", "setresuid", "setresgid",
            "getresuid", "getresgid", "posix_fallocate", "posix_fadvise", "getrandom", "O_PATH", "O_TMPFILE",
            "O_DIRECT", "O_NOATIME", "P_PIDFD", "CLONE_NEWUSER", "timerfd_create")  # fmt: skip
LINUX_SOCKETS = ("AF_NETLINK", "AF_VSOCK", "AF_PACKET", "SO_PEERCRED", "SO_PASSCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK",
                 "MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL")  # fmt: skip
LINUX_CLOCKS = ("CLOCK_BOOTTIME", "pthread_getcpuclockid", "clock_settime")


def modules() -> Iterator[str]:
    """Every module of the package, but what is a program: importing one runs it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        names = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if names[-1] not in ("__main__", "sitecustomize"):
            yield ".".join(names[:-1] if names[-1] == "__init__" else names)


def load_others() -> None:
    """Load what the package imports of others anywhere, where it is here."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in found:
                if not name.startswith("ringfence") and name not in POSIX_MODULES:
                    _try_import(name)
    for name in ("concurrent.futures.thread", "encodings.idna", "asyncio.unix_events", "multiprocessing.connection"):
        _try_import(name)


def _try_import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError:
        pass


def become_windows() -> None:
    """What is missing on Windows is missing from now on."""
    for name in POSIX_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    _without(os, [name for name in dir(os) if _is_public(name) and name not in WINDOWS_OS - LATE_ON_WINDOWS])
    _without(select, [name for name in dir(select) if _is_public(name) and name not in ("select", "error")])
    own = [name for name in dir(signal) if name.startswith("SIG") and name not in WINDOWS_SIGNALS]
    for module in (signal, sys.modules["_signal"]):
        _without(module, [*own, *POSIX_SIGNAL_CALLS])
    for module in (socket, sys.modules["_socket"]):
        _without(module, POSIX_SOCKETS)
    _without(time, POSIX_CLOCKS)
    sys.platform, os.name = "win32", "nt"
    os.supports_dir_fd = os.supports_fd = set()


def become_macos() -> None:
    """What is missing on macOS is missing from now on; there a mode can be set without following a link."""
    os.chmod = _chmod_of_macos  # type: ignore[assignment]
    os.supports_follow_symlinks = {*os.supports_follow_symlinks, _chmod_of_macos}
    _without(os, LINUX_OS)
    _without(select, [name for name in dir(select) if name.startswith(("epoll", "EPOLL"))])
    _without(signal, ("pidfd_send_signal",))
    _without(sys.modules["_signal"], ("pidfd_send_signal",))
    for module in (socket, sys.modules["_socket"]):
        _without(module, LINUX_SOCKETS)
    _without(time, LINUX_CLOCKS)
    sys.platform = "darwin"


_chmod, _NAME_ONLY = os.chmod, getattr(os, "O_PATH", 0)


def _chmod_of_macos(path: str, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
    if follow_symlinks:
        return _chmod(path, mode, dir_fd=dir_fd)
    place = os.open(path, _NAME_ONLY | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        _chmod(f"/dev/fd/{place}", mode)
    finally:
        os.close(place)


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _without(module: ModuleType, names: object) -> None:
    for name in names:  # type: ignore[attr-defined]
        if hasattr(module, name):
            delattr(module, name)


SYSTEMS = {"windows": become_windows, "macos": become_macos}


def failures() -> Iterator[tuple[str, str]]:
    """(module, why) of each that can't be imported."""
    for name in modules():
        try:
            importlib.import_module(name)
        except BaseException as error:
            if isinstance(error, ModuleNotFoundError) and is_of_others(error.name or "ringfence"):
                continue  # an extra that is not installed here
            place = traceback.extract_tb(error.__traceback__)[-1]
            yield name, f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"


SHARED_BY_POSIX = frozenset({"ringfence.kernel.rlimits", "ringfence.kernel.proc", "ringfence.kernel.proc.procfs"})
"""Of ``kernel``, mechanisms of Linux, what the process level needs anywhere: names and plain data."""
JOBS: dict[str, tuple[str, dict[str, object]]] = {
    "ok": ("echo hello", {}),
    "failed": ("exit 3", {}),
    "endless": ("sleep 1000 & sleep 1000", {"wall_time_s": 1}),
    "busy": ("while :; do :; done", {"cpu_time_s": 1}),
    "large": ("exec python3 -c 'import time; kept = bytes(10**6) * 300; time.sleep(60)'", {"mem_bytes": 100 << 20}),
    "many": ("for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait", {"pids_max": 5}),
    "files": ("exec python3 -c 'kept = [open(\"/dev/null\") for _ in range(100)]'", {"nofile": 20}),
    "loud": ("exec python3 -c 'print(\"x\" * 5000)'", {"output_bytes": 1000}),
}
"""Shell programs and their limits."""


class NoLinuxModules:
    """Finds none of what only Linux has."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.startswith("ringfence.kernel.") and name not in SHARED_BY_POSIX:
            raise ImportError(f"{name} is a mechanism of Linux")


def _no_proc(event: str, arguments: tuple[object, ...]) -> None:
    looked_at = arguments[0] if event in ("open", "os.listdir", "os.scandir") else None
    if isinstance(looked_at, str) and looked_at.startswith(("/proc", "/sys/")):
        raise FileNotFoundError(2, "not on this system", looked_at)


def run_as_on_macos() -> int:
    """Run each job, and print what it came to as JSON; the spawner is forked, and so it lacks the same."""
    import json

    _as_on_macos()
    from ringfence.engine.run import run
    from ringfence.model.limits import IsolationLevel
    from ringfence.model.policy import SandboxPolicy

    told = {}
    for name, (program, limits) in JOBS.items():
        policy = SandboxPolicy(isolation=IsolationLevel.PROCESS, **{"wall_time_s": 60, **limits})  # type: ignore[arg-type]
        outcome = run(["sh", "-c", program], policy)
        by = {capability: [str(each) for each in entry.by] for capability, entry in outcome.enforced.items()}
        told[name] = {"status": str(outcome.status), "rc": outcome.rc, "reason": outcome.reason, "by": by,
                      "hit": outcome.limits_hit, "stdout": len(outcome.stdout)}  # fmt: skip
    print(json.dumps(told))
    return 0


def _as_on_macos() -> None:
    load_others()
    become_macos()
    sys.meta_path.insert(0, NoLinuxModules)
    sys.addaudithook(_no_proc)
    from ringfence.roles import spawner

    spawner.fork_early()


def run_behind_seatbelt(folder: str) -> int:
    """Run jobs, a transaction and a box behind the stand-ins in this directory, and print what each came to."""
    import json

    _as_on_macos()
    from ringfence.macos import trial

    told: dict[str, object] = {}
    for name in ("holds", "takes", "refuses", "absent"):
        trial.SANDBOX_EXEC = f"{folder}/{name}"
        trial._found.clear()
        told[name] = _behind(folder)
    print(json.dumps(told))
    return 0


def _behind(folder: str) -> dict[str, object]:
    from ringfence.engine.box import Box
    from ringfence.engine.run import run
    from ringfence.errors import SandboxError, UnavailableError
    from ringfence.model.policy import SandboxPolicy

    asked = {"isolation": "process", "network": "none", "hidden_paths": [f"{folder}/Secret"], "wall_time_s": 60,
             "writable_paths": [f"{folder}/out"]}  # fmt: skip
    try:
        outcome = run(["sh", "-c", 'echo "$1"', "sh", "a b"], SandboxPolicy.from_dict(asked), cwd=f"{folder}/work")
    except UnavailableError as error:
        partial = run(["echo", "plain"], SandboxPolicy.from_dict(asked | {"allow_partial": True}))
        return {"missing": sorted(error.missing), "message": str(error), "plain": partial.stdout.decode(),
                "applied": [name for name, entry in partial.enforced.items() if entry.applied]}  # fmt: skip
    found: dict[str, object] = {"status": str(outcome.status), "stdout": outcome.stdout.decode(),
             "by": {name: [str(each) for each in entry.by] for name, entry in outcome.enforced.items()}}  # fmt: skip
    try:
        run(["no-such-program"], SandboxPolicy.from_dict(asked))
    except SandboxError as error:
        found["no program"] = str(error)
    with Box(SandboxPolicy.from_dict(asked)) as box:
        box.put("a/b", b"content")
        found["got"] = box.get("a/b").decode()
    return found


def main(system: str, *words: str) -> int:
    if system == "run":
        return run_as_on_macos()
    if system == "seatbelt":
        return run_behind_seatbelt(*words)
    load_others()
    SYSTEMS[system]()
    failed = list(failures())
    for name, why in failed:
        sys.__stdout__.write(f"{name}: {why}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
