"""Closed sets and the one table of capabilities: what a policy can ask for, by field, flag and hint.

Every layer reads this table: backends report ``enforced`` by it, the command line makes its flags
from it, and the message after a limit was hit takes «what would raise it» from it.
"""

from __future__ import annotations

from _collections_abc import Callable

from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum
from ringfence.model.system_text import cut, quoted

KIB, MIB, GIB = 2**10, 2**20, 2**30

_SIZE_UNITS = {"": 1, "B": 1, "K": KIB, "KB": KIB, "KIB": KIB, "M": MIB, "MB": MIB, "MIB": MIB}
_SIZE_UNITS |= {"G": GIB, "GB": GIB, "GIB": GIB, "T": 2**40, "TB": 2**40, "TIB": 2**40}
_TIME_UNITS = {"": 1.0, "MS": 0.001, "S": 1.0, "M": 60.0, "H": 3600.0}


class IsolationLevel(StrEnum):
    """How the job is isolated from the host."""

    NONE = "none"
    PROCESS = "process"
    CONTAINER = "container"
    STRICT = "strict"


def is_weaker(level: IsolationLevel, other: IsolationLevel) -> bool:
    """Whether it protects from less; levels are listed from the weakest to the strongest."""
    levels = [*IsolationLevel]
    return levels.index(level) < levels.index(other)


HOST_LEVELS = (IsolationLevel.NONE, IsolationLevel.PROCESS)
"""Their jobs see the host's files as the caller does; every stronger level shows fewer. Doors ask ``traits_of``."""
NOT_LEVELS = {
    "vm": "there is no VM level; run ringfence with isolation strict in a VM of your own",
    "docker": "the level is called container",
}
"""What people ask for that does not exist, and what to use instead."""


def not_one_of(value: object, kind: type[StrEnum]) -> str:
    """The error text for a value that is not a member."""
    known = NOT_LEVELS.get(str(value), "") if kind is IsolationLevel else ""
    return f"{quoted(value)} is not one of {', '.join(kind)}{f': {known}' if known else ''}"


class SyscallProfile(StrEnum):
    """Which system calls the job may make: general programs, or no network and no new processes."""

    DEFAULT = "default"
    TIGHT = "tight"


class OutputOverflow(StrEnum):
    """What happens to a job that prints more than ``output_bytes``."""

    TRUNCATE = "truncate"
    KILL = "kill"


class Unit(StrEnum):
    """What a policy number counts; decides how text such as ``512M`` or ``90s`` is read."""

    BYTES = "bytes"
    SECONDS = "seconds"
    COUNT = "count"
    CORES = "cores"


@record
class Limit:
    """One number of the policy: where it stands, how it is written, and how far it may go."""

    capability: str
    field: str
    flag: str
    unit: Unit
    largest: float
    help: str


TEN_YEARS_S = 10 * 366 * 24 * 3600
# The kernel's own ceilings: PID_MAX_LIMIT, the default of fs.nr_open, and a signed 64-bit byte count.
LIMITS: tuple[Limit, ...] = (
    Limit(capability="wall_time", field="wall_time_s", flag="--wall", unit=Unit.SECONDS,
          largest=TEN_YEARS_S, help="seconds from start until the whole tree is killed"),
    Limit(capability="cpu_time", field="cpu_time_s", flag="--cpu", unit=Unit.SECONDS,
          largest=TEN_YEARS_S, help="seconds of processor time"),
    Limit(capability="memory", field="mem_bytes", flag="--memory", unit=Unit.BYTES,
          largest=2**62, help="memory of the whole tree"),
    Limit(capability="pids", field="pids_max", flag="--pids", unit=Unit.COUNT,
          largest=2**22, help="processes and threads at one time"),
    Limit(capability="nofile", field="nofile", flag="--nofile", unit=Unit.COUNT,
          largest=2**20, help="open descriptors per process"),
    Limit(capability="output", field="output_bytes", flag="--output", unit=Unit.BYTES,
          largest=2**40, help="bytes of each output stream, or unlimited"),
    Limit(capability="disk", field="disk_bytes", flag="--disk", unit=Unit.BYTES,
          largest=2**62, help="bytes written to disk, or unlimited"),
    Limit(capability="file_size", field="file_bytes", flag="--file-size", unit=Unit.BYTES,
          largest=2**62, help="size of any one file"),
    Limit(capability="cpu_share", field="cpu_share", flag="--cpu-share", unit=Unit.CORES,
          largest=4096, help="processor cores it may keep busy, such as 0.5"),
    Limit(capability="io", field="io_bytes_per_s", flag="--io", unit=Unit.BYTES,
          largest=2**62, help="bytes per second from disk, and the same to disk"),
)  # fmt: skip
STRICT_DISK_BYTES = 10 * GIB
"""What a job at isolation ``strict`` may write if its policy does not say; a guest must not fill the host's disk."""
UNLIMITED, UNLIMITED_BYTES, UNLIMITED_OUTPUT = "unlimited", 2**62, 2**40
"""How a policy says that a job may write as much as there is room for, or print without end."""
LIMIT_OF = {limit.capability: limit for limit in LIMITS}


def disk_rule(disk_bytes: int | None, isolation: IsolationLevel) -> int | None:
    """The bytes that may be written to disk, even if the policy does not say; None: not limited."""
    return STRICT_DISK_BYTES if disk_bytes is None and isolation is IsolationLevel.STRICT else disk_bytes


def disk_in_container(disk_bytes: int | None, mem_bytes: int) -> int:
    """The bytes that a job at isolation ``container`` may write, even if the policy does not say."""
    return mem_bytes // 2 if disk_bytes is None else disk_bytes


def disk_of_a_box(disk_bytes: int | None, mem_bytes: int, isolation: IsolationLevel) -> int | None:
    """The bytes that jobs may write to the working copies of a box, even if the policy does not say; None: not
    limited."""
    if isolation is IsolationLevel.CONTAINER:
        return disk_in_container(disk_bytes, mem_bytes)
    return disk_rule(disk_bytes, isolation)


def _split_unit(text: str) -> tuple[str, str]:
    body = text.strip()
    digits = body.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    if not digits or not digits.isascii() or not digits.replace(".", "", 1).isdigit():
        raise ValueError(text)
    return digits, body[len(digits) :].strip().upper()


def parse_size(text: str) -> int:
    """Read ``512M``, ``1.5GiB`` or ``1000`` as a number of bytes; ValueError otherwise."""
    digits, unit = _split_unit(text)
    if unit not in _SIZE_UNITS:
        raise ValueError(text)
    if digits.isdigit():
        return int(digits) * _SIZE_UNITS[unit]  # exact: a float would round what is above 2**53
    size = float(digits) * _SIZE_UNITS[unit]
    if size == float("inf"):
        raise ValueError(text)
    return int(size)


def parse_duration(text: str) -> float:
    """Read ``90``, ``1.5s``, ``10m`` or ``250ms`` as seconds; ValueError otherwise."""
    digits, unit = _split_unit(text)
    if unit not in _TIME_UNITS:
        raise ValueError(text)
    seconds = float(digits) * _TIME_UNITS[unit]
    return int(seconds) if seconds.is_integer() else seconds


def _read_size(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ValueError:
        raise ValueError(f'"{cut(value)}" is not a size; write 512M, 512MiB or a number of bytes') from None


def _read_duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError(f'"{cut(value)}" is not a time; write 30, 1.5s, 10m or 2h') from None


READ_UNIT: dict[Unit, Callable[[object], object]] = {Unit.BYTES: _read_size, Unit.SECONDS: _read_duration}
"""How the text of a number is read, by its unit; ValueError says what is wrong with it. Other values stay."""


def format_size(count: int) -> str:
    """Write a number of bytes as people read it: ``512 MiB``, ``1.5 GiB``, ``17 B``."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= factor:
            return f"{count / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} B"
