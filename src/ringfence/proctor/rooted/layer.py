"""Turns the agent's layer over an image into the grader's: what is not graded is removed, and the base is not copied.

What an agent left is read and removed through descriptors: no link is followed. Entries are removed by name and kind
(``import_filter``), at places of the grader's own, and for programs of the system (``system_files``); where one is
gone, the image's own shows again.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.apply import Writer, new_name
from ringfence.checkpoint.entry import FOLDER, Entry, Manifest, ancestors, hides_base, ordered
from ringfence.checkpoint.scan import OF_BASE, UNREAD, Scan
from ringfence.checkpoint.transaction import Transaction
from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError, SetupError
from ringfence.model.paths import within
from ringfence.model.record import record, replace
from ringfence.model.ways.walk import real
from ringfence.proctor import import_filter
from ringfence.proctor.import_filter import MAX_ENTRIES, Dropped
from ringfence.proctor.rooted import by_itself, links, system_files
from ringfence.proctor.rooted.links import Look
from ringfence.proctor.rooted.loading import Loading
from ringfence.proctor.submission import let_in
from ringfence.proctor.task import Task

_OVERLAY = "user.overlay."
_STEP = "import the layer"
_READ_BYTES = 4 << 20
OWN = ("proc", "dev", "sys", "ringfence", "task", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/ld.so.preload")
"""What every sandbox over an image has of its own. The last one must never exist: every loader reads it, ours too."""
_HAS_ITS_OWN = "the grader has its own there"
_LOADED = "programs of the grader would load it"
_READ_BY_PYTEST = "pytest would read it for the grader's tests"
_ELSEWHERE = "it leads every program to other libraries"
_MOST_PTH_LINES = 10_000
_MAY_RUN = re.compile(rb"import[ \t]|[^\t\n\r -~]")
_METADATA = ("dist-info", "egg-info")
"""Endings of directories in which Python looks for plugins; it follows links to them, and ignores case."""
_PLUGIN = "pytest would load it as a plugin"


@record
class SiftedLayer:
    """What is left of a layer."""

    layer: Manifest
    dropped: tuple[Dropped, ...] = ()
    forbidden: tuple[str, ...] = ()
    """Absolute, as the agent sees them."""
    problem: str = ""


Content = Callable[[str], tuple[bytes, bytes]]
"""What is at a path, in the image and in the layer."""


def sift(
    layer: Manifest, base: Manifest, task: Task, content: Content = lambda _: (b"", b""), hidden: Iterable[str] = (),
    look: Look | None = None, imported: Collection[str] = (),
) -> SiftedLayer:  # fmt: skip
    """``base``: what the image has at the paths of the layer, above them and where programs lie. ``hidden``: hidden
    from the agent, so what it put there is not its work. ``look``: looks up everything else in the image. ``imported``:
    modules that its Python imports by itself. Pure."""
    closed = _closed(task, look or base.get)
    told = import_filter.first(ordered(import_filter.written(base, layer, closed)) if closed else ())
    if problem := import_filter.too_much(layer):
        return SiftedLayer(layer={}, forbidden=tuple(f"/{path}" for path in told), problem=problem)
    reasons = _Reasons(layer, base, task, content, closed, hidden, look or base.get, imported)
    unwanted = {path: reason for path in ordered(layer) if (reason := reasons.of(path, layer[path]))}
    kept: dict[str, Entry] = {}
    for path in ordered(layer):
        if path not in unwanted and not any(above in unwanted for above in ancestors(path)):
            kept[path] = reasons.uncovered(path, layer[path])
    leading = links.leading(kept, look or base.get, _secrets(task))
    kept, unwanted = {path: kept[path] for path in kept if path not in leading}, unwanted | leading
    named = {path: reason for path, reason in unwanted.items() if not import_filter.is_closed(path, closed)}
    return SiftedLayer(layer=kept, dropped=import_filter.named(named), forbidden=tuple(f"/{path}" for path in told))


class _Reasons:
    """Why something is not graded, of one layer."""

    def __init__(
        self, layer: Manifest, base: Manifest, task: Task, content: Content, closed: frozenset[str],
        hidden: Iterable[str], look: Look, imported: Collection[str],
    ) -> None:  # fmt: skip
        assert task.root is not None
        self._imported = imported
        self._layer, self._look = layer, look
        self._base, self._content, self._closed = base, content, closed
        self._places = (*places_of(task), *hidden)
        self._settings = system_files.settings_above(task.grader.oracle_at) if task.grader else frozenset()
        self._folders = program_folders(task.root.environment)
        own = task.grader.environment if task.grader else {}
        self._loading = Loading({**task.root.environment, **own}, self._look)
        self._as_left = task.grader is not None and task.grader.system_as_left

    def _kind(self, path: str) -> str:
        found = self._base.get(path)
        return found.kind if found is not None else ""

    def of(self, path: str, entry: Entry) -> str:
        for top in (*self._places, *self._closed):
            if within(path, top) or (within(top, path) and (entry.kind != FOLDER or self._hides(path, top, entry))):
                return _HAS_ITS_OWN
        found = import_filter.reasons({path: entry}).get(path, "")
        if found and path.endswith(".pth") and entry.kind == entries.FILE and self._names_folders(path):
            found = ""
        if found or self._as_left:
            return found
        if path in self._settings:
            return _READ_BY_PYTEST
        if self._loading.has(path, entry):
            return system_files.PUT_BACK if self._kind(path) else _LOADED
        return system_files.reason(path, entry, self._kind, self._folders, self._imported) or self._by_content(
            path, entry)  # fmt: skip

    def _names_folders(self, path: str) -> bool:
        """Whether a .pth names nothing but directories: nobody here could look into an archive, or behind a link. No
        directory may have a test runner that the agent brought: it would be found where the image has none."""
        data, above = self._content(path)[1], os.path.dirname(path)
        if _is_run(data):
            return False
        lines = data.splitlines()[:_MOST_PTH_LINES]
        named = {os.path.normpath(os.path.join("/", above, os.fsdecode(line.rstrip()))).strip("/")
                 for line in lines}  # fmt: skip
        ways = {each for name in named if name for each in (*ancestors(name), name)}
        plain = all(self._is_directory(each) for each in ways)
        return plain and len(lines) < _MOST_PTH_LINES and not named & self._with_runner

    def _is_directory(self, path: str) -> bool:
        """In what is graded, or not there at all."""
        found = self._layer.get(path) or self._look(path)
        return found is None or found.kind not in (entries.FILE, entries.LINK)

    @functools.cached_property
    def _with_runner(self) -> frozenset[str]:
        """Directories in which the agent has put something that Python would take for a part of pytest,
        that it imports by itself, or that it asks for in vain."""
        return frozenset(path.rpartition("/")[0] for path, entry in self._layer.items()
                         if system_files.is_runner(path.rpartition("/")[2], entry, self._imported))  # fmt: skip

    def _hides(self, path: str, top: str, entry: Entry) -> bool:
        """Whether a directory hides something of the image that the task wants unchanged."""
        return top in self._closed and hides_base(entry) and bool(self._kind(path))

    def _by_content(self, path: str, entry: Entry) -> str:
        if path == system_files.LOADER_CACHE:
            if entry.kind != entries.FILE:
                return system_files.PUT_BACK if self._kind(path) else _ELSEWHERE
            return _ELSEWHERE if system_files.leads_away(*self._content(path)) else ""
        above, _, name = path.lower().rpartition("/")
        if name.endswith(_METADATA) and entry.kind == entries.LINK:
            return _PLUGIN
        if name == "entry_points.txt" and above.endswith(_METADATA) and entry.kind in (entries.FILE, entries.LINK):
            data = self._content(path)[1] if entry.kind == entries.FILE else b""
            return _PLUGIN if not 0 < len(data) < _READ_BYTES or b"pytest11" in data else ""
        return ""

    def uncovered(self, path: str, entry: Entry) -> Entry:
        if not self._as_left and system_files.is_uncovered(path, entry, self._kind, self._folders):
            return replace(entry, opaque=False)
        return entry


def _is_run(pth: bytes) -> bool:
    """Whether some Python would run a line of it, instead of only looking for packages in directories that it names.

    Where a line begins depends on the Python: 3.13 skips a byte order mark, and ends lines at form feeds, U+2028 and
    more."""
    return not pth or len(pth) >= _READ_BYTES or _MAY_RUN.search(pth) is not None


def places_of(task: Task) -> tuple[str, ...]:
    """Where the grader has something of its own, relative to the root."""
    grader = task.grader
    more = ["grader", grader.oracle_at, os.path.dirname(grader.reward_file)] if grader else []
    more += [task.policy.mount_at] if task.workspace else []
    return tuple(path for path in (*OWN, *(each.strip("/") for each in more)) if path)


def _secrets(task: Task) -> tuple[str, ...]:
    """Places of the grader that an agent's work must not lead to."""
    open_to_it = {*OWN, task.policy.mount_at.strip("/")} - {"ringfence"}
    return tuple(path for path in places_of(task) if path not in open_to_it)


def program_folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    own = (os.path.normpath(path).strip("/") for path in environment.get("PATH", "").split(":") if path.startswith("/"))
    return tuple(dict.fromkeys((*system_files.PROGRAM_FOLDERS, *filter(None, own))))


# ---- on the disk


def take(transaction: Transaction, task: Task) -> tuple[str, SiftedLayer]:
    """Take out of the agent's layer what is not graded; return the directory of its ``upper`` and ``work``, and what is
    left. Nobody may work on it any more."""
    assert task.root is not None
    base = real(task.root.folder)
    layer = next(layer for path, layer in transaction.layers if real(path) == base)
    upper = os.path.join(layer, "upper")
    let_in(upper)
    trees = Tree(upper), Tree(base)
    try:
        hidden = [path[len(base) + 1 :] for path in transaction.hidden if path.startswith(f"{base}/")]
        return layer, taken(*trees, task, hidden)
    finally:
        for tree in trees:
            tree.close()


def taken(upper: Tree, base: Tree, task: Task, hidden: list[str]) -> SiftedLayer:
    """The same for the directories themselves."""
    found, below = Scan(upper, prefix=_OVERLAY), Scan(base, ours=False)
    try:
        seen = found.below("", UNREAD, cut=True, most=MAX_ENTRIES)
    except (CheckpointError, OSError) as error:
        return SiftedLayer(layer={}, problem=f"the submission can't be read: {error}")
    if found.cut_short:
        problem = f"the submission has more than {MAX_ENTRIES} changed paths, or too deep ones"
        return SiftedLayer(layer={}, problem=problem)
    now = entries.of_index(seen)
    contents: Content = lambda path: (_head(below, path), _head(found, path))  # noqa: E731
    look = _looked(below)
    near, imported = _near(now, below, task, look), _imported(now, below, task)
    sifted = sift(now, near, task, contents, hidden, look, imported)
    if sifted.problem:
        return sifted
    try:
        Writer(upper, _no_source, new_name(), prefix=_OVERLAY).apply(seen, _opened(sifted.layer))
    except (CheckpointError, OSError) as error:
        return replace(sifted, problem=f"the submission can't be imported: {error}")
    return sifted


def _opened(layer: Manifest) -> Manifest:
    """Make directories enterable, and not younger than now."""
    now = time.time_ns()
    return {path: replace(entry, mode=entry.mode | 0o700, mtime_ns=min(entry.mtime_ns, now))
            if entry.kind == FOLDER else entry for path, entry in layer.items()}  # fmt: skip


def _closed(task: Task, look: Look) -> frozenset[str]:
    return import_filter.led(import_filter.closed_paths(task.policy.forbidden_writes, "/"), look, "/")


def _near(layer: Manifest, below: Scan, task: Task, look: Look) -> dict[str, Entry]:
    """What the image has where it matters; the rest of it is not read."""
    assert task.root is not None
    names = {path.rpartition("/")[2] for path in layer}
    folders = program_folders(task.root.environment)
    tools = (f"{folder}/{name}" for folder in folders for name in names if system_files.is_tool(name))
    above = {each for path in layer for each in ancestors(path)}
    closed = _closed(task, look)
    asked = (each for path in layer for each in system_files.also_asked(path, folders))
    wanted: Iterable[str] = {*layer, *above, *tools, *closed, *asked} - {""}
    found = {}
    for path in wanted:
        try:
            seen = below.one(path, OF_BASE)
        except (OSError, CheckpointError):
            continue  # a link or a file of the image stands in the way: it has nothing there
        if seen is not None:
            found[path] = seen.entry
    return found


def _imported(layer: Manifest, below: Scan, task: Task) -> frozenset[str]:
    assert task.root is not None
    folders = program_folders(task.root.environment)
    return by_itself.imported(folders, layer, functools.partial(_names, below), functools.partial(_head, below))


def _names(scan: Scan, folder: str) -> list[str]:
    """List a directory that holds packages; it is empty if a link or a file of the image stands in the way."""
    try:
        return scan.tree.names(folder, MAX_ENTRIES)
    except OSError:
        return []


def _looked(below: Scan) -> Look:
    @functools.cache
    def look(path: str) -> Entry | None:
        try:
            seen = below.one(path, OF_BASE)
        except (OSError, CheckpointError):
            return None  # a link or a file of the image stands in the way
        return seen.entry if seen is not None else None

    return look


def _head(scan: Scan, path: str) -> bytes:
    try:
        descriptor = scan.open(path)
    except (OSError, CheckpointError):
        return b""  # a directory, or something else that has no content
    with open(descriptor, "rb") as file:
        return file.read(_READ_BYTES)


def _no_source(path: str, _: Entry) -> int:
    raise CheckpointError(f"{entries.shown(path)} would have to be written again")


def grading_layers(folder: str, bases: list[str], layer: str) -> Transaction:
    """A transaction whose first base gets this layer, which is moved there; the others get new ones."""
    Transaction.create(folder, bases, kind="overlay").close()
    with Transaction.open(folder) as made:
        place = made.layers[0][1]
    try:
        for name in ("upper", "work"):
            os.rmdir(os.path.join(place, name))
            os.rename(os.path.join(layer, name), os.path.join(place, name))
        if os.geteuid() == 0:
            status = os.lstat(os.path.join(place, "upper"))
            os.chown(place, status.st_uid, status.st_gid)
    except OSError as error:
        raise SetupError(_STEP, f"{error.strerror}", errno=error.errno or 0) from error
    return Transaction.open(folder)
