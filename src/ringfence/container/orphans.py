"""Containers whose owner is gone: labels say whose each one is, and the next process removes what is left.

An owner is a process: its number, when it started, in which boot, pid namespace and machine. An owner in another pid
namespace of the same boot, or on another machine that uses the same engine, can't be seen from here, so its state is
unknown. An image may bring labels, which all its containers inherit: only the name proves that a container is ours.
"""

from __future__ import annotations

import os

from ringfence.container import group_files
from ringfence.errors import SandboxError
from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ringfence.container.api import Listed

    class Lists(Protocol):
        """All that is needed of a client."""

        def list(self, label: str) -> list[Listed]: ...

        def remove(self, container: str, force: bool = True) -> None: ...


OWNER, KIND = "ringfence.owner", "ringfence.kind"
_NAME, _NAME_BYTES, _HEX = "ringfence-", 12, frozenset("0123456789abcdef")
_PID_DIGITS, _MOST_ID = 10, 256
GONE, ALIVE, UNKNOWN = "gone", "alive", "unknown"


def owner(pid: int = 0) -> str:
    """Return the label's value for a process of this host; without a number, for this one."""
    pid = pid or os.getpid()
    return f"{pid}:{_start_time(pid)}:{_boot()}:{_namespace()}:{_machine()}"


def new_name() -> str:
    """Return a name for a container of ours."""
    return f"{_NAME}{os.urandom(_NAME_BYTES).hex()}"


def is_name(name: str) -> bool:
    """Whether ``new_name`` could have made it."""
    digits = name.removeprefix(_NAME)
    return digits != name and len(digits) == 2 * _NAME_BYTES and not set(digits) - _HEX


def labels(kind: str) -> dict[str, str]:
    """Return what every container of ours has."""
    return {OWNER: owner(), KIND: kind}


def state_of(text: str) -> str:
    """Say of an owner whether it lives: ``GONE``, ``ALIVE`` or ``UNKNOWN``."""
    parts = text.split(":")
    if len(parts) != 5 or not parts[0].isdecimal() or len(parts[0]) > _PID_DIGITS:
        return UNKNOWN
    pid, start, boot, namespace, machine = parts
    if not boot or not _boot() or not machine or machine != _machine():
        return UNKNOWN
    if boot != _boot():
        return GONE
    if namespace != _namespace():
        return UNKNOWN
    return ALIVE if start and _start_time(int(pid)) == start else GONE


@record
class Orphan:
    """A container that nobody owns any more."""

    id: str
    name: str
    kind: str
    state: str
    owner: str


def find(client: Lists) -> list[Orphan]:
    """Return all containers of ours whose owner is gone."""
    found = [(each, each.labels.get(OWNER, "")) for each in client.list(OWNER) if is_name(each.name)]
    return [Orphan(id=each.id, name=each.name, kind=each.labels.get(KIND, ""), state=each.state, owner=owner)
            for each, owner in found if state_of(owner) == GONE]  # fmt: skip


def remove(client: Lists, found: list[Orphan]) -> tuple[list[Orphan], dict[str, str]]:
    """Remove them, running or not; return those that are gone, and why the others are not, by id."""
    gone: list[Orphan] = []
    problems: dict[str, str] = {}
    for each in found:
        try:
            group_files.kill(group_files.locate(each.id))
            client.remove(each.id, force=True)
        except SandboxError as error:
            problems[each.id] = str(error)
        else:
            gone.append(each)
    return gone, problems


def _start_time(pid: int) -> str:
    """In ticks since the boot; empty: there is no such process, or a dead one that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if len(rest) < 20 or rest[0] in (b"Z", b"X") else rest[19].decode("ascii")


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _machine() -> str:
    """The id of this host, with its name, since copies of a virtual machine may have the same id."""
    from hashlib import sha256

    try:
        with open("/etc/machine-id", "rb") as file:
            known = file.read(_MOST_ID).strip()
    except OSError:
        return ""
    return sha256(known + b" " + os.fsencode(os.uname().nodename)).hexdigest()[:16] if known else ""


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""
