"""``Event``: one thing that happened to a job. The recorder chains them, doors pass them on."""

from __future__ import annotations

import errno
from _collections_abc import Callable, Mapping
from types import MappingProxyType

from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum


class EventKind(StrEnum):
    """The closed set of things that happen."""

    START = "start"
    """The program began; with its command."""
    VIOLATION = "violation"
    """Something forbidden was tried: a hidden path, a system call; with the call, the path and the process."""
    EGRESS = "egress"
    """A connection or a name query: with ``decision`` from the gateway, without one as the recorder saw the call."""
    LIMIT = "limit"
    """A limit was hit; with its name."""
    EXIT = "exit"
    """The whole tree has ended; with how it did."""


@record
class Event:
    """What happened, to which run, when (seconds since the epoch), with plain details."""

    kind: EventKind
    run_id: str
    time_s: float
    details: Mapping[str, object] = MappingProxyType({})


OnEvent = Callable[[Event], None]
OnOutput = Callable[[str, bytes], None]
"""Called with ``stdout`` or ``stderr`` and a piece of that stream, in the caller's thread, as it arrives."""

QUIET = ("/etc/gitconfig", "/etc/pip.conf", "/etc/wgetrc")
"""Hidden by a manager, but asked for by honest programs too: that is no violation."""


def tried(details: Mapping[str, object]) -> str:
    """What was tried, in words. Empty: it is allowed, or honest programs try it too, such as reading what ps reads of
    pid 1, or a call that was answered as if the kernel did not have it."""
    if details.get("decision") == "refused":
        return f"connection to {ascii(details.get('name') or details.get('address') or '')[1:-1]}:{details.get('port')}"
    if details.get("missed"):
        return f"{details['missed']} connections or more, which the gateway did not name"
    path, number = str(details.get("path", "")), details.get("errno")
    unknown_call = number == errno.ENOSYS and details.get("aim") != "hidden"
    is_honest = path in QUIET or details.get("aim") == "process"
    if not number or unknown_call or (is_honest and not details.get("writes")):
        return ""
    asked = str(details.get("asked") or path)
    return f"{details.get('operation', '')} {ascii(asked)[1:-1]}".strip()
