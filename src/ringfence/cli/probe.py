"""What this host can enforce, by which mechanism, what is missing, and the command that enables it."""

from __future__ import annotations

import argparse
import os
import sys

from ringfence.errors import UnavailableError
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy

EXAMPLES = """\
examples:
  ringfence probe
  ringfence probe --json | jq '.levels.process'

The exit code is 0 when the default policy can be held here, 1 when it can't.
"""

# Everything that a policy can ask for, so that the answer covers every capability.
_EVERYTHING: dict[str, object] = {
    "disk_bytes": 2**30, "file_bytes": 2**20, "cpu_share": 1, "network": "none", "syscall_profile": "default",
    "hidden_paths": ("/nonexistent",), "readable_paths": ("/usr",), "writable_paths": ("/tmp",),
    "allow_partial": True,
}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    levels = {str(level): _level(level) for level in IsolationLevel if level is not IsolationLevel.NONE}
    holds = _holds_default()
    if arguments.json:
        import json

        print(json.dumps({"host": _host(), "default_policy_holds": holds, "levels": levels}, indent=2))
    else:
        _print(levels)
    return 0 if holds else 1


def _level(level: IsolationLevel) -> dict[str, object]:
    from ringfence.engine.run import backend_for

    try:
        backend = backend_for(level)
    except UnavailableError as error:
        return {"available": False, "missing": str(error), "fix": error.hint, "capabilities": {}}
    box = backend.open(SandboxPolicy.from_dict(_EVERYTHING | {"isolation": str(level)}))
    capabilities = {
        name: {"applied": entry.applied, "mechanism": entry.mechanism, "details": entry.details}
        for name, entry in box.enforced.items()
    }
    box.close()
    return {"available": True, "missing": "", "fix": "", "capabilities": capabilities}


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


def _print(levels: dict[str, dict[str, object]]) -> None:
    host = _host()
    print(f"{host['system']} {host['release']} {host['machine']}, Python {host['python']}")
    for name, level in levels.items():
        print(f"\n{name}")
        if not level["available"]:
            print(f"  not available: {level['missing']}\n  {level['fix']}")
        capabilities: dict[str, dict[str, object]] = level["capabilities"]  # type: ignore[assignment]
        for capability, entry in capabilities.items():
            mark = "yes" if entry["applied"] else "no "
            how = entry["mechanism"] if entry["applied"] else entry["details"]
            print(f"  {mark}  {capability:<15} {how}")
