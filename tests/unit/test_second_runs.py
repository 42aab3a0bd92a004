"""The gate's second runs: what passes alone is told and stays green, what got through a sandbox stays red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests import finality, noted, over_a_second, second_runs
from tests.conftest import ROOT
from tests.patience import TooLate
from tests.second_runs import MOST, Pass
from tests.unit import test_threat_model as guarantees


def _pass(failed: dict[str, str] | None = None, *, final: set[str] | None = None, code: int | None = None,
          ended: bool = True) -> Pass:  # fmt: skip
    notes = noted.Notes(failed=failed or {}, final=final or set(), passed=5, untestable=1, ended=ended)
    return Pass(title="a pass", python=("python",), folder=Path("/"), environment={}, arguments=(),
                code=int(bool(failed)) if code is None else code, notes=notes)  # fmt: skip


def test_without_a_failure_nothing_is_run_again_and_all_is_green() -> None:
    judged = second_runs.judge([_pass(), _pass()], again=lambda *_: pytest.fail("nothing failed"))
    assert judged.green and (judged.passed, judged.untestable) == (10, 2)


def test_what_passes_alone_is_unsteady_and_green() -> None:
    answers = iter([False, True])
    judged = second_runs.judge([_pass({"test_a": "said"})], again=lambda *_: next(answers))
    assert judged.green and judged.unsteady == (("test_a", "said"),) and judged.passed == 6


def test_what_fails_three_times_is_red() -> None:
    asked: list[str] = []
    judged = second_runs.judge([_pass({"test_a": "said"})], again=lambda _, name: bool(asked.append(name)))
    assert not judged.green and judged.red == (("test_a", "said"),) and asked == ["test_a"] * 2


def test_an_attack_that_succeeded_is_red_and_not_run_again() -> None:
    ended = _pass({"test_a": "said"}, final={"test_a"})
    judged = second_runs.judge([ended], again=lambda *_: pytest.fail("it got through"))
    assert not judged.green and judged.red == (("test_a", "said"),)


@pytest.mark.parametrize(("count", "green"), [(MOST, True), (MOST + 1, False)])
def test_ten_unsteady_tests_leave_it_green_and_eleven_do_not(count: int, green: bool) -> None:
    failed = {f"test_{number}": "" for number in range(count)}
    assert second_runs.judge([_pass(failed)], again=lambda *_: True).green is green


@pytest.mark.parametrize("ended", [_pass(code=3), _pass(code=2), _pass(code=1), _pass(ended=False)],
                         ids=["internal error", "interrupted", "failed by no test", "no last line"])  # fmt: skip
def test_a_pass_that_did_not_come_to_its_end_is_red(ended: Pass) -> None:
    assert not second_runs.judge([ended]).green


def test_the_last_lines_have_plain_numbers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_runs, "_remember", lambda names: None)
    judged = second_runs.judge([_pass({"test_a": "why"})], again=lambda *_: False)
    assert second_runs.tell(judged, "1 min 2 s") == 1
    *_, counts, last = capsys.readouterr().out.splitlines()
    assert counts == "5 passed, 1 failed" and last == "0 unsteady (at most 10), 1 not testable here, after 1 min 2 s"


def test_what_was_unsteady_is_remembered_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        second_runs.tell(second_runs.judge([_pass({"test_a": "why"})], again=lambda *_: True), "0 min")
    capsys.readouterr()
    assert second_runs.history() == 0
    assert capsys.readouterr().out.splitlines()[0] == "    2 test_a"


FILE = """
import pytest, time
from tests.finality import AttackSucceeded
from tests.testable import not_testable_here
def test_passes(): pass
def test_fails(): assert False, "so it is"
def test_gets_through(): raise AttackSucceeded("read it")
def test_is_not_testable(): not_testable_here("no such kernel")
def test_is_skipped(): pytest.skip("lazy")
@pytest.mark.timeout(1)
def test_hangs(): time.sleep(600)
"""


@pytest.mark.system
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["in one process", "by a worker"])
def test_a_pass_notes_what_failed_what_is_final_and_what_hung(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.noted", "--notes",
               str(tmp_path / "notes"), "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]  # fmt: skip
    (tmp_path / "notes").touch()
    done = subprocess.run([*command, *workers, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    notes = noted.Notes.read(tmp_path / "notes")
    names = {name.partition("::")[2] for name in notes.failed}
    assert names == {"test_fails", "test_gets_through", "test_is_skipped", "test_hangs"}, done.stdout
    assert {name.partition("::")[2] for name in notes.final} == {"test_gets_through"}
    assert (notes.passed, notes.untestable, notes.ended) == (1, 1, True)
    assert "so it is" in next(said for name, said in notes.failed.items() if name.endswith("test_fails"))
    assert "Timeout" in next(said for name, said in notes.failed.items() if name.endswith("test_hangs"))


class _Item:
    def __init__(self, path: str, mark: str = "") -> None:
        self.path, self._mark = ROOT / path, mark

    def get_closest_marker(self, name: str) -> bool:
        return name == self._mark


@pytest.mark.parametrize(("item", "when", "error", "final"), [
    (_Item("tests/escape/test_a.py"), "call", AssertionError(), True),
    (_Item("tests/escape/test_a.py"), "setup", AssertionError(), False),
    (_Item("tests/escape/test_a.py", "control"), "call", AssertionError(), False),
    (_Item("tests/escape/test_a.py"), "call", TooLate(), False),
    (_Item("tests/escape/test_a.py"), "call", finality.Unsure(), False),
    (_Item("tests/escape/test_a.py"), "call", OSError(), False),
    (_Item("tests/doors/test_a.py"), "call", AssertionError(), False),
    (_Item("tests/doors/test_a.py"), "call", finality.AttackSucceeded(), True),
    (_Item("tests/escape/test_a.py", "control"), "call", finality.AttackSucceeded(), True),
])  # fmt: skip
def test_of_attacks_every_assertion_is_final_but_controls_and_waiting(
    item: _Item, when: str, error: BaseException, final: bool
) -> None:
    assert finality.is_final(item, when, error) is final  # type: ignore[arg-type]


@pytest.mark.system  # some attacks compile their probe
def test_what_nothing_else_proves_stays_in_the_gate() -> None:
    """Attacks, controls, checks and doors: the names of their cases are known without collecting."""
    groups = [group for group in over_a_second.kept(()) if group]
    assert len(groups) > 500
    assert [group for group in groups if all(map(over_a_second.is_listed, group))] == []


def test_every_row_of_the_guarantees_has_a_proof_in_the_gate() -> None:
    """A test that is listed without cases is out of the gate as a whole."""
    out = {name.partition("::")[2] for name in over_a_second.listed() if "[" not in name}
    for row in (*guarantees.ROWS, *guarantees.EVERYWHERE):
        proofs = {proof for cell in row[1:] for proof in guarantees.named(cell)}
        assert not proofs or proofs - out, row[0]


@pytest.mark.parametrize("name", over_a_second.SMOKE)
def test_of_each_door_a_test_stays_in_the_gate(name: str) -> None:
    file, _, test = name.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


def test_the_quickest_of_a_group_that_would_go_whole_stays() -> None:
    took = {"a[1]": 3.0, "a[2]": 2.0, "b[1]": 2.0, "b[2]": 0.1, "c": 2.0, "d[1]": 2.0, "d[2]": 3.0}
    groups = [["a[1]", "a[2]"], ["b[1]", "b[2]"], []]
    assert over_a_second.rows(took, groups) == ["a[1]", "b[1]", "c", "d"]


def test_no_more_than_thirty_tests_are_out_of_the_gate_as_unsteady() -> None:
    marked = sum(path.read_text(encoding="utf-8").count("@pytest.mark." + "unsteady(")
                 for path in (ROOT / "tests").rglob("test_*.py"))  # fmt: skip
    assert marked <= 30


def test_no_attack_is_marked_unsteady() -> None:
    for path in (ROOT / "tests" / "escape").rglob("*.py"):
        assert "mark." + "unsteady" not in path.read_text(encoding="utf-8")
