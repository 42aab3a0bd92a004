"""The Seatbelt profile of a policy: what ``sandbox-exec`` is told of files and the network. Pure; it runs nothing.

In a profile the last rule that fits decides, so what is hidden comes last. A rule matches the path that a file has when
it is reached: a program that could rename a directory above it would take it out of its rule. Only a Mac can show that
a profile holds; ``macos/trial`` tries it there. """

from __future__ import annotations

import os
from _collections_abc import Callable, Iterable

from ringfence.errors import UsageError
from ringfence.model.policy import HOST_NETWORK, SandboxPolicy
from ringfence.model.record import record

_SYSTEM = ("/usr", "/bin", "/sbin", "/System", "/Library", "/private/etc", "/private/var/db/timezone", "/opt")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/dtracehelper", "/dev/tty")
_ALIASES = ("/tmp", "/var", "/etc")
"""Links to the same below /private: a rule speaks of the place, not of the link."""
_SERVICES = ("com.apple.system.opendirectoryd.libinfo", "com.apple.system.opendirectoryd.membership",
             "com.apple.system.notification_center", "com.apple.system.logger", "com.apple.logd",
             "com.apple.bsd.dirhelper", "com.apple.SystemConfiguration.configd", "com.apple.trustd.agent")  # fmt: skip
"""Users and groups, notices, logs, the directory for temporary files, settings of the network, certificates. Some of
the other services start programs for any caller, outside of any profile."""
_OTHERS = (
    "(deny mach-lookup)",
    "(allow mach-lookup " + " ".join(f'(global-name "{name}")' for name in _SERVICES) + ")",
    "(deny mach-register)", "(deny lsopen)", "(deny appleevent-send)", "(deny job-creation)",
    "(deny signal)", "(allow signal (target same-sandbox))",
)  # fmt: skip


def text(word: str) -> str:
    r"""Return a string of the profile's language. A path may be a hostile program's choice: quotation marks and
    backslashes are escaped, and what is no printable sign is refused, since nobody has written down how it is read.

    >>> text('a"b\\c')
    '"a\\"b\\\\c"'
    """
    if not word.isprintable():
        raise UsageError(f"{word!r} can't be written into a Seatbelt profile",
                         hint="use a path of printable characters")  # fmt: skip
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def real(path: str) -> str:
    """Return the path that the kernel sees."""
    alias = next((alias for alias in _ALIASES if path == alias or path.startswith(f"{alias}/")), "")
    return f"/private{path}" if alias else path


def spelled(path: str, names: Callable[[str], Iterable[str]]) -> str:
    """Return the path as its directories list it: the usual file systems ignore case and Unicode composition, but a
    rule does not. ``names``: of what a directory holds; OSError where it can't be read, or is not there."""
    found = "/"
    for part in filter(None, path.split("/")):
        try:
            listed = list(names(found))
        except OSError:
            listed = []
        same = [name for name in listed if _folded(name) == _folded(part)]
        found = os.path.join(found, part if part in listed or not same else same[0])
    return found


def _folded(name: str) -> str:
    from unicodedata import normalize

    return normalize("NFD", name).casefold()


def _rule(decision: str, operations: str, paths: Iterable[str], kind: str = "subpath") -> list[str]:
    named = dict.fromkeys(real(path) for path in paths)
    return [f"({decision} {operations} {' '.join(f'({kind} {text(path)})' for path in named)})"] if named else []


def _above(paths: Iterable[str]) -> list[str]:
    """The directories on the way to them."""
    parts = [real(path).strip("/").split("/") for path in paths]
    return [f"/{'/'.join(each[:count])}" for each in parts for count in range(1, len(each))]


@record
class Places:
    """What a profile speaks of beside the policy; by the paths that the kernel sees."""

    folders: tuple[str, ...] = ()
    """Of the job itself: it may read and write them."""
    programs: tuple[str, ...] = ()
    """What its program needs to be read."""
    originals: tuple[str, ...] = ()
    """Of which it has working copies: not written, whatever the policy says."""
    closed: tuple[str, ...] = ()
    """Ours: neither read nor written, but for what of it is the job's."""


_NOWHERE = Places()


def profile(policy: SandboxPolicy, places: Places = _NOWHERE) -> str:
    """Return the profile of a policy.

    Without readable paths all can be read. Writes are always held: to the job's directories and the writable paths. A
    job can't make an outside process act for it: no service starts a program for it, and it can't signal anything
    outside."""
    lines = ["(version 1)", "(allow default)", *_OTHERS, "(deny file-write*)"]
    lines += _rule("allow", "file-write*", policy.writable_paths)
    lines += _rule("deny", "file-write*", (*places.originals, *places.closed))
    lines += _rule("allow", "file-write*", places.folders)
    lines += _rule("allow", "file-write-data file-ioctl", _DEVICES, "literal")
    if policy.readable_paths:
        lines.append("(deny file-read-data)")
        lines += _rule("allow", "file-read-data", (*_SYSTEM, *policy.readable_paths, *policy.writable_paths,
                                                   *places.programs))  # fmt: skip
        lines += _rule("allow", "file-read-data", ("/", *_DEVICES), "literal")
    lines += _rule("deny", "file-read-data file-link process-exec*", places.closed)
    lines += _rule("allow", "file-read-data file-link process-exec*", places.folders)
    if policy.network_rule != HOST_NETWORK:
        lines += ["(deny network*)", "(deny system-socket)"]
    lines += _rule("deny", "file-write*", _above((*policy.hidden_paths, *places.closed)), "literal")
    lines += _rule("deny", "file* process-exec*", policy.hidden_paths)
    return "\n".join(lines) + "\n"
