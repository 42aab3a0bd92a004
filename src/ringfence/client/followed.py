"""A run as its events tell it, to its end: output and attempts as they come, then the final document.

In a flood the service keeps the newest events and says how many are missing. Output is then taken from the outcome,
which has all that a listener is told: nothing is missed without a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ringfence.client.connection import Connection
from ringfence.client.wire import outcome_of, to_bytes, understood
from ringfence.errors import SupervisionError
from ringfence.model.events import Event, EventKind, OnEvent, OnOutput
from ringfence.model.outcome import dropped_text

_STREAMS = ("stdout", "stderr")
_LONGEST = 4
"""Bytes of a character: of a stream that was cut, the outcome has whole ones."""


def followed(
    connection: Connection, run_id: str, on_event: OnEvent | None, on_output: OnOutput | None
) -> dict[str, Any]:
    """Return the final document of a run; pass its events on meanwhile."""
    output = None if on_output is None else _Output(on_output)
    for name, data in connection.events(f"/v1/runs/{run_id}/events"):
        if name == "output" and output is not None:
            output.add(*understood(_piece, data))
        elif name == "dropped" and output is not None:
            output.is_missing = True
        elif name == "attempt" and on_event is not None:
            on_event(understood(_event, run_id, data))
        elif name == "end":
            document = understood(_document, data)
            if output is not None and output.is_missing:
                output.complete(document)
            return document
    raise SupervisionError("the event stream ended without a result")


def _piece(data: Mapping[str, Any]) -> tuple[str, bytes]:
    if data["stream"] not in _STREAMS:
        raise ValueError("no such stream")
    return data["stream"], to_bytes(data["data"], "output")


def _event(run_id: str, data: Mapping[str, Any]) -> Event:
    return Event(kind=EventKind(data["kind"]), run_id=run_id, time_s=data["time"], details=dict(data["details"]))


def _document(data: Any) -> dict[str, Any]:
    return {**data}


class _Stream:
    """What a listener was told of one stream, and what it could not be."""

    def __init__(self) -> None:
        self.told_bytes, self.held_bytes = 0, 0
        self._digest = hashlib.sha256()

    def tell(self, piece: bytes) -> None:
        self.told_bytes += len(piece)
        self._digest.update(piece)

    def rest(self, whole: bytes, cut_bytes: int) -> bytes:
        """What the listener still has to hear; SupervisionError if the outcome does not go on where it has stopped."""
        kept = whole[: len(whole) - len(b"\n" + dropped_text(cut_bytes))] if cut_bytes else whole
        more = _LONGEST if cut_bytes else 0
        begins = hashlib.sha256(kept[: self.told_bytes]).digest() == self._digest.digest()
        is_all_told = cut_bytes and len(kept) < self.told_bytes < len(kept) + _LONGEST
        if not (begins or is_all_told) or len(kept) + more < self.told_bytes + self.held_bytes:
            raise SupervisionError("output of the run was lost on the way, and its outcome does not have all of it",
                                   hint="give the policy an output_bytes that the service can keep")  # fmt: skip
        return kept[self.told_bytes :]


class _Output:
    """Passes output on. From the first gap on it waits for the outcome, so that no stream has a hole."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output = on_output
        self._streams = {name: _Stream() for name in _STREAMS}
        self.is_missing = False

    def add(self, name: str, piece: bytes) -> None:
        if self.is_missing:
            self._streams[name].held_bytes += len(piece)
            return
        self._streams[name].tell(piece)
        self._on_output(name, piece)

    def complete(self, document: Mapping[str, Any]) -> None:
        if document.get("outcome") is None:
            return  # why is raised by whoever asks for it
        outcome = outcome_of(document)
        for name, stream in self._streams.items():
            rest = stream.rest(getattr(outcome, name), getattr(outcome, f"{name}_dropped"))
            if rest:
                self._on_output(name, rest)
