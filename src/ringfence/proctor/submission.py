"""The agent's work as a directory of its own: the staged base plus what came through the filter of ``import_filter``.

The layer is read by descriptors, so nothing in it is followed, opened as a device or waited for. What the agent can
cause (too many, too deep, too large) is a problem of the submission and never an error; the operator's full disk is an
error and never the agent's fail.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from _collections_abc import Sequence

from ringfence.checkpoint import content, scan
from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.entry import Manifest
from ringfence.checkpoint.fresh import write_tree
from ringfence.checkpoint.scan import OF_BASE, UNREAD, Reading, Scan
from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError, SetupError, UsageError
from ringfence.model.record import record
from ringfence.model.ways.walk import real
from ringfence.proctor import import_filter
from ringfence.proctor.import_filter import MAX_ENTRIES, Dropped, Sifted
from ringfence.roles.removal import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction

__all__ = ["Dropped", "Submission", "take"]

_OVERLAY = "user.overlay."
_STEP = "import the submission"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OPERATORS = (*_FULL, errno.EIO, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of the host. Any other error comes from what the agent left."""
IMPORT_S = 600.0
"""No agent's work needs longer to import: the most paths and bytes that it may leave take less than a minute."""
SPARE_BYTES = 64 << 20
"""A disk with less room than the base and this much was full before the agent came."""


@record
class Submission:
    """What is graded."""

    folder: str
    dropped: tuple[Dropped, ...] = ()
    settings: tuple[str, ...] = ()
    """Files of the agent's, relative to the workspace, that configure test runs, e.g. a ``conftest.py``."""
    forbidden: tuple[str, ...] = ()
    """Absolute, as the agent sees them: what it changed although the task forbids it. The directory has the base's."""
    problem: str = ""
    """Why nothing can be graded, in one sentence: the agent's fail. Empty: all is well."""
    layer: str = ""
    """The directory of the layer over the task's root, with ``upper`` and ``work``; empty: the task has none."""


def take(
    transaction: Transaction, base: str, target: str, mount_at: str = "/workspace",
    forbidden_writes: Sequence[str] = (),
) -> Submission:  # fmt: skip
    """Make the directory ``target``, which must not be there, of the base and of what the agent's layer changed."""
    upper = _upper(transaction, base)
    try:
        os.mkdir(target, 0o700)
    except OSError as error:
        raise SetupError(_STEP, f"{target}: {error.strerror}", errno=error.errno or 0) from error
    let_in(upper)
    trees = [Tree(path) for path in (upper, base, target)]
    try:
        return _taken(trees[0], trees[1], trees[2], mount_at, forbidden_writes, hidden=_hidden(transaction, base))
    finally:
        for tree in trees:
            tree.close()


def _upper(transaction: Transaction, base: str) -> str:
    place = real(base)
    found = [layer for path, layer in transaction.layers if real(path) == place]
    if transaction.kind != "overlay" or not found:
        raise UsageError(f"{base} has no layer in this transaction",
                         hint="create the transaction over that directory, with kind overlay")  # fmt: skip
    return os.path.join(found[0], "upper")


def let_in(upper: str) -> None:
    """Let us, and the next agent, into a layer whose top an agent locked. Its name is ours: no agent links there."""
    mode = stat.S_IMODE(os.lstat(upper).st_mode)
    if mode & 0o700 != 0o700:
        os.chmod(upper, mode | 0o700)


def _hidden(transaction: Transaction, base: str) -> frozenset[str]:
    """What was hidden from the agent, relative to the base: anything that it put there is not its work."""
    top = real(base).rstrip("/") + "/"
    return frozenset(path[len(top) :] for path in transaction.hidden if path.startswith(top))


def _taken(
    upper: Tree, base: Tree, target: Tree, mount_at: str, forbidden: Sequence[str], *, hidden: frozenset[str]
) -> Submission:
    layer = Scan(upper, prefix=_OVERLAY, without=hidden)
    below = Scan(base, ours=False)
    try:
        found = _read(layer)
    except _TooMuch as error:
        there = _forbidden_alone(layer, below, import_filter.closed_paths(forbidden, mount_at), mount_at)
        return Submission(folder=target.path, forbidden=_named(there, mount_at), problem=str(error))
    staged = _read_base(below)
    sifted = import_filter.sift(
        staged, found, mount_at, forbidden, lambda path: _is_same(path, layer, below), time.time_ns()
    )
    problem = sifted.problem or _write(sifted, layer, below, target)
    return Submission(folder=target.path, dropped=sifted.dropped, settings=sifted.settings,
                      forbidden=_named(sifted.forbidden, mount_at), problem=problem)  # fmt: skip


def _named(paths: Sequence[str], mount_at: str) -> tuple[str, ...]:
    return tuple(entries.shown(f"{mount_at.rstrip('/')}/{path}") for path in paths)


def _forbidden_alone(layer: Scan, below: Scan, named: frozenset[str], mount_at: str) -> tuple[str, ...]:
    """What was written although the task forbids it, of a layer that is too much to be read whole: an agent that adds a
    flood of files must not hide it."""
    base = _read_base(below)
    closed = import_filter.led(named, base.get, mount_at)
    near: dict[str, entries.Entry] = {}
    for top in closed:
        try:
            near |= _around(layer, top)
        except (CheckpointError, OSError):
            continue  # what is read of the others is named
    return import_filter.first(entries.ordered(import_filter.written(base, near, closed)))


def _around(layer: Scan, top: str) -> dict[str, entries.Entry]:
    """What a layer has at a path, above it and, up to a number, below it."""
    seen = {path: layer.one(path, UNREAD) for path in (*entries.ancestors(top), top) if path}
    below = entries.of_index(layer.below(top, UNREAD, cut=True, most=import_filter.MAX_NAMED))
    return {path: found.entry for path, found in seen.items() if found is not None} | below


class _TooMuch(Exception):
    """The layer can't be read whole."""


def _read(layer: Scan) -> Manifest:
    try:
        found = layer.below("", UNREAD, cut=True, most=MAX_ENTRIES)
    except CheckpointError as error:
        raise _TooMuch(f"the submission can't be read: {error}") from error
    except OSError as error:
        raise _blamed(error) from error
    if layer.cut_short:
        raise _TooMuch(f"the submission has more than {MAX_ENTRIES} changed paths, or more than "
                       f"{scan.MAX_DEPTH} directories in each other")  # fmt: skip
    return entries.of_index(found)


def _read_base(below: Scan) -> Manifest:
    try:
        return entries.of_index(below.below("", OF_BASE))
    except OSError as error:
        raise _of_the_host(error) from error


def _is_same(path: str, layer: Scan, below: Scan) -> bool:
    """Whether it is a file that holds what the base holds: opened for writing, and left as it was."""
    try:
        ours, theirs = (each.one(path, Reading(content.digest)) for each in (layer, below))
    except (CheckpointError, OSError):
        return False
    if ours is None or theirs is None or not ours.entry.kind == theirs.entry.kind == entries.FILE:
        return False
    return ours.entry.digest == theirs.entry.digest and ours.entry.mode == theirs.entry.mode


def _write(sifted: Sifted, layer: Scan, below: Scan, target: Tree) -> str:
    """Make the tree; return why the agent's work makes that impossible, or nothing."""

    end = time.monotonic() + IMPORT_S

    def source(path: str) -> int:
        return (layer if path in sifted.own else below).open(path)

    def look_at_clock() -> None:
        if time.monotonic() > end:
            raise _TooMuch(f"the submission takes longer than {IMPORT_S:.0f} s to import")

    shut = _open_shut(sifted, layer)
    try:
        write_tree(target, sifted.tree, source, look_at_clock)
    except _TooMuch as error:
        return str(error)
    except CheckpointError as error:
        return f"the submission can't be imported: {error}"
    except OSError as error:
        return _why_not(error, sifted, layer, target)
    finally:
        for path, mode in reversed(shut):
            layer.tree.allow(path, mode)
    return ""


def _open_shut(sifted: Sifted, layer: Scan) -> list[tuple[str, int]]:
    """Let us, as an ordinary user, into directories whose mode keeps us out; return them with their modes."""
    shut: list[tuple[str, int]] = []
    for path in entries.ordered(path for path in sifted.own if sifted.tree[path].kind == entries.FOLDER):
        status = layer.tree.status(path)
        if status is not None and status.st_mode & 0o500 != 0o500 and os.geteuid() == status.st_uid != 0:
            shut.append((path, stat.S_IMODE(status.st_mode)))
            layer.tree.allow(path, shut[-1][1] | 0o700)
    return shut


def _why_not(error: OSError, sifted: Sifted, layer: Scan, target: Tree) -> str:
    """Decide whose fault it is that the tree can't be written: return the agent's, raise the host's."""
    where = os.fsdecode(error.filename or "").removeprefix(target.path).lstrip("/")
    if error.errno in _FULL:
        target.forget()
        _empty(target.path)
        if not is_full_without(layer.used_bytes(sifted.own), _bytes_of(sifted), _free_bytes(target.path)):
            return "the submission is larger than the free space on the disk"
    if error.errno in _OPERATORS or where not in sifted.own:
        raise _of_the_host(error) from error
    return f"the submission can't be imported: {entries.shown(where)}: {error.strerror}"


def is_full_without(agent_bytes: int, base_bytes: int, free_bytes: int) -> bool:
    """Whether the disk would be too full for the base alone if the agent had left nothing."""
    return free_bytes + agent_bytes < base_bytes + SPARE_BYTES


def _bytes_of(sifted: Sifted) -> int:
    """What the base's part of the tree holds."""
    return sum(entry.size for path, entry in sifted.tree.items() if path not in sifted.own)


def _free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _empty(folder: str) -> None:
    for name in os.listdir(folder):
        remove_tree(os.path.join(folder, name))


def _of_the_host(error: OSError) -> SetupError:
    hint = "make room on the output directory's disk" if error.errno in _FULL else ""
    name = entries.shown(os.fsdecode(error.filename)) if error.filename else "the staged workspace"
    return SetupError(_STEP, f"{name}: {error.strerror or error}", errno=error.errno or 0, hint=hint)


def _blamed(error: OSError) -> Exception:
    """The error to raise for an error while the layer was read."""
    if error.errno in _OPERATORS:
        return _of_the_host(error)
    return _TooMuch(f"the submission can't be read: {error.strerror or error}")
