"""What the sandbox's file system contains, as a list of plan steps. Nothing is mounted here.

What is not listed is not there. System folders are shown read-only; the workspace is an overlay whose
layer the caller keeps; everything else is private and gone with the sandbox.
"""

from __future__ import annotations

import os

from ringfence.model.record import record

Step = tuple[object, ...]

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
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
)  # fmt: skip
PROC_FOLDERS = ("acpi", "asound", "bus", "fs", "irq", "scsi")

HOME, WORK = "/home/user", "/workspace"
IN_MEMORY = {"/dev/shm": 0o1777, "/tmp": 0o1777, "/var/tmp": 0o1777, HOME: 0o700}
PRIVATE = (*IN_MEMORY, "/dev/pts")
"""Where every job may write; gone with the sandbox."""
TMP_BYTES_LEAST = 16 << 20
TMP_BYTES_PER_FILE = 4096


@record
class Shown:
    """Something of the host that the sandbox shows at its own path."""

    path: str
    mode: str
    """``ro``, ``rw`` or ``dev``."""
    folder: bool
    own: bool = False
    """Belongs to the caller and not to the system: as root it is mapped to the job's id."""
    explicit: bool = False
    """Named by the policy: shown also below something hidden."""
    sealed: bool = False
    """Shown through an overlay, whose inodes are the sandbox's own: a socket, a FIFO or a lock of the host that
    lies in it leads nowhere. A read-only mount alone stops none of the three."""


@record
class Wish:
    """All that decides what the sandbox sees."""

    shown: tuple[Shown, ...]
    workspace: str
    """Absolute path of the folder that the job works in; empty: a private one at ``/workspace``."""
    scratch: str
    """The caller's private folder of this sandbox: layer, work, home."""
    hidden: tuple[str, ...]
    """With the links on the way resolved; see ``host.every_name``."""
    links: tuple[tuple[str, str], ...]
    """(path, where it points) of system folders that are links on the host."""
    user: str
    uid: int
    gid: int
    tmp_bytes: int
    proc_files: tuple[str, ...]
    proc_folders: tuple[str, ...]
    etc: tuple[Shown, ...]
    copies: tuple[tuple[str, bytes], ...]
    """(path, content) of small files of the host's: writing one is cheaper than a mount of its own."""
    tripwires: bool = False
    """Hidden names are made absent by tripwires, which tell who asks for them, and not by whiteouts."""


def sources(wish: Wish) -> list[tuple[str, str, bool]]:
    """(path, mode, own) in the order in which ``steps`` counts them."""
    listed = [(entry.path, entry.mode, entry.own) for entry in entries(wish)]
    listed += [(f"/dev/{name}", "dev", False) for name in DEVICES]
    listed += [("/dev/null", "dev", False)] * len(wish.proc_files)
    listed.append((wish.scratch, "rw", False))
    if wish.workspace:
        listed.append((wish.workspace, "ro", True))
    return listed


def entries(wish: Wish) -> list[Shown]:
    """What of the host is shown: all but what is hidden itself or lies below something hidden."""
    return [entry for entry in (*wish.shown, *wish.etc) if entry.explicit or not _is_hidden(entry.path, wish.hidden)]


def steps(wish: Wish) -> list[Step]:
    """From an empty root to a sealed one."""
    shown = entries(wish)
    first = len(shown)
    scratch = first + len(DEVICES) + len(wish.proc_files)
    plan: list[Step] = [("new root", 4 << 20), ("attach", scratch, "/.build", True)]
    plan += [("link", path, to) for path, to in wish.links]
    plan += _devices(first)
    # Before anything of the host is attached: some of it may lie below /tmp or /var/tmp.
    plan += _private(wish)
    # Shorter paths first: what lies deeper is attached on top of what contains it.
    for number, entry in sorted(enumerate(shown), key=lambda pair: pair[1].path.count("/")):
        plan += _show(number, entry, () if wish.tripwires else wish.hidden)
    plan += _accounts(wish)
    plan += _proc(wish, first + len(DEVICES))
    plan += _workspace(wish, scratch + 1)
    plan += [("detach", ".build"), ("loopback",), ("host name", "ringfence")]
    if wish.tripwires:
        plan.append(("tripwires", list(wish.hidden), wish.uid, wish.gid))
    return [*plan, ("seal root",)]


def can_be_wired(wish: Wish) -> bool:
    """Whether every hidden name lies where a tripwire can be laid: in no folder that the job may write, for there a
    veil would be in the way, and above nothing that is shown all the same."""
    closed = {"/proc", "/dev", wish.workspace or WORK, *PRIVATE}
    closed.update(entry.path for entry in wish.shown if entry.mode == "rw")
    tops = closed.union(entry.path for entry in wish.shown)
    if any(_innermost(path, tops) in closed for path in wish.hidden):
        return False
    return not any(entry.explicit and _is_hidden(entry.path, wish.hidden) for entry in wish.shown)


def _innermost(path: str, tops: set[str]) -> str:
    return max((top for top in tops if _below(path, top)), key=len, default="/")


def _show(number: int, entry: Shown, hidden: tuple[str, ...]) -> list[Step]:
    """Something of the host at its own path; what is hidden in it is absent, by a layer of whiteouts over it."""
    within = [os.path.relpath(path, entry.path) for path in hidden if _below(path, entry.path)]
    if entry.mode != "ro" or not entry.folder or not (within or entry.sealed):
        return [("attach", number, entry.path, entry.folder)]
    cover = f".build/cover/{number}"
    return [
        ("attach", number, "/.base", True),
        ("whiteouts", cover, within),
        ("overlay", entry.path, ".", ["ro"], f"lowerdir={cover}:.base,userxattr"),
        ("detach", ".base"),
    ]


def _devices(first: int) -> list[Step]:
    plan: list[Step] = [("make folder", "/dev", 0o755)]
    plan += [("attach", first + place, f"/dev/{name}", False) for place, name in enumerate(DEVICES)]
    plan += [("link", path, to) for path, to in DEVICE_LINKS.items()]
    plan.append(("file system", "/dev/pts", "devpts", ["nosuid", "noexec"], "newinstance,ptmxmode=0666,mode=620"))
    return plan


def _private(wish: Wish) -> list[Step]:
    # One file system for all of them: its size is what they can hold together. An empty file takes memory too.
    size = max(wish.tmp_bytes, TMP_BYTES_LEAST)
    options = f"size={size},nr_inodes={size // TMP_BYTES_PER_FILE},mode=755"
    plan: list[Step] = [("file system", "/.memory", "tmpfs", ["nosuid", "nodev"], options)]
    for number, (target, mode) in enumerate(IN_MEMORY.items()):
        plan += [("make folder", f"/.memory/{number}", mode), ("bind", f".memory/{number}", target)]
    plan += [
        ("detach", ".memory"),
        ("make folder", "/run", 0o755),
        ("make folder", "/var/log", 0o755),
    ]
    return plan


def _accounts(wish: Wish) -> list[Step]:
    """Names of the sandbox's own, in place of those of the host's users."""
    accounts = f"root:x:0:0:root:/:/bin/sh\n{wish.user}:x:{wish.uid}:{wish.gid}::{HOME}:/bin/sh\n"
    accounts += "nobody:x:65534:65534:nobody:/:/bin/false\n"
    texts = {
        "/etc/passwd": accounts,
        "/etc/group": f"root:x:0:\n{wish.user}:x:{wish.gid}:\nnogroup:x:65534:\n",
        "/etc/hosts": "127.0.0.1 localhost ringfence\n::1 localhost ringfence\n",
        "/etc/hostname": "ringfence\n",
        "/etc/resolv.conf": "",
    }
    shown = [(path, content) for path, content in wish.copies if not _is_hidden(path, wish.hidden)]
    files = [*((path, text.encode()) for path, text in texts.items()), *shown]
    return [("files", files), ("link", "/etc/mtab", "/proc/self/mounts")]


def _proc(wish: Wish, first: int) -> list[Step]:
    plan: list[Step] = [("file system", "/proc", "proc", ["nosuid", "nodev", "noexec"], "")]
    plan += [("attach", first + place, f"/proc/{name}", False) for place, name in enumerate(wish.proc_files)]
    plan += [("file system", f"/proc/{name}", "tmpfs", ["ro", "nosuid", "nodev", "noexec"], "size=4k,mode=555")
             for name in wish.proc_folders]  # fmt: skip
    plan.append(("shield", "/proc/sys"))
    return plan


def _workspace(wish: Wish, base: int) -> list[Step]:
    """The job's folder: a private one, or a layer over the caller's own."""
    if not wish.workspace:
        # An overlay here too: of a bind the mount table would tell where on the host it comes from.
        return [("overlay", WORK, ".build/layer", [], "lowerdir=../work,upperdir=upper,workdir=work,userxattr")]
    within = [os.path.relpath(path, wish.workspace) for path in wish.hidden if _below(path, wish.workspace)]
    return [
        ("attach", base, "/.base", True),
        # Not in the upper layer: what stands there is told as a change, and carried over.
        ("whiteouts", ".build/cover/workspace", within),
        # Relative names only: what stands in the mount table tells nothing of the host.
        ("overlay", wish.workspace, ".build/layer", [],
         "lowerdir=../cover/workspace:../../.base,upperdir=upper,workdir=work,userxattr"),
        ("detach", ".base"),
    ]  # fmt: skip


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _is_hidden(path: str, hidden: tuple[str, ...]) -> bool:
    return any(path == gone or _below(path, gone) for gone in hidden)
