"""Every example in the documents is run by a test, or has its reason here.

A block of the kind ``console`` or ``python`` is run as it stands (tests/doors/test_readme.py). For any other a test
calls ``written(PAGE, WORDS)``, with both as plain texts, so that this file can find the call.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.examples import AS_IT_STANDS, GENERATED, NO_EXAMPLE, ROOT, Block, block_with, blocks, pages

DOCUMENTS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "THREAT-MODEL.md",
             *(page for page in pages() if page not in GENERATED)]  # fmt: skip
NOT_RUN: dict[tuple[str, str], str] = {
    ("docs/reference/platforms.md", "py -m pip install"):
        "needs Windows; `make test-windows` runs it under Wine, except for pip (tests/programs/windows_checks.py)",
}
"""(page, words of the block): why no test runs it."""


def _calls(source: str) -> list[tuple[str, str]]:
    """The (page, words) of each call of ``written`` in a module."""
    if "from tests.examples import" not in source:
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "written"]
    return [tuple(ast.literal_eval(word) for word in call.args) for call in named]  # type: ignore[misc]


def _run_by_tests() -> set[Block]:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    return {block_with(*call) for path in files for call in _calls(path.read_text(encoding="utf-8"))}


def _examples() -> list[Block]:
    return [block for document in DOCUMENTS for block in blocks(document) if block.kind not in NO_EXAMPLE]


def test_each_example_is_run_or_has_its_reason() -> None:
    run = _run_by_tests()
    reasons = {block_with(*place) for place in NOT_RUN}
    left = [block for block in _examples() if block.kind not in AS_IT_STANDS and block not in run | reasons]
    assert [(block.name, block.text[:60]) for block in left] == []
    assert not run & reasons, "a test runs what has a reason for not being run"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_block_is_overlooked(document: str) -> None:
    """A fence that the pattern does not take for a block would be an example that nobody runs."""
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    fences = [line for line in lines if line.lstrip().startswith("```")]
    found = sum(2 + 2 * bool(block.below) for block in blocks(document))
    assert len(fences) == found


def test_a_call_is_found_and_an_example_without_one_noticed() -> None:
    start = "from tests.examples import shell, written\n"
    assert _calls(f'{start}shell(written("README.md", "make run"), folder)') == [("README.md", "make run")]
    assert _calls(f"{start}shell(text, folder)") == []
    with pytest.raises(AssertionError, match="0 blocks"):
        block_with("README.md", "no such words")
