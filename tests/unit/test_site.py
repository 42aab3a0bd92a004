"""The site of the documents: its pages are laid out with links that fit, and it is built without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests import site
from tests.framework_environment import framework_environment

_AIM = re.compile(r"\]\(([^)#:\s]+)[)#]")


def test_every_link_of_a_page_that_is_laid_out_leads_to_a_page(tmp_path: Path) -> None:
    site.stage(tmp_path)
    for page in tmp_path.rglob("*.md"):
        prose = "".join(site._FENCE.split(page.read_text("utf-8"))[::2])
        dead = [aim for aim in _AIM.findall(prose) if not (page.parent / aim).exists()]
        assert not dead, f"{page.relative_to(tmp_path)}: {dead}"


def _named(nav: object) -> list[str]:
    """The pages of a navigation, or of a part of it."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in _named(part)]  # type: ignore[attr-defined]


def test_the_navigation_has_every_page_once_and_of_the_decisions_their_table() -> None:
    named = _named(yaml.safe_load((site.ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    pages = (page for page in site.pages().values() if page.endswith(".md"))
    assert sorted(named) == sorted(page for page in pages if not re.match(r"adr/\d", page))


def test_links_are_made_to_fit_and_code_stays() -> None:
    known = {"README.md": "index.md", "docs/a/one.md": "a/one.md", "THREAT-MODEL.md": "b/threat.md"}
    assert site.fitted("[t](THREAT-MODEL.md#x)", "README.md", known) == "[t](b/threat.md#x)"
    assert site.fitted("[t](../../THREAT-MODEL.md)", "docs/a/one.md", known) == "[t](../b/threat.md)"
    assert site.fitted("see [`m`](../../src/m.py)", "docs/a/one.md", known) == "see `m`"
    assert site.fitted("```\n[t](x.md)\n```", "README.md", known) == "```\n[t](x.md)\n```"


def test_a_page_that_loads_something_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text('<a href="https://example.com/">x</a><script src="assets/a.js"></script>')
    assert site.requests_outside(tmp_path) == []
    (tmp_path / "bad.html").write_text('<script async src="https://cdn.example/a.js"></script>')
    assert site.requests_outside(tmp_path) == ["bad.html"]


@pytest.mark.system
@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize("broken", ["", "a dead link", "a page in no navigation"])
def test_the_site_is_built_without_a_warning_and_each_defect_is_one(tmp_path: Path, broken: str) -> None:
    site.stage(tmp_path / "build" / "docs")
    shutil.copy(site.ROOT / "mkdocs.yml", tmp_path)
    if broken == "a page in no navigation":
        (tmp_path / "build" / "docs" / "how-to" / "new.md").write_text("# New\n")
    elif broken:
        page = tmp_path / "build" / "docs" / "index.md"
        page.write_text(page.read_text("utf-8") + "\n[nowhere](tutorial/index.md#no-such-part)\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    environment = {**framework_environment("docs"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(broken), done.stderr
    assert os.path.exists(tmp_path / "build" / "site" / "index.html") or broken
    assert broken or site.requests_outside(tmp_path / "build" / "site") == []
