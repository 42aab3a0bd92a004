"""Finds what an image's Python imports though no script names it: by its .pth files, and as plug-ins of its pytest.

Only the image is read. What its packages say of themselves is taken as it is: names to protect, and no path.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator

Names = Callable[[str], list[str]]
"""The names in a directory of the image; none where it has no such directory."""
Read = Callable[[str], bytes]
"""The content of a file of the image; empty where it has no such file."""

_METADATA = (".dist-info", ".egg-info")
_PYTHON = re.compile(r"python\d(?:\.\d+)?")
_LIBRARIES, _PACKAGES = ("lib", "lib64"), ("site-packages", "dist-packages")
_IN_LIBRARY = re.compile(r"((?:[^/]+/)*?)lib(?:64)?/python\d")
_TOPS = ("usr", "usr/local", "root/.local")
_IMPORTED = re.compile(r"(?:\bimport\b|\bfrom\b|__import__|import_module)[\s('\"]*(\w+(?:\s*,\s*\w+)*)")
_GROUP = "[pytest11]"
_NEEDED = {"pytest_cov": ("coverage",)}
"""What a plug-in measures the script itself with."""


def imported(folders: Iterable[str], paths: Iterable[str], names: Names, read: Read) -> frozenset[str]:
    """Modules in small letters, for directories of programs and for paths that an agent changed."""
    tops = {*_TOPS, *(folder.removesuffix("/bin") for folder in folders)}
    tops |= {beside[1].rstrip("/") for path in paths if (beside := _IN_LIBRARY.match(path))}
    found = {name.lower() for top in tops for folder in _packages(top, names) for name in _of(folder, names, read)}
    needed = {each for name in found for each in _NEEDED.get(name, ())}
    return frozenset(found | needed) - sys.stdlib_module_names


def _packages(top: str, names: Names) -> Iterator[str]:
    for library in (f"{top}/{name}".lstrip("/") for name in _LIBRARIES):
        for python in filter(_PYTHON.fullmatch, names(library)):
            yield from (f"{library}/{python}/{name}" for name in _PACKAGES)


def _of(folder: str, names: Names, read: Read) -> Iterator[str]:
    for name in names(folder):
        if name.endswith(".pth"):
            yield from _run(read(f"{folder}/{name}"))
        elif name.lower().endswith(_METADATA):
            yield from _plugins(f"{folder}/{name}", read)


def _run(pth: bytes) -> Iterator[str]:
    """What its lines import, also in texts that they execute."""
    for found in _IMPORTED.finditer(pth.decode("utf-8", "replace")):
        yield from re.split(r"\s*,\s*", found[1])


def _plugins(metadata: str, read: Read) -> Iterator[str]:
    """If a package has plug-ins: their modules, and all others that came with them; also its own name, so that what it
    says of itself stays as well."""
    group = _text(read, f"{metadata}/entry_points.txt").partition(_GROUP)[2].partition("\n[")[0]
    if not group:
        return
    yield metadata.rpartition("/")[2].partition("-")[0]
    yield from re.findall(r"=\s*(\w+)", group)
    for file in ("RECORD", "top_level.txt"):
        for line in _text(read, f"{metadata}/{file}").splitlines():
            yield from filter(str.isidentifier, [re.split("[/,.]", line.strip(), maxsplit=1)[0]])


def _text(read: Read, path: str) -> str:
    return read(path).decode("utf-8", "replace")
