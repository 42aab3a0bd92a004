"""What does it cost to type ``ringfence run -- /bin/true``, at each level, against starting a bare interpreter?"""

from __future__ import annotations

import compileall
import subprocess
import sys
from functools import partial
from pathlib import Path

import ringfence
from bench import installing, peers
from bench.harness import Answer, Effort, NotHere, Table, race, timed_ms

NONE, PROCESS, STRICT = "ringfence run, none", "ringfence run, process", "ringfence run, strict"
QUESTION = "ringfence run -- /bin/true against python -I -S -c pass"


def ask(effort: Effort) -> Answer:
    compileall.compile_dir(Path(ringfence.__file__).parent, quiet=2)  # as an installation from a wheel has it
    commands = {
        "python -I -S -c pass": [sys.executable, "-I", "-S", "-c", "pass"],
        "python -c pass": [sys.executable, "-c", "pass"],
        NONE: [*_ringfence(), "run", "--isolation", "none", "--allow-partial", "--quiet", "--", "/bin/true"],
        PROCESS: [*_ringfence(), "run", "--isolation", "process", "--", "/bin/true"],
        STRICT: [*_ringfence(), "run", "--strict", "--", "/bin/true"],
    }
    return Answer(tables=(_raced("command line", commands, effort), *_beside_bubblewrap(effort)))


def _beside_bubblewrap(effort: Effort) -> tuple[Table, ...]:
    """The same snippet, each typed once; nothing where bubblewrap is not to be had."""
    snippet = [peers.PYTHON, "-c", "pass"]
    try:
        program = installing.from_debian("bwrap", ["bubblewrap"])
    except NotHere:
        return ()
    commands = {
        "bubblewrap + python3, same mounts": [program, *peers.same_mounts(), *snippet],
        STRICT: [*_ringfence(), "run", "--strict", "--", *snippet],
    }
    return (_raced("command line, python3 -c pass in a sandbox", commands, effort),)


def _raced(title: str, commands: dict[str, list[str]], effort: Effort) -> Table:
    turns = {name: timed_ms(partial(_call, words)) for name, words in commands.items()}
    return race(title, turns, turns=effort.pick(40, 10))


def _ringfence() -> list[str]:
    """The script beside the interpreter, where an installation puts it; without one, the module."""
    script = Path(sys.executable).parent / "ringfence"
    return [str(script)] if script.exists() else [sys.executable, "-P", "-m", "ringfence"]


def _call(words: list[str]) -> None:
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True)
