"""The bench's own parts: turns, ratios, who is left out and why, what is read of a tree of processes."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench import __main__ as command
from bench import installing, peers, picture, process_tree, report
from bench.contenders import expect, gather
from bench.harness import Answer, NotHere, Row, Table, compare, figure, take_turns

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).resolve().parents[3]


def test_contenders_take_turns_and_the_first_ones_do_not_count() -> None:
    order: list[str] = []

    def turn(name: str, values: Iterator[float]) -> float:
        order.append(name)
        return next(values)

    first, second = iter([99.0, 1.0, 2.0]), iter([99.0, 10.0, 20.0])
    found = take_turns({"a": lambda: turn("a", first), "b": lambda: turn("b", second)}, turns=2, warm=1)
    assert found == {"a": [1.0, 2.0], "b": [10.0, 20.0]}
    assert order == ["a", "b"] * 3


def test_a_ratio_is_the_median_of_the_ratios_turn_by_turn() -> None:
    # A machine that becomes ten times slower half-way changes the times, not the ratio.
    rows = compare({"a": [1.0, 1.0, 10.0], "b": [2.0, 2.0, 20.0]})
    assert [row.ratio for row in rows] == [1.0, 2.0]
    assert rows[1].median == 2.0
    spread = compare({"a": [float(value) for value in range(1, 21)]})[0]
    assert (spread.low, spread.high) == (3.0, 18.0)


def test_who_cannot_take_part_is_left_out_with_the_reason() -> None:
    def absent() -> object:
        raise NotHere("no such thing here")

    gathered = gather({"there": lambda: lambda: 1.0, "absent": absent})  # type: ignore[dict-item]
    assert list(gathered.turns) == ["there"]
    assert gathered.skipped == {"absent": "no such thing here"}


def test_a_run_that_went_wrong_does_not_pass_for_a_fast_one() -> None:
    good = SimpleNamespace(status="OK", rc=0, reason="", stdout=b"2\n")
    expect(good, b"2\n")
    with pytest.raises(AssertionError):
        expect(SimpleNamespace(**{**vars(good), "rc": 1}), b"2\n")
    with pytest.raises(AssertionError):
        expect(SimpleNamespace(**{**vars(good), "stdout": b""}), b"2\n")


@pytest.mark.system
@pytest.mark.parametrize(("program", "why"), [("false", "the probe failed"), ("true", "the probe failed")])
def test_a_peer_that_is_there_and_does_not_work_takes_no_part(program: str, why: str) -> None:
    path = shutil.which(program)
    assert path
    broken = peers.Peer(name="broken", install=lambda: path, words=list, version=())
    with pytest.raises(NotHere, match=why):
        peers._ready(broken)


@pytest.mark.system
def test_a_peer_that_works_gives_the_answer_and_its_version() -> None:
    env = shutil.which("env")
    assert env
    ready = peers._ready(peers.Peer(name="env", install=lambda: env, words=list))
    assert ready.run([peers.PYTHON, "-c", peers.SNIPPET]) == peers.ANSWER
    assert ready.version


def test_nothing_is_installed_when_that_is_forbidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(installing.SWITCH, "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotHere, match="forbids"):
        installing.from_pypi("sandlock")
    with pytest.raises(NotHere):
        installing.from_debian("no-such-program-anywhere", ["no-such-package"])
    assert not list(tmp_path.rglob("python*"))


@pytest.mark.system
def test_the_floor_is_compiled_and_does_every_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if not (shutil.which("cc") or shutil.which("gcc")):
        with pytest.raises(NotHere, match="compiler"):
            peers.floor_ms()
        return
    assert peers.floor_ms(3) > 0
    program = next(tmp_path.rglob("floor-*"))
    assert len(subprocess.check_output([program, "4"]).split()) == 4


@pytest.mark.system
def test_the_processes_below_are_found_with_their_memory_and_forgotten_after() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in process_tree.descendants()
        assert process_tree.wait_until(lambda: process_tree.memory({child.pid}).private_bytes > 2**20, patience_s=20)
        assert process_tree.sandboxes({child.pid}) == 0
        assert process_tree.threads({child.pid}) == 1
    finally:
        child.communicate(b"\n")
    assert child.pid not in process_tree.descendants()
    assert process_tree.memory({child.pid}) == process_tree.Memory()


@pytest.mark.system
def test_processor_time_of_a_process_that_nobody_collects_counts() -> None:
    burn = "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nif os.fork() == 0:\n"
    burn += "    while time.process_time() < 0.5: pass\n    os._exit(0)\n"
    burn += "try: os.wait()\nexcept ChildProcessError: pass\n"
    before = process_tree.processor_s()
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert process_tree.processor_s() - before >= 0.4


def test_a_picture_says_when_its_scale_is_logarithmic_and_keeps_bars_inside() -> None:
    row = Row(name="<small>", median=1.0, low=0.9, high=1.1, turns=3, ratio=1.0)
    near, far = replace(row, name="near", high=5.0), replace(row, name="far", median=900.0, high=1000.0)
    linear = picture.picture("q", (Table(title="t", unit="ms", rows=(row, near)),), foot="")
    assert "linear scale" in linear
    assert "&lt;small&gt;" in linear
    rows = (row, far)
    assert "log scale" in picture.picture("q", (Table(title="t", unit="ms", rows=rows),), foot="")
    scale, _ = picture._scale(rows)
    assert 0 <= scale(0.9) < scale(900.0) < scale(1000.0) == pytest.approx(picture.BAR_WIDTH)


def test_figures_keep_what_means_something() -> None:
    shown = [figure(value) for value in (0.0286, 0.53, 1.0, 1.618, 12.34, 1234.5)]
    assert shown == ["0.0286", "0.53", "1", "1.62", "12.3", "1,234"]


def test_why_a_peer_is_left_out_is_told_without_the_paths_of_the_machine() -> None:
    told = report._nameless(f"open {Path.home()}/.config/x: denied; {ROOT}/bench/y: gone; {platform.node()}: unknown")
    assert told == "open ~/.config/x: denied; ./bench/y: gone; host: unknown"


@pytest.mark.system
def test_a_question_that_fails_does_not_cost_the_answers_to_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(effort: object) -> Answer:
        raise RuntimeError("its peer went away")

    row = Row(name="ringfence", median=1.0, low=1.0, high=1.0, turns=1)
    answers = Answer(tables=(Table(title="t", unit="ms", rows=(row,)),))
    asked = {
        "first": SimpleNamespace(QUESTION="first?", ask=fails),
        "second": SimpleNamespace(QUESTION="second?", ask=lambda effort: answers),
    }
    monkeypatch.setattr(command, "questions", lambda: asked)
    assert command.main(["--results", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "no answer to first" in told.err
    assert "its peer went away" in told.err
    assert "second?" in told.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["second.json", "second.svg"]
