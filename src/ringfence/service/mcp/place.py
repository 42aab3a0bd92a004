"""A box of the service as the place of a model's session: the box belongs to the tenant like any other, and the session
uses it under its lock."""

from __future__ import annotations

from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.box import Box
from ringfence.errors import UsageError
from ringfence.integrations.living.place import Place
from ringfence.integrations.living.session import KeepQuestion, Session
from ringfence.manager.registry import Registry
from ringfence.model.events import Event
from ringfence.service.boxes import KeptBox
from ringfence.service.run import TOLD
from ringfence.service.runs import Runs


class KeptPlace(Place):
    """Used from threads. Others may park its box and open it anew; this never opens a box without a place."""

    def __init__(self, kept: KeptBox, registry: Registry) -> None:
        super().__init__(kept.policy)
        self._kept, self._registry = kept, registry
        self._box_lock = self._turn = kept.lock

    def box(self) -> Box:
        if self._closed:
            raise UsageError("the session has ended")
        return self._kept.with_box(self._registry)

    def end_all(self) -> None:
        self._kept.end_all()

    def transaction(self) -> Transaction:
        with self._kept.at_rest(self._registry) as transaction:
            return transaction

    def close(self) -> None:
        """Nothing to do: the owner of the box parks or removes it."""
        self._closed = True


def session_of(kept: KeptBox, registry: Registry, runs: Runs) -> Session:
    """Runs in a thread. Attempts of programs in it are shown to everybody who watches the service."""
    place = KeptPlace(kept, registry)

    def on_event(event: Event) -> None:
        if event.kind in TOLD:
            runs.tell_attempt(kept.tenant, "", kept.id, event)

    place.on_event = on_event
    keep: KeepQuestion = lambda _: f"all of it, now: GET /v1/boxes/{kept.id}/diff"  # noqa: E731
    workspace = kept.bases[0] if kept.workspace else ""
    return Session(kept.policy, place.transaction(), workspace=workspace, place=place, keep_question=keep)
