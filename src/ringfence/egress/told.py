"""What a gateway tells the caller about one sandbox: an event for each decision as JSON lines, totals at the end."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfence.transport.request import EgressAnswer, EgressEvent

MOST_EVENTS, MOST_REFUSED = 10_000, 8_000
"""Refusals cost a guest nothing: a flood of them leaves room for what it was allowed."""
_MOST_WAITING = 16 << 20
_READ_S, _LOOK_S = 10.0, 0.002
MOST_TEXT = 1024
"""Characters of any text in an event."""


class Teller:
    """The sending half of the gateway's end of a dialogue. It never waits for the caller to read."""

    def __init__(self, dialogue: socket.socket) -> None:
        self.dialogue = dialogue
        self.loop = asyncio.get_running_loop()
        self.waiting = bytearray()
        self.events = self.refused = self.uncounted = 0
        """``uncounted``: of the sandbox's whole life; the others of the visit that runs."""
        self.names: set[str] = set()

    def begin_visit(self) -> None:
        """A visit to the box has ended: the next one has room for as many events, and hears of each name again."""
        self.events = self.refused = 0
        self.names.clear()

    def event(self, event: EgressEvent) -> None:
        """Send events one by one up to a number; later ones, and those that nobody fetches, are only counted."""
        is_refusal = event["decision"] == "refused"
        too_many = self.events >= MOST_EVENTS or (is_refusal and self.refused >= MOST_REFUSED)
        if too_many or len(self.waiting) > _MOST_WAITING:
            self.uncounted += 1
            return
        self.events += 1
        self.refused += is_refusal
        self.say({"event": event})

    def is_new(self, name: str) -> bool:
        """Whether a refused name is to be reported: only the first time, as long as there is room to remember."""
        if name in self.names:
            return False
        if len(self.names) < MOST_EVENTS:
            self.names.add(name)
        return True

    def say(self, answer: EgressAnswer) -> None:
        """Send one line, at once or as soon as there is room."""
        if self.dialogue.fileno() < 0:
            return
        if not self.waiting:
            self.loop.add_writer(self.dialogue, self._flush)
        self.waiting += json.dumps(answer, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"

    def _flush(self) -> None:
        try:
            del self.waiting[: self.dialogue.send(self.waiting)]
        except BlockingIOError:
            return
        except OSError:
            self.waiting.clear()  # nobody is there; whoever reads the dialogue sees that too
        if not self.waiting:
            self.loop.remove_writer(self.dialogue)

    async def all_said(self) -> None:
        """Wait for the caller to read what was said, as long as one that reads may take."""
        give_up = self.loop.time() + _READ_S
        while self.waiting and self.dialogue.fileno() >= 0 and self.loop.time() < give_up:
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """Nothing more is said; what could not be sent at once is lost."""
        if self.dialogue.fileno() < 0:
            return
        if self.waiting:
            self._flush()
        self.loop.remove_writer(self.dialogue)
        self.dialogue.close()
