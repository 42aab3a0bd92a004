"""What this host has for one strict sandbox, looked up once: during a start only this module reads the host for it."""

from __future__ import annotations

import os

from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record
from ringfence.sandbox import filters, hiding, host, image_root, networks, showing
from ringfence.sandbox import root as rootfs
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.sandbox.image_root import Guest
from ringfence.sandbox.root import HostMount, WorkspaceMount

USER = "user"
"""The name that the job's user has inside."""


@record
class Laying:
    """What a box changes on the host, and where."""

    workspaces: tuple[WorkspaceMount, ...]
    folder: str
    """Where the job begins."""
    ours: tuple[str, ...]
    """Directories of ours, which no guest sees."""
    scratch: str
    """The box's private directory; empty: it has none."""
    image: WorkspaceMount | None = None
    """The directory that is the root, with a layer if it is among the workspaces; absent: it is the host's system."""


@record
class View:
    """What was found on the host."""

    shown: tuple[HostMount, ...]
    """System directories, and what the policy names and the job's program needs."""
    etc: tuple[HostMount, ...]
    copies: tuple[tuple[str, bytes, str], ...]
    links: tuple[tuple[str, str], ...]
    resolver: tuple[tuple[str, str], ...]
    proc_files: tuple[str, ...]
    proc_folders: tuple[str, ...]
    build_dir: str
    """A directory that nothing shown lies in."""
    search_path: tuple[str, ...]
    """The directories of the PATH that is meant."""
    program: str
    """The file that the job's first word means; empty: that is a path, or there is none of that name."""
    caller: tuple[int, int]
    """The effective (uid, gid) of this process."""
    ids: tuple[int, int]
    """Its real ones."""
    groups: tuple[tuple[str, str], ...]
    """(kind, options) of the file systems of control groups."""
    has_fuse: bool
    beside_hidden: int
    """How many names lie beside hidden ones; counted only where tripwires could be laid."""
    landlock_abi: int
    is_filtered: bool
    """This process is under a filter itself, and perhaps has a listener."""
    has_time_namespaces: bool
    shared: tuple[str, ...]
    """The writable paths, as far as they can be shown."""
    guest: Guest | None = None
    """Who the job is in a root of its own."""


def look(policy: SandboxPolicy, job: Job, laying: Laying, hidden: HiddenPaths) -> View:
    """UsageError if the policy or a workspace conflicts with directories of ours."""
    workspaces = tuple(each.path for each in laying.workspaces)
    state_folder.refuse_ours(laying.ours, policy.readable_paths, policy.writable_paths)
    hiding.refuse_workspace(laying.ours, workspaces, policy.readable_paths)
    named, program, folders = _named(policy, job, laying)
    has_system = laying.image is None
    etc, copies = host.configuration() if has_system else ((), ())
    has_fuse = bool(hidden) and has_system and host.has_fuse()
    return View(
        shown=(*(host.system_folders() if has_system else ()), *named),
        etc=etc,
        copies=copies,
        links=host.system_links() if has_system else (),
        resolver=host.resolver() if networks.is_hosts(policy) else (),
        proc_files=host.present("/proc", rootfs.PROC_FILES),
        proc_folders=host.present("/proc", rootfs.PROC_FOLDERS),
        build_dir=host.free_folder([*_used(laying), *(entry.path for entry in named)]),
        search_path=tuple(folders),
        program=program,
        caller=(os.geteuid(), os.getegid()),
        ids=(os.getuid(), os.getgid()),
        groups=host.group_mounts(),
        has_fuse=has_fuse,
        beside_hidden=host.names_in(hidden.folders) - len(hidden) if has_fuse else 0,
        landlock_abi=networks.landlock_abi(),
        is_filtered=filters.is_filtered(),
        has_time_namespaces=os.path.exists("/proc/self/ns/time"),
        shared=tuple(showing.shared(policy)),
        guest=_guest(policy) if laying.image is not None else None,
    )


def _named(policy: SandboxPolicy, job: Job, laying: Laying) -> tuple[list[HostMount], str, list[str]]:
    """As ``showing.found``; in a root of its own a job has the programs of that root."""
    workspaces, ours = tuple(each.path for each in laying.workspaces), HiddenPaths(laying.ours)
    if laying.image is not None:
        return showing.over_a_root(policy, workspaces, ours), "", image_root.PATH.split(":")
    here = Job(argv=(USER,), cwd=laying.folder if workspaces else None)
    return showing.found(policy, job, workspaces, ours, here)


def _guest(policy: SandboxPolicy) -> Guest:
    from ringfence.sandbox.image import guest_of  # most sandboxes have no root of their own

    return guest_of(policy)


def _used(laying: Laying) -> list[str]:
    """Host directories in which no sandbox is built."""
    laid = [*laying.workspaces, *((laying.image,) if laying.image is not None else ())]
    return [*(each.path for each in laid), laying.scratch or "/tmp"]
