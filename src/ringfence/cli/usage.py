"""Draw what a run used over time: on the terminal, as a picture, or as JSON."""

from __future__ import annotations

import os

from ringfence.errors import UsageError
from ringfence.model.own_files import write_whole
from ringfence.model.printed import graph, harmless, levels
from ringfence.monitor import usage_log
from ringfence.monitor.usage_curves import curves_of, duration_s, title
from ringfence.monitor.usage_log import RecordedRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  ringfence run --usage -- make test          samples go to the state directory; the id is printed
  ringfence usage 3f2a                        a graph in the terminal
  ringfence usage 3f2a --png                  a picture, usage-3f2a.png
  ringfence run --usage-file u.jsonl -- make && ringfence usage u.jsonl --svg usage.svg
"""

_GRAPH_WIDTH = 60


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the id that run --usage printed, or a file of run --usage-file")
    form = parser.add_mutually_exclusive_group()
    for kind in ("png", "svg"):
        form.add_argument(f"--{kind}", nargs="?", const="", metavar="OUT",
                          help=f"write a picture; without OUT to ./usage-RUN.{kind}")  # fmt: skip
    form.add_argument("--json", action="store_true", help="print all samples as JSON")


def execute(arguments: argparse.Namespace) -> int:
    path = _path(arguments.run)
    recorded = usage_log.read(path)
    if arguments.png is not None:
        from ringfence.cli import usage_png

        _save(arguments.png, path, "png", usage_png.picture(recorded))
    elif arguments.svg is not None:
        from ringfence.monitor import usage_svg

        _save(arguments.svg, path, "svg", usage_svg.picture(recorded).encode())
    elif arguments.json:
        from ringfence.cli.json_text import print_json

        print_json(to_dict(recorded))
    else:
        print("\n".join(lines(recorded)))
    return 0


def _path(name: str) -> str:
    """A file, or the only recorded run whose id begins so."""
    if os.path.exists(name) or os.sep in name:
        return name
    from ringfence.cli.usage_recording import ENDING, recorded

    found = [path for path in recorded() if os.path.basename(path).startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(os.path.basename(path).removesuffix(ENDING) for path in found)
        raise UsageError(f"the ID {name} is ambiguous: {names}", hint="write more of it")
    raise UsageError(f"{name}: no such file, and no run was recorded under that id",
                     hint="record one: ringfence run --usage -- COMMAND")  # fmt: skip


def to_dict(recorded: RecordedRun) -> dict[str, object]:
    samples = [sample._asdict() for sample in recorded.samples]
    return {"about": dict(recorded.about), "samples": samples, "end": dict(recorded.end)}


def lines(recorded: RecordedRun) -> list[str]:
    """A graph of each figure, with its peak."""
    shown = [title(recorded)]
    for curve in curves_of(recorded):
        values = _evenly(recorded, curve.values(recorded.samples))
        drawn = graph(values, _GRAPH_WIDTH, characters=levels())
        shown.append(f"  {curve.name:<10}{drawn:<{_GRAPH_WIDTH}}  at most {curve.words(max(values, default=0.0))}")
    return shown


def _evenly(recorded: RecordedRun, values: list[float]) -> list[float]:
    """Spread samples by time, not by number: later ones may lie further apart."""
    whole_s = duration_s(recorded)
    if whole_s <= 0:
        return values
    columns: list[list[float]] = [[] for _ in range(_GRAPH_WIDTH)]
    for sample, value in zip(recorded.samples, values, strict=True):
        columns[min(_GRAPH_WIDTH - 1, int(sample.time_s / whole_s * _GRAPH_WIDTH))].append(value)
    even: list[float] = []
    for column in columns:
        even.append(max(column) if column else even[-1] if even else 0.0)
    return even


def _save(name: str, path: str, kind: str, content: bytes) -> None:
    """Save a picture of the recording at ``path``; a picture without a name gets one, which is printed."""
    from ringfence.cli.usage_recording import ENDING

    chosen = name or f"usage-{os.path.basename(path).removesuffix(ENDING)}.{kind}"
    _write(chosen, content)
    if not name:
        print(f"see {harmless(chosen, 200)}")


def _write(path: str, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
