"""The table of the configuration: every key with its check and what it means. Documents are checked against it."""

from __future__ import annotations

from collections.abc import Callable

from ringfence.docker_sandbox import config_values as values
from ringfence.model.record import record

PREFIX = "RINGFENCE_"


@record
class Key:
    """One value: its place in the file, and what it may be."""

    path: str
    """In the file, such as ``docker.tmpfs.size``."""
    check: Callable[[object], object]
    help: str
    of_text: Callable[[str], object] = str
    """How a variable of the environment is read."""

    @property
    def field(self) -> str:
        return self.path.split(".", 1)[1].replace(".", "_")

    @property
    def variable(self) -> str:
        return PREFIX + self.path.upper().replace(".", "__")


def _flag(path: str, help: str) -> Key:
    return Key(path=path, check=values.flag, help=help, of_text=values.flag_of_text)


def _number(path: str, check: Callable[[object], object], help: str) -> Key:
    return Key(path=path, check=check, help=help, of_text=values.number_of_text)


KEYS: tuple[Key, ...] = (
    _flag("docker.enabled", "false: no container is made (the emergency switch)"),
    Key(path="docker.image", check=values.image, help="the image for containers"),
    Key(path="docker.memory_limit", check=values.memory, help="memory of one container"),
    Key(path="docker.memory_swap_limit", check=values.memory_or_same,
        help="memory and swap together; empty: as memory_limit, so there is no swap"),
    _number("docker.cpu_limit", values.cores, "processor cores of one container"),
    _number("docker.timeout_seconds", values.seconds, "wall time of one strategy, then it is killed"),
    Key(path="docker.network_mode", check=values.network, help="none, or bridge: the engine's own network"),
    _flag("docker.read_only", "the root of a container can't be written"),
    Key(path="docker.tmpfs.path", check=values.mount_point, help="the directory that can be written"),
    Key(path="docker.tmpfs.size", check=values.size, help="what fits into it; it counts as memory"),
    Key(path="docker.tmpfs.options", check=values.mount_options, help="how it is mounted"),
    Key(path="docker.seccomp_profile", check=values.profile,
        help="default: the profile that is shipped; else a file in Docker's format"),
    Key(path="docker.output_dir", check=values.text, help="where results are kept, a file each; empty: nowhere"),
    _flag("docker.cleanup_on_exit", "false: containers are stopped and kept for inspection"),
    _flag("docker.fallback_to_direct", "without an engine, run at fallback_level; never unsandboxed"),
    Key(path="docker.fallback_level", check=values.level, help="strict or process: what a fallback runs in"),
    Key(path="docker.engine", check=values.engine, help="the engine's address; empty: DOCKER_HOST, else the usual"),
    Key(path="docker.runtime", check=values.runtime, help="another runtime of the engine, such as runsc (gVisor)"),
    Key(path="docker.user", check=values.account, help="user and group inside, by number"),
    _number("docker.pids_limit", values.count, "processes and threads of one container"),
    _number("docker.nofile_limit", values.count, "open descriptors of each process"),
    Key(path="docker.log_size", check=values.size, help="what the engine keeps of a container's output"),
    Key(path="docker.data_limit", check=values.size, help="the largest data or file that is handed to a strategy"),
    Key(path="docker.result_limit", check=values.size, help="the largest result that is read"),
    _number("docker.max_containers", values.count, "containers at one time, warm ones included"),
    _number("docker.warm_containers", values.count_or_none, "containers that stand by; 0: none"),
    _flag("docker.pull", "fetch an image that is missing, once"),
    _flag("docker.validate", "check code before a container is made; a fast refusal, not the boundary"),
    Key(path="docker.validator_rules", check=values.text, help="a file with rules for the validator; empty: its own"),
    _flag("monitoring.export_container_stats", "export memory and processor use of containers"),
    _number("monitoring.alert_on_orphaned_containers", values.count_or_none,
            "more containers than this that could not be removed raise the alert"),
    _number("monitoring.prometheus_port", values.port, "where ringfence metrics serve listens"),
)  # fmt: skip
BY_FIELD = {key.field: key for key in KEYS}
BY_PATH = {key.path: key for key in KEYS}
TEXTS = tuple(key.path for key in KEYS if key.of_text is str and key.check not in (values.size, values.memory))
"""Their words are never read as numbers: an image may be called 310."""
