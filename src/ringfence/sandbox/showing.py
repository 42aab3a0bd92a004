"""What STRICT shows of the host for a policy's paths, and which of them it can't show."""

from __future__ import annotations

import os
import stat
from _collections_abc import Iterable, Mapping

from ringfence.errors import PolicyError, UsageError
from ringfence.kernel.mount import submounts
from ringfence.model.job import Job
from ringfence.model.lack import Lack
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.ways import led
from ringfence.model.ways.led import SHOWING
from ringfence.model.ways.walk import Look, absolute, real
from ringfence.sandbox import host, programs
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.sandbox.root import HostMount
from ringfence.sandbox.search import Search

_OWN = ("/dev", *(f"/dev/{name}" for name in rootfs.DEVICES))
"""What every sandbox has of its own, beside /proc."""
# Read-only or not, a process that reaches one of these reaches what is behind it.
_NEVER = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_TAKEN = ("/proc", "/sys", "/dev", "/etc", *rootfs.SYSTEM_FOLDERS, *rootfs.IN_MEMORY)
"""What every sandbox has of its own, or of the system."""
_FIX = "give files and directories only"


def lacks(policy: SandboxPolicy) -> list[Lack]:
    """A lack for every path of the policy that is neither a file nor a directory."""
    named = [(name, path) for name in SHOWING for path in getattr(policy, name)]
    kinds = [(name, path, _never(path)) for name, path in named if not _is_own(path)]
    return [Lack(capability=name, missing=f"a way to show {path}, which is {kind}", fix=_FIX)
            for name, path, kind in kinds if kind]  # fmt: skip


def search(
    policy: SandboxPolicy, job: Job, workspaces: Iterable[str] = (), apart: tuple[str, ...] = ()
) -> Search:
    """How the job's programs are looked up; anybody may have written what it works on and what the policy names.

    ``apart``: originals of what it works on, which it does not see."""
    path = _chosen_for(policy, job).get("PATH", os.environ.get("PATH", ""))
    named = (*workspaces, *apart, *policy.readable_paths, *policy.writable_paths, *((job.cwd,) if job.cwd else ()))
    look = Look()
    hostile = tuple(dict.fromkeys((*map(absolute, named), *map(look.real, named))))
    return Search(path=path, here=job.cwd or _here(), hostile=hostile, apart=apart, look=look)


def set_for(policy: SandboxPolicy, job: Job) -> dict[str, str]:
    """The variables that the policy and the job set."""
    return dict(policy.environment) | dict(job.environment)


def _chosen_for(policy: SandboxPolicy, job: Job) -> Mapping[str, str]:
    """Those of them that may name things of the host: set by the caller, or by the author of the policy."""
    return policy.environment if job.foreign else set_for(policy, job)


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # the caller's directory is gone


def needed(policy: SandboxPolicy, job: Job, found: Search) -> tuple[list[str], list[str]]:
    """What the job's program and this interpreter need of the host: the part that nobody but the caller can redirect,
    and all of it."""
    own = programs.own_folders(_chosen_for(policy, job).get("PYTHONPATH", ""))
    named = programs.needed(_word(job, found), found)
    return found.settled(named, own), [*own, *named]


def by_itself(policy: SandboxPolicy, job: Job) -> list[str]:
    """Where links lead of what the job sees of the host although nobody names it: the system, and what its program,
    this interpreter and the Python on its PATH need. Whole environments are among that."""
    if policy.root:
        return []
    way = search(policy, job)
    return [*rootfs.SYSTEM_FOLDERS, *map(way.real, needed(policy, job, way)[1])]


def _word(job: Job, found: Search) -> str:
    """The first word, if it may name a program of the host. A word that the caller did not choose must be found on the
    PATH: otherwise a client of the service could have any file shown, or an installation with everything in it."""
    word = job.argv[0]
    return "" if job.foreign and "/" in word and os.path.dirname(word) not in found.folders() else word


def program(policy: SandboxPolicy, job: Job) -> str:
    """The file that the job's first word means; empty: there is none of that name, or it is looked up inside, by a PATH
    that is not the caller's."""
    by_their_own = job.foreign and "PATH" in job.environment
    return "" if by_their_own else search(policy, job).which(job.argv[0])


def shown(policy: SandboxPolicy, job: Job, workspaces: tuple[str, ...], ours: HiddenPaths) -> list[HostMount]:
    """What the job sees of the host beside the system, without the workspaces. All of it is decided from one look."""
    way = search(policy, job, workspaces)
    named = _named(policy, workspaces, way.look)
    configuration = {f"/etc/{name}" for name in rootfs.ETC_NAMES} - named
    tops = (*rootfs.SYSTEM_FOLDERS, *configuration, *workspaces)
    settled, wanted = needed(policy, job, way)
    found = host.outside_the_system([*policy.readable_paths, *settled], tops, way.look)
    found += [path for path in _links_into(way, wanted) if not any(within(path, top) for top in (*tops, *found))]
    # Directories above a workspace are shown only if the policy says so, and ours are never shown because a program
    # names them.
    seen = [path for path in found if path in named
            or not (ours.cover(way.real(path)) or any(within(each, path) for each in workspaces))]  # fmt: skip
    return _mounts(policy, seen, workspaces, named, way.look)


def over_a_root(policy: SandboxPolicy, workspaces: tuple[str, ...], ours: HiddenPaths) -> list[HostMount]:
    """What the job sees of the host in a root of its own: what the policy names, and nothing that a program needs."""
    look = Look()
    named = _named(policy, workspaces, look)
    found = host.outside_the_system(list(policy.readable_paths), workspaces, look)
    return _mounts(policy, [path for path in found if not ours.cover(path)], workspaces, named, look)


def _named(policy: SandboxPolicy, workspaces: tuple[str, ...], look: Look) -> frozenset[str]:
    """The readable paths, as written and where they lead."""
    led.refuse(policy, workspaces, look)
    return frozenset(policy.readable_paths) | set(map(look.real, policy.readable_paths))


def _refuse_readable_within(policy: SandboxPolicy, workspaces: tuple[str, ...], look: Look) -> None:
    """PolicyError if a readable path lies in what the job writes directly in a workspace: a workspace shows all that
    lies in it in one layer, so the path would be writable with the rest."""
    direct = [path for path in map(look.real, policy.writable_paths) if any(within(path, each) for each in workspaces)]
    for path in policy.readable_paths if direct else ():
        top = next((each for each in direct if within(look.real(path), each) and look.real(path) != each), "")
        if top:
            raise PolicyError("readable_paths", f"{path} can't be read-only: it is in {top}, which the job writes "
                              "directly in its working directory; keep it elsewhere")  # fmt: skip


def _mounts(
    policy: SandboxPolicy, seen: list[str], workspaces: tuple[str, ...], named: frozenset[str], look: Look
) -> list[HostMount]:
    _refuse_readable_within(policy, workspaces, look)
    there = filter(os.path.lexists, policy.writable_paths)
    elsewhere = {look.real(path): place for path, place in policy.shown_at.items()}
    placed = [replace(entry, at=elsewhere[rootfs.place(entry)])
              for entry in entries(elsewhere.keys() - set(workspaces), "ro", frozenset(elsewhere), look)]  # fmt: skip
    own = [path for path in seen if not elsewhere or look.real(path) not in elsewhere]
    return [*entries(own, "ro", named, look), *placed,
            *entries(there, "rw", frozenset(policy.writable_paths), look)]  # fmt: skip


def found(
    policy: SandboxPolicy, job: Job, workspaces: tuple[str, ...], ours: HiddenPaths, here: Job
) -> tuple[list[HostMount], str, list[str]]:
    """(what the job sees beside the system, the file that its first word means or nothing where that is a path, the
    directories of the PATH by which ``here`` finds programs)."""
    meant = "" if "/" in job.argv[0] else program(policy, job)
    return shown(policy, job, workspaces, ours), meant, search(policy, here).folders()


def _links_into(way: Search, paths: list[str]) -> list[str]:
    """The caller's own links into a hostile directory: the link is shown, not its target."""
    return [path for path in dict.fromkeys(map(absolute, paths))
            if os.path.islink(path) and way.passes_hostile(path) and not way.passes_hostile(os.path.dirname(path))
            and not any(within(path, folder) for folder in way.hostile)]  # fmt: skip


def names_paths(policy: SandboxPolicy) -> bool:
    """Whether anything on the host decides what the policy shows and hides."""
    return bool(policy.readable_paths or policy.writable_paths or policy.hidden_paths or policy.shown_at or policy.root)


def refuse_absent(policy: SandboxPolicy) -> None:
    """PolicyError for all readable and writable paths that do not exist. A hidden path may appear later."""
    named = [(name, path) for name in SHOWING for path in getattr(policy, name)]
    found = [PolicyError(name, problem) for name, path in named if (problem := _why_absent(path))]
    if found:
        raise PolicyError(found[0].field, found[0].problem, more=tuple(found[1:]))


def _why_absent(path: str) -> str:
    try:
        os.lstat(path)
        return ""
    except OSError as error:
        near = _nearest(path) if isinstance(error, FileNotFoundError) else ""
        return f"{path}: {error.strerror}" + (f"; did you mean {near}?" if near else "")


def _nearest(path: str) -> str:
    """An existing name that is similar, if the directory above exists; empty: there is none."""
    from difflib import get_close_matches

    above, name = os.path.split(path)
    try:
        close = get_close_matches(name, os.listdir(above), n=1)
    except OSError:
        return _nearest(above) if above != path else ""
    return os.path.join(above, close[0]) if close else ""


def entries(paths: Iterable[str], mode: str, explicit: frozenset[str], look: Look) -> list[HostMount]:
    """``explicit``: the paths that the policy names. For a link, the link itself is shown."""
    wanted = [path for path in paths if not _is_own(path) and not _never(path)]
    return [_entry(path, look.way(path).own, mode, explicit=path in explicit) for path in wanted]


def _entry(path: str, source: str, mode: str, *, explicit: bool) -> HostMount:
    """Taken from where it was at the look, without links on the way, and shown under the name that was asked for: what
    is hidden there is hidden under that name too. A link at its end is shown as it is."""
    return HostMount(path=source, mode=mode, folder=os.path.isdir(source) and not os.path.islink(source), own=True,
                     explicit=explicit, real=True, at=path if path != source else "")  # fmt: skip


def shared(policy: SandboxPolicy) -> list[str]:
    """The writable paths: they are the host's own, and not shown through an overlay."""
    return [path for path in policy.writable_paths if not _never(path)]


def _is_own(path: str) -> bool:
    return path in _OWN or within(path, "/proc")


def _never(path: str) -> str:
    """What kind of file it is, if that kind is never shown."""
    try:
        return _NEVER.get(stat.S_IFMT(os.stat(path).st_mode), "")
    except OSError:
        return ""


def refuse_mounts_within(workspace: str) -> None:
    """In a user namespace a directory with mounts in it can't have a layer."""
    if host.is_the_hosts_root():
        return
    points = submounts.below(workspace, submounts.read(host.mount_table()))
    if points:
        raise UsageError(f"something is mounted at {points[0]}, in the workspace",
                         hint="unmount it, work on a directory without it, or run as root")  # fmt: skip


# ---- what is shown elsewhere than at its own path


def places(policy: SandboxPolicy) -> dict[str, str]:
    """Real path on the host → path inside."""
    return {real(path): place for path, place in policy.shown_at.items()}


def inside(policy: SandboxPolicy, path: str) -> str:
    """Where this host path is inside; unchanged if it lies in nothing that is shown elsewhere."""
    for source, place in places(policy).items() if policy.shown_at else ():
        if within(real(path), source):
            return place + real(path)[len(source) :]
    return path


def on_host(policy: SandboxPolicy, path: str) -> str:
    """What a path inside is on the host; unchanged if it lies in nothing that is shown elsewhere."""
    for source, place in places(policy).items() if policy.shown_at else ():
        if within(path, place):
            return source + path[len(place) :]
    return path


def by_every_place(policy: SandboxPolicy, paths: Iterable[str]) -> list[str]:
    """The inside names of those host paths that lie in something shown elsewhere."""
    rows = places(policy).items()
    return [place + path[len(source) :] for path in paths for source, place in rows if within(path, source)]


def refuse_places(policy: SandboxPolicy) -> None:
    """PolicyError if two would be at one place, one inside another, or one where something else is."""
    found = list(places(policy).values())
    if len(found) < len(policy.shown_at):
        raise PolicyError("shown_at", "names one thing twice, through a link; give each a place of its own, once")
    for place in found:
        taken = next((top for top in _TAKEN if within(place, top) or within(top, place)), "")
        if taken:
            raise PolicyError("shown_at", f"{place} can't be used as a mount point: the sandbox has its own {taken}")
        if sum(within(place, other) for other in found) > 1:
            raise PolicyError("shown_at", f"{place} is inside another place; give each one of its own")
    refuse_covering(policy, (*policy.readable_paths, *policy.writable_paths))


def refuse_covering(policy: SandboxPolicy, paths: Iterable[str]) -> None:
    """PolicyError if a place and something shown at its own path would be nested: one would cover the other, or a
    directory would have to be made for it on the host."""
    for path in paths if policy.shown_at else ():
        taken = next((place for place in policy.shown_at.values() if within(place, path) or within(path, place)), "")
        if taken:
            raise PolicyError("shown_at", f"{taken} can't be used as a mount point: {path} is shown at its own path")
