"""Decides which parts of an agent's layer enter the graded tree. It works on plain data and touches no disk.

An entry that could hurt, hang or mislead a grader is left out and named. What the agent deleted stays deleted. Where
the task forbids writing, the staged base is what is graded. Paths are relative to the workspace.
"""

from __future__ import annotations

from _collections_abc import Callable, Iterable, Iterator, Mapping

from ringfence.checkpoint import merge
from ringfence.checkpoint.entry import (
    DELETED,
    FILE,
    FOLDER,
    LINK,
    SPECIAL,
    Entry,
    Manifest,
    ancestors,
    hides_base,
    ordered,
    parent,
    shown,
)
from ringfence.model.paths import within
from ringfence.model.record import record, replace

MAX_ENTRIES = 200_000
"""The most paths that an agent may leave."""
MAX_DEPTH, MAX_PATH_BYTES = 100, 3500
"""Deeper or longer paths break the tools of graders, and are nobody's honest work."""
MAX_FILE_BYTES = 2 << 30
"""A larger file is left out, however sparse it is: a grader that reads it reads all of it."""
MAX_BYTES = 8 << 30
"""The most that all files of an agent may hold together, holes included."""
MAX_NAMED = 1000
"""Entries that are left out are named up to here; the rest is counted."""
MAX_STEPS = 2_000_000
"""The most steps to resolve all links together; links that are unresolved by then are left out."""
_MOST_LINKS, _MOST_PARTS, _DEEPEST = 40, 4096, 300
_TOO_FAR = "a link that points in a circle, through too many others or too deep is not imported"
_LEAVES = "a link that leaves the workspace is not imported"
_CACHE = "__pycache__"
_CACHE_ENDS = (".pyc", ".pyo")
_PLUGIN = "pytest would load plugins through it: the workspace is on Python's search path"
_METADATA = ("dist-info", "egg-info")
"""Endings of directories in which Python looks for plugins, on its search path; it ignores case."""
_STARTED = "customize"
_STARTED_BY_PYTHON = (f"site{_STARTED}", f"user{_STARTED}")
TEST_SETTINGS = ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
                 "pyproject.toml")  # fmt: skip
"""Files that configure a test run, in any directory."""
_GIT_FILES = ("config", "config.worktree", "commondir", "gitdir", "info/attributes", "info/grafts",
              "info/sparse-checkout", "objects/info/alternates", "objects/info/http-alternates")  # fmt: skip
_GIT_FOLDERS = ("hooks", "refs/replace")


@record
class Dropped:
    """Something that the agent left and that is not graded. The path is relative to the workspace, for people."""

    path: str
    reason: str


@record
class Sifted:
    """The tree that is graded, and what is not in it."""

    tree: Manifest
    own: frozenset[str]
    """Paths of the tree whose content is the agent's; that of all others is the base's."""
    dropped: tuple[Dropped, ...] = ()
    settings: tuple[str, ...] = ()
    """Files of ``TEST_SETTINGS`` that are the agent's, for people."""
    forbidden: tuple[str, ...] = ()
    """Paths that the agent changed although the task forbids it; the tree has them as the base does. The first ones:
    each is a breach in the signed bundle, and one is enough."""
    problem: str = ""
    """Why there is nothing to grade; empty: there is."""


Look = Callable[[str], Entry | None]
"""What the base has at a path; no link is on the way."""
SameContent = Callable[[str], bool]
"""Whether the file at this path of the layer holds what the base holds there."""


def sift(
    base: Manifest, layer: Manifest, mount_at: str, forbidden: Iterable[str] = (), same: SameContent = lambda _: False,
    now_ns: int = 1 << 62,
) -> Sifted:  # fmt: skip
    """``forbidden``: absolute, as the agent sees them. ``now_ns``: no file is younger."""
    closed = led(closed_paths(forbidden, mount_at), base.get, mount_at)
    told = first(path for path in ordered(written(base, layer, closed)) if not same(path)) if closed else ()
    if problem := too_much(layer):
        return Sifted(tree={}, own=frozenset(), forbidden=told, problem=problem)
    left = {path: entry for path, entry in layer.items() if not is_closed(path, closed)} if closed else layer
    unwanted = {**reasons(left), **{path: _PLUGIN for path, entry in left.items() if _names_plugins(path, entry)}}
    kept = {path: _plain(entry, now_ns) for path, entry in left.items() if path not in unwanted}
    tree = merge.view(base, {**kept, **_instead(unwanted, base, left)})
    _restore(tree, base, closed)
    leaving = _leaving(tree, base, mount_at)
    tree = {path: entry for path, entry in tree.items() if path not in leaving}
    own = frozenset(path for path in kept if tree.get(path) is kept[path])
    settings = first(shown(path) for path in sorted(own) if path.rpartition("/")[2] in TEST_SETTINGS)
    return Sifted(tree=tree, own=own, dropped=named({**unwanted, **leaving}), settings=settings, forbidden=told)


def first(paths: Iterable[str]) -> tuple[str, ...]:
    """Check no more of them than are named."""
    return tuple(dict.fromkeys(path for _, path in zip(range(MAX_NAMED), paths, strict=False)))


def too_much(layer: Manifest) -> str:
    """Why a layer is too much to import; empty: it is not."""
    if len(layer) > MAX_ENTRIES:
        return f"the submission has more than {MAX_ENTRIES} changed paths"
    deep = next((path for path in layer if path.count("/") >= MAX_DEPTH or _bytes(path) > MAX_PATH_BYTES), None)
    if deep is not None:
        where = f"{shown(deep[:80])}…"
        return f"the submission is more than {MAX_DEPTH} directories or {MAX_PATH_BYTES} bytes deep at {where}"
    sizes = (entry.size for entry in layer.values() if entry.kind == FILE and entry.size <= MAX_FILE_BYTES)
    if sum(sizes) > MAX_BYTES:
        return f"the files of the submission hold more than {MAX_BYTES} bytes"
    return ""


def _bytes(path: str) -> int:
    return len(path.encode("utf-8", "surrogateescape"))


def closed_paths(forbidden: Iterable[str], mount_at: str) -> frozenset[str]:
    """The paths that lie in the workspace, relative to it; the workspace itself is the empty path."""
    top = mount_at.rstrip("/")
    inside = (path.rstrip("/") for path in forbidden if within(path.rstrip("/"), top))
    return frozenset(path[len(top) + 1 :] for path in inside)


def led(closed: Iterable[str], look: Look, mount_at: str) -> frozenset[str]:
    """These paths, the links of the base on the way to them, and where these lead: what is written through a link is at
    that other place, and a link that is exchanged puts something else at the path."""
    return frozenset(each for path in closed for each in (path, *_way(path, look, mount_at)))


def _way(path: str, look: Look, mount_at: str) -> Iterator[str]:
    top = _parts(mount_at)
    here, left, followed = top, _parts(path)[::-1], 0
    while left and followed <= _MOST_LINKS and len(left) <= _MOST_PARTS:
        name = left.pop()
        here = here[:-1] if name == ".." else [*here, name]
        inside = "/".join(here[len(top) :])
        entry = look(inside) if here[: len(top)] == top and inside else None
        if entry is not None and entry.kind == LINK:
            yield inside
            here, followed = [] if entry.target.startswith("/") else here[:-1], followed + 1
            left += _parts(entry.target)[::-1]
    if not left and here[: len(top)] == top:
        yield "/".join(here[len(top) :])


def is_closed(path: str, closed: frozenset[str]) -> bool:
    return any(not top or within(path, top) for top in closed)


def written(base: Manifest, layer: Manifest, closed: frozenset[str]) -> list[str]:
    """What the agent changed below closed paths. A directory that merely contains such a change does not count."""
    found = []
    for path, entry in layer.items():
        if is_closed(path, closed):
            was = base.get(path)
            found += [path] if _is_touched(entry, was) else []
        elif hides_base(entry):
            found += [top for top in closed if within(top, path) and (top in base or entry.kind == LINK)]
    return found


def _is_touched(entry: Entry, was: Entry | None) -> bool:
    """Changing a link's owner, as in a whole tree, copies the link."""
    if was is None:
        return entry.kind != DELETED
    if entry.kind == was.kind == LINK:
        return entry.target != was.target
    return entry.kind != FOLDER or was.kind != FOLDER or entry.opaque


def reasons(layer: Manifest) -> dict[str, str]:
    """What is left out of a layer, and why; entries below one that is left out are not listed."""
    found: dict[str, str] = {}
    for path in ordered(layer):
        reason = "" if layer[path].kind == DELETED else _reason(path, layer[path])
        if reason:
            found[path] = reason
    return found


def _reason(path: str, entry: Entry) -> str:
    if entry.kind in SPECIAL:
        return f"a {entry.kind} is not imported"
    if entry.kind == FILE and entry.size > MAX_FILE_BYTES:
        return f"a file of {entry.size} bytes is not imported; {MAX_FILE_BYTES} are the most"
    return _python_reason(path, entry) or _git_reason(path, entry)


def _python_reason(path: str, entry: Entry) -> str:
    if f"/{_CACHE}/" in f"/{path}/" or (entry.kind != FOLDER and path.endswith(_CACHE_ENDS)):
        return "compiled Python may differ from its source"
    if entry.kind != FOLDER and path.endswith(".pth"):
        return "Python would run it at every start"
    if _STARTED in path and any(part.partition(".")[0] in _STARTED_BY_PYTHON for part in path.split("/")):
        return "Python would import it at every start"
    return ""


def _git_reason(path: str, entry: Entry) -> str:
    """These files name commands that git runs. A repository's content (objects, refs, index) is the agent's work."""
    if path.rpartition("/")[2] == ".git" and entry.kind != FOLDER:
        return "a .git that is not a directory points git elsewhere"
    _, found, inside = f"/{path}".rpartition("/.git/")
    if found and entry.kind != FOLDER and (entry.kind == LINK or _is_git_control(inside)):
        return "git would run commands, or read other objects, because of it"
    return ""


def _is_git_control(inside: str) -> bool:
    """Whether it controls git, in a repository or in those of its submodules and worktrees, at any depth."""
    framed = f"/{inside}"
    nested = inside.startswith(("modules/", "worktrees/"))
    files = any(framed.endswith(f"/{name}") if nested else inside == name for name in _GIT_FILES)
    return files or any(f"/{name}/" in framed if nested else inside.startswith(f"{name}/") for name in _GIT_FOLDERS)


def _names_plugins(path: str, entry: Entry) -> bool:
    above, _, name = path.rpartition("/")
    is_metadata = name == "entry_points.txt" and above.lower().endswith(_METADATA)
    return (is_metadata and entry.kind not in (DELETED, FOLDER)) or (
        entry.kind == LINK and name.lower().endswith(_METADATA))  # fmt: skip


def _is_restored(path: str, entry: Entry) -> bool:
    """Whether the base's version replaces an entry that was left out."""
    return bool(_git_reason(path, entry)) or _names_plugins(path, entry)


def _instead(reasons: Mapping[str, str], base: Manifest, layer: Manifest) -> dict[str, Entry]:
    """What replaces an entry that was left out: for files of git and of plugins the base's version, else nothing.

    A directory of the base that is left out of the layer stays; what the agent deleted in it is gone."""
    gone = Entry(kind=DELETED)
    return {path: gone for path in reasons if not _is_restored(path, layer[path])
            and not (layer[path].kind == FOLDER and _is_folder(base.get(path)) and not layer[path].opaque)}  # fmt: skip


def _is_folder(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == FOLDER


def _plain(entry: Entry, now_ns: int) -> Entry:
    """Without set-id and sticky bits, attributes and overlay marks; readable for the grader."""
    if entry.kind == DELETED:
        return entry
    least = {FOLDER: 0o700, FILE: 0o600}.get(entry.kind, 0)
    mode = entry.mode & 0o777 | least
    mtime_ns = max(0, min(entry.mtime_ns, now_ns))
    return replace(entry, mode=mode, mtime_ns=mtime_ns, attributes=(), copied=False)


def _restore(tree: dict[str, Entry], base: Manifest, closed: frozenset[str]) -> None:
    """Put back what the base has at closed paths, and the directories above; what is in the way goes."""
    for path in ordered(path for path in base if closed and is_closed(path, closed)):
        for above in ancestors(path):
            if not _is_folder(tree.get(above)):
                tree[above] = base[above]
        tree[path] = base[path]
    for above in (above for top in closed for above in ancestors(top)):
        if above in tree and tree[above].kind == LINK and tree[above] is not base.get(above):
            tree.pop(above)  # it would put something else at the closed path
    if closed:
        for path in ordered(tree):  # below a file that a directory has become again, or the other way round
            if parent(path) and not _is_folder(tree.get(parent(path))):
                del tree[path]


def _leaving(tree: Manifest, base: Manifest, mount_at: str) -> dict[str, str]:
    """Links that lead out. A link of the base may, if it did so before the agent came: the task's author made it."""
    links, before, budget = _links(tree), _links(base), [MAX_STEPS]
    found = {path: reason for path in links if (reason := why_leaves(path, links, mount_at, budget))}
    allowed = (path for path in found if before.get(path) == links[path] and why_leaves(path, before, mount_at))
    return {path: found[path] for path in found.keys() - set(allowed)}


def _links(tree: Manifest) -> dict[str, str]:
    return {path: entry.target for path, entry in tree.items() if entry.kind == LINK}


def why_leaves(path: str, links: Mapping[str, str], mount_at: str, budget: list[int] | None = None) -> str:
    """Why a symbolic link is not imported; empty: it leads to a place in the workspace.

    ``links``: all of the tree, by path. The link is followed through the others, as the kernel would from ``mount_at``.
    ``budget``: the steps left for all links together; the steps made here are subtracted."""
    budget = budget if budget is not None else [MAX_STEPS]
    if budget[0] < 0:
        return _TOO_FAR
    top = [part for part in mount_at.split("/") if part]
    here, left, followed = [*top, *path.split("/")[:-1]], _parts(links[path])[::-1], 1
    budget[0] -= len(left)
    if links[path].startswith("/"):
        here = []
    while left:
        budget[0] -= 1
        if followed > _MOST_LINKS or len(here) > _DEEPEST or len(left) > _MOST_PARTS or budget[0] < 0:
            return _TOO_FAR
        name = left.pop()
        here = here[:-1] if name == ".." else [*here, name]
        inside = here[: len(top)] == top
        if not inside and here != top[: len(here)]:
            return _LEAVES
        target = links.get("/".join(here[len(top) :])) if inside else None
        if target is not None:
            followed += 1
            budget[0] -= len(left)
            here, left = [] if target.startswith("/") else here[:-1], [*left, *_parts(target)[::-1]]
    return "" if here[: len(top)] == top else _LEAVES


def _parts(target: str) -> list[str]:
    return [part for part in target.split("/") if part not in ("", ".")]


def named(reasons: Mapping[str, str]) -> tuple[Dropped, ...]:
    """Only the topmost paths: whatever is below them is left out with them."""
    tops = [path for path in ordered(reasons) if parent(path) not in reasons]
    found = [Dropped(path=shown(path), reason=reasons[path]) for path in tops[:MAX_NAMED]]
    if len(tops) > MAX_NAMED:
        found.append(Dropped(path="…", reason=f"{len(tops) - MAX_NAMED} more are left out"))
    return tuple(found)
