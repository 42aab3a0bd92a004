"""docs/reference/platforms.md, from the tables that the process level is run by: ``python -m tests.platforms``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ringfence.backends.conformance import ON_WINDOWS, checks_here
from ringfence.backends.on_macos.walls import SEATBELT
from ringfence.backends.on_windows.process import NOT_HERE, lacks_of, mechanisms
from ringfence.backends.tables import ON_LINUX, ON_MACOS, WALLS, Mechanisms
from ringfence.macos.seatbelt import _DEVICES, _SYSTEM
from ringfence.model.policy import SandboxPolicy
from ringfence.sandbox.root import SYSTEM_FOLDERS
from ringfence.steps.wall_steps import DEVICES
from ringfence.windows.host import Host

PATH = Path(__file__).resolve().parent.parent / "docs" / "reference" / "platforms.md"
EVERYTHING: dict[str, object] = {
    "isolation": "process", "disk_bytes": 2**30, "file_bytes": 2**20, "cpu_share": 1, "io_bytes_per_s": 2**30,
    "network": "none", "syscall_profile": "default", "hidden_paths": ["/a"], "readable_paths": ["/b"],
    "writable_paths": ["/c"], "allow_partial": True,
}  # fmt: skip
WINDOWS = Host(jobs=True, processes=True, memory=True, cpu_share=True, times=True, handles=True, counts_writes=True,
               tells=True, token=True, integrity=True)  # fmt: skip
WINE = Host(jobs=True)
"""As ``ringfence probe`` finds it there (Wine 8)."""
_LINUX_ONLY = ("disk",)
_ETC = ("/private/etc",)
_WORDS = {5: "Five", 6: "Six", 7: "Seven", 8: "Eight"}
_TEXT = """\
# Platforms

What runs on each system, and what isolation level `process` enforces there. `strict` needs Linux 5.11 or later, and
5.13 with Landlock to grade with a script; `container` needs an engine.
`ringfence probe` finds out by trying what this host really enforces.

**Plain `ringfence run` means `strict`, so macOS and Windows refuse it**: write `ringfence run --isolation process`. In
Python, `open()` and `Pool()` without a policy are `strict` too, and a pool needs Linux at every level. `ringfence test`
and `ringfence demo` need no flag.

## What works where

The columns macOS and Windows are ***pending***: they say what the code is written to do there, and it has not been run
on either system: the Windows code was tried under [Wine](#what-ran-where), the macOS code only against stand-ins.

| feature | Linux | macOS (*pending*) | Windows (*pending*) |
|---|---|---|---|
| `ringfence run` | yes | with `--isolation process` | with `--isolation process` |
| `run()` in Python; `ringfence test`, `demo`, `probe`, `selfcheck` | yes | yes | yes |
| `ringfence.open` (boxes) | yes | with a policy at `process` | with a policy at `process` |
| undo after `ringfence run`: kept changes, `--commit`, `--discard`, `--ask` | at `strict` \
| no: the directory itself is changed | no: the directory itself is changed |
| `Transaction`, checkpoints, commit | yes | in a working copy (`kind="snapshot"`) | in a working copy |
| `SandboxManager` | yes | with `allow_partial=True`: the limit on the disk is not enforced \
| yes; `allow_partial` is on |
| `Pool`, rewards, Ray | yes | no | no |
| `ringfence serve` | yes | with tokens, and policies at `process` without `warm` | no |
| `ringfence mcp`, sessions for frameworks | yes | with a policy at `process` | no: their tools need `sh` and `ls` |
| `ringfence jupyter`, `ringfence top` | yes | no | no |
| `proctor run`, `bench`, `run-tb`, `run-swebench` | yes | no | no |
| `proctor init` | yes | yes | yes |
| `keygen`, `verify`, `verify-bundle`, `verify-suite`, `verify-page`, `validate` | yes | yes | yes |
| level `strict` | yes | no | no |
| level `container` | with an engine | not tested | not tested |

**A policy is refused if it needs what a system lacks**, with exit code 2, before anything starts: `readable_paths` or
`network: none` on Windows, for example. `--allow-partial` (`allow_partial`) runs the job without it, and `enforced`
names what was not applied.

## What level `process` enforces

On Linux this level protects paths and system calls where a policy names paths (Landlock and seccomp). With
`network: none` it then closes the network too; without that field such a job has the host's network. Control groups
enforce more where they are available. On macOS Seatbelt is an extra: it is used where a policy names
paths or closes the network, and only after a profile was tried there and worked. On Windows a job has low integrity
where a policy names writable paths; the directories must have that label, which the caller gives them (`icacls`).
**The columns macOS and Windows are *pending* until somebody runs ringfence there**; the column Wine was tried. \
`python -m tests.platforms` generates this page. The rows of the table are those that the level itself puts into
`enforced`; a test compares the two.

{table}

### What stays readable

`readable_paths` adds to what a program needs from the system. On Linux any of the three lists of paths closes the rest;
on macOS only `readable_paths` does, and without it everything but `hidden_paths` can be read.

| | Linux | macOS (*pending*) |
|---|---|---|
| system directories | {linux_system} | {macos_system} |
| settings | what programs need of `/etc`, such as certificates and fonts; with the host's network also `hosts` \
and `resolv.conf`; not `passwd` \
| all of `/etc` |
| the kernel's | `/proc`; {linux_devices} | {macos_devices} |
| the job's own | its program and interpreter, [the Python that ringfence runs on and what it brings, a `PYTHONPATH` \
that is set](programs.md#what-of-the-host-is-readable), the working directory, the private directory \
| its program, ringfence's Python, the working directory, the private directory |
| named | `readable_paths`, `writable_paths` | the same |

Without any path in the policy, and on Windows always, the job reads what the caller can read.

## What ran where

| system | what has run |
|---|---|
| Linux | everything: `make test`, `.ci/run` |
| Wine 8, CPython 3.11 for Windows | `make test-windows`: every module imports; attacks on the process level, undo, \
the manager. What Wine does not enforce is reported as pending |
| Windows | pending: the workflow runs the same checks there |
| macOS | pending: on Linux the level runs with everything of Linux taken away, behind a stand-in for `sandbox-exec` \
that records its arguments (tests/other_systems.py); \
the workflow runs attacks on a Mac (tests/programs/macos_checks.py) |
| WSL 2 | not tested. It has a Linux kernel of its own: `ringfence probe` inside says what that enforces |
| Docker Desktop, as the engine of level `container` | not tested |

## Deviations on Windows, by name

{count} checks of the conformance suite run on Windows as on any system (`ringfence selfcheck`). The others can't; most
have a check of tests/programs/windows_checks.py that attacks the same. Without one the promise is not made there.

{deviations}

## On a Mac

In a clone ([install](../../README.md#install)), with Python 3.11 or later:

```sh
python3 -m venv .venv && . .venv/bin/activate
pip install .
ringfence probe
ringfence run --isolation process -- python3 script.py
```

For `strict` on a Mac or on Windows use a virtual machine with Linux, and ringfence in it. WSL 2 is one, and for a Mac
[Lima](https://lima-vm.io) makes one; neither was tried. On Apple silicon the virtual machine is aarch64 Linux, which is
[supported](../release.md#what-is-supported). `ringfence probe --level strict` inside says whether it works there.

## In a Windows shell

```sh
py -m pip install .
py -P -m ringfence probe
py -P -m ringfence demo
py -P -m ringfence run --isolation process -- python script.py
```

The first line is for a clone ([install](../../README.md#install)). There `make run`, `make test` and `make probe` set
everything up first too (`make.cmd`; in PowerShell `.\\make run`).

Batch files (`.bat`, `.cmd`) are refused, because no quoting of their arguments is safe. Run `cmd.exe /d /c` with a line
of your own.
"""


def table() -> str:
    """Return one row for each capability, one column for each system."""
    policy = SandboxPolicy.from_dict(EVERYTHING)
    walls = {name: f"where the policy names paths, {row[0]}: {row[1]}" for name, row in WALLS.items()}
    columns = [walls | _posix(ON_LINUX, ()), _posix({**ON_MACOS, **SEATBELT}, _LINUX_ONLY), _windows(policy, WINDOWS),
               _windows(policy, WINE)]  # fmt: skip
    rows = ["| capability | Linux | macOS (*pending*) | Windows (*pending*) | Wine |", "|---|---|---|---|---|"]
    for name in policy.requested():
        rows.append(f"| {name} | {' | '.join(column.get(name, 'no') for column in columns)} |")
    return "\n".join(rows)


def _posix(held: Mechanisms, without: tuple[str, ...]) -> dict[str, str]:
    return {name: f"{row[0]}: {row[1]}" for name, row in held.items() if name not in without}


def _windows(policy: SandboxPolicy, host: Host) -> dict[str, str]:
    lacking = {lack.capability: lack.missing for lack in lacks_of(policy, host, is_low=bool)}
    held = {name: f"{row[0]}: {row[1]}" for name, row in mechanisms(host).items() if name not in lacking}
    return held | {name: f"no ({NOT_HERE.get(name, missing)})" for name, missing in lacking.items()}


def deviations() -> str:
    """Return one row for each check that Windows can't run."""
    rows = ["| of the conformance suite | why not on Windows | attacked there by |", "|---|---|---|"]
    rows += [f"| {name} | {why} | {instead and f'`{instead}`'} |" for name, (why, instead) in ON_WINDOWS.items()]
    return "\n".join(row.replace("|  |", "| |") for row in rows)


def text() -> str:
    count = len(checks_here(windows=True))
    return _TEXT.format(
        table=table(), deviations=deviations(), count=_WORDS.get(count, count),
        linux_system=_listed(SYSTEM_FOLDERS), macos_system=_listed(each for each in _SYSTEM if each not in _ETC),
        linux_devices=_listed(DEVICES), macos_devices=_listed(_DEVICES),
    )  # fmt: skip


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
