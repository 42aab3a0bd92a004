"""Random sequences of edits, checkpoints, rollbacks and commits on a workspace, beside the model of it.

Run ``python tests/unit/checkpoint/undo_sequences.py SEQUENCES [CRASHES]`` for many.
"""

from __future__ import annotations

import builtins
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from undo_arena import KINDS, Arena, Editor, enter, fill, in_child, look, same_files
from undo_model import Model, groups, plain

from ringfence.checkpoint.workspace import Workspace

STEPS = ("edit", "edit", "edit", "checkpoint", "rollback", "rollback part", "commit", "commit part", "discard",
         "reopen")  # fmt: skip


class Sequence:
    """One workspace under test."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.arena = Arena(kind, folder)
        self.model = Model()
        self.log: list[str] = []
        fill(self.chance, self.arena, self.model, 12)
        self._like_base()
        self.workspace = self.arena.open()
        self.arena.mount()

    def _like_base(self) -> None:
        self.model.now = copy.deepcopy(self.model.base)
        # A file of the base with two names becomes two files when overlayfs copies it.
        self.model.links_exact = self.model.base_links_exact and not (
            self.arena.overlay and groups(self.model.base)
        )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.chance.choice(STEPS)
            self.log.append(step)
            getattr(self, step.replace(" ", "_"))()
            self.check()
        self.arena.unmount()
        self.workspace.close()

    def offline(self, work: Callable[[Workspace], Any]) -> Any:
        """With nothing mounted, as a rollback or a commit needs it."""
        self.arena.unmount()
        try:
            return work(self.workspace)
        finally:
            self.arena.mount()

    def check(self) -> None:
        found, same = look(self.arena.seen)
        if self.arena.overlay:  # whose inode numbers do not tell
            same = same_files(self.arena.folder / "upper")
        assert found == plain(self.model.now), _difference(found, plain(self.model.now))
        if self.model.links_exact:
            assert same == groups(self.model.now), (same, groups(self.model.now), self.log)
        below, _ = look(self.arena.base)
        assert below == plain(self.model.base), _difference(below, plain(self.model.base))
        told = {change.path: str(change.kind) for change in self.workspace.changes()}
        wanted = self.model.changes()
        joined = {path for group in same for path in group} - wanted.keys()  # told as changed where that is new
        told = {path: kind for path, kind in told.items() if path not in joined or kind != "modified"}
        assert told == wanted, _difference(told, wanted)

    def edit(self) -> None:
        editor = Editor(self.chance, self.arena.seen, self.model.now)
        for _ in range(self.chance.randrange(1, 6)):
            self.log.append(editor.edit())

    def checkpoint(self) -> None:
        made = self.workspace.create_checkpoint(state_data={"number": len(self.model.saved)})
        self.model.save(made.checkpoint_id)

    def rollback(self) -> None:
        if name := self._saved():
            done = self.offline(lambda workspace: workspace.rollback_to_checkpoint(name))
            assert done.state_data == self.workspace.store.load(name).state_data
            self.model.go_to(name)

    def rollback_part(self) -> None:
        name, path = self._saved(), self._path()
        if name and path:
            self.offline(lambda workspace: workspace.rollback_to_checkpoint(name, paths=(path,)))
            self.model.go_to_part(name, path)

    def commit(self) -> None:
        self.offline(lambda workspace: workspace.commit())
        self.model.commit()

    def commit_part(self) -> None:
        path = self._path()
        if path:
            self.offline(lambda workspace: workspace.commit(paths=(path,)))
            self.model.commit_part(path)

    def discard(self) -> None:
        if self.chance.randrange(4) == 0:
            self.offline(lambda workspace: workspace.discard())
            self._like_base()

    def reopen(self) -> None:
        self.workspace.close()
        self.workspace = self.arena.open()

    def _saved(self) -> str | None:
        return self.chance.choice(sorted(self.model.saved) or [None])

    def _path(self) -> str | None:
        trees = [self.model.now, self.model.base, *(tree for tree, _ in self.model.saved.values())]
        return self.chance.choice(sorted({path for tree in trees for path in tree}) or [None])


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    keys = [key for key in {*found, *wanted} if found.get(key) != wanted.get(key)]
    return "\n".join(f"{key!r}: found {found.get(key)!r:.300}, wanted {wanted.get(key)!r:.300}" for key in keys)


CHANGING = ("replace", "unlink", "rmdir", "mkdir", "symlink", "link", "mknod", "chmod", "fchmod", "chown", "utime",
            "setxattr", "removexattr", "write", "ftruncate")  # fmt: skip


def count_or_die(at: int) -> list[int]:
    """Count every call from now on that changes something; kill this process just before number ``at``."""
    count = [0]

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return instead

    for name in CHANGING:
        setattr(os, name, watched(getattr(os, name)))
    plain_open, os_open = builtins.open, os.open
    counted, os_counted = watched(plain_open), watched(os_open)
    builtins.open = lambda *args, **kwargs: (counted if {*"wa"} & {*"".join(map(str, args[1:2]))} else plain_open)(
        *args, **kwargs
    )
    os.open = lambda path, flags, *args, **kwargs: (os_counted if flags & os.O_CREAT else os_open)(
        path, flags, *args, **kwargs
    )
    return count


def crash(kind: str, folder: Path, seed: int, at: int, action: str) -> bool:
    """Break one commit or rollback off before change number ``at``; whether it came to that."""
    sequence = Sequence(kind, folder, seed)
    sequence.edit()
    sequence.checkpoint()
    for _ in range(3):
        sequence.edit()
    name = sequence._saved()
    assert name
    before = copy.deepcopy(sequence.model)
    if action == "commit":
        sequence.model.commit()
    else:
        sequence.model.go_to(name)
    after = sequence.model
    sequence.arena.unmount()

    def die() -> None:
        workspace = sequence.arena.open()
        count_or_die(at)
        workspace.commit() if action == "commit" else workspace.rollback_to_checkpoint(name)

    ended = in_child(die)
    assert os.WIFSIGNALED(ended) or ended == 0
    sequence.workspace.close()
    sequence.workspace = sequence.arena.open()
    sequence.arena.mount()
    sequence.model = after if _is(sequence, after) else before
    sequence.check()
    if ended == 0:
        assert sequence.model is after
    leftovers = [path for path in sequence.arena.base.rglob("*") if len(path.name) == 27 and ".ringfence-" in path.name]
    assert not leftovers
    if sequence.model is before:
        assert [saved.checkpoint_id for saved in sequence.workspace.checkpoints()] == [name]
    sequence.run(3)  # it still works, and unmounts
    return os.WIFSIGNALED(ended)


def _is(sequence: Sequence, model: Model) -> bool:
    seen, _ = look(sequence.arena.seen)
    base, _ = look(sequence.arena.base)
    told = {change.path: str(change.kind) for change in sequence.workspace.changes()}
    return seen == plain(model.now) and base == plain(model.base) and told == model.changes()


def run_in(kind: str, top: Path, seeds: range, work: Callable[[str, Path, int], Any]) -> None:
    """All seeds in one child with namespaces of its own; an error names its seed."""

    def all_of_them() -> None:
        enter(kind)
        for seed in seeds:
            folder = top / f"{kind}-{seed}".replace(" ", "-")
            folder.mkdir()
            try:
                work(kind, folder, seed)
            except BaseException:
                print(f"{kind}, seed {seed}, in {folder}", file=sys.stderr)
                raise
            _clean(folder)

    assert in_child(all_of_them) == 0


def _clean(folder: Path) -> None:
    for path, folders, _ in os.walk(folder):
        for name in folders:
            os.chmod(os.path.join(path, name), 0o700, follow_symlinks=True) if not os.path.islink(
                os.path.join(path, name)
            ) else None
    shutil.rmtree(folder)


def sequence(kind: str, folder: Path, seed: int) -> None:
    Sequence(kind, folder, seed).run(12)


def main() -> None:
    sequences, crashes = (int(word) for word in (*sys.argv[1:], "0", "0")[:2])
    with tempfile.TemporaryDirectory(dir=os.environ.get("ARENA")) as name:
        for kind in KINDS:
            share = sequences // len(KINDS)
            run_in(kind, Path(name), range(share), sequence)
            print(f"{kind}: {share} sequences", flush=True)
        for kind in KINDS:
            share = -(-crashes // len(KINDS))
            if share:
                run_in(kind, Path(name), range(1), lambda *row, least=share: every_crash(*row[:2], least))


def every_crash(kind: str, folder: Path, least: int) -> None:
    """Workspace after workspace, each broken off before every single change, until there were enough crashes."""
    count, seed = 0, 0
    while count < least:
        for action in ("commit", "rollback"):
            count += crash_everywhere(kind, folder, seed, action)
        seed += 1
    print(f"{kind}: {count} crashes in {seed} workspaces, old or new state each time", flush=True)


def crash_everywhere(kind: str, folder: Path, seed: int, action: str) -> int:
    """How many changes an action makes, each of which was the last one once."""
    at = 0
    died = True
    while died:
        at += 1
        inner = folder / f"{seed}-{action}-{at}"
        inner.mkdir()
        died = crash(kind, inner, seed, at, action)
        _clean(inner)
    return at - 1


if __name__ == "__main__":
    main()
