"""Unified diffs whose cost is bounded, whatever the two texts are: their authors may be hostile.

The time of ``difflib`` grows with the square of the number of lines, so a file of a few thousand lines can keep a user
for hours from seeing what a program did. Here a part that would cost too much is shown as replaced as a whole, which is
just as true, only longer. Knows lines only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

_MAX_WORK = 1_000_000
"""Comparisons of lines in one diff: less than a second."""
_AROUND = 3


class _Bounded(difflib.SequenceMatcher[str]):
    """Finds no more matches once it has used up its budget."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        super().__init__(None, old, new)
        self._old = old
        self._left = _MAX_WORK

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        known: dict[str, list[int]] = self.b2j  # type: ignore[attr-defined]
        self._left -= sum([len(known.get(line, ())) + 1 for line in self._old[alo:ahi]])
        if self._left < 0:
            return difflib.Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


def unified(old: list[str], new: list[str], old_name: str, new_name: str) -> Iterator[str]:
    """Its lines, as ``difflib.unified_diff`` has them; none where the texts are the same."""
    if old == new:
        return
    yield f"--- {old_name}\n"
    yield f"+++ {new_name}\n"
    for group in _Bounded(old, new).get_grouped_opcodes(_AROUND):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        yield f"@@ -{_range(old_start, old_end)} +{_range(new_start, new_end)} @@\n"
        for tag, first, last, new_first, new_last in group:
            yield from (f" {line}" for line in old[first:last] if tag == "equal")
            yield from (f"-{line}" for line in old[first:last] if tag in ("replace", "delete"))
            yield from (f"+{line}" for line in new[new_first:new_last] if tag in ("replace", "insert"))


def _range(start: int, stop: int) -> str:
    """Lines are counted from 1; an empty range names the line before it."""
    length = stop - start
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"
