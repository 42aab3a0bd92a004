"""What stands in the repository's documents: no mark of a broken merge, decisions in order and on a page each, and a
changelog that tells only of states that users had."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PAGE_WORDS = 650


def _marked(path: Path) -> bool:
    return re.search(r"^(<{7}|>{7}) ", path.read_text("utf-8"), re.MULTILINE) is not None


def test_no_document_has_marks_of_a_merge(tmp_path: Path) -> None:
    assert [str(path) for path in DOCUMENTS if _marked(path)] == []
    copy = Path(shutil.copy(ROOT / "CHANGELOG.md", tmp_path))
    copy.write_text(copy.read_text("utf-8") + "<" * 7 + " HEAD\n")
    assert _marked(copy)


def test_the_table_of_decisions_names_each_once_in_order_and_without_gaps() -> None:
    decisions = ROOT / "docs" / "adr"
    listed = re.findall(r"^\| \[\d+\]\(([^)]+)\)", (decisions / "README.md").read_text("utf-8"), re.MULTILINE)
    assert listed == sorted(path.name for path in decisions.glob("[0-9]*.md"))
    superseded = [path.name for path in decisions.glob("[0-9]*.md") if "\nSuperseded by" in path.read_text("utf-8")]
    table = (decisions / "README.md").read_text("utf-8")
    assert superseded == re.findall(r"^\| \[\d+\]\(([^)]+)\).*\. Superseded by ", table, re.MULTILINE)
    assert [int(name[:4]) for name in listed] == [*range(1, len(listed) + 1)], "a number is missing, or there twice"


def _begins_well(path: Path) -> bool:
    return re.match(rf"# {path.name[:4]}: \S", path.read_text("utf-8")) is not None


def test_every_decision_begins_with_its_number_and_a_colon(tmp_path: Path) -> None:
    decisions = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [path.name for path in decisions if not _begins_well(path)] == []
    for text, good in (("# 0001: A title\n", True), ("# 0001 A title\n", False), ("# 0002: A title\n", False)):
        (tmp_path / "0001-a-title.md").write_text(text)
        assert _begins_well(tmp_path / "0001-a-title.md") is good


def _looks_back(changelog: str) -> bool:
    """Whether it tells of what was before, although no version is released yet: nobody had that."""
    return not re.search(r"^## \[\d", changelog, re.MULTILINE) and re.search(r"\bBefore,", changelog) is not None


def test_until_the_first_release_the_changelog_tells_of_nothing_before_it() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert not _looks_back(text)
    unreleased = "## [Unreleased]: 0.1.0\n- A job ends. Before, it did not.\n"
    assert _looks_back(unreleased)
    assert not _looks_back(f"{unreleased}\n## [0.1.0]\n- The first version.\n")


def _longer_than_a_page(decisions: Path) -> list[str]:
    found = {path.name: len(path.read_text("utf-8").split()) for path in sorted(decisions.glob("[0-9]*.md"))}
    return [f"{name}: {words} words" for name, words in found.items() if words > PAGE_WORDS]


def test_each_decision_is_on_one_page(tmp_path: Path) -> None:
    assert _longer_than_a_page(ROOT / "docs" / "adr") == []
    for number, words in enumerate((PAGE_WORDS, PAGE_WORDS + 1), start=1):
        (tmp_path / f"000{number}-decided.md").write_text("word " * words)
    assert _longer_than_a_page(tmp_path) == [f"0002-decided.md: {PAGE_WORDS + 1} words"]
