"""What a workspace writes down before it changes more than one file, and how that is read back.

A file that was damaged, or written by hand, is an error before the first change: no name leads out of the tree, and
every value has its type. Carries out nothing.
"""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.apply import is_new_name
from ringfence.checkpoint.commit.commit_plan import CommitPlan
from ringfence.checkpoint.entry import Manifest
from ringfence.checkpoint.records.documents import reading
from ringfence.checkpoint.store import JOURNAL, Store
from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@record
class GoingBack:
    """The layer becomes another one."""

    temporary: str
    current: str
    """The checkpoint that it is then at."""
    layer: Manifest | None
    """Absent: that checkpoint's."""


@record
class Staging:
    """New files are being made beside their places. Nothing has changed yet, and after an interruption nothing will."""

    temporary: str


@record
class Carrying:
    """The layer, or part of it, goes into the base."""

    temporary: str
    plan: CommitPlan
    rest: Manifest | None
    whole: bool
    anew: tuple[str, ...] = ()
    """Paths where the layer takes over what the base then has: conflicts that were decided."""


Journal = GoingBack | Staging | Carrying


def note(store: Store, journal: Journal) -> None:
    store.write(JOURNAL, _document(journal), urgent=isinstance(journal, GoingBack))


def _document(journal: Journal) -> Mapping[str, Any]:
    if isinstance(journal, Staging):
        return {"op": "stage", "temporary": journal.temporary}
    if isinstance(journal, GoingBack):
        rows = {} if journal.layer is None else {"layer": entries.to_rows(journal.layer)}
        return {"op": "rollback", "current": journal.current, "temporary": journal.temporary, **rows}
    return {
        "op": "commit",
        "now": entries.index_rows(journal.plan.now),
        "target": entries.to_rows(journal.plan.target),
        "rest": None if journal.rest is None else entries.to_rows(journal.rest),
        "whole": journal.whole,
        "anew": list(journal.anew),
        "temporary": journal.temporary,
    }


def noted(store: Store) -> Journal | None:
    """None: there is nothing to finish."""
    document = store.read(JOURNAL)
    if document is None:
        return None
    with reading(f"{store.path}/{JOURNAL}.json"):
        temporary, op = document["temporary"], document["op"]
        if not is_new_name(temporary):
            raise ValueError(f"{temporary!r} is not one of ringfence's own names")
        return _READERS[op](temporary, document)


def _going_back(temporary: str, document: Mapping[str, Any]) -> Journal:
    rows = document.get("layer")
    layer = None if rows is None else entries.from_rows(rows)
    return GoingBack(temporary=temporary, current=str(document["current"]), layer=layer)


def _carrying(temporary: str, document: Mapping[str, Any]) -> Journal:
    plan = CommitPlan(now=entries.index_from(document["now"]), target=entries.from_rows(document["target"]))
    rest = None if document["rest"] is None else entries.from_rows(document["rest"])
    anew = tuple(map(entries.inside, document.get("anew", ())))
    return Carrying(temporary=temporary, plan=plan, rest=rest, whole=bool(document["whole"]), anew=anew)


_READERS = {
    "rollback": _going_back,
    "stage": lambda temporary, _: Staging(temporary=temporary),
    "commit": _carrying,
}
