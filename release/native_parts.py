"""Whether a wheel's tag is true: what it says of machine and C library, against the native parts inside.

A part that asks for no library and no loader runs with every C library, so manylinux and musllinux are both true of it.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

PARTS = ("calls", "first", "init", "visits")
_MACHINES = {62: "x86_64", 183: "aarch64"}
_PAGE = {"x86_64": 4096, "aarch64": 65536}
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED = 1


class Untrue(Exception):
    """What a wheel says of itself and is not so."""


def check_wheel(path: Path, architecture: str | None) -> None:
    """Raise Untrue unless the wheel has all parts for this architecture, and no other; None: it has none."""
    with zipfile.ZipFile(path) as archive:
        found = {name.removeprefix("ringfence/native/"): archive.read(name) for name in archive.namelist()
                 if archive.read(name)[:4] == b"\x7fELF"}  # fmt: skip
    wanted = {_name(part, architecture) for part in PARTS} if architecture else set()
    if set(found) != wanted:
        raise Untrue(f"{path.name} has the native parts {sorted(found)}, and should have {sorted(wanted)}")
    for name, data in found.items():
        for problem in problems(data, str(architecture)):
            raise Untrue(f"{path.name}: {name} {problem}")


def problems(data: bytes, architecture: str) -> list[str]:
    """Return what is wrong with one part: its machine, a library or loader that it asks for, its alignment."""
    (machine,) = struct.unpack_from("<H", data, 18)
    if _MACHINES.get(machine) != architecture:
        return [f"is for the machine {machine}"]
    (start,), (size, count) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<HH", data, 54)
    told = []
    for place in range(start, start + size * count, size):
        kind, _, offset, _, _, length, _, align = struct.unpack_from("<IIQQQQQQ", data, place)
        if kind == _INTERPRETER:
            told.append("asks for a loader")
        elif kind == _LOAD and align < _PAGE[architecture]:
            told.append(f"is aligned to {align}, and pages have up to {_PAGE[architecture]} bytes")
        elif kind == _DYNAMIC and _NEEDED in _tags(data[offset : offset + length]):
            told.append("asks for a library")
    return told


def _tags(section: bytes) -> list[int]:
    return [tag for tag, _ in struct.iter_unpack("<qQ", section)]


def _name(part: str, architecture: str) -> str:
    return f"{part}-{architecture}{'.so' if part == 'calls' else ''}"
