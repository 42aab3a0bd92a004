"""A cluster that is none: tasks run where ``get`` is called, and nodes die when a test says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from ringfence.cluster.ray_module import SLOTS


class NodeLost(Exception):
    """What Ray says when the node of a task is gone."""


class RayTaskError(Exception):
    """What Ray says when the function itself raised; known by its name."""


class FakeRemote:
    def __init__(self, ray: FakeRay, function: Callable[..., object]) -> None:
        self._ray, self._function = ray, function

    def remote(self, *arguments: object) -> object:
        ref = object()
        self._ray.under_way[ref] = lambda: self._function(*arguments)
        self._ray.most_at_once = max(self._ray.most_at_once, len(self._ray.under_way))
        self._ray.begun += 1
        return ref


class FakeRay:
    """``loses``: how many of the next results are lost; ``chance``: how likely any other one is."""

    def __init__(self, slots: int = 4, *, loses: int = 0, chance: float = 0.0, seed: int = 1) -> None:
        self.resources: dict[str, float] = {SLOTS: slots, "CPU": 2.0}
        self.loses, self.chance, self.random = loses, chance, random.Random(seed)
        self.under_way: dict[object, Callable[[], object]] = {}
        self.stored: dict[object, object] = {}
        self.options: list[dict[str, object]] = []
        self.cancelled: list[object] = []
        self.begun = self.most_at_once = self.fetched = self.lost = 0
        self.initialized = True

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self, *, address: str, log_to_driver: bool, namespace: str) -> object:
        raise ConnectionError(f"nobody at {address}\nand more")

    def put(self, value: object) -> object:
        ref = object()
        self.stored[ref] = value
        return ref

    def get(self, ref: object) -> object:
        if ref in self.stored:
            self.fetched += 1
            return self.stored[ref]
        work = self.under_way.pop(ref)
        if self.loses > 0 or self.random.random() < self.chance:
            self.loses -= 1
            self.lost += 1
            if self.random.random() < 0.5:
                work()  # it ran to its end, and its result was lost with its node
            raise NodeLost("the node died\nwhere it ran")
        try:
            return work()
        except Exception as error:
            raise RayTaskError(str(error)) from error

    def wait(
        self, refs: Sequence[object], *, num_returns: int, timeout: float | None
    ) -> tuple[list[object], list[object]]:
        assert num_returns == 1 and timeout
        one = self.random.choice(list(refs))
        return [one], [ref for ref in refs if ref is not one]

    def cancel(self, ref: object, *, force: bool, recursive: bool) -> None:
        assert not force
        self.cancelled.append(ref)
        self.under_way.pop(ref, None)

    def remote(self, **options: object) -> Callable[[Callable[..., object]], FakeRemote]:
        self.options.append(options)
        return lambda function: FakeRemote(self, function)

    def cluster_resources(self) -> Mapping[str, float]:
        return self.resources

    def nodes(self) -> Sequence[Mapping[str, object]]:
        half = self.resources[SLOTS] / 2
        return [{"Alive": True, "NodeManagerAddress": f"10.0.0.{n}", "Resources": {SLOTS: half}} for n in (1, 2)]
