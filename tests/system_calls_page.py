"""docs/reference/system-calls.md, from the filter's own tables; ``python -m tests.reference_pages`` writes it."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ringfence.kernel.seccomp import profiles
from ringfence.kernel.seccomp.rules import ALL_64, LOW_32, Kind, Rule, When
from ringfence.sandbox import root

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "system-calls.md"
_HEAD = """\
<!-- Written by python -m tests.reference_pages. A test holds it to the code. -->

# System calls under strict

A seccomp filter decides each system call of a job. It knows every call by name: the tables below say which are closed
and which are open. A call that no table has fails with ENOSYS, as on a kernel without it. A call through the entry of
another architecture (32 bits, x32) ends the process. `strict` always has the filter. `process` has one where the
policy names paths.

The filter sees numbers, not what a pointer leads to. Mounts, Landlock and the network namespace decide which files
and addresses a job reaches ([ADR 0023](../adr/0023-system-call-filter.md)).

- **ends the process**: the process is killed, and the result names the call.
- **recorded**: the call fails with this error, and the result names the attempt.
- An error alone: the call fails, and nothing is recorded, because honest programs try it too.
- **does nothing**: the call returns 0.

Where a cell of «if» is empty, the call is always closed. Otherwise it is closed if all conditions of the cell are
true. Arguments count from 1.
"""
_TIGHT = """\
No network, and no new process. `execve` stays open, because a command is started with it: the job may become another
program. The set-group-id bit is closed as with `writable_paths`.
"""
_REQUESTS = {number: name for name, number in profiles.IOCTLS.items()}
_IOCTL = """\
## What `ioctl` reaches

The table above names every request of `ioctl` that is closed; all others are open. A request acts on something that the
job has open, and the sandbox decides what that can be. A request that needs a capability fails, because a job has none.

| on | what the job has there |
|---|---|
| devices | {devices}, and nothing else: no disk, no `/dev/kvm`, no `/dev/fuse`, no graphics or sound |
| terminals | those of its own `/dev/pts`, at most {terminals}. The caller's only if that is the job's input and not \
its output ([what `strict` does not protect against](../../THREAT-MODEL.md#what-strict-does-not-protect-against)) |
| files and directories | what is shown to it: read-only, in its layer, in memory, or in `writable_paths` |
| sockets | those of its own network; of the host's with `network: host` |
"""
_UNIX = """\
A writable path has the host's sockets in it, and the host's network has its abstract sockets. Where the kernel's
Landlock can't keep a job from them, the filter does.
"""


def page() -> str:
    """The page."""
    return "\n".join([*_parts()]).rstrip() + "\n"


def _parts() -> Iterator[str]:
    default, layered, tight = (profiles.PROFILES[name] for name in ("default", "layered", "tight_exec"))
    yield _HEAD
    yield "## Closed with the profile `default`\n"
    yield from _table(layered.closed)
    yield f"A job has one user and one group. {_ids()} fail with EPERM for any other id.\n"
    yield _IOCTL.format(devices=", ".join(f"`/dev/{name}`" for name in root.DEVICES), terminals=root.TERMINALS)
    yield "## Closed in addition with the profile `tight`\n"
    yield _TIGHT
    yield from _table(_beyond(tight.closed, default.closed))
    yield "## Closed in addition with `writable_paths`\n"
    yield "A file in such a path outlives the job, so the set-group-id bit is closed as well:\n"
    yield from _table(_beyond(default.closed, layered.closed))
    yield "## Closed in addition where the kernel can't tell the host's sockets from the job's\n"
    yield _UNIX
    yield from _table(_beyond(profiles.UNIX_PAIRS.closed, default.closed))
    yield "## Closed in addition at `process`\n"
    yield "Without namespaces these calls reach other processes of the user. At this level nothing is recorded.\n"
    yield from (row.replace(", recorded", "") for row in _table(_beyond(profiles.WALLED.closed, default.closed)))
    yield "With `network: none`, `process` closes the calls for sockets as `tight` does.\n"
    yield "## Open\n"
    yield "Some of them are closed on a condition, which the tables above have.\n"
    yield "| what for | calls |\n|---|---|"
    for rule in default.open:
        yield f"| {_cell(rule.reason)} | {_calls(rule.calls)} |"
    yield ""


def _beyond(rules: Iterable[Rule], others: Iterable[Rule]) -> list[Rule]:
    known = [*others]
    return [rule for rule in rules if rule not in known]


def _ids() -> str:
    return _calls(call for calls, _, _ in profiles._CALLS_WITH_IDS for call in calls.split())


def _table(rules: Iterable[Rule]) -> Iterator[str]:
    yield "| calls | if | what happens | why |\n|---|---|---|---|"
    for rule in rules:
        names = _REQUESTS if rule.calls == ("ioctl",) else {}
        conditions = "; ".join(_condition(when, names) for when in rule.when)
        yield f"| {_calls(rule.calls)} | {conditions} | {_effect(rule)} | {_cell(rule.reason)} |"
    yield ""


def _calls(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _condition(when: When, names: Mapping[int, str]) -> str:
    argument = f"argument {when.arg + 1}"
    if when.negate and when.values == (0,):
        if when.bits in (LOW_32, ALL_64):
            return f"{argument} is not 0"
        return f"{argument} has a bit of {when.bits:#x}"
    if when.bits not in (LOW_32, ALL_64):
        argument = f"{argument} & {when.bits:#x}"
    values = " or ".join(_value(value, names) for value in when.values)
    return f"{argument} is {'not ' if when.negate else ''}{values}"


def _value(value: int, names: Mapping[int, str]) -> str:
    number = f"{value:#x}" if value > 9 else str(value)
    return f"`{names[value]}` ({number})" if value in names else number


def _effect(rule: Rule) -> str:
    kind, code = rule.action.kind, rule.action.errno
    if kind is Kind.FORBID:
        return "ends the process"
    if kind is Kind.DENY and not code:
        return "does nothing"
    name = "EOPNOTSUPP" if code == errno.EOPNOTSUPP else errno.errorcode[code]  # two names for one number
    return name + (", recorded" if kind is Kind.REPORT else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
