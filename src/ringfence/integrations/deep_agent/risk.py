"""``RiskModel``: how risky a call looks, from 0 to 1, with the reasons.

A table of signs, each with a weight; the heaviest counts, every further one adds a little. It decides which calls are
sandboxed, and is not a boundary itself: a text can be written so that nothing in it looks suspicious. So a name that
says nothing does not count as harmless.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from ringfence.integrations.deep_agent import tool_words
from ringfence.integrations.deep_agent.call import Piece, ToolCall
from ringfence.integrations.deep_agent.confusables import name_words, squeezed
from ringfence.integrations.deep_agent.paths import leads_below
from ringfence.integrations.deep_agent.spellings import paths_in
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute

Validator = Callable[[str], Iterable[object]]

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "looks": 0.1,
        "unknown": 0.55,
        "changes": 0.55,
        "network": 0.6,
        "destroys": 0.8,
        "executes": 0.85,
        "secret value": 0.6,
        "opaque value": 0.6,
        "outside path": 0.75,
        "code": 0.75,
        "secret file": 0.8,
        "disguise": 0.9,
        "finding": 0.95,
    }
)
_FURTHER = 0.05
_MAX_PATH = 4096
_MAX_LOOKED_THROUGH = 64 * 1024


@record
class Assessment:
    """A score from 0 to 1, and why."""

    score: float
    reasons: tuple[str, ...] = ()


class RiskModel:
    """The default. ``workspace``: directories whose files are the agent's own. ``validator``: source → findings, for
    code.

    >>> RiskModel()(ToolCall("read_file", {"path": "notes.txt"})).score
    0.1
    >>> RiskModel()(ToolCall("execute_script", {"path": "analysis.py"})).score
    0.85
    """

    def __init__(
        self,
        workspace: Iterable[str | os.PathLike[str]] = (),
        *,
        validator: Validator | None = None,
        weights: Mapping[str, float] = WEIGHTS,
    ) -> None:
        self._workspace = tuple(map(absolute, workspace)) or (absolute("."),)
        self._validator = validator
        self._weights = {**WEIGHTS, **weights}

    def __call__(self, call: ToolCall) -> Assessment:
        signs = [*_name_signs(call), *self._parameter_signs(call)]
        weights = sorted((self._weights[sign] for sign, _ in signs), reverse=True)
        score = min(1.0, weights[0] + _FURTHER * (len(weights) - 1))
        return Assessment(score=round(score, 3), reasons=tuple(f"{sign}: {detail}" for sign, detail in signs))

    def _parameter_signs(self, call: ToolCall) -> Iterator[tuple[str, str]]:
        details = {
            "secret file": ", ".join(call.secret_files[:3]),
            "secret value": "in the parameters" if call.has_secret_values else "",
            "opaque value": ", ".join(call.opaque[:3]),
            "outside path": self._outside(call.pieces),
            "code": "in the parameters" if call.code and not _executes(call) else "",
            "disguise": call.disguised[0] if call.disguised else "",
            "finding": ", ".join(self._findings(call)),
        }
        yield from ((sign, detail) for sign, detail in details.items() if detail)

    def _findings(self, call: ToolCall) -> list[str]:
        if self._validator is None:
            return []
        return [str(finding)[:200] for source in call.code for finding in self._validator(source)][:5]

    def _outside(self, pieces: tuple[Piece, ...]) -> str:
        """Which path leads outside; a text that can't be inspected does not count as staying inside."""
        if sum(len(piece.text) for piece in pieces) > _MAX_LOOKED_THROUGH:
            return f"perhaps, in more than {_MAX_LOOKED_THROUGH} characters"
        found = next(filter(self._leads_outside, pieces), None)
        return f"in {found.key!r}" if found else ""

    def _leads_outside(self, piece: Piece) -> bool:
        """By its key, because it begins like a path that leads away, or because a file of this name exists."""
        text = piece.text.strip()
        named = bool(name_words(piece.key) & tool_words.PATH_KEYS)
        if named and (len(text) > _MAX_PATH or not text.isprintable()):
            return True
        return any(self._is_outside(path, named) for path in paths_in(piece.text))

    def _is_outside(self, path: str, named: bool) -> bool:
        return bool(path) and (named or _leads(path) or self._is_there(path)) and not self._is_inside(path)

    def _is_inside(self, text: str) -> bool:
        """Whether it ends below one of the workspace's directories after following links: inside a sandbox, where a
        relative path begins in the workspace, and outside, where it begins in the current directory."""
        path = os.path.expanduser(text)
        has_drive = path[1:3] == ":/"
        return not has_drive and all(leads_below(start, path, self._workspace) for start in self._starts())

    def _is_there(self, text: str) -> bool:
        return len(text) <= _MAX_PATH and any(os.path.lexists(os.path.join(start, text)) for start in self._starts())

    def _starts(self) -> tuple[str, str]:
        return self._workspace[0], os.getcwd()


def _leads(text: str) -> bool:
    """Whether it begins like a path that may lead away, or goes up on its way."""
    return text.startswith(("/", "~", "../")) or text[1:3] == ":/" or "/../" in text or f"/{text}".endswith("/..")


_NAME_SIGNS = (
    ("executes", tool_words.EXECUTING_WORDS, tool_words.EXECUTING_PARTS),
    ("destroys", tool_words.DESTROYING_WORDS, tool_words.DESTROYING_PARTS),
    ("changes", tool_words.CHANGING_WORDS, tool_words.CHANGING_PARTS),
)


def _name_signs(call: ToolCall) -> Iterator[tuple[str, str]]:
    together = squeezed(call.tool)
    found = [
        sign
        for sign, whole, parts in _NAME_SIGNS
        if call.words & whole or any(part in name for part in parts for name in together)
    ]
    yield from ((sign, "by its name") for sign in found)
    if call.way_out:
        yield "network", call.way_out
    if not found and not call.way_out:
        yield ("looks" if call.words & tool_words.LOOKING_WORDS else "unknown"), "by its name"


def _executes(call: ToolCall) -> bool:
    return any(sign == "executes" for sign, _ in _name_signs(call))

