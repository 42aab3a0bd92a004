"""Whether the recorder saw everything, as the formats state it.

Owns: when «clean» may be said. Where anything is missing, or could be, the recorder is not healthy, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ringfence.attest.plain import Plain
from ringfence.evidence.runrecord import RecorderHealth
from ringfence.model.events import EventKind
from ringfence.model.outcome import Mechanism, Outcome

FORBIDS = ("hidden_paths", "readable_paths", "writable_paths", "network", "syscalls")
"""Capabilities that keep a job from something. One that is not in force prevents nothing and records nothing."""
_MOST_CHARS = 2000
_COUNTS = {
    "unnamed": "attempts on forbidden things that no event names",
    "lost": "attempts that were lost, or may have been",
    "late": "attempts that came after the record was closed",
    "unwritten": "attempts that could not be written down",
}


def recorder(outcomes: Sequence[Outcome], count: int, head: str) -> RecorderHealth:
    """The health of the recorder over all these runs, whose events are the chain of this count and head."""
    dropped = sum(missing(outcome) for outcome in outcomes)
    problem = _joined(outcomes, _problems) if outcomes else "nothing was run"
    return RecorderHealth(
        healthy=not dropped and not problem,
        mechanism=_joined(outcomes, _mechanisms),
        events_count=count,
        events_head=head,
        dropped=dropped,
        problem=problem,
    )


def _joined(outcomes: Sequence[Outcome], words_of: Callable[[Outcome], Iterator[str]]) -> str:
    """Each word once."""
    words = dict.fromkeys(word for outcome in outcomes for word in words_of(outcome))
    return Plain(_MOST_CHARS).text("; ".join(words))


def missing(outcome: Outcome) -> int:
    """How many attempts or decisions there were, or may have been, that no event names."""
    return outcome.unrecorded + _untold(outcome) + _missed_by_gateway(outcome)


def _untold(outcome: Outcome) -> int:
    """Attempts that the recorder kept and that are not among the events."""
    kept = outcome.recorder.get("kept", 0)
    told = sum(event.details.get("wall_ns") is not None for event in outcome.events)
    return max(0, kept - told) if isinstance(kept, int) else 1


def _missed_by_gateway(outcome: Outcome) -> int:
    missed = (event.details.get("missed", 0) for event in outcome.events if event.kind is EventKind.EGRESS)
    return sum(count for count in missed if isinstance(count, int) and count > 0)


def _problems(outcome: Outcome) -> Iterator[str]:
    """Every reason not to say «clean», in words."""
    if not outcome.recorder:
        yield "nothing recorded this run, or what did was lost with it"
    elif outcome.recorder.get("complete") is not True:
        yield "the record is not complete"
    yield from (f"{outcome.recorder[name]} {what}" for name, what in _COUNTS.items() if outcome.recorder.get(name))
    told = outcome.recorder.get("problems")
    yield from map(str, told) if isinstance(told, list | tuple) else ()
    yield from _holes(outcome)


def _holes(outcome: Outcome) -> Iterator[str]:
    """Gaps that the recorder itself does not know about."""
    if untold := _untold(outcome):
        yield f"{untold} attempts were recorded and did not arrive"
    if _missed_by_gateway(outcome):
        yield "decisions of the gateway are not told one by one"
    absent = [name for name, entry in outcome.enforced.items() if name in FORBIDS and not entry.applied]
    if absent:
        yield f"not in force, and so not recorded: {', '.join(absent)}"


def _mechanisms(outcome: Outcome) -> Iterator[str]:
    """What watched, for people."""
    if not outcome.recorder:
        yield "none"
        return
    yield "seccomp notification"
    hidden, network = (outcome.enforced.get(name) for name in ("hidden_paths", "network"))
    if hidden is not None and hidden.applied:
        yield f"hidden paths: {hidden.details}"
    if network is not None and Mechanism.GATEWAY in network.by:
        yield "gateway"
    if caveat := outcome.recorder.get("caveat"):
        yield f"not seen: {caveat}"
