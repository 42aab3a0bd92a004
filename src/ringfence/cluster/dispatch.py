"""Tasks over a cluster: so many at a time, results as they come, each exactly once although nodes die.

A task may run more than once: Ray begins it again elsewhere when its node is gone. Its result is taken once, the first
complete one; later results for the same name are dropped. Ray decides where tasks run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from ringfence.cluster.ray_module import SLOTS, RayModule, Ref, slots_of
from ringfence.errors import SupervisionError

_AHEAD = 2
"""Ray gets this many times as many tasks as it has room for: the next one is ready when one ends."""
_TICK_S = 0.5
CANCELLED = object()
"""The value of a task that somebody cancelled."""
RETRIES = 5
"""How often Ray, and then we again, begin a task whose node was lost."""


class Dispatch:
    """One function for many tasks. All methods are called from one thread, but for ``close``."""

    def __init__(
        self, ray: RayModule, function: Callable[..., object], *, width: int = 1, most: int | None = None,
        fresh: bool = False, on_wait: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``width``: how many slots a task takes. ``most``: so many run at once at most, whatever room there is.
        ``fresh``: each task has a process of its own."""
        self._ray, self._width, self._most, self._on_wait = ray, width, most, on_wait
        options: dict[str, object] = {"num_cpus": 0, "resources": {SLOTS: width}, "max_retries": RETRIES}
        self._remote = ray.remote(**options, **({"max_calls": 1} if fresh else {}))(function)
        self._waiting: deque[str] = deque()
        self._arguments: dict[str, tuple[object, ...]] = {}
        self._running: dict[Ref, str] = {}
        self._lost: dict[str, int] = {}
        self._cancelled: deque[str] = deque()

    @property
    def room(self) -> int:
        """How many tasks are with Ray at most."""
        ahead = max(1, _AHEAD * (slots_of(self._ray) // self._width))
        return ahead if self._most is None else min(ahead, self._most)

    def submit(self, name: str, *arguments: object) -> None:
        """A name that is under way already is the same task, and is not begun twice."""
        if name not in self._arguments:
            self._arguments[name] = arguments
            self._waiting.append(name)

    def results(self) -> Iterator[tuple[str, object]]:
        """Name and value of each task as it ends; of one that could not be run an Exception, or ``CANCELLED``."""
        while self._arguments:
            self._hand_out()
            while self._cancelled:
                yield self._ended(self._cancelled.popleft(), CANCELLED)
            if not self._running:
                continue
            ready, _ = self._ray.wait([*self._running], num_returns=1, timeout=_TICK_S)
            self._on_wait()
            for ref in ready:
                name = self._running.pop(ref, "")
                value = self._value(ref, name) if name in self._arguments else _AGAIN
                if value is not _AGAIN:
                    yield self._ended(name, value)

    def cancel(self, name: str) -> None:
        """Remove it from the queue, or end it where it runs; its result says so."""
        if name not in self._arguments or name in self._cancelled:
            return
        if name in self._waiting:
            self._waiting.remove(name)
        for ref in [ref for ref, other in self._running.items() if other == name]:
            del self._running[ref]
            self._end(ref)
        self._cancelled.append(name)

    def close(self) -> None:
        """End all that still runs."""
        self._waiting.clear()
        self._arguments.clear()
        for ref in [*self._running]:
            self._end(ref)
        self._running.clear()

    def _hand_out(self) -> None:
        room = self.room - len(self._running) if self._waiting else 0
        while room > 0 and self._waiting:
            name = self._waiting.popleft()
            if name in self._arguments:
                self._running[self._remote.remote(*self._arguments[name])] = name
                room -= 1

    def _ended(self, name: str, value: object) -> tuple[str, object]:
        self._arguments.pop(name, None)
        self._lost.pop(name, None)
        return name, value

    def _value(self, ref: Ref, name: str) -> object:
        """Its result; a task that lost its node too often is an error."""
        try:
            return self._ray.get(ref)
        except Exception as error:  # whatever Ray has for nodes, workers and objects that are gone
            count = self._lost[name] = self._lost.get(name, 0) + 1
            said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            if _is_of_the_task(error):
                return SupervisionError(f"the worker failed: {said}")
            if count > RETRIES:
                return SupervisionError(f"lost {count} times: {said}",
                                        hint="check whether nodes of the cluster are being killed")  # fmt: skip
            if name in self._arguments:
                self._waiting.append(name)
            return _AGAIN

    def _end(self, ref: Ref) -> None:
        with suppress(Exception):  # it may be gone by itself
            self._ray.cancel(ref, force=False, recursive=True)


_AGAIN = object()


def _is_of_the_task(error: Exception) -> bool:
    """Whether the function itself raised it: then it would raise it everywhere."""
    return any(kind.__name__ == "RayTaskError" for kind in type(error).__mro__)
