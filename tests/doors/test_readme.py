"""Every example in the documents is run as it stands there; what it prints must be what is written.

``console`` blocks: lines that begin with ``$ `` are commands, ``> `` continues one, the rest is what they
print on both streams; ``…`` stands for anything. ``python`` blocks are scripts; a ``text`` block right after
one is what it prints. ``sh`` blocks hold the make targets, whose recipes are looked at and not run: one
of them runs these tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    "README.md", "docs/boxes.md", "docs/policy.md", "docs/pool.md", "docs/manager.md", "docs/monitor.md",
    "docs/undo.md", "docs/safe-agent.md",
)  # fmt: skip
WILDCARD = "…"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n*```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_MARK = "--- end of one command ---"
_LINK = re.compile(r"\]\(([^)#:]+)\)")


class Block(NamedTuple):
    """One fenced block, and the ``text`` block right under it."""

    document: str
    number: int
    kind: str
    text: str
    below: str

    @property
    def name(self) -> str:
        return f"{self.document}-{self.number}-{self.kind}"


def blocks(document: str) -> list[Block]:
    found = _BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    return [Block(document, number, *parts) for number, parts in enumerate(found)]


ALL = [block for document in DOCUMENTS for block in blocks(document)]
CONSOLE = [block for block in ALL if block.kind == "console"]
PYTHON = [block for block in ALL if block.kind == "python"]


def commands(console: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    pairs: list[tuple[str, str]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], ""))
        elif line.startswith("> ") and not pairs[-1][1]:
            pairs[-1] = (f"{pairs[-1][0]}\n{line[2:]}", "")
        else:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]}{line}\n")
    return pairs


def agrees(printed: str, written: str) -> bool:
    """Equal, where ``…`` in what is written stands for anything."""
    pattern = ".*".join(re.escape(part) for part in written.rstrip("\n").split(WILDCARD))
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


def _environment(folder: Path) -> dict[str, str]:
    """The caller's, with this interpreter and a ``ringfence`` of its own first on the PATH."""
    commands_folder = folder / "bin"
    commands_folder.mkdir()
    command = commands_folder / "ringfence"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m ringfence "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    first = (str(commands_folder), os.path.dirname(sys.executable))
    path = os.pathsep.join((*first, os.environ.get("PATH", os.defpath)))
    return os.environ | {"PATH": path, "LANG": "C.UTF-8", "XDG_STATE_HOME": str(folder / "state")}


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    return done.stdout


def play(console: str, folder: Path) -> list[tuple[str, str, str]]:
    """(command, what is written, what was printed): all in one shell, so that ``$?`` and files carry over."""
    pairs = commands(console)
    script = "".join(f"{command}\nlast=$?; printf '%s\\n' '{_MARK}'; (exit $last)\n" for command, _ in pairs)
    work = folder / "work"
    work.mkdir()
    printed = _run(["bash", "-c", script], work, _environment(folder)).split(f"{_MARK}\n")
    assert len(printed) == len(pairs) + 1, "the shell ended before the last command"
    return [(command, written, output) for (command, written), output in zip(pairs, printed, strict=False)]


@pytest.mark.parametrize("block", CONSOLE, ids=[block.name for block in CONSOLE])
def test_a_console_example_prints_what_is_written_under_it(block: Block, tmp_path: Path) -> None:
    for command, written, printed in play(block.text, tmp_path):
        assert agrees(printed, written), f"$ {command}\n{printed}\n--- but the document says\n{written}"


@pytest.mark.parametrize("block", PYTHON, ids=[block.name for block in PYTHON])
def test_a_python_example_prints_what_is_written_under_it(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.text, encoding="utf-8")
    printed = _run([sys.executable, str(script)], tmp_path, _environment(tmp_path))
    assert agrees(printed, block.below), printed


def test_the_readme_has_examples_of_both_doors() -> None:
    kinds = {block.kind for block in blocks("README.md")}
    assert {"sh", "console", "python"} <= kinds


def test_a_wrong_example_is_noticed(tmp_path: Path) -> None:
    ((_, written, printed),) = play("$ echo one\ntwo\n", tmp_path)
    assert not agrees(printed, written)
    assert agrees("one two three\n", "one … three\n")
    assert not agrees("one two\n", "one … three\n")


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_two_commands_of_the_readme_are_make_targets(target: str) -> None:
    (start,) = (block for block in blocks("README.md") if block.kind == "sh")
    assert f"make {target} " in start.text
    printed = _run(["make", "--dry-run", target], ROOT)
    assert {"run": "ringfence demo", "test": "tests.run"}[target] in printed, printed


def test_every_link_in_the_documents_leads_somewhere() -> None:
    for document in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        links = _LINK.findall(document.read_text(encoding="utf-8"))
        dead = [link for link in links if not (document.parent / link).exists()]
        assert not dead, f"{document.relative_to(ROOT)}: {dead}"
