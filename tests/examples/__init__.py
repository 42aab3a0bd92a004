"""The examples in the documents, as tests read them.

Every fenced block of README.md, CONTRIBUTING.md and docs/ has a kind, and a test for its kind:

``console``
    Lines that begin with ``$ `` are commands, ``> `` continues one, the rest is what they print on both streams; ``…``
    stands for anything. Run as it stands.
``python``
    A script; a ``text`` block right under it is what it prints. Run as it stands.
``sh``, ``py``, ``yaml``, ``json``, ``dockerfile``, ``nginx``
    Needs something around it: files, a server, an engine, a framework. A test takes it from its page with ``written``,
    puts that around it, and runs it.
``text``, ``mermaid``
    No example: output, or a drawing.

``<!-- needs: NAME -->`` above a block: it needs a container engine or a framework, and is a ``long`` test.
``tests/examples/test_every_example.py`` lists what no test runs, each with its reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WILDCARD = "…"
AS_IT_STANDS = frozenset(("console", "python"))
STAGED = frozenset(("sh", "py", "yaml", "json", "dockerfile", "nginx"))
NO_EXAMPLE = frozenset(("text", "mermaid"))
GENERATED = frozenset(("docs/reference/command-line.md", "docs/reference/python-api.md"))
"""Signatures and help texts out of the code. tests/unit/test_docstrings.py runs the examples in docstrings."""
_BLOCK = re.compile(
    r"(?:^<!-- needs: ([\w-]+) -->\n)?^```(\w*)\n(.*?)^```\n(?:\n*```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    """One fenced block, and the ``text`` block right under it."""

    document: str
    number: int
    needs: str
    kind: str
    text: str
    below: str

    @property
    def name(self) -> str:
        return f"{self.document}-{self.number}-{self.kind}"


@cache
def blocks(document: str) -> tuple[Block, ...]:
    found = _BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    return tuple(Block(document, number, *parts) for number, parts in enumerate(found))


def pages(folder: str = "docs") -> list[str]:
    """The pages below a directory, without the decisions."""
    found = sorted(str(page.relative_to(ROOT)) for page in (ROOT / folder).rglob("*.md"))
    return [page for page in found if not page.startswith("docs/adr/")]


def block_with(document: str, words: str) -> Block:
    """The one block of a page that has these words."""
    found = [block for block in blocks(document) if words in block.text]
    assert len(found) == 1, f"{document}: {len(found)} blocks have {words!r}"
    return found[0]


def written(document: str, words: str) -> str:
    """What the one block of a page says that has these words: for a test that puts around it what it needs."""
    return block_with(document, words).text


def filled(text: str, **places: str) -> str:
    """An example with its placeholders filled in, each of which is there: ``HEAD``, ``ID``."""
    for name, value in places.items():
        assert name in text, f"there is no {name} in: {text}"
        text = text.replace(name, value)
    return text


def environment_of(folder: Path) -> dict[str, str]:
    """The caller's, with this interpreter and a ``ringfence`` and a ``proctor`` of its own first on the PATH."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, start in (("ringfence", "main"), ("proctor", "proctor_main")):
        code = f"import sys; from ringfence.cli import {start}; sys.exit({start}())"
        program(folder, name, f'exec {sys.executable} -P -c "{code}" "$@"')
    first = (str(commands), os.path.dirname(sys.executable))
    path = os.pathsep.join((*first, os.environ.get("PATH", os.defpath)))
    return os.environ | {"PATH": path, "LANG": "C.UTF-8", "XDG_STATE_HOME": str(folder / "state")}


def program(folder: Path, name: str, script: str) -> None:
    """Put a program of this name, a script of a shell, first on the PATH of ``environment_of``."""
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / name
    command.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    command.chmod(0o755)


def output_of(command: list[str], work: Path, environment: dict[str, str] | None = None) -> str:
    """What a command prints on both streams."""
    done = subprocess.run(
        command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    return done.stdout


def shell(text: str, folder: Path, more: dict[str, str] | None = None, *, timeout_s: float = 600) -> str:
    """Run a block of a shell in ``folder/work``, in which every command succeeds; what it prints on both streams."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=work, env=environment_of(folder) | (more or {}),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"exit status {done.returncode} of\n{text}\n---\n{done.stdout}"
    return done.stdout
