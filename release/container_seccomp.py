"""The seccomp profile of the image, as container engines take it: what our own filter opens for jobs, and what makes a
sandbox. ``python -m release.container_seccomp`` writes deploy/image/seccomp.json and its table in the documents anew.

An engine's own default closes user namespaces, and with them level strict. This one is no larger than it has to be:
a call that neither a job under strict nor ringfence itself needs is closed in the whole container (ADR 0144).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ringfence.container.seccomp_profile import Args, as_data
from ringfence.model.limits import SyscallProfile

_ROOT = Path(__file__).resolve().parent.parent
FILE = _ROOT / "deploy" / "image" / "seccomp.json"
PAGE = _ROOT / "docs" / "how-to" / "run-in-a-container.md"
_BEGIN, _END = "| call | what for |\n|---|---|\n", "<!-- /calls -->\n"
_IFMT, _IFCHR = 0o170000, 0o020000
_JOIN_SESSION_KEYRING, _CLONE_NEWNET = 1, 0x40000000


def _equal(index: int, value: int) -> dict[str, object]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _masked(index: int, mask: int, value: int) -> dict[str, object]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


ANY: Args = ()
OPENED: Mapping[str, tuple[Args, str]] = {
    "clone3": (ANY, "pid 1 of a sandbox is born in its namespaces; a filter can't read this call's flags"),
    "unshare": (ANY, "a user namespace, and in it all others: an ordinary user has no other way to any"),
    "setns": ((_equal(1, _CLONE_NEWNET),), "tight sandboxes take turns in one network namespace; no other kind"),
    "mount": (ANY, "file systems of the sandbox: its root, /proc, /tmp, layers over workspaces"),
    "umount2": (ANY, "the container's root is detached"),
    "pivot_root": (ANY, "the sandbox's root becomes the root"),
    "open_tree": (ANY, "shown paths are opened by descriptor, and never through a link"),
    "move_mount": (ANY, "and are attached by one"),
    "mount_setattr": (ANY, "what is shown is read-only, without set-user-id and without devices"),
    "openat2": (ANY, "no link on the way to what is shown is followed"),
    "sethostname": (ANY, "the sandbox has a name of its own"),
    "seccomp": (ANY, "filters that report calls, for hidden paths and for why a job failed"),
    "process_vm_readv": (ANY, "which path a job has asked for, where a filter reports it"),
    "keyctl": ((_equal(0, _JOIN_SESSION_KEYRING),), "a session keyring of the sandbox's own; no other use of keys"),
    "mknodat": ((_masked(2, _IFMT, _IFCHR), _equal(3, 0)), "a whiteout: what makes a hidden name absent"),
}
"""Calls that our filter closes for jobs and ringfence itself needs: under which conditions, and what for."""


def profile() -> dict[str, object]:
    """Return it as data."""
    found = as_data(SyscallProfile.DEFAULT, guards_pid_1=False)
    rows = found["syscalls"]
    assert isinstance(rows, list)
    whole = {call for call, (args, _) in OPENED.items() if not args}
    kept = [row for row in ({**row, "names": _without(row, whole)} for row in rows) if row["names"]]
    kept.append({"names": sorted(whole), "action": "SCMP_ACT_ALLOW"})
    kept += [{"names": [call], "action": "SCMP_ACT_ALLOW", "args": list(args)}
             for call, (args, _) in OPENED.items() if args]  # fmt: skip
    return {**found, "syscalls": kept}


def _without(row: dict[str, object], opened: set[str]) -> list[str]:
    """The names of a row; where it closes or conditions a call that is open as a whole, without that."""
    names = row["names"]
    assert isinstance(names, list)
    refused = OPENED.keys() if row["action"] != "SCMP_ACT_ALLOW" else opened
    return [name for name in names if name not in refused]


def table() -> str:
    """Return the rows for people."""
    reasons: dict[str, list[str]] = {}
    for call, (args, why) in OPENED.items():
        reasons.setdefault(why, []).append(f"`{call}`" + (" (some of its arguments)" if args else ""))
    return "".join(f"| {', '.join(calls)} | {why} |\n" for why, calls in reasons.items())


def text() -> str:
    """Return what the shipped file holds."""
    return json.dumps(profile(), indent=1) + "\n"


def page(old: str) -> str:
    """Return the page that has the table in it, with the table as it is now."""
    before, _, rest = old.partition(_BEGIN)
    return before + _BEGIN + table() + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="ascii")
    PAGE.write_text(page(PAGE.read_text()))
