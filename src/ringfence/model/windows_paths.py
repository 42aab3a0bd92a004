"""Paths of Windows as rules: which names are what they seem, and how to write a path so that Windows takes it
literally.

Pure, and the same on any system. Windows takes a path apart in many ways: ``C:x`` is below the current directory of a
drive, ``NUL.txt`` is a device, ``a.txt:b`` a second stream of a file, ``a. `` is ``a``. None of them is accepted.
"""

from __future__ import annotations

import ntpath

from ringfence.errors import UsageError

EXTENDED, EXTENDED_UNC, _DEVICE = "\\\\?\\", "\\\\?\\UNC\\", "\\\\.\\"
_DIGITS = "123456789\xb9\xb2\xb3"
RESERVED = frozenset({"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$",
                      *(f"{port}{digit}" for port in ("COM", "LPT") for digit in _DIGITS)})  # fmt: skip
"""Devices, in any directory and with any ending."""
_FORBIDDEN = frozenset('<>"|?*')
MOST_NAME, MOST_PATH = 255, 32_000
"""UTF-16 units."""


def problem(name: str) -> str:
    """Return why one part of a path is not the plain name of a file or directory; nothing: it is."""
    if name in ("", ".", ".."):
        return "it is not a name"
    if "/" in name or "\\" in name:
        return "it is more than one name"
    if ":" in name:
        return "a colon names an alternate data stream or a drive"
    if any(sign in _FORBIDDEN or sign < " " for sign in name):
        return "it has a character that no name may have"
    if name[-1] in ". ":
        return "Windows drops a dot or blank at its end"
    if name.split(".")[0].rstrip(" ").upper() in RESERVED:
        return "it is the name of a device"
    if units(name) > MOST_NAME:
        return f"it is longer than {MOST_NAME} characters"
    return ""


def units(text: str) -> int:
    """Return its length as Windows counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def kind(path: str) -> str:
    r"""Return what a path begins with: ``drive`` (C:\x), ``unc`` (\\server\share\x), ``device`` (\\.\x, \\?\x),
    ``drive-relative`` (C:x), ``rooted`` (\x) or ``relative``."""
    path = path.replace("/", "\\")
    if path.startswith((EXTENDED, _DEVICE, "\\??\\")):
        return "device"
    if path.startswith("\\\\"):
        return "unc"
    if path[1:2] == ":" and path[0].isascii() and path[0].isalpha():
        return "drive" if path[2:3] == "\\" else "drive-relative"
    return "rooted" if path.startswith("\\") else "relative"


def checked(path: str) -> str:
    r"""Return an absolute path in its one spelling: upper-case drive letter, backslashes, no ``.``, ``..`` or end that
    Windows would drop. UsageError if it is not absolute, or leads to a device or a stream."""
    plain = _without_prefix(path.replace("/", "\\"))
    found = kind(plain)
    if found not in ("drive", "unc"):
        raise UsageError(f"{path!r} is not an absolute path of a drive or share", hint=r"write C:\folder")
    drive, rest = ntpath.splitdrive(plain)
    if found == "unc" and len([part for part in drive.split("\\") if part]) != 2:
        raise UsageError(f"{path!r} names no share", hint=r"write \\server\share\folder")
    parts = [part for part in rest.split("\\") if part]
    for part in (*(drive.split("\\")[2:] if found == "unc" else ()), *parts):
        why = problem(part)
        if why:
            raise UsageError(f"{path!r}: {part!r} can't be a part of a path on Windows: {why}")
    whole = (drive.upper() if found == "drive" else drive) + "\\" + "\\".join(parts)
    if units(whole) > MOST_PATH:
        raise UsageError(f"the path is longer than {MOST_PATH:,} characters")
    return whole


def _without_prefix(path: str) -> str:
    if path.upper().startswith(EXTENDED_UNC):
        return "\\\\" + path[len(EXTENDED_UNC) :]
    return path.removeprefix(EXTENDED)


def extended(path: str) -> str:
    r"""Return the path as Windows takes it literally and at any length: ``\\?\C:\x``, ``\\?\UNC\server\share\x``. What
    has that form stays as it is."""
    if path.startswith(EXTENDED):
        return path
    plain, found = path.replace("/", "\\"), kind(path)
    if found == "unc":
        return EXTENDED_UNC + plain[2:]
    return EXTENDED + plain if found == "drive" else path


def fold(path: str) -> str:
    """Return what two spellings of one path have in common: NTFS ignores case, character by character."""
    return "".join(large if len(large := sign.upper()) == 1 else sign for sign in path.replace("/", "\\"))


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a directory or lies below it."""
    inner, outer = fold(path).rstrip("\\"), fold(folder).rstrip("\\")
    return inner == outer or inner.startswith(outer + "\\")
