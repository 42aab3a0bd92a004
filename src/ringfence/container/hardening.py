"""``ContainerSpec``: one container as plain data, closed by default, and the body of the call that creates it. Pure.

Every default is the safe one: no network, no capability, no new privileges, a read-only root, no swap, a user without
rights, bounded processes, memory and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.limits import MIB
from ringfence.model.record import record, replace
from ringfence.model.system_text import is_system_text

DEFAULT_IMAGE = "python:3.10-slim"
NOBODY = "65534:65534"
TMPFS_OPTIONS = "rw,noexec,nosuid,nodev,mode=1777"
_CORE = 10**9
_LEAST_MEMORY = 6 * MIB
"""Docker refuses less."""
_SIGNED = 2**63 - 1
UNCONFINED = "unconfined"
_ID_DIGITS, _HEX = 64, frozenset("0123456789abcdef")


@record
class Bind:
    """A path of the host that is shown inside."""

    source: str
    target: str
    read_only: bool = True


@record
class ContainerSpec:
    """Describes one container as data."""

    argv: tuple[str, ...]
    image: str = DEFAULT_IMAGE
    environment: Mapping[str, str] = MappingProxyType({})
    workdir: str = "/tmp"
    user: str = NOBODY
    memory_bytes: int = 512 * MIB
    memory_swap_bytes: int = 0
    """Memory and swap together; 0: as much as memory alone, so there is no swap."""
    cpus: float | None = None
    """Absent: all cores."""
    pids: int = 64
    read_only: bool = True
    tmpfs: Mapping[str, str] = MappingProxyType({"/tmp": f"{TMPFS_OPTIONS},size=64m"})
    """Path inside → options of the mount."""
    shm_bytes: int = 16 * MIB
    """Of /dev/shm, which can be written also where the root can't."""
    network_mode: str = "none"
    network_of: str = ""
    """The id of a container of ours whose network it has, in place of one by ``network_mode``."""
    cap_drop: tuple[str, ...] = ("ALL",)
    no_new_privileges: bool = True
    seccomp: str = ""
    """A profile as JSON text; empty: the engine's own."""
    userns: str = ""
    """As the engine takes it, such as ``host``; empty: as the engine is configured."""
    ulimits: Mapping[str, tuple[int, int]] = MappingProxyType({"core": (0, 0)})
    """Name → soft and hard limit."""
    log_bytes: int = 0
    """How much of the output the engine itself keeps; 0: nothing."""
    runtime: str = ""
    """As the engine knows it, such as ``runsc``; empty: the engine's default."""
    binds: tuple[Bind, ...] = ()
    labels: Mapping[str, str] = MappingProxyType({})
    stdin: bool = False
    tty: bool = False
    hostname: str = "sandbox"
    stop_signal: str = "SIGKILL"
    init: bool = False
    """A tiny first process of the engine's. Without it the program is pid 1, which ignores signals by default."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise UsageError(f"container: {problem}")

    @property
    def swap_bytes(self) -> int:
        """Memory and swap together."""
        return self.memory_swap_bytes or self.memory_bytes

    @property
    def network(self) -> str:
        """The network mode in the engine's form."""
        return f"container:{self.network_of}" if self.network_of else self.network_mode


def _problems(spec: ContainerSpec) -> list[str]:
    texts = (*spec.argv, spec.image, spec.workdir, spec.user, spec.hostname, *spec.environment.values())
    found = [f"{text!r} contains a NUL or an unpaired surrogate (not valid Unicode); remove it"
             for text in texts if not is_system_text(text)]  # fmt: skip
    if not spec.argv or not spec.image:
        found.append("a command and an image are needed")
    if not _LEAST_MEMORY <= spec.memory_bytes <= _SIGNED:
        found.append(f"memory of {spec.memory_bytes} bytes; engines take {_LEAST_MEMORY} or more")
    if spec.memory_swap_bytes and spec.memory_swap_bytes < spec.memory_bytes:
        found.append("memory and swap together are less than the memory")
    if spec.pids < 1 or (spec.cpus is not None and not 0.01 <= spec.cpus <= 4096):
        found.append(f"{spec.pids} processes on {spec.cpus} cores mean no limit, or nothing can run")
    if spec.seccomp == UNCONFINED:
        found.append("seccomp can't be switched off")
    if spec.network_mode == "host" or spec.network_mode.startswith("container:"):
        found.append(f"network mode {spec.network_mode} would be the network of somebody else")
    if spec.network_of and (len(spec.network_of) != _ID_DIGITS or set(spec.network_of) - _HEX):
        found.append(f"{spec.network_of!r} is not a container id")
    found += [f"{path!r} is not an absolute path" for path in _paths(spec) if not _is_plain(path)]
    return found


def _paths(spec: ContainerSpec) -> list[str]:
    binds = [path for bind in spec.binds for path in (bind.source, bind.target)]
    return [spec.workdir, *spec.tmpfs, *binds]


def _is_plain(path: str) -> bool:
    return path.startswith("/") and is_system_text(path) and ".." not in path.split("/")


def create_arguments(spec: ContainerSpec, seccomp_file: str = "") -> dict[str, object]:
    """Return the body of the call that creates it. No shell, no text that is parsed again. ``seccomp_file``: where the
    filter lies, for an engine that reads it from a file."""
    return {
        "Image": spec.image,
        "Entrypoint": [spec.argv[0]],
        "Cmd": list(spec.argv[1:]),
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "WorkingDir": spec.workdir,
        "User": spec.user,
        "Hostname": "" if spec.network_of else spec.hostname,  # a joined network brings its own name
        "Labels": dict(spec.labels),
        "StopSignal": spec.stop_signal,
        "Tty": spec.tty,
        "OpenStdin": spec.stdin,
        "StdinOnce": spec.stdin,
        "AttachStdin": spec.stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(replace(spec, seccomp=seccomp_file) if seccomp_file else spec),
    }


def _host_config(spec: ContainerSpec) -> dict[str, object]:
    config: dict[str, object] = {
        "Memory": spec.memory_bytes,
        "MemorySwap": spec.swap_bytes,
        "PidsLimit": spec.pids,
        "ReadonlyRootfs": spec.read_only,
        "Tmpfs": dict(spec.tmpfs),
        "ShmSize": spec.shm_bytes,
        "NetworkMode": spec.network,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Privileged": False,
        "CapDrop": list(spec.cap_drop),
        "SecurityOpt": _security(spec),
        "Ulimits": [{"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in spec.ulimits.items()],
        "LogConfig": _log(spec),
        "Mounts": [_mount(bind) for bind in spec.binds],
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Init": spec.init,
        "OomKillDisable": False,
    }
    if spec.cpus is not None:
        config["NanoCpus"] = round(spec.cpus * _CORE)
    if spec.userns:
        config["UsernsMode"] = spec.userns
    if spec.runtime:
        config["Runtime"] = spec.runtime
    return config


def _security(spec: ContainerSpec) -> list[str]:
    options = ["no-new-privileges"] if spec.no_new_privileges else []
    return [*options, f"seccomp={spec.seccomp}"] if spec.seccomp else options


def _log(spec: ContainerSpec) -> dict[str, object]:
    if not spec.log_bytes:
        return {"Type": "none", "Config": {}}
    return {"Type": "json-file", "Config": {"max-size": str(spec.log_bytes), "max-file": "1"}}


def _mount(bind: Bind) -> dict[str, object]:
    return {
        "Type": "bind", "Source": bind.source, "Target": bind.target, "ReadOnly": bind.read_only,
        # An engine makes only the bind itself read-only, not what is mounted below it.
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": bind.read_only},
    }  # fmt: skip
