"""Pictures in the documents, from real output: ``python -m tests.pictures`` draws docs/pictures/demo.svg anew.

The picture is what ``make run`` prints, as a terminal shows it: no screenshot, so that a reader can select the text.
"""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from xml.sax.saxutils import escape, unescape

PATH = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "demo.svg"
COLUMNS = 108
_ROW, _CHARACTER, _MARGIN, _BAR = 19, 7.83, 20, 34
_COLOURS = {"✗": "#ff7b72", "✓": "#7ee787", "▸": "#79c0ff", "yes": "#7ee787", "no": "#ff7b72"}
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_LABEL = re.compile(r"^ +[✓✗] (.{1,36}?)  +", re.MULTILINE)
_FIGURES = re.compile(r"\d[\d.,]*")
_OF_THE_HOST = re.compile(r"(  (?:✗ (?:open|fork bomb|allocate)|yes  (?:memory|pids|readable_paths|hidden_paths)) ).*")
_KERNEL = re.compile(r"( on \w+ \d+\.\d+)[\w.+-]*")


def printed() -> str:
    """What ``ringfence demo`` prints here."""
    command = [sys.executable, "-P", "-m", "ringfence", "demo"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=True).stdout


def labels(text: str) -> list[str]:
    """What was tried, by the first column of what is printed or drawn."""
    return _LABEL.findall(re.sub("<[^>]+>", "", text))


def differing(picture: str, text: str) -> list[str]:
    """The rows of a picture that the output has in other words: figures may differ, and so may what a host enforces."""
    old, new = (re.findall(r"^<text [^>]*>(.*)</text>$", each, re.MULTILINE) for each in (picture, drawn(text)))
    rows = zip_longest(_masked(old), _masked(new), fillvalue="")
    return [row or other for row, other in rows if not _same(row, other)]


def _masked(rows: list[str]) -> list[str]:
    """Without figures, and without what only some hosts have: how they hold limits, and so how many runs it takes."""
    plain = (_FIGURES.sub("#", unescape(re.sub("<[^>]+>", "", row))) for row in rows)
    return [_OF_THE_HOST.sub(r"\1", row) for row in plain if not row.startswith("status ")]


def _same(row: str, other: str) -> bool:
    """Where one is cut, up to there."""
    length = min((len(each) - 1 for each in (row, other) if each.endswith("…")), default=None)
    return row[:length] == other[:length]


def drawn(text: str, *, command: str = "make run") -> str:
    """An SVG of a terminal that shows a command and its output; of the kernel's version its first two numbers."""
    lines = [f"$ {command}", *map(_cut, _KERNEL.sub(r"\1", text.rstrip("\n")).split("\n"))]
    width, height = round(COLUMNS * _CHARACTER + 2 * _MARGIN), _BAR + len(lines) * _ROW + _MARGIN
    dots = "".join(f'<circle cx="{22 + place * 18}" cy="17" r="6" fill="{colour}"/>'
                   for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")))  # fmt: skip
    rows = "".join(f'<text x="{_MARGIN}" y="{_BAR + place * _ROW + 14}">{_coloured(line)}</text>\n'
                   for place, line in enumerate(lines) if line)  # fmt: skip
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="{escape(command)}: a hostile script runs into its limits">\n'
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>{dots}\n'
            f'<g font-family="{_FONT}" font-size="13" fill="#c9d1d9" xml:space="preserve">\n'
            f"{rows}</g>\n</svg>\n")  # fmt: skip


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…"


def _coloured(line: str) -> str:
    """The line, with its first word coloured where that is a sign or an answer."""
    blank, word, rest = re.fullmatch(r"( *)(\S+)(.*)", line).groups()  # type: ignore[union-attr]
    colour = _COLOURS.get(word)
    return f'{blank}<tspan fill="{colour}">{word}</tspan>{escape(rest)}' if colour else escape(line)


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(drawn(printed()), encoding="utf-8")
