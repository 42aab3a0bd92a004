"""What the sandbox's file system contains, as a list of plan steps. Nothing is mounted here.

What is not listed is not there. System folders are shown read-only; the workspace is an overlay whose
layer the caller keeps; everything else is private and gone with the sandbox.
"""

from __future__ import annotations

from ringfence.linux import landlock
from ringfence.linux.hidden import HiddenPaths
from ringfence.model.record import record

Step = tuple[object, ...]

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
# Configuration that ordinary programs read. The rest of /etc tells of the host and its users.
ETC_NAMES = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version", "fonts",
    "gai.conf", "gitconfig", "host.conf", "inputrc", "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "locale.alias", "locale.conf", "locale.gen", "localtime", "magic", "magic.mime", "mime.types",
    "nsswitch.conf", "os-release", "pip.conf", "pki", "profile", "protocols", "python3", "python3.11", "python3.12",
    "python3.13", "rpc", "security/limits.conf", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo",
    "timezone", "wgetrc", "xml", "X11/rgb.txt",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2", "/dev/ptmx": "pts/ptmx",
}  # fmt: skip
# What a fresh /proc lets anybody read that is the host's own: what only root may read needs no cover, for the
# job is never the host's root.
PROC_FILES = (
    "cmdline", "diskstats", "kallsyms", "key-users", "keys", "locks", "modules", "partitions", "sched_debug", "swaps",
    "sys/kernel/random/boot_id", "timer_list",
    # Exact counts of what all sandboxes and the host hold, by which two sandboxes could pass numbers to each other.
    # Each cover is a mount at every launch: what no job can change, as aio-nr, has none, nor what /proc/stat tells too.
    "sys/fs/dentry-state", "sys/fs/file-nr", "sys/fs/inode-nr", "sys/fs/inode-state", "sys/kernel/pty/nr",
)  # fmt: skip
PROC_FOLDERS = ("acpi", "asound", "bus", "fs", "irq", "scsi")
# Settings of the sandbox's own namespaces. Watches are its user's too, and counted for each user namespace besides. A
# TCP connection always gets its first buffer, whatever limit is reached: here that is small.
KERNEL_SETTINGS = {
    "user/max_inotify_instances": "16",
    "user/max_inotify_watches": "8192",
    "net/ipv4/tcp_rmem": "4096 16384 262144",
    "net/ipv4/tcp_wmem": "4096 16384 262144",
}
TERMINALS = 64

HOME, WORK = "/home/user", "/workspace"
ROOT_BYTES = 4 << 20
IN_MEMORY = {"/dev/shm": 0o1777, "/tmp": 0o1777, "/var/tmp": 0o1777, HOME: 0o700}
PRIVATE = (*IN_MEMORY, "/dev/pts")
"""Where every job may write; gone with the sandbox."""
TMP_BYTES_LEAST = 16 << 20
TMP_BYTES_PER_FILE = 4096
_OF_A_FILE = {"ro": "file", "rw": "rw file"}


@record
class Shown:
    """Something of the host that the sandbox shows at its own path."""

    path: str
    mode: str
    """``ro`` or ``rw``."""
    folder: bool
    own: bool = False
    """Belongs to the caller and not to the system: as root it is mapped to the job's id."""
    explicit: bool = False
    """Named by the policy: shown also below something hidden."""


@record
class Laid:
    """A folder of the host that is shown at its own path and changed in a layer only."""

    path: str
    owner: tuple[int, ...] = ()
    """(uid, gid) on disk of what is to appear as the job's own; empty: as it is."""
    layer: str = ""
    """The folder of the layer's ``upper`` and ``work`` on the host; empty: one in the box's private folder."""
    absent: tuple[str, ...] = ()
    """Names in it that are not shown."""


@record
class Wish:
    """All that decides what the sandbox sees."""

    shown: tuple[Shown, ...]
    workspaces: tuple[Laid, ...]
    """What the job works on; empty: a private folder at ``/workspace``."""
    folder: str
    """Where the job begins."""
    hidden: HiddenPaths
    links: tuple[tuple[str, str], ...]
    """(path, where it points) of system folders that are links on the host."""
    user: str
    uid: int
    gid: int
    tmp_bytes: int
    proc_files: tuple[str, ...]
    proc_folders: tuple[str, ...]
    etc: tuple[Shown, ...]
    copies: tuple[tuple[str, bytes, str], ...]
    """(path, content, where it points if it is a link) of what is copied from the host's /etc."""
    ours: HiddenPaths = HiddenPaths()
    """Folders of ours, absent wherever they lie; nobody records who asks for them."""
    stage: str = ""
    """A folder of the host that nothing shown lies in: there the sandbox is built, in a mount namespace of its own."""
    caller: tuple[int, int] = (0, 0)
    """(uid, gid) of the caller."""
    by_root: bool = False
    """Root is the caller: what is the caller's own is mapped to the job's id, and devices can be made."""
    owner: tuple[int, ...] = ()
    """(uid, gid) on disk of what is the caller's own, where root is the caller."""
    on_disk: bool = True
    """The job's own folder, or the layers over the caller's, lie on the disk; else in memory."""
    tripwires: bool = False
    """Hidden names are made absent by tripwires, which tell who asks for them, and not by whiteouts."""


def entries(wish: Wish) -> list[Shown]:
    """What of the host is shown: all but what is hidden itself or lies below something hidden."""
    return [entry for entry in (*wish.shown, *wish.etc) if entry.explicit or not wish.hidden.cover(entry.path)]


Source = tuple[str, str, str, tuple[int, ...]]
"""(name in the building, path on the host, mode, owner on disk of what is to appear as the job's own or nothing)."""


def template_sources(wish: Wish) -> list[Source]:
    """What is the same for every sandbox of this wish."""
    listed = [row for row in _shown_sources(wish) if not row[3]]
    return listed if wish.by_root else [*listed, *((f"dev-{name}", f"/dev/{name}", "dev", ()) for name in DEVICES)]


def own_sources(wish: Wish, scratch: str) -> list[Source]:
    """What belongs to one sandbox: its private folder, the workspaces, and what is mapped to its own id."""
    listed = [row for row in _shown_sources(wish) if row[3]]
    if uses_scratch(wish):
        listed.append(("scratch", scratch, "rw", ()))
    return [*listed, *((_workspace_name(number), each.path, "base", each.owner)
                       for number, each in enumerate(wish.workspaces))]  # fmt: skip


def kept_layers(wish: Wish) -> list[tuple[str, str]]:
    """(name in the building, folder on the host) of layers that outlive the sandbox."""
    return [(f"layer-{number}", each.layer) for number, each in enumerate(wish.workspaces) if each.layer]


def uses_scratch(wish: Wish) -> bool:
    """Whether the job writes into the box's private folder."""
    return wish.on_disk and not (wish.workspaces and all(each.layer for each in wish.workspaces))


def _workspace_name(number: int) -> str:
    return f"workspace-{number}" if number else "workspace"


def _shown_sources(wish: Wish) -> list[Source]:
    return [(str(number), entry.path, entry.mode if entry.folder else _OF_A_FILE[entry.mode],
             wish.owner if entry.own else ()) for number, entry in enumerate(entries(wish))]  # fmt: skip


def template(wish: Wish) -> list[Step]:
    """What of the building can be made once for many sandboxes: it holds nothing that a job can change."""
    sources = template_sources(wish)
    places = [(str(number), entry.folder) for number, entry in enumerate(entries(wish))]
    places += [(name, False) for name, *_ in sources if name.startswith("dev-")]
    places += [(_workspace_name(number), True) for number in range(1, len(wish.workspaces))]
    places += [(name, True) for name, _ in kept_layers(wish)]
    plan: list[Step] = [("enter mould", *wish.caller), ("stage", wish.stage, places), _layout(wish)]
    plan.append(("clone sources", sources))
    plan += [("attach", name) for name, *_ in sources]
    return [*plan, _configuration(wish)]


def _layout(wish: Wish) -> Step:
    """What stands in each directory that is shown, and what not."""
    rows = [(str(number), entry.path, _within(entry, wish), wish.owner if entry.own else ())
            for number, entry in enumerate(entries(wish)) if _is_sealed(entry)]  # fmt: skip
    return ("lay out", rows, [entry.path for entry in entries(wish)])


def steps(wish: Wish) -> list[Step]:
    """From the template to a sealed root."""
    plan: list[Step] = [("new root", ROOT_BYTES, _skeleton(wish))]
    plan += [("attach", name) for name, *_ in (*own_sources(wish, ""), *kept_layers(wish))]
    plan += [("link", path, to) for path, to in wish.links]
    plan += _devices(wish)
    # Before anything of the host is attached: some of it may lie below /tmp or /var/tmp.
    plan += _private(wish)
    plan.append(("overlay", "/etc", ["ro"], "lowerdir=none:etc"))
    # Shorter paths first: what lies deeper is attached on top of what contains it.
    for number, entry in sorted(enumerate(entries(wish)), key=lambda pair: pair[1].path.count("/")):
        plan.append(_show(number, entry))
    plan += _proc(wish)
    plan += _workspace(wish)
    plan += [("loopback",), ("host name", "ringfence")]
    if wish.tripwires:
        plan.append(("tripwires", list(wish.hidden), wish.uid, wish.gid))
    return [*plan, ("seal root",)]


def worked_on(wish: Wish) -> list[str]:
    """The folders that the job works on, as it sees them."""
    return [each.path for each in wish.workspaces] or [WORK]


def search_path(folders: str, wish: Wish) -> str:
    """Those folders of a PATH of the host that the sandbox shows something of, and the system's own behind them."""
    shown = entries(wish)
    tops = {*worked_on(wish), *(entry.path for entry in shown), *(path for path, _ in wish.links)}
    alone = {entry.path.rpartition("/")[0] for entry in shown if not entry.folder}
    kept = [path for path in folders.split(":") if path.startswith("/") and not wish.hidden.cover(path)
            and (path in alone or any(path[:end] in tops for end in _ends(path)))]  # fmt: skip
    return ":".join(dict.fromkeys([*kept, *SYSTEM_PATH]))


def _skeleton(wish: Wish) -> list[str]:
    """The folders of the bare root, outer ones first. Made at once, while there is no link yet that could lead astray;
    what belongs into something that is mounted later is made there when its turn comes."""
    mounted = {"/dev", "/etc", "/proc", *IN_MEMORY, *worked_on(wish)}
    mounted.update(entry.path for entry in entries(wish) if entry.folder)
    tops = mounted.union(path for path, _ in wish.links)
    bare = [path for path in (*mounted, "/run", "/var/log") if not any(_below(path, top) for top in tops)]
    return sorted({path[:end] for path in bare for end in _ends(path)})


def _ends(path: str) -> list[int]:
    """Where the names in a path end."""
    return [place for place in range(2, len(path)) if path[place] == "/"] + [len(path)]


def can_be_wired(wish: Wish) -> bool:
    """Whether every hidden name lies where a tripwire can be laid: in no folder that the job may write, for there a
    veil would be in the way, and above nothing that is shown all the same."""
    closed = {"/proc", "/dev", *worked_on(wish), *PRIVATE}
    closed.update(entry.path for entry in wish.shown if entry.mode == "rw")
    tops = closed.union(entry.path for entry in wish.shown)
    if any(_innermost(folder, tops) in closed for folder in wish.hidden.folders):
        return False
    return not any(entry.explicit and wish.hidden.cover(entry.path) for entry in wish.shown)


def _innermost(folder: str, tops: set[str]) -> str:
    return max((top for top in tops if folder == top or _below(folder, top)), key=len, default="/")


def _within(entry: Shown, wish: Wish) -> list[str]:
    """Names in something shown that whiteouts make absent."""
    own = wish.ours.below(entry.path)
    return own if wish.tripwires else [*own, *wish.hidden.below(entry.path)]


def _is_sealed(entry: Shown) -> bool:
    """Whether it is shown through an overlay, whose inodes are the sandbox's own: a socket, a FIFO or a lock of the
    host that lies in it leads nowhere. A read-only mount alone stops none of the three."""
    return entry.mode == "ro" and entry.folder


def _show(number: int, entry: Shown) -> Step:
    """Something of the host at its own path."""
    if _is_sealed(entry):
        return ("show", entry.path, str(number))
    return ("bind", f"base/{number}", entry.path)


def device_folder() -> Step:
    """/dev of a sandbox whose caller is root: with inodes of its own, which it takes root to make."""
    links = [(path.removeprefix("/dev/"), to) for path, to in DEVICE_LINKS.items()]
    return ("make devices", list(DEVICES), links, ["pts", "shm"])


def _devices(wish: Wish) -> list[Step]:
    """As root a folder that is ready made; else the host's devices, which the job could not make either."""
    options = f"newinstance,ptmxmode=0666,mode=620,max={TERMINALS}"
    terminals = ("file system", "/dev/pts", "devpts", ["nosuid", "noexec"], options)
    if wish.by_root:
        return [("attach inside", "devices", "/dev"), terminals]
    plan: list[Step] = [("bind", f"base/dev-{name}", f"/dev/{name}") for name in DEVICES]
    plan += [("link", path, to) for path, to in DEVICE_LINKS.items()]
    return [*plan, terminals]


def _private(wish: Wish) -> list[Step]:
    # One file system for all of them: its size is what they can hold together. An empty file takes memory too.
    size = max(wish.tmp_bytes, TMP_BYTES_LEAST)
    options = f"size={size},nr_inodes={size // TMP_BYTES_PER_FILE},mode=755"
    folders = list(IN_MEMORY.items())
    if not wish.on_disk:
        folders.append((WORK, 0o755))
    return [("memory", options, folders)]


def _configuration(wish: Wish) -> Step:
    """/etc: small files of the host's, and names of the sandbox's own in place of those of the host's users."""
    accounts = f"root:x:0:0:root:/:/bin/sh\n{wish.user}:x:{wish.uid}:{wish.gid}::{HOME}:/bin/sh\n"
    accounts += "nobody:x:65534:65534:nobody:/:/bin/false\n"
    texts = {
        "/etc/passwd": accounts,
        "/etc/group": f"root:x:0:\n{wish.user}:x:{wish.gid}:\nnogroup:x:65534:\n",
        "/etc/hosts": "127.0.0.1 localhost ringfence\n::1 localhost ringfence\n",
        "/etc/hostname": "ringfence\n",
        "/etc/resolv.conf": "",
    }
    shown = [row for row in wish.copies if not wish.hidden.cover(row[0])]
    places = [(entry.path, entry.folder) for entry in entries(wish) if _below(entry.path, "/etc")]
    own = [("/etc/mtab", b"", "/proc/self/mounts"), *((path, text.encode(), "") for path, text in texts.items())]
    return ("configuration", [*own, *shown], places)


def _proc(wish: Wish) -> list[Step]:
    plan: list[Step] = [("file system", "/proc", "proc", ["nosuid", "nodev", "noexec"], "")]
    files, folders = ([f"/proc/{name}" for name in names] for names in (wish.proc_files, wish.proc_folders))
    plan.append(("kernel settings", list(KERNEL_SETTINGS.items())))
    plan.append(("blank", files, folders))
    plan.append(("shield", "/proc/sys"))
    return plan


def _workspace(wish: Wish) -> list[Step]:
    """The job's folder: a private one, or a layer over the caller's own. Relative names only: what stands in the
    mount table tells nothing of the host."""
    if not wish.on_disk:
        return []
    if not wish.workspaces:
        # An overlay here too: of a bind the mount table would tell where on the host it comes from.
        return [("overlay", WORK, [], f"lowerdir=base/scratch/work,{_layer('scratch/layer')}")]
    return [step for number, laid in enumerate(wish.workspaces) for step in _laid(number, laid)]


def _laid(number: int, laid: Laid) -> list[Step]:
    cover, source = f"memory/cover-{number}", f"base/{_workspace_name(number)}"
    layer = _layer(f"layer-{number}" if laid.layer else "scratch/layer")
    return [
        # Not in the upper layer: what stands there is told as a change, and carried over. Not in the mould either: the
        # folders in it are seen as the workspace's own, and must belong to the job.
        ("whiteouts", cover, source, list(laid.absent)),
        ("overlay", laid.path, [], f"lowerdir={cover}:{source},{layer}"),
        ("cover mounts", laid.path, _workspace_name(number)),
    ]


def _layer(name: str) -> str:
    return f"upperdir=base/{name}/upper,workdir=base/{name}/work"


def wall(
    writable: list[str], shared: list[str], abi: int, scopes: tuple[str, ...] = tuple(landlock.SCOPES)
) -> Step:
    """Landlock behind the mounts: everything that is there may be read, only these places written. In directories that
    are ``shared`` with the host, no socket is reached but the job's own, which no rule is needed for."""
    rules = [("/", landlock.READ), ("/dev", landlock.DEVICES), ("/proc", (*landlock.READ, "write_file"))]
    for path in (*writable, *shared):
        # A rule holds for all that is below it.
        above = any(each == path or _below(each, path) for each in shared)
        rules.append((path, (*landlock.WRITE, "ioctl_dev", *(() if above else ("resolve_unix",)))))
    ruleset = landlock.Ruleset(files=tuple(landlock.FILE_RIGHTS), beneath=tuple(rules), scopes=scopes)
    return ("landlock", *landlock.compiled(ruleset, abi))


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")
