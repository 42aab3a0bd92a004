"""The one table of what each level promises of the corpus: the tests take it from here, and a page prints it.

``process`` and ``strict`` stand in the attacks themselves. ``strict_partial``, what is left of strict where user
namespaces are not to be had, promises all that strict does but for what is listed here with the reason.
"""

from __future__ import annotations

import importlib

from tests.escape.attack import PARTIAL, PROCESS, STRICT, Attack

LEVELS = (PROCESS, STRICT, PARTIAL)
FAMILIES = ("process", "memory", "descriptors", "output", "filesystem", "privilege", "syscalls", "network",
            "information", "neighbours", "quotas", "records")  # fmt: skip

_HIDDEN_NAMES = ("stat", "readlink", "O_PATH", "chdir", "lstat", "access", "statx", "inotify", "getxattr", "statvfs")
_HIDDEN_METADATA = ("chmod", "chown", "utime", "setxattr")
_BASE = ("written", "overwritten in place", "overwritten through a mapping", "deleted", "renamed", "given another mode",
         "given another time", "replaced by a link", "truncated", "replaced directory by file")  # fmt: skip

_OURS = ("the state directory", "a transaction", "a directory of sandboxes", "a private directory",
         "a private directory of another TMPDIR")  # fmt: skip

# (why strict_partial can't, family, attacks)
WITHOUT_NAMESPACES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("without a pid namespace other processes are seen and named, though not signalled, traced or read", "process",
     ("see the session of a process of the caller",)),
    ("without a pid namespace other processes are seen and named, though not signalled, traced or read", "information",
     ("the parent's command line", "the list of processes", "a process that is not on the list",
      "command lines of the host")),
    ("the kernel does not tell a job how much of a file that it may not write lies in memory", "memory",
     ("page cache",)),
    ("the working directory is the caller's own and not a layer over it", "quotas",
     ("bytes of children that nobody is told of", "bytes in files that only a mapping holds",
      "bytes in files under way between sockets", "bytes in files that only another thread has open",
      "bytes in files that only run as programs")),
    ("the working directory is the caller's own and not a layer over it", "filesystem",
     tuple(f"base {name}" for name in _BASE)),
    ("Landlock closes contents; modes, owners, times and attributes of the user's own files stay open", "filesystem",
     ("touch a device", *(f"{name} in a readable directory" for name in ("chmod", "touch", "xattr")),
      *(f"hidden in the workspace by {name}" for name in _HIDDEN_METADATA))),
    ("what is hidden is refused, not absent: its name, size and times can be seen", "filesystem",
     (*(f"hidden in the workspace by {name}" for name in _HIDDEN_NAMES),
      *(f"hidden in a readable directory by {name}" for name in ("stat", "readlink", "O_PATH")),
      *(f"hidden in a workspace file by file by {name}" for name in ("stat", "readlink")),
      "hidden in the system by stat")),
    ("only root may empty the bounding set outside of a user namespace; nothing brings a capability back", "privilege",
     ("bounding set",)),
    ("without namespaces /proc is the host's", "network", ("see the host's services",)),
    ("without namespaces /proc and the host's name are the host's", "information",
     ("ports of the host", "sockets of the host", "the list of segments", "the name of the host",
      "the name of the host in /proc", "the boot id", "the kernel's command line", "the kernel's symbols",
      "the keys of the host", "routes", "disks", "mounted file systems of the host", "the name of its control group",
      "the control group of pid 1", "devices in /sys", "the base of the workspace in the mount table",
      "counts of the host", "the PATH of the caller")),
    ("without a user namespace of its own a job has its user's watches", "quotas", ("watches",)),
    ("the working directory is written directly, so one that holds something of ours is refused before anything runs",
     "records", tuple(f"{name} in the workspace" for name in _OURS)),
    ("locks and watches on a file that two jobs may both read are seen by both", "neighbours",
     ("lock on namespaces", "lock on namespaces under the tight profile", "lock on /proc",
      "lock in a readable directory", "watch a readable directory", "record lock",
      "watch a program of the system", *(f"lock on {name}" for name in
                                         ("a program of the system", "a directory of the system", "the interpreter",
                                          "configuration", "what is told of its limits")))),
    ("without a network namespace of its own a job reads a list of the host's sockets", "neighbours",
     ("pairs of sockets under the tight profile", "named pair of sockets under the tight profile")),
)  # fmt: skip
LESS = {(family, name): reason for reason, family, names in WITHOUT_NAMESPACES for name in names}

# Refused at once by strict_partial, and not held by the limit: the program fails, whatever status strict ends with.
REFUSED_AT_ONCE = {("memory", name) for name in ("memfd in flight between sockets", "System V segments",
                                                 "message queues")}  # fmt: skip


def corpus() -> list[Attack]:
    found: list[Attack] = []
    for family in FAMILIES:
        found += importlib.import_module(f"tests.escape.{family}_attacks").ATTACKS
    return found


def levels_of(attack: Attack) -> tuple[str, ...]:
    """The levels that promise that it fails."""
    partial = STRICT in attack.levels and (attack.family, attack.name) not in LESS
    return (*attack.levels, PARTIAL) if partial else attack.levels


def statuses_of(attack: Attack, level: str) -> tuple[str, ...]:
    """Of which one is expected; empty: any."""
    refused = level == PARTIAL and (attack.family, attack.name) in REFUSED_AT_ONCE
    return (*attack.status, "FAILED") if refused else attack.status
