"""Directories of other proctored runs are found in what an agent would be shown, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.evidence.keyfile import SEED_FILE
from ringfence.proctor.place.other_runs import found_in, refuse_in

LEFT = ("bundle.json", "verdict.json", "final.diff")


def _made(top: Path, *files: str) -> Path:
    for name in files:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    return top


def test_outputs_keys_and_private_folders_of_runs_are_found(tmp_path: Path) -> None:
    _made(tmp_path, *(f"a/ended/{name}" for name in LEFT), f"a/begun/{SEED_FILE}", "a/.goes-on.proctor-run-x1/held/f")
    _made(tmp_path, "a/goes-on/agent.stdout", f"a/.{'o' * 50}.proctor-run-x2/f", f"a/{'o' * 60}/f")
    found = {path.removeprefix(f"{tmp_path}/a/") for path in found_in([str(tmp_path)])}
    assert found == {"ended", "begun", "goes-on", ".goes-on.proctor-run-x1", f".{'o' * 50}.proctor-run-x2", "o" * 60}


def test_what_only_looks_like_one_stays(tmp_path: Path) -> None:
    _made(tmp_path, "a/bundle.json", "a/verdict.json", "a/goes-on-2/f", "b/final.diff", "plain.proctor-run-/f")
    (tmp_path / "link").symlink_to(_made(tmp_path.parent / "elsewhere", *LEFT))
    assert found_in([str(tmp_path), str(tmp_path / "a" / "bundle.json")]) == ()
    refuse_in(str(tmp_path))
    refuse_in("")


def test_of_a_run_that_is_named_itself_only_the_key_is_found(tmp_path: Path) -> None:
    _made(tmp_path, *LEFT, SEED_FILE, f"below/{SEED_FILE}")
    assert found_in([str(tmp_path)]) == (f"{tmp_path}/{SEED_FILE}", f"{tmp_path}/below")


def test_a_workspace_that_holds_one_is_refused(tmp_path: Path) -> None:
    _made(tmp_path, f"results/{SEED_FILE}")
    with pytest.raises(UsageError, match=r"directory of another proctored run, .*/results") as told:
        refuse_in(str(tmp_path))
    assert "move it" in told.value.hint
