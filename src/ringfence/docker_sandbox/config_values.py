"""What one value of the configuration may be. Each check returns it, made uniform, or a ValueError that says why.

No type is converted silently: true is not a number, and neither is a quoted number.
"""

from __future__ import annotations

import math
import re

from ringfence.engine.run import isolating_levels, traits_of
from ringfence.model.limits import parse_size
from ringfence.model.system_text import is_system_text

LEAST_MEMORY, LARGEST = 6 << 20, 1 << 62
"""An engine takes no less memory than that."""
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,254}")
_ACCOUNT = re.compile(r"\d{1,9}(:\d{1,9})?")
_RUNTIME = re.compile(r"[A-Za-z0-9._-]{0,64}")
_MODE = re.compile(r"mode=[0-7]{3,4}|(uid|gid)=\d{1,9}")
_OPTIONS = frozenset({"rw", "noexec", "exec", "nosuid", "nodev", "noatime"})
_KERNELS = ("/proc", "/sys", "/dev", "/input", "/output")
_NETWORKS = ("none", "bridge")
_ENGINES = ("unix://", "tcp://", "ssh://", "http+unix://")
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def flag(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} must be true or false")
    return value


def size(value: object) -> object:
    """``2g``, ``512m`` or a number of bytes; the text stays as it was written."""
    count = size_bytes(value)
    if count <= 0:
        raise ValueError(f"{value!r} must be greater than 0")
    if count > LARGEST:
        raise ValueError(f"{value!r} is more than any machine has")
    return str(value)


def memory(value: object) -> object:
    text = size(value)
    if size_bytes(value) < LEAST_MEMORY:
        raise ValueError(f"{value!r} is too little: an engine takes no less than 6m")
    return text


def memory_or_same(value: object) -> object:
    """Nothing: as much as ``memory_limit``, so that nothing is swapped."""
    return "" if value in ("", None) else memory(value)


def size_bytes(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return parse_size(value) if isinstance(value, str) else _refuse(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a size; write 512m, 2g or a number of bytes") from None


def _refuse(value: object) -> int:
    raise ValueError(value)


def cores(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number of processor cores, such as 0.5")
    if not math.isfinite(value) or not 0.01 <= value <= 4096:
        raise ValueError(f"{value!r} must be between 0.01 and 4096 cores")
    return float(value)


def _whole(value: object, least: int, most: int) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} must be a whole number")
    if not least <= value <= most:
        raise ValueError(f"{value} must be between {least} and {most}")
    return value


def seconds(value: object) -> object:
    return _whole(value, 1, 7 * 24 * 3600)


def count(value: object) -> object:
    return _whole(value, 1, 100_000)


def count_or_none(value: object) -> object:
    return _whole(value, 0, 100_000)


def port(value: object) -> object:
    return _whole(value, 1, 65_535)


def _matching(value: object, pattern: re.Pattern[str], what: str) -> object:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{value!r} must be {what}")
    return value


def image(value: object) -> object:
    return _matching(value, _IMAGE, "the name of an image, such as python:3.10-slim")


def account(value: object) -> object:
    return _matching(value, _ACCOUNT, "a user by number, such as 65534:65534")


def runtime(value: object) -> object:
    return _matching(value, _RUNTIME, "the name of a runtime, such as runsc")


def network(value: object) -> object:
    if isinstance(value, list):
        raise ValueError("a list of hosts can't be enforced here: use ringfence run --strict --network")
    if value not in _NETWORKS:
        raise ValueError(f"{value!r} must be one of {', '.join(_NETWORKS)}; other networks are not the container's own")
    return value


def mount_point(value: object) -> object:
    parts = value.split("/") if isinstance(value, str) and is_system_text(value) else []
    if len(parts) < 2 or parts[0] or "" in parts[1:] or {".", ".."} & {*parts} or ":" in str(value):
        raise ValueError(f"{value!r} must be an absolute path without .. and :, such as /tmp")
    if f"/{parts[1]}" in _KERNELS:
        raise ValueError(f"{value!r} must not be in {', '.join(_KERNELS)}")
    return value


def mount_options(value: object) -> object:
    words = value.split(",") if isinstance(value, str) else [""]
    wrong = [word for word in words if word not in _OPTIONS and not _MODE.fullmatch(word)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} must be one of {', '.join(sorted(_OPTIONS))}, mode=, uid=, gid=")
    return value


def text(value: object) -> object:
    if not isinstance(value, str) or not is_system_text(value):
        raise ValueError(f"{value!r} must be a path")
    return value


def profile(value: object) -> object:
    if value in ("", "unconfined"):
        raise ValueError(f"{value!r} would disable the system call filter; write default or name a file")
    return text(value)


def level(value: object) -> object:
    ours = [level for level in isolating_levels() if not traits_of(level).by_engine]
    if value not in ours:
        raise ValueError(f"{value!r} must be one of {', '.join(ours)}")
    return str(value)


def engine(value: object) -> object:
    if value != "" and not str(text(value)).startswith(_ENGINES):
        raise ValueError(f"{value!r} must be the address of an engine, such as unix:///run/docker.sock")
    return value


def flag_of_text(word: str) -> object:
    """A flag as environment variables are written."""
    return _WORDS.get(word.strip().lower(), word)


def number_of_text(word: str) -> object:
    for kind in (int, float):
        try:
            return kind(word) if "_" not in word else word
        except ValueError:
            continue
    return word
