"""What a sandbox needs that a container around this process closes, and the container's flag that opens it.

Owns the texts for that (docs/how-to/run-in-a-container.md). A process looks once; the mount table is read only if parts
of /proc are covered, or after a step has failed.
"""

from __future__ import annotations

import errno
import os
import sys

from ringfence.errors import SandboxError
from ringfence.kernel import syscalls
from ringfence.kernel.mount import namespaces
from ringfence.model.memo import lru_cache

FILTERED = (
    "user namespaces, which a filter of system calls around this process closes: a container's by default, and that of "
    "a ringfence sandbox, which makes no others",
    "start the container with --security-opt seccomp=FILE, where FILE is ringfence's deploy/image/seccomp.json "
    "(Docker, Podman; Kubernetes: seccompProfile), or the systemd unit with RestrictNamespaces=no",
)
COVERED = (
    "a /proc of the sandbox's own, which the kernel refuses where parts of /proc are covered (a container's default)",
    "start the container with --security-opt systempaths=unconfined (Docker; Podman: --security-opt unmask=ALL; "
    "Kubernetes: procMount: Unmasked)",
)
CHROOT = (
    "user namespaces and a root of its own, which the kernel refuses in a chroot, and this process is in one",
    "enter the directory by systemd-nspawn or as the root of a container, not by chroot",
)
_AS_A_USER = "start it as an ordinary user (Docker, Podman: --user 10001:10001; Kubernetes: runAsUser: 10001)"
# Capabilities that root needs, by number: without any one of them a launch failed in a test.
NEEDED_BY_ROOT = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_PTRACE": 19,
                  "SYS_ADMIN": 21, "MKNOD": 27}  # fmt: skip
# Every engine covers these, with files of other file systems.
_OFTEN_COVERED = ("acpi", "kcore", "keys", "timer_list")
# statx(2): the size of its answer, where the attributes lie in it, and the one that a mount's root has.
_STATX_BYTES, _ATTRIBUTES, _KNOWN, _MOUNT_ROOT, _AT_FDCWD = 256, 8, 56, 0x2000, -100
_EMPTY_FOR_GOOD = "/sys/fs/binfmt_misc"
"""Places below /proc where a mount covers nothing."""


def closed(root: str = "/") -> tuple[str, str] | None:
    """(what is missing, how to get it) if this process may make namespaces, but no sandbox in them; or None.
    Looked at once: a container stays as it was started."""
    return _closed(root, os.geteuid())


@lru_cache(maxsize=4)
def _closed(root: str, user: int) -> tuple[str, str] | None:
    if not is_a_mount("/"):
        return CHROOT
    lacking = missing_capabilities(root) if user == 0 else []
    if lacking:
        return f"root with the capabilities {', '.join(lacking)}, which a container takes away", _AS_A_USER
    return COVERED if is_proc_covered(root) else None


def is_a_mount(path: str) -> bool:
    """Whether something is mounted at this very path; True if the kernel is too old to tell (before 5.8)."""
    import ctypes

    found = ctypes.create_string_buffer(_STATX_BYTES)
    syscalls.call("statx", _AT_FDCWD, os.fsencode(path), 0, 0, found)
    attributes, known = (int.from_bytes(found.raw[at : at + 8], sys.byteorder) for at in (_ATTRIBUTES, _KNOWN))
    return bool(attributes & _MOUNT_ROOT) or not known & _MOUNT_ROOT


def missing_capabilities(root: str = "/") -> list[str]:
    """The capabilities that root needs but lacks, by name."""
    found = [line for line in _lines(root, "proc/self/status") if line.startswith("CapEff:")]
    held = int(found[0].split()[1], 16) if found else -1
    return [name for name, number in NEEDED_BY_ROOT.items() if not held >> number & 1]


def is_proc_covered(root: str = "/") -> bool:
    """Whether the kernel would refuse a new /proc in a user namespace because it would show what the old one covers."""
    try:
        whole = os.stat(os.path.join(root, "proc")).st_dev
    except OSError:
        return False
    if all(_device(os.path.join(root, "proc", name), whole) == whole for name in _OFTEN_COVERED):
        return False
    return not _has_a_whole_one(_lines(root, "proc/self/mountinfo"))


def _device(path: str, absent: int) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return absent


def _has_a_whole_one(table: list[str]) -> bool:
    """Whether any mounted /proc has nothing mounted over it."""
    rows = [line.split(" ") for line in table if line]
    whole = {row[0]: row[4] for row in rows if row[3] == "/" and row[row.index("-") + 1] == "proc"}
    covered = {row[1] for row in rows if row[1] in whole and row[4] != whole[row[1]] + _EMPTY_FOR_GOOD}
    return bool(whole.keys() - covered)


# ---- why a step has failed

_NO_OWNERS = (
    "for root, files of a directory are shown as the job's own, and some file systems can't do that: overlays, such as "
    "the root of a container, and network file systems; work in a directory on a volume or a tmpfs "
    "(docker run -v …:/workspace), or be an ordinary user (docker run --user 10001:10001)"
)
_ON_OVERLAY = (
    "{path} is on an overlay, as the root of a container does, and what a job changes can't be kept there: mount a "
    "volume or a tmpfs there (docker run --tmpfs {path}), or set {variable} to a directory on one"
)

_MAKE_NAMESPACES = ("enter zygote", "enter namespaces", "own group namespace")
_USED_UP = (
    "this user has as many namespaces as the host allows: end some sandboxes, or have root raise the limit "
    "(sysctl user.max_user_namespaces, and user.max_mnt_namespaces, user.max_net_namespaces and so on)"
)


def hint(step: str, number: int) -> str:
    """What helps if a step has failed with this error; empty: unknown."""
    if (step, number) == ("enter zygote", errno.EPERM) or (step == "lead" and not namespaces.can_be_made(["user"])):
        return f"the kernel refuses user namespaces to this process, as in a chroot. If this is one, {CHROOT[1]}"
    if number == errno.ENOSPC and step in _MAKE_NAMESPACES:
        return _USED_UP
    if (step, number) == ("file system /proc", errno.EPERM):
        return f"the kernel refuses this where any part of /proc is covered; if this is a container, {COVERED[1]}"
    if number != errno.EINVAL:
        return ""
    if step in ("clone sources", "clone layers"):
        return _NO_OWNERS
    return _elsewhere() if step.startswith("overlay ") else ""


def _elsewhere() -> str:
    """The hint if layers lie on an overlay: another overlay's layer can't be there."""
    from ringfence.model import state_folder
    from ringfence.model.own import private_place

    places = {"TMPDIR": private_place.above, "XDG_STATE_HOME": state_folder.state_folder}
    for variable, place in places.items():
        try:
            path = place()
        except SandboxError:
            continue
        if is_on_overlay(path):
            return _ON_OVERLAY.format(path=path, variable=variable)
    return ""


def is_on_overlay(path: str) -> bool:
    """Whether the nearest existing directory of a path lies on an overlay."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    device = os.stat(path).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    rows = (line.split(" ") for line in _lines("/", "proc/self/mountinfo"))
    return any(row[2] == numbers and row[row.index("-") + 1] == "overlay" for row in rows)


def _lines(root: str, name: str) -> list[str]:
    """Split at line ends only: these files contain names that others chose."""
    try:
        with open(os.path.join(root, name), encoding="utf-8", errors="replace", newline="\n") as file:
            return file.read().rstrip("\n").split("\n")
    except OSError:
        return []
