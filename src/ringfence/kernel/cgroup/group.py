"""One control group per sandbox: made with its limits, measured, killed, removed; v2, v1, hybrid.

Owns the order: look (cgroup_host), make, write limits and read them back (cgroup_limits), hand out the paths
by which a process enters before its first instruction (cgroup_tree), account (cgroup_usage), clean up, also
after callers that were killed. It starts no process and does not decide what an exhausted limit means.
"""

from __future__ import annotations

import itertools
import os
import time
from _collections_abc import Mapping
from _thread import allocate_lock

from ringfence.errors import SetupError, SupervisionError, UnavailableError, is_of_a_call
from ringfence.kernel.cgroup import host as cgroup_host
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup import twin as cgroup_twin
from ringfence.kernel.cgroup import usage as cgroup_usage
from ringfence.kernel.cgroup.host import CgroupHost, Hierarchy, probe
from ringfence.kernel.cgroup.limits import CgroupLimits, Setting, disk_of, settings
from ringfence.kernel.cgroup.usage import CgroupEvents
from ringfence.kernel.proc import procfs
from ringfence.model.memo import lru_cache
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.record import record

__all__ = [
    "Cgroup", "CgroupEvents", "CgroupHost", "CgroupLimits", "create", "disk_of", "no_disk", "probe", "sweep",
    "throttle",
]  # fmt: skip

ALWAYS = ("freeze", "cpu_usage", "memory", "pids")
"""Groups that are made, where possible, even without a limit: to end the whole job and to measure it."""

NOTES = {("io", 1): "reads and direct writes only"}

RECIPE_GOOD_FOR_S = 1.0
"""Whether there is swap, and which disks lie under the paths, is looked up again after that."""

_numbers = itertools.count()
_preparing = allocate_lock()


def _after_fork_in_child() -> None:
    """A thread that the child does not have may hold the lock."""
    global _preparing
    _preparing = allocate_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@record
class Cgroup:
    """A group that exists until ``remove``; everything in it is plain data that may go to another process."""

    name: str
    places: Mapping[str, str]
    """Capability → directory; several share one, and on v2 all do."""
    applied: Mapping[str, Enforcement]
    """What became of each limit; ``details`` has the values as the kernel reads them back."""

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.places.values()))

    @property
    def enter_paths(self) -> tuple[str, ...]:
        """For ``cgroup_tree.enter``."""
        return tuple(map(_entrance, self.directories))

    @property
    def v2_directory(self) -> str:
        """The group in the v2 tree, into which a process can be forked; empty where there is none."""
        found = (path for path in self.directories if not os.path.exists(f"{path}/tasks"))
        return next(found, "")

    def peaks(self) -> tuple[int, int]:
        """(bytes, processes): the most at one time."""
        return cgroup_usage.peaks(self.places)

    def events(self) -> CgroupEvents:
        return cgroup_usage.events(self.places)

    def members(self) -> set[int]:
        return cgroup_tree.members(self.directories)

    def kill(self) -> None:
        """End every process in the group. This is final: nothing may be started in the group afterwards."""
        cgroup_tree.kill(self.directories)

    def remove(self) -> None:
        cgroup_tree.remove(self.directories)

    def __enter__(self) -> Cgroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def create(limits: CgroupLimits, *, host: CgroupHost | None = None, allow_partial: bool = False) -> Cgroup:
    """A new group under these limits. UnavailableError if one can't be kept here, unless ``allow_partial``;
    SetupError if the kernel did not take a value. ``host`` may be an earlier ``probe()``."""
    recipe = _recipe(host or probe(), limits)
    if recipe.lacks and not allow_partial:
        raise _unavailable(recipe.lacks)
    name = _new_name()
    places = _make(recipe, name)
    try:
        applied = {wanted.capability: _enforce(places[wanted.capability], wanted) for wanted in recipe.wanted}
    except BaseException:
        cgroup_tree.remove(tuple(dict.fromkeys(places.values())))
        raise
    return Cgroup(name=name, places=places, applied={**applied, **recipe.missing})


@record(eq=False)
class _Wanted:
    """One limit, and the files that hold it."""

    capability: str
    value: object
    version: int
    settings: tuple[Setting, ...]


@record(eq=False)
class _Recipe:
    """What groups under these limits are made of on this host."""

    host: CgroupHost
    limits: CgroupLimits
    made_at: float
    parents: Mapping[str, str]
    """Capability → the group below which the new one is made."""
    hierarchies: tuple[Hierarchy, ...]
    controllers: frozenset[str]
    """What these capabilities need from the v2 tree."""
    wanted: tuple[_Wanted, ...]
    lacks: Mapping[str, tuple[str, str]]
    missing: Mapping[str, Enforcement]


_latest: _Recipe | None = None


def _recipe(host: CgroupHost, limits: CgroupLimits) -> _Recipe:
    """A pool makes many groups in a row that differ in their names alone."""
    global _latest
    kept, now = _latest, time.monotonic()
    if kept is None or kept.host is not host or kept.limits != limits or now >= kept.made_at + RECIPE_GOOD_FOR_S:
        _latest = kept = _worked_out(host, limits, now)
    return kept


def _worked_out(host: CgroupHost, limits: CgroupLimits, now: float) -> _Recipe:
    asked, lacks = limits.asked(), _lacks(host, limits)
    found = {capability: way for capability in (*ALWAYS, *asked) if (way := host.find(capability)) is not None}
    wanted = tuple(_wanted(capability, found[capability][0].version, limits) for capability in asked
                   if capability not in lacks)  # fmt: skip
    used = {hierarchy.parent: hierarchy for hierarchy, _ in found.values()}
    controllers = frozenset(name for hierarchy, name in found.values() if hierarchy.version == 2)
    return _Recipe(
        host=host, limits=limits, made_at=now,
        parents={capability: hierarchy.parent for capability, (hierarchy, _) in found.items()},
        hierarchies=tuple(used.values()), controllers=controllers - {cgroup_host.V2_CORE},
        wanted=wanted, lacks=lacks,
        missing={capability: _not_applied(asked[capability], lack) for capability, lack in lacks.items()},
    )  # fmt: skip


def _wanted(capability: str, version: int, limits: CgroupLimits) -> _Wanted:
    asked = limits.asked()[capability]
    return _Wanted(capability=capability, value=asked, version=version, settings=settings(capability, version, limits))


def sweep(host: CgroupHost | None = None) -> tuple[str, ...]:
    """Kill and remove groups whose maker is dead; return their names. Only groups of this user and of this pid
    namespace: elsewhere the maker's pid can't be judged."""
    host = host or probe()
    orphans = _orphans(host)
    failed: list[SupervisionError] = []
    for directories in orphans.values():
        try:
            cgroup_tree.remove(directories)
        except SupervisionError as error:
            failed.append(error)
    for twin in itertools.chain.from_iterable(_parents(each) for each in host.hierarchies if each.beside):
        cgroup_tree.remove_if_empty(twin)
    if failed:
        raise failed[0]
    return tuple(orphans)


def _orphans(host: CgroupHost) -> dict[str, list[str]]:
    """By name; a group has the same one in every hierarchy."""
    found: dict[str, list[str]] = {}
    parents = itertools.chain.from_iterable(map(_parents, host.hierarchies))
    for entry in itertools.chain.from_iterable(map(_listed, parents)):
        if _is_own(entry):
            found.setdefault(entry.name, []).append(entry.path)
    return {name: paths for name, paths in found.items() if _maker_is_gone(name)}


def _parents(hierarchy: Hierarchy) -> list[str]:
    """Where groups of ours may be, including twins beside groups that are gone by now."""
    if not hierarchy.beside:
        return [hierarchy.parent]
    place = os.path.dirname(hierarchy.parent)
    return [f"{place}/{name}" for name in os.listdir(place) if name.startswith(cgroup_twin.prefix())]


def _lacks(host: CgroupHost, limits: CgroupLimits) -> dict[str, tuple[str, str]]:
    lacks = {capability: host.missing(capability) for capability in limits.asked()}
    if "io" in lacks:
        lacks["io"] = lacks["io"] or no_disk(limits.io_paths)
    return {capability: lack for capability, lack in lacks.items() if lack}


def no_disk(paths: tuple[str, ...]) -> tuple[str, str] | None:
    """(the path that lies on no disk that can be throttled, what helps), or None if there is no such path."""
    fix = "use a directory on a file system that has a disk of its own; for the private one set TMPDIR"
    return next(((f"{path} is not on a disk that can be throttled", fix) for path in paths if not disk_of(path)), None)


def throttle(group: Cgroup, limits: CgroupLimits) -> Enforcement:
    """Apply the limit of bytes per second of a group to further disks too."""
    directory = group.places["io"]
    return _enforce(directory, _wanted("io", 1 if os.path.exists(f"{directory}/tasks") else 2, limits))


def _unavailable(lacks: Mapping[str, tuple[str, str]]) -> UnavailableError:
    problems = "; ".join(f"{capability}: {problem}" for capability, (problem, _) in lacks.items())
    fixes = "\n".join(dict.fromkeys(fix for _, fix in lacks.values()))
    return UnavailableError(f"no control group: {problems}", missing=tuple(lacks), hint=fixes)


def _not_applied(wanted: object, lack: tuple[str, str]) -> Enforcement:
    return Enforcement(requested=wanted, applied=False, mechanism="none", details=lack[0])


def _new_name() -> str:
    return f"{_maker(os.getpid())}-{next(_numbers)}"


@lru_cache(maxsize=8)
def _maker(pid: int) -> str:
    """Names the maker of a group, so that it can be swept once the maker is dead; a start of 0 is never swept."""
    me = procfs.stat(pid)
    return f"ringfence-{_pid_namespace()}-{pid}-{me.start if me else 0}"


def _entrance(directory: str) -> str:
    """The v1 file of single threads. A process of one thread that enters by itself does so through it without the
    kernel's global lock, which waits for every processor, some 10 ms. Not every delegation hands it over."""
    threads = f"{directory}/tasks"
    return threads if os.access(threads, os.W_OK, effective_ids=True) else f"{directory}/cgroup.procs"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _make(recipe: _Recipe, name: str) -> dict[str, str]:
    made: list[str] = []
    try:
        for hierarchy in recipe.hierarchies:
            made.append(f"{hierarchy.parent}/{name}")  # before: a signal's handler may raise between the two
            if hierarchy.beside:
                cgroup_twin.make(made[-1], hierarchy.beside, recipe.controllers)
                continue
            _prepare(hierarchy)
            os.mkdir(made[-1], 0o755)
    except BaseException as error:
        cgroup_tree.remove(made[:-1] if isinstance(error, FileExistsError) else made)
        if isinstance(error, OSError) and is_of_a_call(error):
            raise SetupError("create cgroup", f"{error.filename}: {error.strerror}") from error
        raise
    return {capability: f"{parent}/{name}" for capability, parent in recipe.parents.items()}


def _prepare(hierarchy: Hierarchy) -> None:
    """On v2, pass the controllers on to children; a group that has processes of its own may not do that."""
    if hierarchy.version == 1:
        return
    wanted = hierarchy.usable - {cgroup_host.V2_CORE}
    with _preparing:
        if not wanted - set((cgroup_tree.read(f"{hierarchy.parent}/cgroup.subtree_control") or "").split()):
            return
        if hierarchy.moves_callers:
            _move_into_leaf(hierarchy.parent)
        cgroup_twin.enable(hierarchy.parent, wanted)


def _move_into_leaf(parent: str) -> None:
    """Move our processes of ``parent`` into a leaf below it: the same group and limits for them as before."""
    leaf = f"{parent}/{cgroup_host.SUPERVISOR}"
    for _ in range(100):
        os.makedirs(leaf, mode=0o755, exist_ok=True)
        waiting = (cgroup_tree.read(f"{parent}/cgroup.procs") or "").split()
        if not waiting:
            return
        foreign = cgroup_host.foreigners(parent)
        if foreign:
            raise SetupError("create cgroup", f"{parent} got processes that ringfence must not move: {foreign}")
        for pid in waiting:
            try:
                cgroup_tree.write(f"{leaf}/cgroup.procs", pid)
            except (ProcessLookupError, FileNotFoundError):
                continue  # it ended, or a sweep took the empty leaf: the next round sees
    raise SetupError("create cgroup", f"{parent} does not become empty")


def _enforce(directory: str, wanted: _Wanted) -> Enforcement:
    read = {s.file: value for s in wanted.settings if (value := _apply(directory, s)) is not None}
    values = [f"{file}={value}" for file, value in read.items()]
    notes = [setting.lack for setting in wanted.settings if setting.lack and setting.file not in read]
    note = NOTES.get((wanted.capability, wanted.version))
    return Enforcement(requested=wanted.value, applied=True,
                       mechanism=f"cgroup v{wanted.version} {wanted.settings[0].file}", by=(Mechanism.CGROUP,),
                       details="; ".join([*values, *notes, *([note] if note else [])]))  # fmt: skip


def _apply(directory: str, setting: Setting) -> str | None:
    """Write and read back; None if the kernel has no such file and needs none."""
    path = f"{directory}/{setting.file}"
    if setting.only_if_there and not os.path.exists(path):
        return None
    try:
        value = cgroup_tree.write_back(path, setting.text).strip()
    except FileNotFoundError as error:
        raise SetupError("limit cgroup", f"this kernel has no {setting.file}", hint=setting.fix) from error
    except OSError as error:
        if not is_of_a_call(error):
            raise
        raise SetupError("limit cgroup", f"{path}: {setting.text!r}: {error.strerror}") from error
    if not setting.holds(value):
        raise SetupError("limit cgroup", f"{path}: wrote {setting.text!r}, but it reads {value!r}")
    return value


def is_name(name: str) -> bool:
    """Whether a group of this name is one of ours: the maker's pid namespace, pid and start, and a number."""
    first, *numbers = name.split("-")
    return first == "ringfence" and len(numbers) == 4 and all(each.isascii() and each.isdigit() for each in numbers)


def _listed(parent: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(parent) as entries:
            return [entry for entry in entries if is_name(entry.name)]
    except OSError:
        return []


def _maker_is_gone(name: str) -> bool:
    _, namespace, pid, start, _ = name.split("-")
    if start == "0" or int(namespace) != _pid_namespace():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False  # somebody else's process, or a pid that can't exist
    now = procfs.stat(int(pid))
    return now is not None and str(now.start) != start


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:
        return False
