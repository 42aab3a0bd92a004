"""Living containers: each is made once, used for one strategy, and has a place until it is removed.

The configuration says how many stand by. An exception or Ctrl-C leaves none behind: each has a label that is chosen
before it is made, and is found by it even if its id never came back. None outlives a killed caller or its deadline: the
guardian knows each one's name, since the strategy may keep the first process from ending by itself.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

from ringfence.container import orphans
from ringfence.container.guardian import guardian_of
from ringfence.container.hardening import ContainerSpec
from ringfence.docker_sandbox.client import EngineClient
from ringfence.docker_sandbox.conversation import Conversation, Ended, Overflow
from ringfence.docker_sandbox.monitor import ContainerMonitor
from ringfence.docker_sandbox.removal import Remover
from ringfence.errors import SandboxError, SetupError, UsageError
from ringfence.metrics import recorder
from ringfence.metrics.life_log import tell
from ringfence.model.record import record, replace
from ringfence.model.system_text import escape_controls

CREATION = "ringfence.creation"
"""The label that is known before the container is."""
START_S = 60.0
_LOOK_S = 1.0
"""How often whoever waits looks for lost places, of which nobody tells."""
_WORKERS = 4
_LOG_WORDS = 2000


class Place:
    """Room for one container, and what is known of it. It counts until the container is gone, whoever holds it."""

    def __init__(self, slot: Slot) -> None:
        self.holder = weakref.ref(slot)
        self.name = self.nonce = self.url = ""
        self.made = ""
        """The container's id, as soon as it has one."""


class Slot:
    """Whoever has this holds its place. What an interrupt takes from everybody's hands is lost, and can be told."""

    def __init__(self) -> None:
        self.place = Place(self)


@record(eq=False)
class Living:
    """A container whose first process waits for a strategy."""

    id: str
    name: str
    conversation: Conversation
    enforced: Mapping[str, object]
    slot: Slot


class Guard(Protocol):
    """Who removes what is left when we are killed."""

    def add(self, name: str, deadline_s: float = 0.0) -> None: ...
    def done(self, name: str) -> None: ...


ReadBack = Callable[[EngineClient, str, ContainerSpec], Mapping[str, object]]


class WarmPool:
    """All containers of one executor, at most ``most`` at one time. May be used from any thread."""

    def __init__(
        self, client: Callable[[], EngineClient], spec: ContainerSpec, *, most: int, warm: int, result_bytes: int,
        monitor: ContainerMonitor, remover: Remover, read_back: ReadBack, keep: bool = False,
        guard: Callable[[str], Guard] = guardian_of,
    ) -> None:  # fmt: skip
        self._client, self._spec, self._most, self._warm_wanted = client, spec, most, warm
        self._result_bytes, self._monitor, self._remover = result_bytes, monitor, remover
        self._read_back, self._keep, self._guard = read_back, keep, guard
        # Locked by itself: a Condition's __enter__ is Python code, in which a signal could leave it locked for good.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._places: set[Place] = set()
        self._waiting: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._coming = 0
        self._warm: list[Living] = []
        self._closed = False
        self._workers = ThreadPoolExecutor(_WORKERS, "ringfence-containers") if warm else None

    def take(self) -> Living:
        """Return a ready container, warm or new. It waits while there are as many as allowed."""
        while True:
            found = self._warm_or_slot()
            if found is None:
                self._end_lost()
                continue
            living = found if isinstance(found, Living) else self._make(found)
            if living is found and not living.conversation.is_open():
                self.discard(living)  # it died while it waited, perhaps with its engine
                continue
            self.fill()
            return living

    def _warm_or_slot(self) -> Living | Slot | None:
        """None: there are lost ones, which may have room for it."""
        slot = Slot()
        with self._lock:
            self._waiting.add(slot)
            try:
                while not self._closed and not self._lost():
                    if self._warm:
                        return self._warm.pop(0)
                    if len(self._places) < self._most:
                        self._places.add(slot.place)
                        return slot
                    self._changed.wait(_LOOK_S)
            finally:
                self._waiting.discard(slot)
            if not self._closed:
                return None
        raise UsageError("the executor is closed", hint="make another")

    def _lost(self) -> list[Place]:
        return [place for place in self._places if place.holder() is None]

    def _end_lost(self) -> None:
        """End what nobody holds: Ctrl-C came between a place and whoever took it, or while a container was put away."""
        with self._lock:
            lost = self._lost()
        for place in lost:
            self._end(place)

    def fill(self) -> None:
        """Have the missing ones made in the background."""
        with self._lock:
            missing = self._warm_wanted - len(self._warm) - self._coming
        for _ in range(max(0, missing)):
            self._in_background(self._add_one)

    def _add_one(self) -> None:
        with self._lock:
            enough = len(self._warm) + self._coming >= self._warm_wanted or len(self._places) >= self._most
            if self._closed or enough or self._waiting:
                return
            slot = Slot()
            self._places.add(slot.place)
            self._coming += 1
        living = None
        try:
            living = self._make(slot)
        except (SandboxError, OSError) as error:
            tell("warm_container_failed", str(error))
        finally:
            self._came(living)

    def _came(self, living: Living | None) -> None:
        with self._lock:
            self._coming -= 1
            if living is None:
                return
            if not self._closed:
                self._warm.append(living)
                self._changed.notify()
                return
        self.discard(living)

    def _in_background(self, work: Callable[[], object]) -> Future[object] | None:
        """None: there are no threads for it, or no more."""
        try:
            return self._workers.submit(work) if self._workers is not None else None
        except RuntimeError:
            return None

    def _make(self, slot: Slot) -> Living:
        place, began = slot.place, time.monotonic()
        try:
            client = self._client()
            living = self._made(client, slot, began + START_S)
        except BaseException as error:
            removed = self._undo(place)
            if removed or (place.name and not place.made and isinstance(error, SetupError)):
                self._guard(place.url).done(place.name)
            self._free(place)
            raise
        recorder.observe("start_latency_seconds", time.monotonic() - began, isolation="container")
        tell("container_started", container_id=living.id, seconds=round(time.monotonic() - began, 3))
        return living

    def _made(self, client: EngineClient, slot: Slot, until: float) -> Living:
        place = slot.place
        place.nonce, place.name, place.url = os.urandom(8).hex(), orphans.new_name(), client.url
        spec = replace(self._spec, labels={**self._spec.labels, CREATION: place.nonce})
        self._guard(client.url).add(place.name)
        place.made = client.create(spec, place.name)
        self._monitor.record_container_created(place.made)
        conversation = Conversation(client.attach(place.made), self._result_bytes)
        client.start(place.made)
        self._wait_ready(client, place.made, conversation, until)
        enforced = self._read_back(client, place.made, spec)
        return Living(id=place.made, name=place.name, conversation=conversation, enforced=enforced, slot=slot)

    @staticmethod
    def _wait_ready(client: EngineClient, container: str, conversation: Conversation, until: float) -> None:
        try:
            conversation.wait_ready(until)
        except (Ended, Overflow, TimeoutError) as error:
            said = client.logs(container, tail=20) or bytes(conversation.log)
            words = escape_controls(said.decode("utf-8", "replace")[-_LOG_WORDS:], keep="\n")
            raise SetupError("start the container", "its Python did not begin; the container's log: "
                             f"{words.strip() or 'nothing'}") from error  # fmt: skip

    def _undo(self, place: Place) -> bool:
        """Remove what was begun; say whether it is gone. Where Ctrl-C came before the id did, its label finds it."""
        try:
            found = [place.made] if place.made else self._labelled(place)
        except SandboxError:
            return False  # there is no engine to ask; the owner's label lets the next process find it
        removed = [self._remover.remove(container) for container in found]
        return bool(removed) and all(removed)

    def _labelled(self, place: Place) -> list[str]:
        return [each.id for each in self._client().list(f"{CREATION}={place.nonce}")] if place.nonce else []

    def limit(self, living: Living, seconds: float) -> None:
        """From now on it has this much time, whether or not somebody waits for it."""
        self._guard(living.slot.place.url).add(living.name, seconds)

    def discard(self, living: Living, *, background: bool = False) -> None:
        """End one that is used up. Its place is free when it is gone."""
        living.conversation.close()
        if not background or self._in_background(partial(self._discard, living)) is None:
            self._discard(living)

    def _discard(self, living: Living) -> None:
        self._end(living.slot.place)
        self.fill()  # there may have been no room for it before

    def _end(self, place: Place) -> None:
        """Only then its place is free. An interrupt leaves it as it is, and ``take`` ends it once nobody holds it."""
        if place.made and self._keep:
            self._stop(place)
        elif self._undo(place):  # else the guardian goes on knowing it
            self._guard(place.url).done(place.name)
        self._free(place)

    def _stop(self, place: Place) -> None:
        try:
            self._client().kill(place.made)
            self._monitor.record_container_kept(place.made)
            self._guard(place.url).done(place.name)
            tell("container_kept", container_id=place.made)
        except SandboxError as error:
            tell("container_kept", f"it could not be stopped: {error}", container_id=place.made)

    def _free(self, place: Place) -> None:
        """However often it is called."""
        with self._lock:
            self._places.discard(place)
            self._changed.notify()

    def close(self) -> None:
        """End all containers, and wait for what is under way."""
        with self._lock:
            self._closed = True
            warm, self._warm = self._warm, []
            made = [place for place in self._places if place.made]
            self._changed.notify_all()
        for living in warm:
            living.conversation.close()
        for place in made:
            self._end(place)
        if self._workers is not None:
            self._workers.shutdown()
        self._end_lost()
