"""What this host can enforce, by which mechanism, what is missing, and the command that enables it."""

from __future__ import annotations

import argparse
import os
import sys

from ringfence.errors import UnavailableError
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import PATH_FIELDS, SandboxPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Backend
    from ringfence.backends.facts import Lack
    from ringfence.model.outcome import Enforcement

EXAMPLES = """\
examples:
  ringfence probe
  ringfence probe --json | jq '.levels.process'

The exit code is 0 when the default policy can be held here, 1 when it can't.
"""

# Everything that a policy can ask for, so that the answer covers every capability.
_EVERYTHING: dict[str, object] = {
    "disk_bytes": 2**30, "file_bytes": 2**20, "cpu_share": 1, "io_bytes_per_s": 2**30,
    "network": "none", "syscall_profile": "default",
    "hidden_paths": ("/nonexistent",), "readable_paths": ("/usr",), "writable_paths": ("/tmp",),
    "allow_partial": True,
}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    mechanisms = _mechanisms()
    levels = {str(level): _level(level) for level in IsolationLevel if level is not IsolationLevel.NONE}
    holds = _holds_default()
    if arguments.json:
        from ringfence.cli.json_text import print_json

        host = {"host": _host(), "mechanisms": mechanisms}
        print_json(host | {"default_policy_holds": holds, "levels": levels})
    else:
        _print(mechanisms, levels)
    return 0 if holds else 1


def _mechanisms() -> dict[str, dict[str, object]]:
    """What of the kernel is to be had here, and where not, why and the command that changes it."""
    if sys.platform != "linux":
        return {}
    from ringfence.backends import confined, groups, walled
    from ringfence.linux import cgroups, host, landlock

    found = confined.look(host.user_namespaces_blocked() or ("", ""))
    lacking = {"user namespaces": found.blocked if found.blocked[0] else None}
    lacking |= {f"control group: {name}": _words_of(groups.lack(name)) for name in ("memory", "pids", "cpu_share")}
    lacking["Landlock"] = None if found.landlock_abi else walled.NO_LANDLOCK
    lacking["seccomp"] = None if found.seccomp else walled.NO_FILTER
    kinds = {"Landlock": f"ABI {landlock.abi()}"} | {
        name: cgroups.probe().kind for name in lacking if name.startswith("control")
    }
    return {
        name: {"available": lack is None, "kind": kinds.get(name, "") if lack is None else "",
               "missing": lack[0] if lack else "", "fix": lack[1] if lack else ""}
        for name, lack in lacking.items()
    }  # fmt: skip


def _words_of(lacks: list[Lack]) -> tuple[str, str] | None:
    return (lacks[0].missing, lacks[0].fix) if lacks else None


def _level(level: IsolationLevel) -> dict[str, object]:
    from ringfence.engine.run import backend_for

    try:
        backend = backend_for(level)
    except UnavailableError as error:
        return {"available": False, "missing": str(error), "fix": error.hint, "capabilities": {}}
    asked = _EVERYTHING | {"isolation": str(level)}
    # What is held only beside paths is not held for a policy that names none.
    without_paths = {name: value for name, value in asked.items() if name not in PATH_FIELDS}
    table = {**_table(backend, asked), **_table(backend, without_paths)}
    capabilities = {
        name: {"applied": entry.applied, "mechanism": entry.mechanism, "details": entry.details}
        for name, entry in table.items()
    }
    return {"available": True, "missing": "", "fix": "", "capabilities": capabilities}


def _table(backend: Backend, asked: dict[str, object]) -> dict[str, Enforcement]:
    box = backend.open(SandboxPolicy.from_dict(asked))
    box.close()
    return dict(box.enforced)


def _holds_default() -> bool:
    from ringfence.engine.run import backend_for

    policy = SandboxPolicy()
    return not backend_for(policy.isolation).lacks(policy)


def _host() -> dict[str, str]:
    system = os.uname() if hasattr(os, "uname") else None
    return {
        "system": system.sysname if system else sys.platform,
        "release": system.release if system else "",
        "machine": system.machine if system else "",
        "python": sys.version.split()[0],
        "user": str(os.geteuid()) if hasattr(os, "geteuid") else "",
    }


def _print(mechanisms: dict[str, dict[str, object]], levels: dict[str, dict[str, object]]) -> None:
    host = _host()
    print(f"{host['system']} {host['release']} {host['machine']}, Python {host['python']}\n")
    for name, mechanism in mechanisms.items():
        print(f"  {'yes' if mechanism['available'] else 'no '}  {name:<24} {mechanism['kind']}".rstrip())
        if not mechanism["available"]:
            print(f"       missing: {mechanism['missing']}\n       fix:     {mechanism['fix']}")
    for name, level in levels.items():
        print(f"\n{name}")
        if not level["available"]:
            print(f"  not available: {level['missing']}\n  {level['fix']}")
        capabilities: dict[str, dict[str, object]] = level["capabilities"]  # type: ignore[assignment]
        for capability, entry in capabilities.items():
            mark = "yes" if entry["applied"] else "no "
            how = entry["mechanism"] if entry["applied"] else entry["details"]
            print(f"  {mark}  {capability:<15} {how}")
