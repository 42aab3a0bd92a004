"""The steps that part pid 1 from the job and confine the job, as system calls: one pure function for each kind of step.

They make the same calls as ``linux_steps`` and ``executor`` in Python.
"""

from __future__ import annotations

import errno
import os
import sys
from _collections_abc import Callable
from struct import pack

from ringfence.kernel import landlock, rlimits
from ringfence.kernel.calls.table import ANY_ERROR, Address, Slot
from ringfence.kernel.mount import privileges
from ringfence.kernel.proc import processes
from ringfence.kernel.seccomp import bpf
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.steps.root_calls import Build
from ringfence.steps.state import LISTENER, UNHEARD

if sys.platform != "win32":
    import resource

_AT = -100
_DUMPABLE, _SET_NAME, _NO_NEW_PRIVS = 4, 15, 38
_CAPABILITIES = 64
_JOIN_SESSION_KEYRING = 1
_MEMFD_CLOEXEC = 1
# Source of zeros, after the name that is shown; holes take no memory.
_HOLE_BYTES, _ZEROS = 64 << 20, 4096
_SIG_SETMASK, _SIGNAL_SET_BYTES = 2, 8
_UNREGISTER = 1
_ROBUST_LIST_BYTES = 24
_NO_SYMLINKS, _NO_MAGICLINKS = 0x04, 0x02
_RULE_PATH, _RULE_PORT = 1, 2
_SOL_SOCKET, _SCM_RIGHTS, _NO_SIGNAL = 1, 1, 0x4000
_MESSAGE_BYTES, _CONTROL_BYTES, _RIGHT_AT = 56, 24, 16
# Too many descriptors in flight at once pass with time; the waits add up to some ten seconds.
_PAUSES_MS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 2048)


def drop_capabilities(build: Build) -> None:
    """No capability in any set, none regained by any exec, and nothing of the host in what /proc shows."""
    call = build.table.call
    call("keyctl", _JOIN_SESSION_KEYRING, None, allowed=(errno.ENOSYS,))
    dropped = [call("prctl", privileges.CAPBSET_DROP, 0, 0, 0, 0)]
    for number in range(1, _CAPABILITIES):
        dropped.append(call("prctl", privileges.CAPBSET_DROP, number, 0, 0, 0, allowed=(errno.EINVAL,)))
    for each in dropped[1:]:  # past the last capability that this kernel knows
        build.table.skip_failed_from(each)
    call("prctl", privileges.SET_SECUREBITS, privileges.SECUREBITS, 0, 0, 0)
    call("prctl", privileges.CAP_AMBIENT, privileges.CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    call("capset", pack("Ii", privileges.CAPABILITY_VERSION_3, 0), bytes(24))
    call("prctl", _DUMPABLE, 0, 0, 0, 0)
    _forget_command_line(build)


def _forget_command_line(build: Build) -> None:
    slot, call = build.table.slot, build.table.call
    file = slot("file")
    call("memfd_create", "none", _MEMFD_CLOEXEC, store=file)
    call("ftruncate", file, _HOLE_BYTES)
    call("pwrite64", file, processes.OWN_NAME, len(processes.OWN_NAME), 0)
    call("pread64", file, slot("arguments"), slot("arguments bytes"), 0)
    call("pread64", file, slot("environment"), slot("environment bytes"), _ZEROS)
    call("close", file)
    call("prctl", _SET_NAME, processes.OWN_NAME, 0, 0, 0)


def run_as_init(build: Build) -> None:
    """Signals are blocked meanwhile: the two share their stack until the exec. What the C library registered for its
    thread belongs to the parent, and is registered again for the job."""
    table, slot = build.table, build.table.slot
    name = table.text(processes.OWN_NAME)
    argv, envp = table.block(bytes(16)), table.block(bytes(8))
    table.point(argv, 0, name)
    table.call("rt_sigprocmask", _SIG_SETMASK, b"\xff" * 8, None, _SIGNAL_SET_BYTES)
    sequence = (slot("rseq"), slot("rseq bytes"))
    table.call("rseq", *sequence, _UNREGISTER, slot("rseq signature"), allowed=(ANY_ERROR,))
    table.call("split", slot("init"), slot("status"), slot("tally"), argv, envp, slot("tid"))
    table.call("set_robust_list", slot("robust list"), _ROBUST_LIST_BYTES, allowed=(errno.EINVAL,))
    table.call("rseq", *sequence, 0, slot("rseq signature"), allowed=(ANY_ERROR,))
    table.call("rt_sigprocmask", _SIG_SETMASK, bytes(8), None, _SIGNAL_SET_BYTES)
    table.call("close", slot("init"), allowed=(errno.EBADF,))


def setsid(build: Build) -> None:
    build.table.call("setsid")


def chdir(build: Build, path: str) -> None:
    build.table.call("chdir", path)


def umask(build: Build, mask: int) -> None:
    build.table.call("umask", mask)


def no_new_privileges(build: Build) -> None:
    build.table.call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)


def rlimit(build: Build, name: str, soft: int, hard: int) -> None:
    """Limits that the policy does not ask for are lowered to what the host allows; their soft and hard are equal."""
    number = getattr(resource, name)
    if name not in rlimits.GIVES_WAY:
        build.table.call("prlimit64", 0, number, pack("QQ", soft, hard), None)
        return
    set_so = build.table.call("prlimit64", 0, number, pack("QQ", soft, hard), None, allowed=(errno.EPERM,))
    _to_hard_limit(build, number)
    build.table.skip_from(set_so)


def _to_hard_limit(build: Build, number: int) -> None:
    table, limit = build.table, build.table.slot("limit")
    found = table.block(bytes(16))
    table.call("prlimit64", 0, number, None, found)
    table.call("get", Address(found + 8), 8, store=limit)
    table.point(found, 0, limit)
    table.call("prlimit64", 0, number, found, None)


def put_up_landlock(build: Build, handled: bytes, beneath: list[landlock.Row], open_ports: list[bytes]) -> None:
    table, ruleset, place = build.table, build.table.slot("ruleset"), build.table.slot("place")
    how = table.block(pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _NO_MAGICLINKS | _NO_SYMLINKS))
    table.call("landlock_create_ruleset", handled, len(handled), 0, store=ruleset)
    for path, on_folder, on_file in beneath:
        assert isinstance(path, str)
        table.call("openat2", _AT, path, how, 24, store=place)
        _add_path(build, ruleset, place, on_folder, on_file)
        table.call("close", place)
    for port in open_ports:
        table.call("landlock_add_rule", ruleset, _RULE_PORT, port, 0)
    table.call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    table.call("landlock_restrict_self", ruleset, 0)
    table.call("close", ruleset)


def _add_path(build: Build, ruleset: Slot, place: Slot, on_folder: int, on_file: int) -> None:
    """The kernel refuses directory rights for a file, so a file gets the rights that files can have."""
    added = []
    for bits in dict.fromkeys((on_folder, on_file)):
        if bits:
            rule = build.table.block(pack("=Qi4x", bits, 0))
            build.table.point(rule, 8, place, width=4)
            allowed = (errno.EINVAL,) if bits != on_file and on_file else ()
            added.append(build.table.call("landlock_add_rule", ruleset, _RULE_PATH, rule, 0, allowed=allowed))
    for number in added[:-1]:
        build.table.skip_from(number)


def show_memory(build: Build) -> None:
    build.table.call("prctl", _DUMPABLE, 1, 0, 0, 0)


def install_filter(build: Build, program: bytes, told: bool, unheard: bytes = b"") -> None:
    """``told``: the leader gets the listener. ``unheard``: the filter to use if an outer sandbox listens already."""
    table = build.table
    if told:
        _to_hard_limit(build, resource.RLIMIT_NOFILE)
    table.call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    code = _program(build, program)
    if not told:
        table.call("seccomp", seccomp.SET_MODE_FILTER, 0, code)
        return
    listener, busy = table.slot("listener"), (errno.EBUSY,) if unheard else ()
    flags = seccomp.FLAG_NEW_LISTENER | seccomp.FLAG_WAIT_KILLABLE
    tried = [table.call("seccomp", 1, flags, code, store=listener, allowed=(errno.EINVAL, *busy)),
             table.call("seccomp", 1, seccomp.FLAG_NEW_LISTENER, code, store=listener, allowed=busy)]  # fmt: skip
    alone = -1
    if unheard:
        _send(build, UNHEARD)
        alone = table.call("seccomp", seccomp.SET_MODE_FILTER, 0, _program(build, unheard))
    for number in tried:
        table.skip_from(number)
    _send(build, LISTENER, listener)
    table.call("close", listener)
    if alone >= 0:
        table.skip_from(alone)


def _program(build: Build, program: bytes) -> Address:
    """struct sock_fprog."""
    code = build.table.block(pack("@HxxxxxxQ", len(program) // bpf.INSTRUCTION_BYTES, 0))
    build.table.point(code, 8, build.table.block(program))
    return code


def _send(build: Build, kind: bytes, descriptor: Slot | None = None) -> None:
    """Like ``passing.send``."""
    table = build.table
    words = table.block(kind + bytes((0 if descriptor is None else 1,)))
    vector, message = table.block(pack("QQ", 0, 2)), table.block(bytes(_MESSAGE_BYTES))
    table.point(vector, 0, words)
    table.point(message, 16, vector)
    table.point(message, 24, 1)
    if descriptor is not None:
        control = table.block(pack("QiiiI", 20, _SOL_SOCKET, _SCM_RIGHTS, 0, 0))
        table.point(control, _RIGHT_AT, descriptor, width=4)
        table.point(message, 32, control)
        table.point(message, 40, _CONTROL_BYTES)
    sent = []
    for pause in _PAUSES_MS if descriptor is not None else ():
        sent.append(table.call("sendmsg", table.slot("door"), message, _NO_SIGNAL, allowed=(errno.ETOOMANYREFS,)))
        table.call("nanosleep", pack("qq", pause // 1000, pause % 1000 * 1_000_000), None, allowed=(ANY_ERROR,))
    table.call("sendmsg", table.slot("door"), message, _NO_SIGNAL)
    for number in sent:
        table.skip_from(number)


CALLS: dict[str, Callable[..., None]] = {
    "drop capabilities": drop_capabilities,
    "run as init": run_as_init,
    "setsid": setsid,
    "chdir": chdir,
    "umask": umask,
    "no new privileges": no_new_privileges,
    "rlimit": rlimit,
    "landlock": put_up_landlock,
    "show memory": show_memory,
    "seccomp": install_filter,
}
