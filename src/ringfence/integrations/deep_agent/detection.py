"""``ExfiltrationDetector``: finds access to a secret, followed by a way out.

Looks at the calls of a session in order, whatever harmless ones come between. There are two kinds of trace: a call
named a secret file (with any tool: copying it is the first step of hiding it), or a value that a call returned turns up
in what is sent. It runs nothing and stops nothing.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from urllib.parse import quote

from ringfence.integrations.deep_agent.call import ToolCall
from ringfence.integrations.deep_agent.secrets_and_code import SECRET_VALUE
from ringfence.model.record import record

_MAX_VALUES = 64
_SHORTEST_VALUE = 8
_BETWEEN = re.compile(r"""[\s"'=:]+""")
_VALUE = re.compile(r"""[^\s"',;=(){}<>\[\]]{8,4096}""")
# The part before this is a name, and many texts contain DATABASE_URL. Nothing follows the padding that ends base64.
_ASSIGNED = re.compile(r"""["']?[ \t]{0,8}[=:][ \t]{0,8}["']?[^\s=]""")


@record
class Finding:
    """One pattern that was found. ``first_step``: where in the session it began."""

    pattern: str
    reason: str
    first_step: int


class Step:
    """A call that ran. ``number``: its place in the session. ``returned``: the text of what it gave back."""

    def __init__(self, number: int, call: ToolCall, returned: str = "") -> None:
        self.number = number
        self.call = call
        self.secrets = call.secret_files
        self.values = frozenset(islice(_secret_values(call, returned), _MAX_VALUES))
        """Texts that must not go out. Kept in memory only."""


Detect = Callable[[Sequence[Step], ToolCall], Iterable[Finding]]


class ExfiltrationDetector:
    """The default. ``window_calls``: how many calls back a secret counts; absent: all of the session, since whoever
    attacks can wait. Values that came back count for the whole session in any case.
    """

    def __init__(self, window_calls: int | None = None) -> None:
        self._window_calls = window_calls

    def __call__(self, history: Sequence[Step], call: ToolCall) -> list[Finding]:
        if not call.way_out:
            return []
        return [*self._in_one(history, call), *self._after_a_secret(history, call), *_with_a_value(history, call)][:1]

    def _in_one(self, history: Sequence[Step], call: ToolCall) -> Iterator[Finding]:
        if call.secret_files:
            number = history[-1].number + 1 if history else 1
            yield _finding(f"one call names {call.secret_files[0]} and {call.way_out}", number)

    def _after_a_secret(self, history: Sequence[Step], call: ToolCall) -> Iterator[Finding]:
        window = history if self._window_calls is None else history[-self._window_calls :]
        for step in window:
            if step.secrets:
                said = f"call {step.number} ({step.call.tool}) named {step.secrets[0]}, then {call.way_out}"
                yield _finding(said, step.number)


def _with_a_value(history: Sequence[Step], call: ToolCall) -> Iterator[Finding]:
    sent = "\n".join(piece.text for piece in call.pieces)
    folded = sent.lower()
    for step in history:
        if any(_is_in(value, sent, folded) for value in step.values):
            said = f"what call {step.number} ({step.call.tool}) gave back goes out by {call.way_out}"
            yield _finding(said, step.number)


def _finding(reason: str, first_step: int) -> Finding:
    return Finding(pattern="exfiltration", reason=reason, first_step=first_step)


def _secret_values(call: ToolCall, returned: str) -> Iterator[str]:
    """Everything that came out of a secret file, and elsewhere what looks like a secret, with and without its name: for
    ``token=abc`` also ``abc``, for a key of several lines each line."""
    found = _in_secret_file(returned) if call.secret_files else SECRET_VALUE.finditer(returned)
    for match in found:
        whole = match.group().strip()
        for value in (whole, *_BETWEEN.split(whole, _MAX_VALUES)[1:]):
            if len(value) >= _SHORTEST_VALUE and not value.startswith("-"):
                yield value


def _in_secret_file(text: str) -> Iterator[re.Match[str]]:
    for match in _VALUE.finditer(text):
        if not match.group().endswith(":") and not _ASSIGNED.match(text, match.end()):
            yield match


def _is_in(value: str, sent: str, folded: str) -> bool:
    plain = any(form.lower() in folded for form in _spellings(value))
    return plain or any(form in sent for form in _encodings(value))


def _spellings(value: str) -> Iterator[str]:
    """As it is, reversed, and in common encodings that survive a change of case."""
    data = value.encode("utf-8", "surrogateescape")
    yield from (value, value[::-1], data.hex(), quote(value, safe=""))


def _encodings(value: str) -> Iterator[str]:
    data = value.encode("utf-8", "surrogateescape")
    for shift in range(3):
        # Inside a longer text base64 depends on where the value begins; its middle does not.
        encoded = b64encode(b"\0" * shift + data).decode()
        middle = encoded[(0, 2, 3)[shift] : len(encoded) - (4 if (shift + len(data)) % 3 else 0)]
        yield from (middle, middle.replace("+", "-").replace("/", "_"))
