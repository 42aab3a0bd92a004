"""docs/status.md: it is what the table makes, and the table is what the code, the tests and the decisions are."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.status import ROWS, SPECIFICATIONS, page
from tests.status.facts import ROOT, Call, Codes, Command, Fact, Fields, File, Keys, Members, Metrics, Name, Value
from tests.status.row import Row, State, Tried

import ringfence
from ringfence.cli import main, proctor_main
from ringfence.errors import SandboxError

FACTS = [fact for row in ROWS for fact in row.here]
PROOFS = sorted({proof for row in ROWS for proof in row.proof})
TRIED = [row for row in ROWS if row.tried]
_PROGRAMS = {"ringfence": main, "proctor": proctor_main}


def test_the_page_is_what_the_table_makes() -> None:
    assert page.PATH.read_text(encoding="utf-8") == page.text(), "run python -m tests.status"


def test_the_first_page_leads_there() -> None:
    assert "(docs/status.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_all_four_are_there_and_no_row_twice() -> None:
    assert [each.title[0] for each in SPECIFICATIONS] == ["1", "2", "3", "4"]
    for each in SPECIFICATIONS:
        told = [row.interface for row in each.rows]
        assert len(set(told)) == len(told) > 25


# ---- what a row says of our side


def test_all_that_is_named_is_there_as_it_is_said() -> None:
    assert [problem for fact in FACTS if (problem := fact.wrong())] == []


@pytest.mark.parametrize("fact", [
    Name("ringfence.Nobody"), Name("ringfence.nowhere.at_all"), Call("ringfence.run_pytests", "timeout_s, paths"),
    Call("ringfence.run_pytests", "paths, seconds"), Fields("ringfence.SandboxPolicy", {"wall_time_s": 31}),
    Fields("ringfence.SandboxPolicy", {"cpu_time_s": 20, "wall_time_s": 30}), Fields("ringfence.Outcome", {"rcs": 0}),
    Fields("ringfence.SandboxContext", {"sandbox_id": ""}),
    Members("ringfence.SandboxMode", {"ALWAYS": "always", "AUTO": "auto"}), Codes({"OK": 0}), Metrics(("no_total",)),
    Value("ringfence.evidence.keys.SEED_VARIABLE", "OTHER"), Keys({"docker.image": "other"}), Keys({"docker.imge": ""}),
    Command("proctor walk"), Command("proctor run", "--tsk"), File("docs/nothing.md"),
], ids=repr)  # fmt: skip
def test_the_check_sees_what_is_not_so(fact: Fact) -> None:
    assert fact.wrong()


# ---- what shows it


@cache
def _functions(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))


def _missing(proof: str) -> bool:
    path, _, name = proof.partition("::")
    file = ROOT / path
    return not file.is_file() or bool(name and name not in _functions(file))


def test_every_test_that_is_named_exists() -> None:
    assert [proof for proof in PROOFS if _missing(proof)] == []
    assert _missing("tests/unit/test_status.py::test_nobody") and _missing("tests/unit/test_nobody.py")


def test_what_works_names_where_it_is_and_what_shows_it() -> None:
    working = [row for row in ROWS if row.state in (State.WORKS, State.LIMITED)]
    assert [row.interface for row in working if not (row.here and row.proof)] == []
    assert [row.interface for row in ROWS if bool(row.told) == (row.state is State.WORKS)] == []


def test_every_decision_that_is_named_exists() -> None:
    assert [row.interface for row in ROWS if row.state is State.REFUSED and not row.adr] == []
    for number in {number for row in ROWS for number in row.adr}:
        assert page.decision(number).startswith(f"{number:04}-")
    with pytest.raises(StopIteration):
        page.decision(9999)


# ---- what is not there


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a proctored run is refused for that")
@pytest.mark.parametrize("row", TRIED, ids=lambda row: row.interface)
def test_who_tries_it_is_told_in_words(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert row.tried is not None
    _host_without_an_engine(tmp_path, monkeypatch, row.tried)
    assert row.tried.words in "\n".join(_told(row.tried.written, capsys))
    assert {path.name for path in tmp_path.iterdir()} == {name.partition("/")[0] for name in row.tried.files}


def _host_without_an_engine(folder: Path, monkeypatch: pytest.MonkeyPatch, tried: Tried) -> None:
    for name, content in tried.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("RINGFENCE_ENGINE", raising=False)


def _told(written: str, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    program, *words = shlex.split(written)
    if program in _PROGRAMS:
        assert _PROGRAMS[program](words) == 2
        yield capsys.readouterr().err
        return
    with pytest.raises(SandboxError) as refusal:
        eval(written, {"ringfence": ringfence})
    yield from (str(refusal.value), refusal.value.hint)


def test_what_is_not_there_yet_says_what_happens_and_is_tried() -> None:
    absent = [row for row in ROWS if row.state is State.NOT_YET]
    assert absent and [row.interface for row in absent if not (row.tried and row.told)] == []
