"""Show what this host can enforce, by which mechanism, what is missing, and the command that enables it."""

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
    from ringfence.model.lack import Lack
    from ringfence.model.outcome import Enforcement

EXAMPLES = """\
examples:
  %(prog)s
  %(prog)s --level strict && ringfence run -- make
  %(prog)s --json | jq '.levels.process'

The exit code is 0 if the level that you name is available here with a default policy, else 1. The default is process,
as in Python; `ringfence run` uses strict.
"""

# Everything that a policy can ask for, so that the answer covers every capability.
_EVERYTHING: dict[str, object] = {
    "disk_bytes": 2**30, "file_bytes": 2**20, "cpu_share": 1, "io_bytes_per_s": 2**30,
    "network": "none", "syscall_profile": "default",
    "hidden_paths": ("/nonexistent",), "readable_paths": ("/usr",), "writable_paths": ("/tmp",),
    "allow_partial": True,
}  # fmt: skip
if os.name == "nt":
    _EVERYTHING |= {"hidden_paths": (r"C:\nonexistent",), "readable_paths": (r"C:\Windows",),
                    "writable_paths": (r"C:\Users",)}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    levels = [str(level) for level in _levels()]
    parser.add_argument("--level", choices=levels, default=str(SandboxPolicy().isolation),
                        help="the level that the exit code is about (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _levels() -> list[IsolationLevel]:
    from ringfence.engine.run import traits_of

    return [level for level in IsolationLevel if traits_of(level).isolates]


def execute(arguments: argparse.Namespace) -> int:
    mechanisms = _mechanisms()
    levels = {str(level): _level(level) for level in _levels()}
    if arguments.json:
        from ringfence.cli.json_text import print_json

        host = {"host": _host(), "mechanisms": mechanisms, "control_groups": _places()}
        default = levels[str(SandboxPolicy().isolation)]["default_policy_holds"]
        print_json(host | {"default_policy_holds": default, "levels": levels})
    else:
        _print(mechanisms, levels)
    return 0 if levels[arguments.level]["default_policy_holds"] else 1


def _mechanisms() -> dict[str, dict[str, object]]:
    """Which kernel mechanisms this host has; for a missing one, why, and the command that enables it."""
    if os.name == "nt":
        return _job_objects()
    if sys.platform != "linux":
        return _seatbelt()
    from ringfence.backends import groups, walls
    from ringfence.kernel import landlock
    from ringfence.kernel.cgroup import group as cgroups
    from ringfence.sandbox import host

    found = walls.look()
    lacking = {"user namespaces": host.user_namespaces_blocked()}
    lacking |= {f"control group: {name}": _words_of(groups.lack(name)) for name in ("memory", "pids", "cpu_share")}
    lacking["Landlock"] = None if found.landlock_abi else walls.NO_LANDLOCK
    lacking["seccomp"] = None if found.seccomp else walls.NO_FILTER
    engine, lacking["container engine"] = _engine()
    kinds = {"Landlock": f"ABI {landlock.abi()}", "container engine": engine} | {
        name: cgroups.probe().kind for name in lacking if name.startswith("control")
    }
    return {
        name: {"available": lack is None, "kind": kinds.get(name, "") if lack is None else "",
               "missing": lack[0] if lack else "", "fix": lack[1] if lack else ""}
        for name, lack in lacking.items()
    }  # fmt: skip


def _seatbelt() -> dict[str, dict[str, object]]:
    """Which macOS mechanisms work here, by trying them."""
    from ringfence.backends.on_macos.walls import FIX
    from ringfence.macos import trial

    why = trial.problem()
    return {"Seatbelt": {"available": not why, "kind": "", "missing": why, "fix": FIX if why else ""}}


def _job_objects() -> dict[str, dict[str, object]]:
    """What this Windows' job objects enforce: each limit was tried, with processes that never run."""
    from ringfence.windows.host import look

    found = look()
    tried = {
        "job object: ends its tree": found.jobs, "job object: memory": found.memory,
        "job object: processes": found.processes, "job object: CPU rate": found.cpu_share,
        "job object: limits read back": found.tells, "processor times": found.times,
        "counters of handles": found.handles, "counters of writes": found.counts_writes,
        "token without privileges": found.token, "low integrity": found.integrity,
    }  # fmt: skip
    missing = found.problem or "it was tried: Windows refuses it, or accepts it but does not enforce it"
    return {
        name: {"available": held, "kind": "", "missing": "" if held else missing,
               "fix": "" if held else "use Windows 8 or later, not Wine"}
        for name, held in tried.items()
    }  # fmt: skip


def _places() -> list[dict[str, object]]:
    """Where control groups are made: each place that was tried, in order, per hierarchy."""
    if sys.platform != "linux":
        return []
    from ringfence.kernel.cgroup import group as cgroups
    from ringfence.kernel.cgroup import host as cgroup_host

    of_use = {way for ways in cgroup_host.WAYS.values() for way in ways}
    return [
        {"version": hierarchy.version, "controllers": sorted(hierarchy.offered), "place": place.what,
         "directory": place.directory, "taken": place.directory == hierarchy.parent and bool(hierarchy.usable),
         "problem": place.problem}
        for hierarchy in cgroups.probe().hierarchies for place in hierarchy.tried
        if any((hierarchy.version, name) in of_use for name in hierarchy.offered)
    ]  # fmt: skip


def _engine() -> tuple[str, tuple[str, str] | None]:
    """What answers, in words; or what is missing."""
    from ringfence.container import api

    try:
        client = api.connect()
        info = client.info()
    except UnavailableError as error:
        return "", (str(error), error.hint)
    words = (client.kind, info.get("ServerVersion"), "at", client.url, "with", info.get("DefaultRuntime"), "and cgroup",
             info.get("CgroupVersion"))  # fmt: skip
    return " ".join(str(word) for word in words if word), None


def _words_of(lacks: list[Lack]) -> tuple[str, str] | None:
    return (lacks[0].missing, lacks[0].fix) if lacks else None


def _level(level: IsolationLevel) -> dict[str, object]:
    from ringfence.engine.run import backend_for

    try:
        backend = backend_for(level)
    except UnavailableError as error:
        return _absent(str(error), error.hint)
    asked = _EVERYTHING | {"isolation": str(level)}
    absent = [lack for lack in backend.lacks(SandboxPolicy.from_dict(asked)) if lack.whole]
    if absent:
        return _absent(absent[0].missing, absent[0].fix)
    # Protections that depend on paths are not in force for a policy that names no paths.
    without_paths = {name: value for name, value in asked.items() if name not in PATH_FIELDS}
    table = {**_table(backend, asked), **_table(backend, without_paths)}
    capabilities = {
        name: {"applied": entry.applied, "mechanism": entry.mechanism, "details": entry.details, "by": list(entry.by)}
        for name, entry in table.items()
    }
    holds = not backend.lacks(SandboxPolicy(isolation=level))
    return {"available": True, "default_policy_holds": holds, "missing": "", "fix": "", "capabilities": capabilities}


def _absent(missing: str, fix: str) -> dict[str, object]:
    return {"available": False, "default_policy_holds": False, "missing": missing, "fix": fix, "capabilities": {}}


def _table(backend: Backend, asked: dict[str, object]) -> dict[str, Enforcement]:
    box = backend.open(SandboxPolicy.from_dict(asked))
    box.close()
    return dict(box.enforced)


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
    _print_places()
    for name, level in levels.items():
        refused = level["available"] and not level["default_policy_holds"]
        print(f"\n{name}{': a run is refused here, see each no' if refused else ''}")
        if not level["available"]:
            print(f"  not available\n       missing: {level['missing']}\n       fix:     {level['fix']}")
        capabilities: dict[str, dict[str, object]] = level["capabilities"]  # type: ignore[assignment]
        for capability, entry in capabilities.items():
            mark = "yes" if entry["applied"] else "no "
            how = entry["mechanism"] if entry["applied"] else entry["details"]
            print(f"  {mark}  {capability:<15} {how}")


def _print_places() -> None:
    if not (places := _places()):
        return
    from ringfence.kernel.cgroup import host as cgroup_host

    order = ", ".join((cgroup_host.GIVEN, cgroup_host.OWN, cgroup_host.BESIDE))
    print(f"\ncontrol groups, tried in this order: {order}")
    for place in places:
        mark, where = "yes" if place["taken"] else "no ", f"{place['place']}: {place['directory']}".rstrip(": ")
        print(f"  {mark}  v{place['version']} {where}")
        if place["problem"]:
            print(f"       {place['problem']}")
