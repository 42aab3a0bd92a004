"""Which interpreter a script of a task names."""

from __future__ import annotations

from ringfence.model.files import read_file

_MOST_BYTES = 16 << 20


def interpreter(path: str) -> tuple[str, ...]:
    """Return the interpreter that the first line names; bash where it names none, as in the benchmarks."""
    first = read_file(path, _MOST_BYTES).partition(b"\n")[0].decode("utf-8", "replace").strip()
    return tuple(first[2:].split()) if first.startswith("#!") and first[2:].strip() else ("/bin/bash",)
