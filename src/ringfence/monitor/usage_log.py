"""What one run used over time, as a file: JSON lines, first what was run, then samples, last how it ended.

Kept in memory while the run goes on, some MiB at most, and put in its place when it has ended: a guest that works in
that directory finds nothing to replace. When read it is not trusted: reading is bounded, and every line is checked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from io import BytesIO
from itertools import chain, pairwise
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.files import read_file
from ringfence.model.own.reserved_file import ReservedFile
from ringfence.model.record import record
from ringfence.monitor.limits import is_figure
from ringfence.monitor.sample import Sample

FORMAT = 1
MAX_BYTES = 64 * 2**20
DENSE_LINES = 2048
"""This many samples are written as they come; then every second one, for as many again, then every fourth."""


class UsageLog:
    """What is being recorded."""

    def __init__(self, path: str, about: Mapping[str, object]) -> None:
        """UsageError if no file can be made at the path."""
        self._place = ReservedFile(path)
        self._lines: list[str] = []
        self._written = 0
        self._due = 0
        self._write({"ringfence_usage": FORMAT, "began": round(time.time(), 3), **about})

    @property
    def path(self) -> str:
        return self._place.path

    def add(self, sample: Sample) -> None:
        self._due += 1
        if self._due < 1 << self._written // DENSE_LINES:
            return
        self._due = 0
        self._written += 1
        self._write({name: round(value, 4) for name, value in sample._asdict().items()})

    def _write(self, line: Mapping[str, object]) -> None:
        self._lines.append(json.dumps(line) + "\n")

    def finish(self, end: Mapping[str, object]) -> None:
        """Write how it ended; the file exists from now on. UsageError, with nothing left, if it can't be written;
        ConflictError if somebody else has used its place."""
        self._write({"end": dict(end)})
        self._put()

    def move(self, path: str) -> None:
        """Put what was finished there in place of the first path."""
        self.abandon()
        self._place = ReservedFile(path)
        self._put()

    def _put(self) -> None:
        self._place.put("".join(self._lines).encode())
        self.abandon()

    def abandon(self) -> None:
        """Give up: nothing is written any more."""
        self._place.close()


@record
class RecordedRun:
    """A file that was read."""

    about: Mapping[str, object]
    samples: tuple[Sample, ...]
    end: Mapping[str, object] = MappingProxyType({})
    """How it ended; empty: the recording process was killed before."""


def read(path: str) -> RecordedRun:
    """Read a file; UsageError names the line if it is not such a file."""
    data = BytesIO(read_file(path, MAX_BYTES))  # line by line, up to the first bad one: there may be millions
    lines = (_object(path, number, line) for number, line in enumerate(data, start=1))
    about = next(lines, {})
    if about.get("ringfence_usage") != FORMAT:
        hint = "make one: ringfence run --usage-file FILE -- COMMAND"
        raise UsageError(f"{path}: not a usage file of ringfence", hint=hint)
    samples: list[Sample] = []
    end: object = None
    for line, following in pairwise(chain(lines, (None,))):
        end = line.get("end") if line and following is None else None
        if line is not None and not isinstance(end, dict):
            samples.append(_sample(path, len(samples) + 2, line))
    return RecordedRun(about=about, samples=tuple(samples), end=end if isinstance(end, dict) else {})


def _object(path: str, number: int, line: bytes) -> dict[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{path}:{number}: not a line of a usage file")
    return value


def _sample(path: str, number: int, line: Mapping[str, object]) -> Sample:
    values = [line.get(name) for name in Sample._fields]
    if set(line) != set(Sample._fields) or not all(map(is_figure, values)):
        raise UsageError(f"{path}:{number}: not a sample: {', '.join(Sample._fields)}, each a number, 0 or more")
    return Sample(**line)  # type: ignore[arg-type]
