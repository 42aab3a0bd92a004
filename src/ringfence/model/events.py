"""``Event``: one thing that happened to a job. The recorder chains them, doors pass them on."""

from __future__ import annotations

from _collections_abc import Callable, Mapping
from types import MappingProxyType

from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum


class EventKind(StrEnum):
    """The closed set of things that happen."""

    START = "start"
    VIOLATION = "violation"
    EGRESS = "egress"
    LIMIT = "limit"
    EXIT = "exit"


@record
class Event:
    """What happened, to which run, when (seconds since the epoch), with plain details."""

    kind: EventKind
    run_id: str
    time_s: float
    details: Mapping[str, object] = MappingProxyType({})


OnEvent = Callable[[Event], None]
OnOutput = Callable[[str, bytes], None]
"""Called with ``stdout`` or ``stderr`` and a piece of it, in the caller's thread, as it arrives."""
