"""The corpus, played: a cheat wins against a careless grader and earns nothing under ours; its honest twin passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.cli import COMMANDS, dispatch
from ringfence.corpus.cheat import Cheat
from ringfence.corpus.cheats import CHEATS, KINDS
from ringfence.corpus.play import OUR_RUNNER, control, play, play_with
from ringfence.corpus.repository import make_repository
from ringfence.corpus.table import NOT_YET, line

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the controls are for Linux")
TIMEOUT_S = 600
RUNNER = """\
import json, os, sys
task, agent, out = sys.argv[1:]
names = sorted(os.listdir(task))
assert {"workspace", "oracle", "grade.sh", "instruction.md", "policy.yaml"} <= set(names), names
assert os.listdir(out) == [] and os.access(agent, os.X_OK)
honest = open(agent).read().startswith("#!/bin/sh\\ntr ")
json.dump({"reward": float(honest or REWARD), "recorded": False}, open(out + "/result.json", "w"))
"""


def _slow(cheat: Cheat) -> bool:
    """Whether its control starts pytest, or is one of many that make a repository."""
    quick = ("history/branch", "history/reflog", "history/dangling", "git-configuration/fsmonitor")
    return cheat.task.startswith("pytest") or (cheat.task.startswith("git") and cheat.title not in quick)


def _first(kind: str) -> Cheat:
    return next(cheat for cheat in CHEATS if cheat.kind == kind)


def _title(cheat: Cheat) -> str:
    return cheat.title


@pytest.mark.parametrize("cheat", [cheat for cheat in CHEATS if not _slow(cheat)], ids=_title)
def test_the_cheat_wins_against_a_careless_grader(cheat: Cheat) -> None:
    """# shortcoming 18: a case that can't fail is worthless."""
    assert control(cheat)


@pytest.mark.long
@pytest.mark.parametrize("cheat", [cheat for cheat in CHEATS if _slow(cheat)], ids=_title)
def test_the_slower_cheat_wins_against_a_careless_grader(cheat: Cheat) -> None:
    """# shortcoming 18"""
    assert control(cheat)


@pytest.mark.parametrize("title", ["oracle/cat", "reward/before", "history/branch"])
def test_the_twin_passes_with_a_careless_grader_and_a_lazy_agent_fails(title: str) -> None:
    cheat = next(cheat for cheat in CHEATS if cheat.title == title)
    assert control(cheat, honest=True)
    assert not control(type(cheat)(**{**cheat.__dict__, "agent": "true\n"}))


def test_the_base_commit_of_a_repository_does_not_hold_the_answer(tmp_path: Path) -> None:
    secret, folder = "0123456789abcdef" * 2, tmp_path / "workspace"
    folder.mkdir()
    base = make_repository(str(folder), {"a.txt": "a"}, secret, str(tmp_path / "upstream"))
    command = ["git", "--no-replace-objects", "-C", str(folder), "log", "-p", "--no-notes", base]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert "base" in told and secret not in told
    assert sorted(os.listdir(folder)) == [".git", ".gitkeep", "a.txt"]


def _runner(folder: Path, reward: int) -> str:
    path = folder / "runner.py"
    path.write_text(RUNNER.replace("REWARD", str(reward)))
    return f"{sys.executable} -I -S {path}"


def test_another_sandbox_gets_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["corpus", "--only", "oracle/cat", "--runner", _runner(tmp_path, 0), "--json"]
    assert dispatch("ringfence", COMMANDS, words) == 1  # a sandbox that records nothing
    (row,) = json.loads(capsys.readouterr().out)["cheats"]
    assert row["naive"] and row["blocked"] and row["twin"] and not row["recorded"] and not row["held"]
    words = ["corpus", "--only", "oracle/find", "--runner", _runner(tmp_path, 0), "--results", str(tmp_path / "R.md")]
    assert dispatch("ringfence", COMMANDS, words) == 0
    assert "1 of 1 as expected" in capsys.readouterr().out
    assert "| oracle | find |" in (tmp_path / "R.md").read_text("utf-8")


def test_a_sandbox_that_is_fooled_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["corpus", "--only", "oracle/find", "--runner", _runner(tmp_path, 1)]
    assert dispatch("ringfence", COMMANDS, words) == 1
    assert "BROKEN" in (told := capsys.readouterr().out) and "SCORE 1" in told


@pytest.mark.parametrize(("runner", "told"), [
    ("false", "ended with 1"), ("true", "left no result"), ("/no/such/runner", "can't start the runner"),
])  # fmt: skip
def test_a_runner_that_fails_is_no_success(runner: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch("ringfence", COMMANDS, ["corpus", "--only", "oracle/find", "--runner", runner]) == 1
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("words", [
    ["--jobs", "0"], ["--runner", ""], ["--only", "nothing"], ["--results", "/no/such/folder/R.md"],
])  # fmt: skip
def test_what_makes_no_sense_is_refused(words: list[str]) -> None:
    assert dispatch("ringfence", COMMANDS, ["corpus", *words]) == 2


def test_the_cheats_are_listed_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch("ringfence", COMMANDS, ["corpus", "--list", "--only", "skips"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("skips/xfail ")


def test_controls_leave_nothing_behind() -> None:
    folder = Path("/dev/shm")
    before = {*os.listdir(folder)}
    assert control(_first("processes")) and control(next(c for c in CHEATS if c.name == "shared-memory"))
    assert not {name for name in {*os.listdir(folder)} - before if name.startswith("c") and len(name) == 13}


# ---- our own sandbox


@pytest.mark.privileges
@pytest.mark.parametrize("kind", ["oracle", "links"])
def test_the_cheat_earns_nothing(kind: str) -> None:
    cheat = _first(kind)
    result = play_with(cheat, OUR_RUNNER, TIMEOUT_S)
    assert result.score == 0 and (result.recorded or not cheat.recorded)


@pytest.mark.privileges
@pytest.mark.parametrize("kind", ["history"])
def test_the_honest_twin_stays_clean_and_passes(kind: str) -> None:
    result = play_with(_first(kind), OUR_RUNNER, TIMEOUT_S, honest=True)
    assert result.reward > 0 and not result.recorded


@pytest.mark.long
@pytest.mark.privileges
@pytest.mark.parametrize("kind", KINDS if os.geteuid() == 0 or os.environ.get("RINGFENCE_LONG") else KINDS[::3])
def test_one_of_each_class_is_as_expected(kind: str) -> None:
    played = play(_first(kind), OUR_RUNNER, TIMEOUT_S)
    assert played.held, line(played)


@pytest.mark.soak
@pytest.mark.parametrize("cheat", [cheat for cheat in CHEATS if cheat != _first(cheat.kind)], ids=_title)
def test_all_the_others_are_as_expected(cheat: Cheat) -> None:
    """What pays has to be listed, and what is listed has to pay."""
    played = play(cheat, OUR_RUNNER, TIMEOUT_S)
    assert played.held is (cheat.title not in NOT_YET), line(played)
