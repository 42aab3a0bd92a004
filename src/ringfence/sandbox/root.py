"""What the sandbox's file system contains, as a list of plan steps. Nothing is mounted here.

What is not listed does not exist. System directories are shown read-only; the workspace is an overlay whose layer the
caller keeps; everything else is private and gone with the sandbox.
"""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.kernel.mount import mounts
from ringfence.model.record import record
from ringfence.sandbox import limits_seen, networks
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.sandbox.host_names import ETC_NAMES as ETC_NAMES
from ringfence.sandbox.host_names import PROC_FILES as PROC_FILES
from ringfence.sandbox.host_names import PROC_FOLDERS as PROC_FOLDERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Step

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2", "/dev/ptmx": "pts/ptmx",
}  # fmt: skip
# Settings of the sandbox's own namespaces. Watches are its user's too, and counted for each user namespace besides. A
# TCP connection always gets its first buffer, whatever limit is reached: here that is small.
USER_SETTINGS = {"user/max_inotify_instances": "16", "user/max_inotify_watches": "8192"}
NETWORK_SETTINGS = {"net/ipv4/tcp_rmem": "4096 16384 262144", "net/ipv4/tcp_wmem": "4096 16384 262144"}
TERMINALS = 64

HOME, WORK = "/home/user", "/workspace"
ROOT_BYTES = 4 << 20
IN_MEMORY = {"/dev/shm": 0o1777, "/tmp": 0o1777, "/var/tmp": 0o1777, HOME: 0o700}
PRIVATE = (*IN_MEMORY, "/dev/pts")
"""Where every job may write; gone with the sandbox."""
TMP_BYTES_LEAST = 16 << 20
TMP_BYTES_PER_FILE = 4096
IMAGE = "image"
"""The name in the building of an image that no job changes."""
_TAKEN = {("ro", True): "ro", ("rw", True): "rw", ("ro", False): "file", ("rw", False): "rw file"}


@record
class HostMount:
    """Something of the host that the sandbox shows."""

    path: str
    mode: str
    """``ro`` or ``rw``."""
    folder: bool
    own: bool = False
    """Belongs to the caller, not to the system: if the caller is root, it is mapped to the job's id."""
    explicit: bool = False
    """Named by the policy: shown also below something hidden."""
    at: str = ""
    """Where it is shown; empty: at its own path. For the target of a link, the name that was asked for."""
    real: bool = False
    """No link led to it when it was looked at: a link on the way by now is an error."""


@record
class WorkspaceMount:
    """A directory of the host that is shown and changed in a layer only."""

    path: str
    owner: tuple[int, ...] = ()
    """(uid, gid) on disk of files that appear as the job's own; empty: unchanged."""
    layer: str = ""
    """The directory of the layer's ``upper`` and ``work`` on the host; empty: one in the box's private directory."""
    absent: tuple[str, ...] = ()
    """Names in it that are not shown."""
    at: str = ""
    """Where it is shown; empty: at its own path."""


@record
class RootSpec:
    """Everything that decides what the sandbox sees."""

    shown: tuple[HostMount, ...]
    workspaces: tuple[WorkspaceMount, ...]
    """What the job works on; empty: a private directory at ``/workspace``."""
    folder: str
    """Where the job begins."""
    hidden: HiddenPaths
    links: tuple[tuple[str, str], ...]
    """(path, where it points) of system directories that are links on the host."""
    user: str
    uid: int
    gid: int
    tmp_bytes: int
    proc_files: tuple[str, ...]
    proc_folders: tuple[str, ...]
    etc: tuple[HostMount, ...]
    copies: tuple[tuple[str, bytes, str], ...]
    """(path, content, where it points if it is a link) of what is copied from the host's /etc."""
    ours: HiddenPaths = HiddenPaths()
    """Directories of ours, absent wherever they lie; requests for them are not recorded."""
    build_dir: str = ""
    """A directory of the host that nothing shown lies in: there the sandbox is built, in a mount namespace of its
    own."""
    caller: tuple[int, int] = (0, 0)
    """(uid, gid) of the caller."""
    by_root: bool = False
    """The caller is root: the caller's own files are mapped to the job's id, and devices can be made."""
    owner: tuple[int, ...] = ()
    """(uid, gid) on disk of the caller's own files, if the caller is root."""
    on_disk: bool = True
    """The job's own directory, or the layers over the caller's, lie on the disk; else in memory."""
    synced: bool = False
    """A sync by the job reaches the disk; else data is written back when the kernel likes."""
    image: WorkspaceMount | None = None
    """The directory that is ``/`` (``image_root``), read-only unless it is among the workspaces too; absent: the host's
    system directories, in a root of ours."""
    home: str = HOME
    own_network: bool = True
    """It has a usable network namespace of its own; else the host's, or one in which nothing can be used."""
    resolver: tuple[tuple[str, str], ...] = ()
    """(path, text) of the files for name lookup; empty: there is nobody to ask."""
    gateway: networks.GatewayPlan | None = None
    """What leads to the gateway; absent: its network is empty, or the host's."""
    limits: limits_seen.Limits | None = None
    """What the job reads of its limits; absent: the host's memory, and no groups."""
    tripwires: bool = False
    """Tripwires, which report who asks, make hidden names absent; otherwise whiteouts do."""


def place(shown: HostMount | WorkspaceMount) -> str:
    """Where it is inside."""
    return shown.at or shown.path


def entries(root_spec: RootSpec) -> list[HostMount]:
    """What is shown of the host: everything but what is hidden or ours, or lies below something that is."""
    everything, hidden, ours = (*root_spec.shown, *root_spec.etc), root_spec.hidden, root_spec.ours
    return [entry for entry in everything if (entry.explicit or not hidden.cover(entry.path))
            and (entry.at or not ours.cover(entry.path))]  # fmt: skip


Source = tuple[str, str, str, tuple[int, ...]]
"""(name in the building, path on the host, mode, owner on disk of files that appear as the job's own or nothing)."""


def template_sources(root_spec: RootSpec) -> list[Source]:
    """What is the same for every sandbox of this wish."""
    listed = [row for row in _shown_sources(root_spec) if not row[3]]
    return listed if root_spec.by_root else [*listed, *((f"dev-{name}", f"/dev/{name}", "dev", ()) for name in DEVICES)]


def own_sources(root_spec: RootSpec, scratch: str) -> list[Source]:
    """What belongs to one sandbox: its private directory, the workspaces, and what is mapped to its own id."""
    listed = [row for row in _shown_sources(root_spec) if row[3]]
    if uses_scratch(root_spec):
        listed.append(("scratch", scratch, "rw", ()))
    if root_spec.image is not None and root_spec.image not in root_spec.workspaces:
        listed.append((IMAGE, root_spec.image.path, "base", root_spec.image.owner))
    return [*listed, *((workspace_name(number), each.path, "base", each.owner)
                       for number, each in enumerate(root_spec.workspaces))]  # fmt: skip


def kept_layers(root_spec: RootSpec) -> list[tuple[str, str]]:
    """(name in the building, directory on the host) of layers that outlive the sandbox."""
    return [(f"layer-{number}", each.layer) for number, each in enumerate(root_spec.workspaces) if each.layer]


def uses_scratch(root_spec: RootSpec) -> bool:
    """Whether the job writes into the box's private directory."""
    return root_spec.on_disk and not (root_spec.workspaces and all(each.layer for each in root_spec.workspaces))


def workspace_name(number: int) -> str:
    return f"workspace-{number}" if number else "workspace"


def _shown_sources(root_spec: RootSpec) -> list[Source]:
    return [(str(number), entry.path, (mounts.REAL if entry.real else "") + _TAKEN[entry.mode, entry.folder],
             root_spec.owner if entry.own else ()) for number, entry in enumerate(entries(root_spec))]  # fmt: skip


def template(root_spec: RootSpec) -> list[Step]:
    """The parts of the building that are made once for many sandboxes: they hold nothing that a job can change."""
    sources = template_sources(root_spec)
    places = [(str(number), entry.folder) for number, entry in enumerate(entries(root_spec))]
    places += [(name, False) for name, *_ in sources if name.startswith("dev-")]
    places += [(workspace_name(number), True) for number in range(1, len(root_spec.workspaces))]
    places += [(name, True) for name, _ in kept_layers(root_spec)]
    places += [(IMAGE, True)] if root_spec.image is not None else []
    plan: list[Step] = [("enter zygote", *root_spec.caller), ("build place", root_spec.build_dir, places)]
    plan.append(_layout(root_spec))
    plan.append(("clone sources", sources))
    plan += [("attach", name) for name, *_ in sources]
    plan += [_configuration(root_spec)] if root_spec.image is None else []
    if root_spec.limits is not None:
        plan.append(("limit files", limits_seen.files(root_spec.limits, limits_seen.host_total())))
    return plan


def _layout(root_spec: RootSpec) -> Step:
    """Which names each shown directory has, and which it must not have."""
    rows = [(str(number), entry.path, _within(entry, root_spec), root_spec.owner if entry.own else ())
            for number, entry in enumerate(entries(root_spec)) if _is_sealed(entry)]  # fmt: skip
    return ("lay out", rows, [place(entry) for entry in entries(root_spec)])


def steps(root_spec: RootSpec) -> list[Step]:
    """From the template to a sealed root."""
    plan: list[Step] = [("new root", ROOT_BYTES, _skeleton(root_spec))]
    plan += [("attach", name) for name, *_ in (*own_sources(root_spec, ""), *kept_layers(root_spec))]
    plan += [("link", path, to) for path, to in root_spec.links]
    plan += devices(root_spec)
    # Before anything of the host is attached: some of it may lie below /tmp or /var/tmp.
    plan += private_steps(root_spec)
    plan.append(("overlay", "/etc", ["ro"], "lowerdir=none:etc"))
    plan += shown_steps(root_spec)
    plan += proc_steps(root_spec)
    plan += workspace_steps(root_spec)
    plan += [("loopback",)] if root_spec.own_network else []
    plan += networks.steps(root_spec.gateway) if root_spec.gateway else []
    plan.append(("host name", "ringfence"))
    if root_spec.tripwires:
        plan.append(("tripwires", list(root_spec.hidden), root_spec.uid, root_spec.gid))
    return [*plan, ("seal root",)]


def workspace_paths(root_spec: RootSpec) -> list[str]:
    """The directories that the job works on, as it sees them."""
    return [place(each) for each in root_spec.workspaces] or [WORK]


def _skeleton(root_spec: RootSpec) -> list[str]:
    """The directories of the bare root, outer ones first. Made at once, while there is no link yet that could lead
    astray; directories inside something that is mounted later are made when its turn comes."""
    mounted = {"/dev", "/etc", "/proc", *IN_MEMORY, *workspace_paths(root_spec)}
    if shows_groups(root_spec):
        mounted.add(limits_seen.CGROUP)
    mounted.update(place(entry) for entry in entries(root_spec) if entry.folder)
    tops = mounted.union(path for path, _ in root_spec.links)
    bare = [path for path in (*mounted, "/run", "/var/log") if not any(is_below(path, top) for top in tops)]
    return sorted({path[:end] for path in bare for end in ends(path)})


def ends(path: str) -> list[int]:
    """Where the names in a path end."""
    return [place for place in range(2, len(path)) if path[place] == "/"] + [len(path)]


def _within(entry: HostMount, root_spec: RootSpec) -> list[str]:
    """Names in something shown that whiteouts make absent."""
    own = root_spec.ours.below(entry.path)
    return own if root_spec.tripwires else [*own, *root_spec.hidden.below(entry.path)]


def _is_sealed(entry: HostMount) -> bool:
    """Whether it is shown through an overlay, whose inodes are the sandbox's own: a socket, a FIFO or a lock of the
    host that lies in it leads nowhere. A read-only mount alone stops none of the three."""
    return entry.mode == "ro" and entry.folder


def shown_steps(root_spec: RootSpec, *, over_workspaces: bool = False) -> list[Step]:
    """Shorter paths first: what lies deeper is attached on top of what contains it. What is written directly and lies
    in a workspace comes when that is there."""
    rows = sorted(enumerate(entries(root_spec)), key=lambda pair: place(pair[1]).count("/"))
    tops = over_workspaces_in(root_spec)
    return [_show(number, entry, over_workspaces) for number, entry in rows
            if _is_within(place(entry), tops) is over_workspaces]  # fmt: skip


def over_workspaces_in(root_spec: RootSpec) -> list[str]:
    """Where the job writes the host's own files in a workspace."""
    laid = [place(each) for each in root_spec.workspaces if each != root_spec.image]
    return [place(entry) for entry in entries(root_spec) if entry.mode == "rw" and _is_within(place(entry), laid)]


def _is_within(path: str, tops: list[str]) -> bool:
    return any(path == top or is_below(path, top) for top in tops)


def _show(number: int, entry: HostMount, over_workspaces: bool) -> Step:
    """Something of the host at its place; nothing is made for it in a layer, which would carry that over."""
    if _is_sealed(entry):
        return ("show", place(entry), str(number))
    return ("bind", f"base/{number}", place(entry), entry.folder, *((True,) if over_workspaces else ()))


def device_folder() -> Step:
    """/dev of a sandbox whose caller is root: with inodes of its own, which only root can make."""
    links = [(path.removeprefix("/dev/"), to) for path, to in DEVICE_LINKS.items()]
    return ("make devices", list(DEVICES), links, ["pts", "shm"])


def devices(root_spec: RootSpec) -> list[Step]:
    """For root, a directory that is already made; else the host's devices, since an ordinary user can't make any."""
    options = f"newinstance,ptmxmode=0666,mode=620,max={TERMINALS}"
    terminals: Step = ("file system", "/dev/pts", "devpts", ["nosuid", "noexec"], options)
    if root_spec.by_root:
        return [("attach inside", "devices", "/dev"), terminals]
    plan: list[Step] = [("bind", f"base/dev-{name}", f"/dev/{name}", False) for name in DEVICES]
    plan += [("link", path, to) for path, to in DEVICE_LINKS.items()]
    return [*plan, terminals]


def private_steps(root_spec: RootSpec, in_memory: Mapping[str, int] = IN_MEMORY) -> list[Step]:
    # One file system for all of them: its size is what they can hold together. An empty file takes memory too.
    size = max(root_spec.tmp_bytes, TMP_BYTES_LEAST)
    options = f"size={size},nr_inodes={size // TMP_BYTES_PER_FILE},mode=755"
    folders = list(in_memory.items())
    if not root_spec.on_disk:
        folders.append((WORK, 0o755))
    return [("private tmpfs", options, folders)]


def _configuration(root_spec: RootSpec) -> Step:
    """/etc: small files of the host's, and names of the sandbox's own in place of those of the host's users."""
    accounts = f"root:x:0:0:root:/:/bin/sh\n{root_spec.user}:x:{root_spec.uid}:{root_spec.gid}::{HOME}:/bin/sh\n"
    accounts += "nobody:x:65534:65534:nobody:/:/bin/false\n"
    texts = {
        "/etc/passwd": accounts,
        "/etc/group": f"root:x:0:\n{root_spec.user}:x:{root_spec.gid}:\nnogroup:x:65534:\n",
        "/etc/hosts": "127.0.0.1 localhost ringfence\n::1 localhost ringfence\n",
        "/etc/hostname": "ringfence\n",
        "/etc/resolv.conf": "",
        **dict(root_spec.resolver),
    }
    shown = [row for row in root_spec.copies if not root_spec.hidden.cover(row[0])]
    places = [(place(entry), entry.folder) for entry in entries(root_spec) if is_below(place(entry), "/etc")]
    own = [("/etc/mtab", b"", "/proc/self/mounts"), *((path, text.encode(), "") for path, text in texts.items())]
    taken = dict(places)  # a file that is shown by name replaces ours
    return ("configuration", [row for row in (*own, *shown) if row[0] not in taken], places)


def proc_steps(root_spec: RootSpec) -> list[Step]:
    plan: list[Step] = [("file system", "/proc", "proc", ["nosuid", "nodev", "noexec"], "")]
    files, folders = ([f"/proc/{name}" for name in names] for names in (root_spec.proc_files, root_spec.proc_folders))
    of_network = NETWORK_SETTINGS | networks.settings(root_spec.gateway) if root_spec.own_network else {}
    plan.append(("kernel settings", [*(USER_SETTINGS | of_network).items()]))
    plan.append(("mask", files, folders))
    plan.append(("read-only", "/proc/sys"))
    return [*plan, *_limits(root_spec)]


def _limits(root_spec: RootSpec) -> list[Step]:
    limits = root_spec.limits
    if limits is None:
        return []
    groups = list(limits.groups) if shows_groups(root_spec) else []
    files = [limits_seen.CGROUP] if groups and not limits.by_kernel else []
    return [("show limits", groups, [*files, limits_seen.MEMORY])]


def shows_groups(root_spec: RootSpec) -> bool:
    return root_spec.limits is not None and not root_spec.hidden.cover(limits_seen.CGROUP)


def workspace_steps(root_spec: RootSpec) -> list[Step]:
    """The job's directory: a private one, or a layer over the caller's own. Relative names only: the mount table then
    tells nothing of the host."""
    if not root_spec.on_disk:
        return []
    if not root_spec.workspaces:
        # An overlay here too: for a bind mount the mount table would tell where on the host it comes from.
        return overlay_steps(WORK, "base/scratch/work", "scratch/layer", root_spec)
    plan = [step for number, laid in enumerate(root_spec.workspaces) if laid != root_spec.image
            for step in laid_steps(number, laid, root_spec)]  # fmt: skip
    return [*plan, *shown_steps(root_spec, over_workspaces=True)]


def laid_steps(number: int, laid: WorkspaceMount, root_spec: RootSpec) -> list[Step]:
    cover, source = f"memory/cover-{number}", f"base/{workspace_name(number)}"
    layer = f"layer-{number}" if laid.layer else "scratch/layer"
    return [
        # Not in the upper layer: what is there is reported as a change, and carried over. Not in the zygote either: its
        # directories are seen as the workspace's own, and must belong to the job.
        ("whiteouts", cover, source, list(laid.absent)),
        *overlay_steps(place(laid), f"{cover}:{source}", layer, root_spec),
        ("cover mounts", place(laid), workspace_name(number)),
    ]


def overlay_steps(target: str, lower: str, layer: str, root_spec: RootSpec) -> list[Step]:
    """Volatile: without it the kernel writes back all of the host's disk whenever a sandbox ends."""
    work = f"base/{layer}/work"
    options = f"lowerdir={lower},upperdir=base/{layer}/upper,workdir={work}{'' if root_spec.synced else ',volatile'}"
    return [("renew layer", work), ("overlay", target, [], options)]


def is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")
