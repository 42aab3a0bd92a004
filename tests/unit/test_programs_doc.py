"""docs/reference/programs.md against the code: what of the host every strict job is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringfence.sandbox import host, programs
from ringfence.sandbox.root import ETC_NAMES, SYSTEM_FOLDERS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reference" / "programs.md").read_text(encoding="utf-8")
_PART = TEXT.split("\n## What of the host is readable\n", 1)[1].split("\n## ", 1)[0]
ROWS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", _PART, re.MULTILINE))


def _row(start: str) -> str:
    (found,) = [cell for name, cell in ROWS.items() if name.startswith(start)]
    return found


def _named(start: str) -> list[str]:
    """The names of a row, which has nothing else."""
    names = _row(start).split(", ")
    assert all(re.fullmatch("`[^`]+`", name) for name in names), names
    return [name.strip("`") for name in names]


def test_the_system_directories_that_are_written_are_those_that_are_shown() -> None:
    assert _named("the system's directories") == list(SYSTEM_FOLDERS)


def test_the_names_of_etc_that_are_written_are_those_that_are_shown() -> None:
    assert _named("these parts of `/etc`") == sorted(ETC_NAMES, key=str.lower)
    assert {f"/etc/{name}" for name in ETC_NAMES} >= set(re.findall("`(/etc/[^`]+)`", _PART.split("\n\n**", 1)[1]))


def test_the_files_that_a_job_on_the_hosts_network_is_shown_are_written() -> None:
    assert set(host.RESOLVER) == set(re.findall("`(/etc/[^`]+)`", _row("what the policy names")))


def test_the_python_that_ringfence_runs_on_brings_what_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its environment, what that was made from, package directories with what their .pth files name, PYTHONPATH."""
    packages, source = tmp_path / "user/site-packages", tmp_path / "source"
    packages.mkdir(parents=True)
    source.mkdir()
    (packages / "editable.pth").write_text(f"{source}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path), str(packages)])
    monkeypatch.setattr("sys.prefix", "/environment")
    monkeypatch.setattr("sys.base_prefix", "/installation")
    shown = ["/environment", "/installation", str(packages), str(source), "/named", "/too"]
    assert programs.own_folders("/named:/too") == shown


def test_both_pages_that_promise_what_is_absent_lead_to_the_table() -> None:
    for page in ("README.md", "THREAT-MODEL.md"):
        assert "(docs/reference/programs.md#what-of-the-host-is-readable)" in (ROOT / page).read_text(encoding="utf-8")
