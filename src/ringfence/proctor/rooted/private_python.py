"""This interpreter for a sandbox that has another root: its files at places of their own, started by its own loader.

The image may have no Python, another libc, or programs that an agent has replaced: nothing of it is used.
"""

from __future__ import annotations

import functools
import os
import struct
import subprocess
import sys
import sysconfig

from ringfence.errors import UnavailableError
from ringfence.model.record import record

TOP = "/ringfence"
_BINARY, _LIBRARIES = f"{TOP}/bin/python", f"{TOP}/so"
_ASK = "import ctypes, json, select, signal, struct, time; print(open('/proc/self/maps').read())"
_INTERP = 3
_SKIPPED = ("[", "/dev/", "/memfd:", "/anon")


@record
class PrivatePython:
    """``places``: path of the host, and the path inside. ``argv``: what starts it."""

    places: tuple[tuple[str, str], ...]
    argv: tuple[str, ...]


@functools.cache
def private_python() -> PrivatePython:
    """What this interpreter needs, as it says itself; asked once."""
    binary = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    standard = os.path.realpath(os.path.dirname(os.__file__))
    loader = _loader(binary)
    libraries = {os.path.realpath(path) for path in _mapped(binary)} - {binary}
    libraries = {path for path in libraries if not path.startswith(f"{standard}/") and _is_program(path)}
    if loader:
        libraries.add(os.path.realpath(loader))
    named = {path: f"{_LIBRARIES}/{_name(path)}" for path in sorted(libraries)}
    if len(set(named.values())) < len(named):
        raise UnavailableError("two libraries of this Python have the same name", missing=("root",))
    version = f"python{sysconfig.get_python_version()}{getattr(sys, 'abiflags', '')}"
    places = {binary: _BINARY, standard: f"{TOP}/lib/{version}", **named}
    started = (f"{_LIBRARIES}/{_name(os.path.realpath(loader))}", "--library-path", _LIBRARIES) if loader else ()
    return PrivatePython(places=tuple(places.items()), argv=(*started, _BINARY))


def _mapped(binary: str) -> set[str]:
    """The files that an interpreter has in its memory once it has loaded what its first process uses."""
    try:
        done = subprocess.run([binary, "-I", "-S", "-c", _ASK], capture_output=True, check=True, timeout=60, env={},
                              stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{binary} can't be started for a grader: {error}", missing=("root",)) from error
    rows = (line.split(None, 5) for line in os.fsdecode(done.stdout).split("\n"))
    return {row[5] for row in rows if len(row) == 6 and row[5].startswith("/") and not row[5].startswith(_SKIPPED)}


def _is_program(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _name(path: str) -> str:
    """The name by which others ask for a library, where it says one; the loader of old systems has another file's."""
    return _soname(path) or os.path.basename(path)


# ---- ELF, of files of this host's own interpreter; 64 bit, in the byte order of the host


def _loader(path: str) -> str:
    """The loader that a program names; empty: it is linked statically."""
    with open(path, "rb") as file:
        for kind, offset, _, size in _segments(file.read(1 << 16)):
            if kind == _INTERP:
                file.seek(offset)
                return os.fsdecode(file.read(size).rstrip(b"\0"))
    return ""


def _segments(head: bytes) -> list[tuple[int, int, int, int]]:
    """(kind, offset, address, size in the file) of each."""
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        raise UnavailableError("this Python is not a 64-bit program", missing=("root",))
    start, = struct.unpack_from("Q", head, 32)
    size, count = struct.unpack_from("HH", head, 54)
    rows = (struct.unpack_from("IIQQQQ", head, start + number * size) for number in range(count))
    return [(row[0], row[2], row[3], row[5]) for row in rows]


def _soname(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read()
    segments = _segments(data)
    dynamic = next(((offset, size) for kind, offset, _, size in segments if kind == 2), (0, 0))
    rows = [struct.unpack_from("QQ", data, dynamic[0] + place) for place in range(0, dynamic[1], 16)]
    found = dict(reversed(rows))
    if 14 not in found or 5 not in found:
        return ""
    for kind, offset, address, size in segments:
        if kind == 1 and address <= found[5] < address + size:
            begin = offset + found[5] - address + found[14]
            return os.fsdecode(data[begin : data.index(b"\0", begin)])
    return ""
