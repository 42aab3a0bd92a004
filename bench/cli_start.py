"""What does it cost to type ``ringfence run -- /bin/true``, at each level, against starting a bare interpreter?"""

from __future__ import annotations

import compileall
import subprocess
import sys
from functools import partial
from pathlib import Path

import ringfence
from bench.harness import Answer, Effort, race, timed_ms

PROCESS, STRICT = "ringfence run, process", "ringfence run, strict"
QUESTION = "ringfence run -- /bin/true against python -I -S -c pass"


def ask(effort: Effort) -> Answer:
    compileall.compile_dir(Path(ringfence.__file__).parent, quiet=2)  # as an installation from a wheel has it
    commands = {
        "python -I -S -c pass": [sys.executable, "-I", "-S", "-c", "pass"],
        "python -c pass": [sys.executable, "-c", "pass"],
        PROCESS: [*_ringfence(), "run", "--isolation", "process", "--", "/bin/true"],
        STRICT: [*_ringfence(), "run", "--strict", "--", "/bin/true"],
    }
    turns = {name: timed_ms(partial(_call, words)) for name, words in commands.items()}
    return Answer(tables=(race("command line", turns, turns=effort.pick(40, 10)),))


def _ringfence() -> list[str]:
    """The script beside the interpreter, where an installation puts it; without one, the module."""
    script = Path(sys.executable).parent / "ringfence"
    return [str(script)] if script.exists() else [sys.executable, "-P", "-m", "ringfence"]


def _call(words: list[str]) -> None:
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True)
