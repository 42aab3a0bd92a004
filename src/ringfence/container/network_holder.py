"""A network of its own for one job: a container of ours holds it empty until all its addresses lead to the gateway.

An engine starts a program as soon as it has made the container's network, so the network has to exist before. A first
container holds it, whose program only waits. A helper process enters it and makes the sockets that the gateway accepts
on. Only then is the job's container made, which joins that network (ADR 0101).
"""

from __future__ import annotations

import marshal
import os
import select
import time
from collections.abc import Mapping
from struct import Struct

from ringfence.container import group_files
from ringfence.container.hardening import Bind, ContainerSpec
from ringfence.container.network_entry import DONE, MOST_SAID
from ringfence.errors import SetupError, is_of_a_call
from ringfence.model.limits import MIB, SyscallProfile
from ringfence.model.record import replace
from ringfence.sandbox import networks
from ringfence.transport import interpreter, passing

START_S = 60.0
"""How much longer than the job the guardian leaves the holder: the job begins later."""
_STEP = "lead the container's network to the gateway"
_PROGRAM, _RESOLVER, _CERTIFICATES = "hold", "resolv.conf", "certificates.pem"
_INSIDE = "/ringfence/hold"
_MEMORY_BYTES, _TASKS = 64 * MIB, 16
"""What the engine's runtime needs before it becomes the program, which needs nothing."""
_LOOKS, _LOOK_S = 100, 0.02
_ANSWER_S = 60.0
_RUNTIMES = ("runc", "crun", "io.containerd.runc.v2", "youki")
"""Runtimes whose containers have a network of the host's own kernel."""
_BOOT = "import sys; sys.path.insert(0, {folder!r}); from ringfence.container.network_entry import main; main({door})"

# ---- the program that waits: ppoll(NULL, 0, NULL, NULL, 0), which ends with its container; else exit_group(1)
_CODE = {
    "x86_64": (62, "31ff31f631d24d31d24d31c0b80f0100000f05b8e7000000bf010000000f05"),
    "aarch64": (183, "000080d2010080d2020080d2030080d2040080d2280980d2010000d4200080d2c80b80d2010000d4"),
}
_ELF, _SEGMENT = Struct("<16sHHIQQQIHHHHHH"), Struct("<IIQQQQQQ")
_ADDRESS, _ALIGNED = 0x400000, 0x10000


def program(machine: str) -> bytes:
    """Return the program as an ELF file of its own: an image need not have one that waits, nor a C library."""
    number, code = _CODE[machine]
    content = bytes.fromhex(code)
    head = _ELF.size + _SEGMENT.size
    name = b"\x7fELF\2\1\1".ljust(16, b"\0")
    elf = _ELF.pack(name, 2, number, 1, _ADDRESS + head, _ELF.size, 0, 0, _ELF.size, _SEGMENT.size, 1, 0, 0, 0)
    whole = head + len(content)
    return elf + _SEGMENT.pack(1, 5, 0, _ADDRESS, _ADDRESS, whole, whole, _ALIGNED) + content


def why_not(info: Mapping[str, object], runtime: str, *, is_local: bool) -> tuple[str, str]:
    """What is missing for a list of hosts, and what would help; two empty strings: nothing."""
    runtime = runtime or str(info.get("DefaultRuntime") or _RUNTIMES[0])
    if os.geteuid() != 0:
        return "a caller who may enter the container's network, which is root", "run as root, or use isolation strict"
    if not is_local:
        return "an engine on this host, whose networks can be entered", "use a local engine, or isolation strict"
    if "rootless" in str(info.get("SecurityOptions") or "") or info.get("Rootless"):
        return "an engine of root's: a rootless one has networks of its own", "use root's, or isolation strict"
    if os.path.basename(runtime) not in _RUNTIMES:
        return (f"a runtime with the kernel's own networks, which {runtime} is not known to have",
                f"use {_RUNTIMES[0]}, or isolation strict")  # fmt: skip
    if os.uname().machine not in _CODE:
        return f"a program that waits for {os.uname().machine}", "use isolation strict"
    return "", ""


# ---- the two containers


def lay(folder: str, gateway: networks.GatewayPlan, certificates: bytes) -> None:
    """Write what the containers are shown."""
    ((_, resolver),) = networks.resolver_files(gateway)
    _write(os.path.join(folder, _RESOLVER), resolver.encode("ascii"), 0o444)
    _write(os.path.join(folder, _PROGRAM), program(os.uname().machine), 0o555)
    if gateway.inspected:
        _write(os.path.join(folder, _CERTIFICATES), certificates, 0o444)


def _write(path: str, content: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask
        file.write(content)


def holding(job: ContainerSpec, folder: str) -> ContainerSpec:
    """Return the container that holds the network of this job; it knows nothing about the job."""
    from ringfence.container import seccomp_profile

    seccomp = seccomp_profile.text(SyscallProfile.TIGHT)
    return ContainerSpec(
        argv=(_INSIDE,), image=job.image, workdir="/", memory_bytes=_MEMORY_BYTES, pids=_TASKS, tmpfs={},
        shm_bytes=4096, seccomp=seccomp, runtime=job.runtime, labels=job.labels, hostname=job.hostname,
        binds=(Bind(source=os.path.join(folder, _PROGRAM), target=_INSIDE),),
    )  # fmt: skip


def joining(job: ContainerSpec, holder: str, folder: str, gateway: networks.GatewayPlan) -> ContainerSpec:
    """Return the job's container in the holder's network. Where it names the same paths as ours, ours are shown."""
    shown = {"/etc/resolv.conf": _RESOLVER} | ({networks.CERTIFICATES: _CERTIFICATES} if gateway.inspected else {})
    trusted = dict.fromkeys(networks.TRUST_VARIABLES, networks.CERTIFICATES) if gateway.inspected else {}
    others = [bind for bind in job.binds if bind.target not in shown]
    ours = [Bind(source=os.path.join(folder, name), target=target) for target, name in shown.items()]
    return replace(job, network_of=holder, binds=(*others, *ours), environment=trusted | dict(job.environment))


# ---- the network


def lead(holder: str, listeners: int, gateway: networks.GatewayPlan) -> None:
    """Make every address in the holder's network lead to sockets, and hand these to the reader of ``listeners``."""
    namespace = _open_namespace(holder)
    try:
        said = _entered(namespace, listeners, marshal.dumps((gateway.rows, networks.settings(gateway))))
    finally:
        os.close(namespace)
    if said != DONE:
        raise SetupError(_STEP, said or "the process that does it has ended")


def _open_namespace(holder: str) -> int:
    """Found by its control group, whose files have pids as we see them; an engine may number them otherwise. The holder
    has one process, which makes no other: if the group has the same process before and after, that one was opened."""
    places = group_files.locate(holder)
    for _ in range(_LOOKS):
        found = group_files.members(places)
        if len(found) == 1 and found[0]:
            break
        time.sleep(_LOOK_S)
    else:
        raise SetupError(_STEP, "the one process that holds it can't be found by its control group",
                         hint="use isolation strict")  # fmt: skip
    try:
        namespace = os.open(f"/proc/{found[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if not is_of_a_call(error):
            raise
        raise SetupError(_STEP, f"it can't be opened: {error.strerror}", errno=error.errno or 0) from error
    if group_files.members(places) != found:
        os.close(namespace)
        raise SetupError(_STEP, "the process that holds it has ended")
    return namespace


def _entered(namespace: int, listeners: int, wanted: bytes) -> str:
    """A separate process enters it: a thread that entered would stay there."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    door, pid = interpreter.started(_STEP, lambda theirs: _BOOT.format(folder=folder, door=theirs))
    try:
        passing.send(door, passing.GO, [namespace, listeners], wanted)
        poller = select.poll()
        poller.register(door, select.POLLIN)
        return os.read(door, MOST_SAID).decode("utf-8", "replace") if poller.poll(_ANSWER_S * 1000) else ""
    except OSError as error:
        if not is_of_a_call(error):
            raise
        return str(error.strerror)
    finally:
        os.close(door)
        _end(pid)


def _end(pid: int) -> None:
    try:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return  # somebody collects all children of this process
