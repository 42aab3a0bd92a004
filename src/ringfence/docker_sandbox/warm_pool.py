"""Living containers: each is made once, used for one strategy, and counted until it is removed.

The configuration says how many stand by. An exception or Ctrl-C leaves none behind: each has a label that is chosen
before it is made, and is found by it even if its id never came back. None outlives a killed caller or its deadline: the
guardian knows each one's name, since the strategy may keep the first process from ending by itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
_WORKERS = 4
_LOG_WORDS = 2000


@record(eq=False)
class Living:
    """A container whose first process waits for a strategy."""

    id: str
    name: str
    conversation: Conversation
    enforced: Mapping[str, object]


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
        self._alive = 0
        self._waiting = self._coming = 0
        self._warm: list[Living] = []
        self._closed = False
        self._workers = ThreadPoolExecutor(_WORKERS, "ringfence-containers") if warm else None

    def take(self) -> Living:
        """Return a ready container, warm or new. It waits while there are as many as allowed."""
        while True:
            living = self._warm_or_slot()
            if living is None:
                living = self._make_in_slot()
            elif not living.conversation.is_open():
                self.discard(living)  # it died while it waited, perhaps with its engine
                continue
            self.fill()
            return living

    def _warm_or_slot(self) -> Living | None:
        with self._lock:
            self._waiting += 1
            try:
                while not self._closed:
                    if self._warm:
                        return self._warm.pop(0)
                    if self._alive < self._most:
                        self._alive += 1
                        return None
                    self._changed.wait()
            finally:
                self._waiting -= 1
        raise UsageError("the executor is closed", hint="make another")

    def _make_in_slot(self) -> Living:
        try:
            return self._make()
        except BaseException:
            self._free()
            raise

    def fill(self) -> None:
        """Have the missing ones made in the background."""
        with self._lock:
            missing = self._warm_wanted - len(self._warm) - self._coming
        for _ in range(max(0, missing)):
            self._in_background(self._add_one)

    def _add_one(self) -> None:
        with self._lock:
            enough = len(self._warm) + self._coming >= self._warm_wanted or self._alive >= self._most
            if self._closed or enough or self._waiting:
                return
            self._alive += 1
            self._coming += 1
        living = None
        try:
            living = self._make_in_slot()
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

    def _make(self) -> Living:
        nonce, name, client, began = os.urandom(8).hex(), orphans.new_name(), self._client(), time.monotonic()
        made: list[str] = []
        spec = replace(self._spec, labels={**self._spec.labels, CREATION: nonce})
        try:
            self._guard(client.url).add(name)
            made.append(client.create(spec, name))
            self._monitor.record_container_created(made[0])
            conversation = Conversation(client.attach(made[0]), self._result_bytes)
            client.start(made[0])
            self._wait_ready(client, made[0], conversation, began + START_S)
            enforced = self._read_back(client, made[0], spec)
        except BaseException as error:
            removed = self._undo(client, made, nonce)
            if removed or (not made and isinstance(error, SetupError)):
                self._guard(client.url).done(name)
            raise
        recorder.observe("start_latency_seconds", time.monotonic() - began, isolation="container")
        tell("container_started", container_id=made[0], seconds=round(time.monotonic() - began, 3))
        return Living(id=made[0], name=name, conversation=conversation, enforced=enforced)

    @staticmethod
    def _wait_ready(client: EngineClient, container: str, conversation: Conversation, until: float) -> None:
        try:
            conversation.wait_ready(until)
        except (Ended, Overflow, TimeoutError) as error:
            said = client.logs(container, tail=20) or bytes(conversation.log)
            words = escape_controls(said.decode("utf-8", "replace")[-_LOG_WORDS:], keep="\n")
            raise SetupError("start the container", "its Python did not begin; the container's log: "
                             f"{words.strip() or 'nothing'}") from error  # fmt: skip

    def _undo(self, client: EngineClient, made: list[str], nonce: str) -> bool:
        """Remove what was begun; say whether it is gone. Where Ctrl-C came before the id did, its label finds it."""
        if not made:
            try:
                made += [each.id for each in client.list(f"{CREATION}={nonce}")]
            except SandboxError:
                return False  # there is no engine to ask; the owner's label lets the next process find it
        removed = [self._remover.remove(container) for container in made]
        return bool(removed) and all(removed)

    def limit(self, living: Living, seconds: float) -> None:
        """From now on it has this much time, whether or not somebody waits for it."""
        self._guard(self._client().url).add(living.name, seconds)

    def discard(self, living: Living, *, background: bool = False) -> None:
        """Remove one that is used up. Its place is free when it is gone."""

        def end() -> None:
            try:
                self.stop_or_remove(living)
            finally:
                self._free()
            self.fill()  # there may have been no room for it before

        living.conversation.close()
        if not background or self._in_background(end) is None:
            end()

    def stop_or_remove(self, living: Living) -> None:
        if not self._keep:
            self._remove(living)
            return
        try:
            self._client().kill(living.id)
            self._guard(self._client().url).done(living.name)
            tell("container_kept", container_id=living.id)
        except SandboxError as error:
            tell("container_kept", f"it could not be stopped: {error}", container_id=living.id)

    def _remove(self, living: Living) -> None:
        """The guardian still knows what can't be removed now."""
        if not self._remover.remove(living.id):
            return
        try:
            self._guard(self._client().url).done(living.name)
        except SandboxError:
            return  # the engine was lost meanwhile

    def _free(self) -> None:
        with self._lock:
            self._alive -= 1
            self._changed.notify()

    def close(self) -> None:
        """Remove all that stand by, and wait for what is under way."""
        with self._lock:
            self._closed = True
            warm, self._warm = self._warm, []
            self._changed.notify_all()
        for living in warm:
            living.conversation.close()
        for living in warm:
            self._end(living)
        if self._workers is not None:
            self._workers.shutdown()

    def _end(self, living: Living) -> None:
        try:
            self.stop_or_remove(living)
        finally:
            self._free()
