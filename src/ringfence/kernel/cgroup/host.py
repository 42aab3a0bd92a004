"""Which control groups this caller can use: hierarchies, controllers, where new groups go, what is missing.

Looks only; makes, moves and writes nothing (cgroups.py does). Every «no» has the reason and the command that
fixes it. A directory counts as a cgroup only if it lies on the very device that the mount table names for one.
"""

from __future__ import annotations

import os
from _collections_abc import Iterator, Mapping

from ringfence.errors import PolicyError, SupervisionError
from ringfence.kernel.cgroup import fixes as cgroup_fixes
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup import twin as cgroup_twin
from ringfence.kernel.proc import procfs
from ringfence.model.paths import within
from ringfence.model.record import record, replace

PARENT_VARIABLE = "RINGFENCE_CGROUP"
SUPERVISOR = cgroup_fixes.SUPERVISOR
V2_CONTROLLERS = frozenset({"cpu", "io", "memory", "pids"})
V2_CORE = "cgroup"
"""Stands for the files that every v2 group has: cgroup.kill, cgroup.freeze, cpu.stat."""

WAYS: Mapping[str, tuple[tuple[int, str], ...]] = {
    "memory": ((2, "memory"), (1, "memory")),
    "pids": ((2, "pids"), (1, "pids")),
    "cpu_share": ((2, "cpu"), (1, "cpu")),
    "io": ((2, "io"), (1, "blkio")),
    "freeze": ((2, V2_CORE), (1, "freezer")),
    "cpu_usage": ((2, V2_CORE), (1, "cpuacct")),
}
"""Capability → (version, controller), best first."""
_NAMED = frozenset(controller for ways in WAYS.values() for _, controller in ways)


@record
class Mount:
    """One cgroup mount; ``root`` is the group that its mount point shows."""

    version: int
    mountpoint: str
    root: str
    device: str
    controllers: frozenset[str] = frozenset()

    def directory_of(self, group: str) -> str | None:
        """Where a group of /proc/<pid>/cgroup lies, or None if it is outside of what is mounted here."""
        root = "" if self.root == "/" else self.root
        inside = within(group, root)
        outside_namespace = group.startswith("/..") and not root.startswith("/..")
        if not inside or outside_namespace:
            return None
        return (self.mountpoint + group[len(root) :]).rstrip("/")


GIVEN, OWN, BESIDE = f"named by {PARENT_VARIABLE}", "the caller's own group", "beside the caller's own group"
"""Where groups are made: only in the first if the operator named one, else in the other two, in this order."""


@record
class TriedPlace:
    """One place that was tried."""

    what: str
    """One of GIVEN, OWN, BESIDE."""
    directory: str
    problem: str = ""
    """Why not every limit can be set here; empty: all can."""


@record
class Hierarchy:
    """One tree of groups as this caller finds it."""

    version: int
    parent: str
    """The group under which new ones are made."""
    offered: frozenset[str] = frozenset()
    """Controllers that this tree has at all."""
    usable: frozenset[str] = frozenset()
    """Controllers whose limits this caller can set in a child of ``parent``."""
    moves_callers: bool = False
    """Making a child with limits first moves the processes of ``parent`` into a leaf beside it (v2 only)."""
    beside: str = ""
    """``parent`` is a twin of this group, made with the first group in it and removed with the last (v2 only)."""
    problem: str = ""
    fix: str = ""
    tried: tuple[TriedPlace, ...] = ()
    """In the order of trying; the one that is ``parent`` was taken."""


@record
class CgroupHost:
    """What this host offers to this caller."""

    kind: str
    """``v2``, ``v1``, ``hybrid`` (v1 controllers beside a v2 tree) or ``none``."""
    hierarchies: tuple[Hierarchy, ...] = ()

    def find(self, capability: str) -> tuple[Hierarchy, str] | None:
        """The hierarchy and controller that keep this promise, or None."""
        for version, controller in WAYS[capability]:
            for hierarchy in self.hierarchies:
                if hierarchy.version == version and controller in hierarchy.usable:
                    return hierarchy, controller
        return None

    def missing(self, capability: str) -> tuple[str, str] | None:
        """(what is missing, the command that fixes it), or None if the promise can be kept."""
        if self.find(capability):
            return None
        if self.kind == "none":
            return cgroup_fixes.NOT_MOUNTED
        ways = WAYS[capability]
        for hierarchy in self.hierarchies:
            if hierarchy.problem and any((hierarchy.version, name) in ways for name in hierarchy.offered):
                return hierarchy.problem, hierarchy.fix
        controller = ways[0 if self.kind == "v2" else -1][1]
        return cgroup_fixes.no_controller(self.kind, controller, self.hierarchies[0].parent)


def probe(*, parent: str = "", proc: str = "/proc") -> CgroupHost:
    """Look at the host. ``parent`` (or else RINGFENCE_CGROUP) is a group given by the operator: a path as in
    /proc/self/cgroup, or the directory itself."""
    text = cgroup_tree.read(f"{proc}/self/cgroup") or ""
    wanted = parent or os.environ.get(PARENT_VARIABLE, "")
    key = (text, wanted, proc, os.geteuid(), os.getegid())
    known = _known.get(key)
    if known is not None and _identities(known[0]) == known[1]:
        return known[0]
    host = _look(text, wanted, proc)
    if _settled(host):
        _known.clear()
        _known[key] = (host, _identities(host))
    return host


_known: dict[tuple[object, ...], tuple[CgroupHost, list[object]]] = {}
"""The last host that was found, by everything that decided it, with the directories that it was found in."""


def _settled(host: CgroupHost) -> bool:
    """Nothing is refused and nobody has to be moved first."""
    hindered = (hierarchy.problem or hierarchy.moves_callers for hierarchy in host.hierarchies)
    return bool(host.hierarchies) and not any(hindered)


def _identities(host: CgroupHost) -> list[object]:
    """Return for each hierarchy of use the identity and owner of the parent's directory, and what children may have. It
    changes when a group is removed, mounted over or given away, or when a controller is taken from it."""
    return [_identity(hierarchy) for hierarchy in host.hierarchies if not _NAMED.isdisjoint(hierarchy.usable)]


def _identity(hierarchy: Hierarchy) -> tuple[object, ...]:
    stays = os.path.dirname(hierarchy.parent) if hierarchy.beside else hierarchy.parent
    try:
        found = os.stat(stays)
    except OSError:
        return ()
    enabled = cgroup_tree.read(f"{stays}/cgroup.subtree_control") if hierarchy.version == 2 else ""
    return found.st_dev, found.st_ino, found.st_uid, found.st_gid, found.st_mode, enabled


def _look(text: str, wanted: str, proc: str) -> CgroupHost:
    own = parse_own_groups(text)
    mounts = parse_mounts(cgroup_tree.read(f"{proc}/self/mountinfo") or "", _controllers(own))
    given = _given_group(wanted, mounts)
    found = tuple(_hierarchy(mount, own, given) for mount in _one_per_hierarchy(mounts, own, given))
    return CgroupHost(kind=_kind(found), hierarchies=found)


def _controllers(own: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name for name in own if name and not name.startswith("name="))


def parse_own_groups(text: str) -> dict[str, str]:
    """/proc/self/cgroup as controller → group; the v2 group has the name ''."""
    own: dict[str, str] = {}
    for line in filter(None, text.split("\n")):
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = group.removesuffix(" (deleted)")
    return own


def parse_mounts(mountinfo: str, controllers: frozenset[str]) -> tuple[Mount, ...]:
    """The cgroup mounts of /proc/self/mountinfo, in order; hierarchies without a controller are left out."""
    found: list[Mount] = []
    for line in filter(None, mountinfo.split("\n")):
        before, _, after = line.partition(" - ")
        left, (kind, _, options, *_) = before.split(" "), [*after.split(" "), "", "", ""]
        mine = controllers & frozenset(options.split(","))
        if kind == "cgroup2" or (kind == "cgroup" and mine):
            root, mountpoint = _unescaped(left[3]), _unescaped(left[4])
            version = 2 if kind == "cgroup2" else 1
            found.append(
                Mount(version=version, device=left[2], root=root, mountpoint=mountpoint, controllers=mine)
            )
    return tuple(found)


def _unescaped(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as three octal digits."""
    for escape, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, char)
    return text


def _given_group(given: str, mounts: tuple[Mount, ...]) -> str:
    if given and (not given.startswith("/") or ".." in given.split("/")):
        raise PolicyError(PARENT_VARIABLE, f"{given!r} is not an absolute path of a group")
    for mount in sorted(mounts, key=lambda mount: -len(mount.mountpoint)):
        if within(given, mount.mountpoint):
            return (mount.root.rstrip("/") + given[len(mount.mountpoint) :]) or "/"
    return given.rstrip("/") or given


def _one_per_hierarchy(mounts: tuple[Mount, ...], own: Mapping[str, str], given: str) -> Iterator[Mount]:
    """A hierarchy may be mounted in several places: the first that shows the wanted group, else the first."""
    by_hierarchy: dict[frozenset[str], list[Mount]] = {}
    for mount in mounts:
        by_hierarchy.setdefault(mount.controllers, []).append(mount)
    for places in by_hierarchy.values():
        wanted = given or _own(places[0], own)
        showing = [mount for mount in places if _is_cgroup(mount, mount.directory_of(wanted))]
        yield (showing or places)[0]


def _own(mount: Mount, own: Mapping[str, str]) -> str:
    return own.get(next(iter(mount.controllers), ""), "/..")


def _is_cgroup(mount: Mount, directory: str | None) -> bool:
    """The device tells a cgroup from a plain directory or tmpfs in its place, as statfs's magic number would."""
    if directory is None:
        return False
    try:
        device = os.stat(directory).st_dev
    except OSError:
        return False
    return f"{os.major(device)}:{os.minor(device)}" == mount.device


def _kind(found: tuple[Hierarchy, ...]) -> str:
    versions = sorted({hierarchy.version for hierarchy in found})
    return {(): "none", (1,): "v1", (2,): "v2"}.get(tuple(versions), "hybrid")


def _hierarchy(mount: Mount, own: Mapping[str, str], given: str) -> Hierarchy:
    """What is available in the first place where every limit can be set; without one, in the first place."""
    found = _first(mount, own, given)
    first = TriedPlace(what=GIVEN if given else OWN, directory=found.parent, problem=found.problem)
    if given or mount.version == 1 or not found.problem or not _is_cgroup(mount, found.parent):
        return replace(found, tried=(first,))
    other = _beside(mount, found.parent)
    second = TriedPlace(what=BESIDE, directory=other.parent, problem=other.problem)
    return replace(other if other.usable > found.usable else found, tried=(first, second))


def _beside(mount: Mount, own: str) -> Hierarchy:
    twin, beside = cgroup_twin.find(own, mount.mountpoint)
    place = os.path.dirname(twin)
    bare = Hierarchy(version=2, parent=twin, beside=beside)
    if not twin:
        return replace(bare, beside="", problem=beside)
    if not _writable(place, "", "cgroup.procs") or not _opens(f"{place}/cgroup.procs"):
        return replace(bare, problem=f"{place} can't be written")
    offered = _offered(mount, place)
    enabled = offered & (_words(f"{place}/cgroup.subtree_control") | {V2_CORE})
    if enabled == offered or _writable(place, "cgroup.subtree_control"):
        return replace(bare, offered=offered, usable=offered)
    return _refused(replace(bare, offered=offered), cgroup_fixes.not_delegated(place, 2, mount.mountpoint), enabled)


def _first(mount: Mount, own: Mapping[str, str], given: str) -> Hierarchy:
    group = given or _own(mount, own)
    parent = mount.directory_of(group) or ""
    if not given and os.path.basename(parent) == SUPERVISOR:
        parent = os.path.dirname(parent)
    bare = Hierarchy(version=mount.version, parent=parent, offered=_offered(mount, parent))
    if not parent:
        return _refused(bare, cgroup_fixes.outside(group, mount.mountpoint))
    if not _is_cgroup(mount, parent):
        return _refused(bare, cgroup_fixes.not_a_group(parent))
    if not _writable(parent, "", "cgroup.procs"):
        return _refused(bare, cgroup_fixes.not_delegated(parent, mount.version, mount.mountpoint))
    if not _opens(f"{parent}/cgroup.procs"):
        return _refused(bare, cgroup_fixes.closed(parent))
    if mount.version == 1:
        return replace(bare, usable=bare.offered)
    return _v2_hierarchy(bare, mount, mount.directory_of(own.get("", "/..")))


def _refused(bare: Hierarchy, lack: tuple[str, str], usable: frozenset[str] = frozenset()) -> Hierarchy:
    return replace(bare, problem=lack[0], fix=lack[1], usable=usable)


def _offered(mount: Mount, parent: str) -> frozenset[str]:
    if mount.version == 1:
        return mount.controllers
    where = parent if os.path.isdir(parent) else mount.mountpoint
    try:
        return _words(f"{where}/cgroup.controllers") & V2_CONTROLLERS | {V2_CORE}
    except SupervisionError:
        return frozenset({V2_CORE})  # closed to us


def _writable(directory: str, *names: str) -> bool:
    return all(os.access(f"{directory}/{name}", os.W_OK, effective_ids=True) for name in names)


def _opens(path: str) -> bool:
    """Whether a sandbox around this process leaves it open: access() does not know of Landlock and its like."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _v2_hierarchy(bare: Hierarchy, mount: Mount, own: str | None) -> Hierarchy:
    parent = bare.parent
    common = os.path.commonpath([parent, own]) if own else ""
    if not common or not _writable(common, "cgroup.procs"):
        return _refused(bare, cgroup_fixes.cannot_migrate(parent, common, mount.mountpoint))
    enabled = bare.offered & (_words(f"{parent}/cgroup.subtree_control") | {V2_CORE})
    if enabled == bare.offered:
        return replace(bare, usable=enabled)
    if not _writable(parent, "cgroup.subtree_control"):
        return _refused(bare, cgroup_fixes.not_delegated(parent, 2, mount.mountpoint), enabled)
    busy = not is_root(parent) and bool(cgroup_tree.read(f"{parent}/cgroup.procs"))
    foreign = foreigners(parent) if busy else []
    if foreign:
        return _refused(bare, cgroup_fixes.shared(parent, foreign), enabled)
    return replace(bare, usable=bare.offered, moves_callers=busy)


def is_root(directory: str) -> bool:
    """The real root of the v2 tree (not a namespace's): the only one that may hold processes too."""
    return not os.path.exists(f"{directory}/cgroup.type")


def foreigners(directory: str) -> list[int]:
    """Processes in the group that are not ours to move. In a group that systemd has marked as delegated every process
    is ours to move: the group was handed over with them, and a leaf of the same group changes nothing for them."""
    if delegated(directory):
        return []
    ours = {os.getpid(), *(process.pid for process in procfs.descendants(os.getpid()))}
    listed = {int(word) for word in (cgroup_tree.read(f"{directory}/cgroup.procs") or "").split()}
    # A process that has ended meanwhile does not count.
    return sorted(pid for pid in listed - ours if pid == 0 or procfs.stat(pid) is not None)


def delegated(directory: str) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _words(path: str) -> frozenset[str]:
    return frozenset((cgroup_tree.read(path) or "").split())
