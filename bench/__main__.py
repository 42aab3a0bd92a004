"""``python -m bench [--effort short] [QUESTION …]``: every question, or the named ones; tables, JSON and pictures."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType

import bench
from bench.harness import Effort
from bench.report import RESULTS, environment, report


def questions() -> dict[str, ModuleType]:
    """By name, of every module in this directory that asks one."""
    names = (module.name for module in pkgutil.iter_modules(bench.__path__) if module.name != "__main__")
    modules = {name: importlib.import_module(f"bench.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "QUESTION")}


def main(arguments: list[str] | None = None) -> int:
    known = questions()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(known))
    parser.add_argument("--effort", choices=[each.name.lower() for each in Effort], default="full",
                        help="short: fewer turns; tiny: one, to see that it runs")  # fmt: skip
    parser.add_argument("--results", type=Path, default=RESULTS, help="where JSON and pictures go")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.questions if name not in known]
    if unknown:
        parser.error(f"no such question: {', '.join(unknown)}; there are {', '.join(known)}")
    effort = Effort[asked.effort.upper()]
    failed = [name for name in asked.questions or known if not _asked(name, known[name], effort, asked.results)]
    if failed:
        print(f"\nno answer to {', '.join(failed)}: see above", file=sys.stderr)
    return 1 if failed else 0


def _asked(name: str, module: ModuleType, effort: Effort, folder: Path) -> bool:
    """One question that fails must not cost the answers to the others."""
    before = environment()
    try:
        answer = module.ask(effort)
    except Exception:
        traceback.print_exc()
        return False
    report(name, module.QUESTION, answer, before=before, effort=effort, folder=folder)
    return True


if __name__ == "__main__":
    sys.exit(main())
