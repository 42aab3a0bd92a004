"""Random edits, checkpoints, rollbacks, commits and restarts over several directories, beside a plain model of them.

What a tree can hold is ``test_sequences``'s; here it is which directory a path is in, and that all of them go together.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from test_transaction import KINDS, Ground, on, texts

pytestmark = pytest.mark.system

PATHS = ("a", "b", "d/a", "d/b")
STEPS = ("edit", "edit", "edit", "checkpoint", "rollback", "rollback_part", "commit", "commit_part", "discard",
         "reopen")  # fmt: skip
State = list[dict[str, bytes]]


class Sequence:
    """One transaction under test, and what it should be."""

    def __init__(self, ground: Ground, chance: random.Random) -> None:
        self.ground, self.chance = ground, chance
        self.base: State = [texts(base) for base in ground.bases]
        self.view: State = copy.deepcopy(self.base)
        self.points: dict[str, tuple[State, int]] = {}
        self.log: list[str] = []

    def step(self) -> None:
        name = self.chance.choice(STEPS)
        self.log.append(name)
        getattr(self, "_" + name)()
        assert self.ground.views() == self.view, self.log
        assert [texts(base) for base in self.ground.bases] == self.base, self.log
        assert {each.checkpoint_id for each in self.ground.tx.checkpoints()} == self.points.keys(), self.log
        assert {each.path for each in self.ground.tx.changes()} >= self._different(), self.log

    def _different(self) -> set[str]:
        rows = zip(self.ground.bases, self.base, self.view, strict=True)
        return {f"{top}/{path}" for top, old, new in rows for path in PATHS if old.get(path) != new.get(path)}

    def _some(self) -> list[tuple[int, str]]:
        every = [(number, path) for number in range(len(self.base)) for path in PATHS]
        return self.chance.sample(every, self.chance.randrange(1, 4))

    def _names(self, chosen: list[tuple[int, str]]) -> list[str]:
        return [f"{self.ground.bases[number]}/{path}" for number, path in chosen]

    def _edit(self) -> None:
        for number, path in self._some():
            content = self.chance.choice((None, b"", self.chance.randbytes(20)))
            self.ground.within(number, _writing(path, content))
            _set(self.view[number], path, content)

    def _checkpoint(self) -> None:
        number = self.chance.randrange(1000)
        made = self.ground.tx.create_checkpoint(state_data={"number": number})
        self.points[made.checkpoint_id] = (copy.deepcopy(self.view), number)

    def _rollback(self) -> None:
        if self.points:
            chosen = self.chance.choice(sorted(self.points))
            view, number = self.points[chosen]
            assert self.ground.tx.rollback(chosen).state_data == {"number": number}
            self.view = copy.deepcopy(view)

    def _rollback_part(self) -> None:
        if self.points:
            chosen, some = self.chance.choice(sorted(self.points)), self._some()
            self.ground.tx.rollback(chosen, self._names(some))
            for number, path in some:
                _set(self.view[number], path, self.points[chosen][0][number].get(path))

    def _commit(self) -> None:
        self.ground.tx.commit()
        self.base, self.points = copy.deepcopy(self.view), {}

    def _commit_part(self) -> None:
        some = self._some()
        done = self.ground.tx.commit(self._names(some))
        assert done.paths or all(self.base[number].get(path) == self.view[number].get(path) for number, path in some)
        for number, path in some:
            _set(self.base[number], path, self.view[number].get(path))
        if done.paths:  # else nothing was carried over, and nothing ends
            self.points = {}

    def _discard(self) -> None:
        self.ground.tx.discard()
        self.view = copy.deepcopy(self.base)

    def _reopen(self) -> None:
        self.ground.reopen()


def _set(tree: dict[str, bytes], path: str, content: bytes | None) -> None:
    if content is None:
        tree.pop(path, None)
    else:
        tree[path] = content


def _writing(path: str, content: bytes | None) -> Callable[[Path], object]:
    def work(top: Path) -> None:
        if content is None:
            (top / path).unlink(missing_ok=True)
        else:
            (top / path).write_bytes(content)

    return work


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_does_what_its_model_says(kind: str, tmp_path: Path) -> None:
    seeds = range(200) if os.environ.get("RINGFENCE_LONG") else range(3)

    def test(seed: int) -> Callable[[Ground], None]:
        def work(ground: Ground) -> None:
            sequence = Sequence(ground, random.Random(seed))
            for _ in range(25):
                sequence.step()

        return work

    for seed in seeds:
        top = tmp_path / str(seed)
        top.mkdir()
        for name in ("one", "two"):
            (top / name / "d").mkdir(parents=True)
        on(kind, top, test(seed), names=("one", "two"))
