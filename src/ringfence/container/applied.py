"""What an engine really applied of a container's limits: its own inspection, and the control group's files beside it.

An engine may accept a limit and not enforce it: rootless podman with control groups of version 1 does so, with no more
than a warning. A limit that is not shown to be in force is reported as not applied, with the reason. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ringfence.container.hardening import ContainerSpec
from ringfence.model.limits import format_size
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.record import record
from ringfence.model.system_text import escape_controls

_PAGE = 64 * 1024
"""The kernel rounds down to its pages; the largest that are in use."""
_CORE = 10**9
_UNREAD = "as the engine says; the control group's own files can't be read here"
_READ = "as the engine and the control group's own files say"
Config = Mapping[str, object]


@record
class Facts:
    """All that is known of one container."""

    spec: ContainerSpec
    config: Config
    """Of the engine's inspection: ``HostConfig``."""
    whole: Config
    """``Config`` of the same."""
    mounts: object
    """``Mounts`` of the same."""
    info: Config
    files: Mapping[str, str]


def read_back(spec: ContainerSpec, inspected: Config, info: Config, group_files: Mapping[str, str]
              ) -> dict[str, Enforcement]:  # fmt: skip
    """Return what became of each thing that the spec asks for, by capability."""
    facts = Facts(spec=spec, config=_part(inspected, "HostConfig"), whole=_part(inspected, "Config"),
                  mounts=inspected.get("Mounts"), info=info, files=group_files)  # fmt: skip
    rows = (_memory, _swap, _cpu_share, _pids, _network, _root, _capabilities, _privileges, _syscalls, _user)
    table = {name: entry for row in rows for name, entry in row(facts)}
    return table | dict(_ulimits(facts))


Rows = list[tuple[str, Enforcement]]


def ignores_groups(info: Config) -> str:
    """Why this engine enforces no control group limits, whatever it says; empty: it does."""
    rootless = "rootless" in str(info.get("SecurityOptions") or "") or bool(info.get("Rootless"))
    version, driver = str(info.get("CgroupVersion") or ""), str(info.get("CgroupDriver") or "")
    if driver == "none":
        return "the engine uses no control groups"
    if rootless and version == "1":
        return "a rootless engine enforces no limits with control groups of version 1"
    return ""


def _held(requested: object, mechanism: str, details: str, *by: Mechanism) -> Enforcement:
    return Enforcement(requested=requested, applied=True, mechanism=mechanism, details=details, by=by)


def _not(requested: object, why: str) -> Enforcement:
    return Enforcement(requested=requested, applied=False, mechanism="none", details=why)


def _grouped(facts: Facts, requested: object, said: object, wanted: object, support: str,
             read: Callable[[], str]) -> Enforcement:  # fmt: skip
    """One limit of a control group. ``read`` says how the group's files contradict it, or nothing."""
    ignored = ignores_groups(facts.info)
    if ignored:
        return _not(requested, ignored)
    if facts.info.get(support) is False:
        return _not(requested, f"the engine says that it can't ({support})")
    if said != wanted:
        return _not(requested, f"the engine says {said!r}, not {wanted!r}")
    problem = read()
    if problem:
        return _not(requested, problem)
    return _held(requested, "cgroup", _READ if facts.files else _UNREAD, Mechanism.CGROUP)


def _memory(facts: Facts) -> Rows:
    wanted = facts.spec.memory_bytes

    def read() -> str:
        return _beyond(facts.files, ("memory.limit_in_bytes", "memory.max"), wanted)

    return [("memory", _grouped(facts, wanted, facts.config.get("Memory"), wanted, "MemoryLimit", read))]


def _swap(facts: Facts) -> Rows:
    wanted = facts.spec.swap_bytes

    def read() -> str:
        extra = wanted - facts.spec.memory_bytes
        return (_beyond(facts.files, ("memory.memsw.limit_in_bytes",), wanted)
                or _beyond(facts.files, ("memory.swap.max",), extra))  # fmt: skip

    return [("swap", _grouped(facts, wanted, facts.config.get("MemorySwap"), wanted, "SwapLimit", read))]


def _beyond(files: Mapping[str, str], names: tuple[str, ...], wanted: int) -> str:
    """How a file of the group allows more than it should."""
    for name in names:
        text = files.get(name, "")
        if text and (not text.isdigit() or int(text) > wanted):
            return f"{name} of its control group says {text}, and {wanted} was asked for"
        if text and int(text) < wanted - _PAGE:
            return f"{name} of its control group says {format_size(int(text))}, less than was asked for"
    return ""


def _pids(facts: Facts) -> Rows:
    wanted = facts.spec.pids

    def read() -> str:
        text = facts.files.get("pids.max", "")
        return f"pids.max of its control group says {text}" if text and text != str(wanted) else ""

    return [("pids", _grouped(facts, wanted, facts.config.get("PidsLimit"), wanted, "PidsLimit", read))]


def _cpu_share(facts: Facts) -> Rows:
    cpus = facts.spec.cpus
    if cpus is None:
        return []

    def read() -> str:
        quota, period = facts.files.get("cpu.cfs_quota_us", ""), facts.files.get("cpu.cfs_period_us", "")
        if "cpu.max" in facts.files:
            quota, _, period = facts.files["cpu.max"].partition(" ")
        if not quota:
            return ""
        if not quota.isdigit() or not period.isdigit() or int(quota) > cpus * int(period) * 1.01 + 1000:
            return f"its control group has {quota} of {period} microseconds"
        return ""

    said = facts.config.get("NanoCpus")
    if not said and isinstance(quota := facts.config.get("CpuQuota"), int) and quota > 0:
        period = facts.config.get("CpuPeriod")
        said = round(quota / (period if isinstance(period, int) and period else 100_000) * _CORE)
    return [("cpu_share", _grouped(facts, cpus, said, round(cpus * _CORE), "CpuCfsQuota", read))]


def _network(facts: Facts) -> Rows:
    said, wanted = facts.config.get("NetworkMode"), facts.spec.network
    if said != wanted:
        return [("network", _not(wanted, f"the engine says network {said!r}"))]
    details = "empty except for its own loopback" if wanted == "none" else f"the engine's network {wanted}"
    details = "held by a container of ringfence's own" if facts.spec.network_of else details
    return [("network", _held(wanted, "network namespace", details, Mechanism.NETWORK_NAMESPACE))]


def _root(facts: Facts) -> Rows:
    wanted = facts.spec.read_only
    if not wanted:
        return []
    if facts.config.get("ReadonlyRootfs") is not True:
        return [("read_only_root", _not(wanted, "the engine says that the root can be written"))]
    if volumes := _volumes(facts):
        return [("read_only_root", _not(wanted, f"the image has volumes, which can be written: {volumes}"))]
    held = _held(wanted, "mount namespace", "the image can't be written", Mechanism.MOUNT_NAMESPACE)
    return [("read_only_root", held)]


def _volumes(facts: Facts) -> str:
    """Directories on the engine's disk that nobody asked for: an image may name some, and no limit applies to them."""
    rows = [row for row in _list(facts.mounts) if isinstance(row, Mapping)]
    return ", ".join(escape_controls(str(row.get("Destination"))) for row in rows if row.get("Type") == "volume")[:400]


def _capabilities(facts: Facts) -> Rows:
    wanted = facts.spec.cap_drop
    dropped, added = _words(facts.config.get("CapDrop")), _words(facts.config.get("CapAdd"))
    if facts.config.get("Privileged") is True or added:
        return [("capabilities", _not(wanted, "the engine says that it has more rights than were asked for"))]
    # Podman lists those that it would give by their names, in place of ALL.
    if "ALL" not in dropped and _USUAL_CAPABILITIES - dropped:
        named = ", ".join(sorted(dropped)) or "none"
        return [("capabilities", _not(wanted, f"the engine says that it dropped {named}"))]
    return [("capabilities", _held(wanted, "capability sets", "none is left", Mechanism.CAPABILITIES))]


_USUAL_CAPABILITIES = frozenset({"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP",
                                 "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"})  # fmt: skip
"""What each engine gives unless it is told otherwise."""


_NO_NEW = {"no-new-privileges", "no-new-privileges=true", "no-new-privileges:true"}


def _privileges(facts: Facts) -> Rows:
    options = [str(option) for option in _list(facts.config.get("SecurityOpt"))]
    if not facts.spec.no_new_privileges:
        return []
    if not _NO_NEW & set(options):
        return [("new_privileges", _not(True, "the engine does not say no-new-privileges"))]
    return [("new_privileges", _held(True, "no_new_privs", "a set-user-id program gains nothing", Mechanism.SECCOMP))]


def _syscalls(facts: Facts) -> Rows:
    options = [str(option) for option in _list(facts.config.get("SecurityOpt"))]
    wanted = "profile" if facts.spec.seccomp else "engine"
    has_filter = any("seccomp" in str(option) for option in _list(facts.info.get("SecurityOptions")))
    given = any(option.startswith(("seccomp=", "seccomp:")) for option in options)
    if any("unconfined" in option for option in options) or not has_filter:
        return [("syscalls", _not(wanted, "the engine says that it uses no filter"))]
    if facts.spec.seccomp and _leaves_filter_out(facts):
        return [("syscalls", _not(wanted, "gVisor leaves a filter out unless its runtime has --oci-seccomp"))]
    if facts.spec.seccomp and not given:
        return [("syscalls", _not(wanted, "the engine does not say that it uses the profile"))]
    details = "ringfence's profile, applied by the engine" if given else "the engine's own profile"
    return [("syscalls", _held(wanted, "seccomp", details, Mechanism.SECCOMP))]


def _leaves_filter_out(facts: Facts) -> bool:
    """What the engine says of the runtime that the container has."""
    name = str(facts.config.get("Runtime") or facts.spec.runtime)
    runtimes = facts.info.get("Runtimes")
    found = runtimes.get(name) if isinstance(runtimes, Mapping) else None
    about = found if isinstance(found, Mapping) else {}
    program = str(about.get("path") or name).rpartition("/")[2]
    return program.startswith("runsc") and "--oci-seccomp" not in map(str, _list(about.get("runtimeArgs")))


def _user(facts: Facts) -> Rows:
    said, wanted = facts.whole.get("User"), facts.spec.user
    if said != wanted:
        return [("user", _not(wanted, f"the engine says user {said!r}"))]
    return [("user", _held(wanted, "user", _whose(wanted), Mechanism.USER))]


def _whose(user: str) -> str:
    """What is to be said of a user by number. Without a group, an engine takes that of the image, else root's."""
    number, _, group = user.partition(":")
    if not number.strip("0"):
        return "the id of root, which owns the files of the image and of whatever of the host is shown"
    return "an id without rights" if group.strip("0") else "an id without rights, in the group of root"


_BY_ULIMIT = {"nofile": ("nofile", "RLIMIT_NOFILE", "per process"), "fsize": ("file_size", "RLIMIT_FSIZE", "each file"),
              "cpu": ("cpu_time", "RLIMIT_CPU", "per process")}  # fmt: skip


def _ulimits(facts: Facts) -> Rows:
    said = {str(row.get("Name", "")).removeprefix("RLIMIT_").lower(): (row.get("Soft"), row.get("Hard"))
            for row in _list(facts.config.get("Ulimits")) if isinstance(row, Mapping)}  # fmt: skip
    rows = []
    for name, (capability, mechanism, details) in _BY_ULIMIT.items():
        wanted = facts.spec.ulimits.get(name)
        if wanted is None:
            continue
        if said.get(name) != tuple(wanted):
            rows.append((capability, _not(wanted[0], f"the engine says {said.get(name)!r} for {mechanism}")))
        else:
            rows.append((capability, _held(wanted[0], mechanism, details, Mechanism.RLIMIT)))
    return rows


def _part(inspected: Config, name: str) -> Config:
    found = inspected.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _words(value: object) -> frozenset[str]:
    return frozenset(str(word).upper().removeprefix("CAP_") for word in _list(value))
