"""Every example of the kinds ``console`` and ``python`` is run as it stands; what it prints must be what is written.

In the tutorial, the how-to pages and docs/explanation/bundle.md all blocks of a page are one session, in its order and
in one directory; elsewhere each stands for itself. ``tests/examples`` says what the kinds are, and runs the other ones.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from tests.examples import (
    AS_IT_STANDS,
    GENERATED,
    NO_EXAMPLE,
    ROOT,
    STAGED,
    WILDCARD,
    Block,
    blocks,
    environment_of,
    output_of,
    pages,
)
from tests.framework_environment import framework_environment

from ringfence.cli import COMMANDS, PROCTOR_COMMANDS
from ringfence.cli.parser import Parser

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

SESSIONS = [*pages("docs/tutorial"), *pages("docs/how-to"), "docs/explanation/bundle.md"]
ALONE = ["README.md", "CONTRIBUTING.md", *(page for page in pages() if page not in (*SESSIONS, *GENERATED))]
ENGINE = "engine"
_MARK = "--- end of one command ---"
_LINK = re.compile(r"\]\(([^)#:]+)\)")

ALL = [block for document in (*ALONE, *SESSIONS) for block in blocks(document)]
RUN = [block for block in ALL if block.kind in AS_IT_STANDS]
SINGLE = [block for block in RUN if block.document in ALONE and not block.needs]
NEEDY = [block for block in RUN if block.needs]
PAGES = [page for page in SESSIONS if any(block.document == page and not block.needs for block in RUN)]


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


def play(console: str, folder: Path, environment: dict[str, str] | None = None) -> list[tuple[str, str, str]]:
    """(command, what is written, what was printed): all in one shell, so that ``$?`` and files carry over."""
    pairs = commands(console)
    script = "".join(f"{command}\nlast=$?; printf '%s\\n' '{_MARK}'; (exit $last)\n" for command, _ in pairs)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    printed = output_of(["bash", "-c", script], work, environment or environment_of(folder)).split(f"{_MARK}\n")
    assert len(printed) == len(pairs) + 1, f"the shell ended before the last command: {printed}"
    return [(command, written, output) for (command, written), output in zip(pairs, printed, strict=False)]


def check(block: Block, folder: Path, more: dict[str, str] | None = None) -> None:
    """Run a block in the directory, and compare."""
    environment = (more or {}) | environment_of(folder)
    environment |= {name: text for name, text in (more or {}).items() if name == "PYTHONPATH"}
    if block.kind == "console":
        for command, written, printed in play(block.text, folder, environment):
            assert agrees(printed, written), f"$ {command}\n{printed}\n--- but the document says\n{written}"
        return
    work = folder / "work"
    work.mkdir(exist_ok=True)
    script = folder / "example.py"
    script.write_text(block.text, encoding="utf-8")
    printed = output_of([sys.executable, str(script)], work, environment)
    assert agrees(printed, block.below), printed


@pytest.mark.parametrize("block", SINGLE, ids=[block.name for block in SINGLE])
def test_an_example_prints_what_is_written_under_it(block: Block, tmp_path: Path) -> None:
    check(block, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_followed_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    if any("examples/bundle" in block.text for block in blocks(page)):
        shutil.copytree(ROOT / "examples" / "bundle", tmp_path / "work" / "examples" / "bundle")
    for block in RUN:
        if block.document == page and not block.needs:
            check(block, tmp_path)


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize("block", NEEDY, ids=[block.name for block in NEEDY])
def test_an_example_that_needs_something_prints_what_is_written(
    block: Block, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if block.needs == ENGINE:
        request.getfixturevalue("python_image")
        check(block, tmp_path)
    else:
        check(block, tmp_path, framework_environment(block.needs))


def _own_commands(text: str) -> list[list[str]]:
    """The words of each command of ours in a block of a shell."""
    lines = text.replace("\\\n", " ").splitlines()
    words = (shlex.split(line, comments=True) for line in lines if line.split(" ")[0] in ("ringfence", "proctor"))
    return [each for each in words if len(each) > 1 and WILDCARD not in each]


@pytest.mark.parametrize("block", ALL, ids=[block.name for block in ALL])
def test_what_is_not_run_can_be_read(block: Block) -> None:
    assert block.kind in AS_IT_STANDS | STAGED | NO_EXAMPLE, "no test looks at such a block"
    if block.kind == "json":
        json.loads(block.text)
    elif block.kind == "yaml":
        yaml.safe_load(block.text)
    elif block.kind == "py":
        compile(block.text, block.name, "exec")
    for program, name, *words in _own_commands(block.text) if block.kind == "sh" else ():
        module = importlib.import_module(
            f"ringfence.cli.{(COMMANDS if program == 'ringfence' else PROCTOR_COMMANDS)[name][0]}"
        )
        parser = Parser(f"{program} {name}", module)
        module.configure(parser)
        parser.read(words)


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
    start, *_ = (block for block in blocks("README.md") if block.kind == "sh")
    assert f"make {target} " in start.text
    printed = output_of(["make", "--dry-run", target], ROOT)
    assert {"run": "ringfence demo", "test": "tests.run"}[target] in printed, printed


def test_every_link_in_the_documents_leads_somewhere() -> None:
    for document in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        links = _LINK.findall(document.read_text(encoding="utf-8"))
        dead = [link for link in links if not (document.parent / link).exists()]
        assert not dead, f"{document.relative_to(ROOT)}: {dead}"
