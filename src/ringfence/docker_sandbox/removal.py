"""Removes containers, and retries in the background until each is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ringfence.docker_sandbox.client import EngineClient
from ringfence.docker_sandbox.monitor import ContainerMonitor
from ringfence.errors import SandboxError
from ringfence.metrics.life_log import tell

FIRST_S, LONGEST_S = 1.0, 30.0


class Remover:
    """For one executor. ``client`` gives the engine of the moment."""

    def __init__(self, client: Callable[[], EngineClient], monitor: ContainerMonitor, first_s: float = FIRST_S) -> None:
        self._client, self._monitor, self._first_s = client, monitor, first_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def remove(self, container_id: str) -> bool:
        """Remove it, running or not; False: it is tried again later."""
        done = self._tried(container_id)
        self._monitor.record_container_cleanup(container_id, done)
        if not done:
            self._try_later()
        return done

    def _tried(self, container_id: str) -> bool:
        try:
            self._client().remove(container_id, force=True)
        except SandboxError as error:
            tell("container_cleanup_failed", str(error), container_id=container_id)
            return False
        return True

    def _try_later(self) -> None:
        with self._lock:
            if self._closed.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._keep_trying, name="ringfence-removal", daemon=True)
            self._thread.start()

    def _keep_trying(self) -> None:
        pause = self._first_s
        while not self._closed.wait(pause) and self._monitor.orphans:
            self.try_again()
            pause = min(pause * 2, LONGEST_S)

    def try_again(self) -> int:
        """Try all that is left once more; say how many went."""
        gone = [each for each in self._monitor.orphans if self._tried(each)]
        for each in gone:
            self._monitor.record_container_cleanup(each, True)
        return len(gone)

    def close(self) -> None:
        """Try once more and stop trying. What is left has our labels, and goes with ``ringfence cleanup``."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join()
        if self._monitor.orphans:
            self.try_again()
