"""The part of a report that shows texts of others: the diff, what grading said, and logs, cut where they are long.

A log may hold bytes that steer a terminal, reverse lines or look like HTML: they are shown, and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ringfence.model.limits import format_size
from ringfence.model.printed import json_text
from ringfence.model.record import record
from ringfence.proctor.report.markup import Markup, element, inside, quoted
from ringfence.proctor.report.record import Panel, more_than, table

MOST_BYTES = 64 << 10
"""Of each end of a log."""
MOST_DIFF_BYTES, MOST_DIFF_LINES = 512 << 10, 5000
MOST_LEFT_OUT = 200
_LONGEST_LINE = 2000
_HEADS = ("file", "file first")
_IN_HUNK = {"+": "add", "-": "del"}
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@record
class Log:
    """A stream of a phase."""

    name: str
    """As the artifact is called: ``agent.stdout``."""
    data: bytes
    dropped: int = 0
    """Bytes that were printed and not kept."""


def changes(diff: bytes, left_out: Sequence[tuple[str, str]]) -> Panel:
    """Return what the agent changed, and which changes were left out of grading."""
    body = [_diff(diff)] if diff else [element("p", "The agent changed nothing.", class_="quiet")]
    if left_out:
        rows = [(element("code", path), reason) for path, reason in left_out[:MOST_LEFT_OUT]]
        body += [element("h4", "Not taken over into grading"), table(("Path", "Why"), rows),
                 more_than(len(left_out), MOST_LEFT_OUT, "grading.json has all of them")]  # fmt: skip
    return Panel(place="changes", title="What was changed", body=inside(body), count=format_size(len(diff)))


def grading(details: Mapping[str, object]) -> Panel | None:
    """Return what is in grading.json; None: nothing is."""
    if not details:
        return None
    body = element("pre", _cut(json_text(dict(details)).encode("utf-8")), class_="log")
    return Panel(place="grading", title="Grading", body=body)


def logs(found: Sequence[Log]) -> Panel | None:
    """Return each log behind a fold; None: there is none."""
    if not found:
        return None
    note = element("p", "What steers a terminal is shown as an escape.", class_="quiet")
    return Panel(place="logs", title="Logs", body=inside(note, [_log(log) for log in found]), count=str(len(found)))


def _log(log: Log) -> Markup:
    told = format_size(len(log.data)) if log.data else "empty"
    more = f", {format_size(log.dropped)} more were not kept" if log.dropped else ""
    summary = element("summary", element("code", log.name), element("span", told + more, class_="quiet"))
    return element("details", summary, element("pre", _cut(log.data), class_="log") if log.data else "")


def _cut(data: bytes) -> Markup:
    """Both ends of what is long, with what was left out between them."""
    middle = len(data) - 2 * MOST_BYTES
    if middle <= 0:
        return _readable(data)
    gap = element("span", f"… {format_size(middle)} are not shown here …", class_="esc")
    return inside(_readable(data[:MOST_BYTES]), Markup("\n"), gap, Markup("\n"), _readable(data[-MOST_BYTES:]))


def _readable(data: bytes) -> Markup:
    return quoted(data.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))


def _diff(diff: bytes) -> Markup:
    lines = diff[:MOST_DIFF_BYTES].decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
    rows = [_row(line, kind) for line, kind in zip(lines[:MOST_DIFF_LINES], _kinds(lines), strict=False)]
    cut = len(diff) > MOST_DIFF_BYTES or len(lines) > MOST_DIFF_LINES
    rest = element("p", "This is not all of it: final.diff has the rest.", class_="quiet") if cut else ""
    return inside(element("pre", rows, class_="diff"), rest)


def _kinds(lines: Sequence[str]) -> Iterator[str]:
    """The kind of each line. A hunk says how many lines it has, so none of them is taken for a file header."""
    old = new = 0
    before = ""
    for line in lines:
        if old > 0 or new > 0:
            kind = _IN_HUNK.get(line[:1], "")
            old -= kind != "add" and line[:1] != "\\"
            new -= kind != "del" and line[:1] != "\\"
        elif found := _HUNK.match(line):
            kind = "hunk"
            old, new = (int(count or 1) for count in found.groups())
        else:
            kind = "" if line[:1] in ("\\", "") else "file" if before in _HEADS else "file first"
        before = kind
        yield kind


def _row(line: str, kind: str) -> Markup:
    shown = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
    return element("span", quoted(shown) or Markup(" "), class_=f"row {kind}".strip())
