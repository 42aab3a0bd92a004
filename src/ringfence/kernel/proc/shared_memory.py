"""What memory of this process its forks would share with it, and with each other."""

from __future__ import annotations

_SHARED = "s"
_MAY_WRITE, _NOT_IN_FORKS = "mw", "dc"
_FLAGS = "VmFlags:"


def written_by_forks() -> frozenset[str]:
    """Each mapping that is shared and that a fork may write to, at once or after mprotect, as /proc/self/maps has it.

    A shared mapping of a file that was opened for reading stays as it is. OSError: nothing can be read.
    """
    shared = [line.rstrip("\n") for line in _lines("maps") if _permissions(line).endswith(_SHARED)]
    if not shared:
        return frozenset()
    flags = _flags()
    return frozenset([line for line in shared if _counts(flags.get(_range(line)))])


def _counts(flags: frozenset[str] | None) -> bool:
    """None: a kernel that shows no flags, or a mapping that has changed since; then nobody knows better."""
    return flags is None or (_MAY_WRITE in flags and _NOT_IN_FORKS not in flags)


def _flags() -> dict[str, frozenset[str]]:
    """Range → what the kernel notes of each mapping."""
    found, place = {}, ""
    for line in _lines("smaps"):
        if line.startswith(_FLAGS):
            found[place] = frozenset(line[len(_FLAGS) :].split())
        elif not _range(line).endswith(":"):
            place = _range(line)
    return found


def _range(line: str) -> str:
    return line.partition(" ")[0]


def _permissions(line: str) -> str:
    return line.split(None, 2)[1]


def _lines(name: str) -> list[str]:
    """A name in it may have any byte but a line end, which the kernel writes in another way."""
    try:
        with open(f"/proc/self/{name}", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            return file.readlines()
    except FileNotFoundError:
        if name == "maps":
            raise
        return []
