"""The tables of cheats, by class, and what the honest twin of each class does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringfence.corpus.cheat import Cheat
from ringfence.corpus.cheats import access, fetching, grading, history, interpreter, leavings, outcomes
from ringfence.errors import UsageError

CHEATS: tuple[Cheat, ...] = (
    *access.CHEATS, *history.CHEATS, *fetching.CHEATS, *grading.CHEATS, *leavings.CHEATS, *interpreter.CHEATS,
    *outcomes.CHEATS,
)  # fmt: skip
TWINS: Mapping[str, str] = {
    **access.TWINS, **history.TWINS, **fetching.TWINS, **grading.TWINS, **leavings.TWINS, **interpreter.TWINS,
    **outcomes.TWINS,
}  # fmt: skip
KINDS = tuple(dict.fromkeys(cheat.kind for cheat in CHEATS))


def chosen(names: Sequence[str]) -> tuple[Cheat, ...]:
    """Return those of the classes or titles that are named; all without a name.

    >>> [cheat.name for cheat in chosen(["oracle/cat"])]
    ['cat']
    """
    for name in names:
        if name not in KINDS and not any(cheat.title == name for cheat in CHEATS):
            raise UsageError(f"there is no cheat and no class {name!r}", hint=f"classes: {', '.join(KINDS)}")
    return tuple(cheat for cheat in CHEATS if not names or cheat.kind in names or cheat.title in names)
