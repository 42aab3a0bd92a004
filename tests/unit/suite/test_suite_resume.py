"""What counts when a suite goes on: a whole result of this run, by this key, untouched. And who works in a
directory."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import suite_samples as s

from ringfence.errors import SandboxError, UsageError
from ringfence.evidence.keys import SigningKey
from ringfence.proctor.suite import completeness, output
from ringfence.proctor.suite.entry import Entry, Result, State, nonce_of
from ringfence.proctor.suite.executor import Executor
from ringfence.proctor.suite.progress import SuiteProgress
from ringfence.proctor.suite.reports import withdraw, write_reports
from ringfence.proctor.suite.results import Row
from ringfence.proctor.suite.running import run_all

NONCE = nonce_of(s.SUITE, "fizz")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return Path(s.complete_folder(tmp_path / "tasks", "fizz").out)


def _holds(out: Path, key: str = s.KEY.public_hex, nonce: str = NONCE) -> bool:
    try:
        return completeness.verified(str(out), key, nonce).verdict["task_id"] == "fizz"
    except (SandboxError, OSError):
        return False


def _append(name: str) -> Callable[[Path], object]:
    return lambda out: (out / name).write_bytes((out / name).read_bytes() + b"x")


def _link(out: Path) -> None:
    (out / "agent.stdout").rename(out.parent / "log")
    (out / "agent.stdout").symlink_to(out.parent / "log")


def _fifo(out: Path) -> None:
    (out / "report.html").unlink()
    os.mkfifo(out / "report.html")


CHANGES: dict[str, Callable[[Path], object]] = {
    "the report, which is in no bundle": _append("report.html"),
    "a log": _append("agent.stdout"),
    "the bundle": _append("bundle.json"),
    "a torn bundle": lambda out: os.truncate(out / "bundle.json", 100),
    "no bundle": lambda out: (out / "bundle.json").unlink(),
    "no receipt": lambda out: (out / "receipt.json").unlink(),
    "an empty receipt": lambda out: os.truncate(out / "receipt.json", 0),
    "one file less": lambda out: (out / "final.diff").unlink(),
    "one file more": lambda out: (out / "more").write_text("x"),
    "a link": _link,
    "a fifo": _fifo,
    "a directory that others write": lambda out: out.chmod(0o777),
    "nothing at all": shutil.rmtree,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_result_that_is_not_as_it_was_left_does_not_count(out: Path, change: Callable[[Path], object]) -> None:
    assert _holds(out)
    change(out)
    assert not _holds(out)


def test_a_result_of_another_key_entry_or_run_does_not_count(out: Path) -> None:
    assert not _holds(out, key=SigningKey.generate().public_hex)
    assert not _holds(out, nonce=nonce_of(s.SUITE, "buzz"))
    assert not _holds(out, nonce=nonce_of("6" * 64, "fizz"))


def test_a_receipt_that_somebody_else_signed_does_not_count(out: Path) -> None:
    """Whoever writes into the directory can write a receipt too, but not with the suite's key."""
    (out / "report.html").write_text("better")
    completeness.write_receipt(str(out), NONCE, SigningKey.generate())
    assert not _holds(out)


# ---- the directory of a suite


def test_one_bench_at_a_time_works_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_WAIT_S", 0.0)
    refused = pytest.raises(UsageError, match="another bench is using it")
    with output.held(str(tmp_path / "out")) as folder, refused, output.held(folder):
        pass
    with output.held(folder) as again:
        assert again == folder and os.stat(folder).st_mode & 0o777 == 0o700


def test_who_comes_while_workers_of_a_killed_bench_clean_up_waits(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    other = os.open(tmp_path / "out" / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(other, fcntl.LOCK_EX)
    waited: list[None] = []

    def let_go() -> None:
        waited.append(None)
        os.close(other)

    with output.held(str(tmp_path / "out"), let_go):
        assert len(waited) == 1


def test_what_workers_left_half_done_is_removed_and_what_is_whole_stays(tmp_path: Path) -> None:
    (tmp_path / "tasks" / ".123.abc" / "deep").mkdir(parents=True, mode=0o700)
    (tmp_path / "tasks" / "whole").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    (tmp_path / "tasks").chmod(0o700)
    with output.held(str(tmp_path)) as folder:
        assert os.listdir(os.path.join(folder, "tasks")) == ["whole"]
        with pytest.raises(UsageError, match="tasks/whole does not belong to a selected task"):
            output.refuse_others(folder, {"other"})
        output.refuse_others(folder, {"whole", "other"})


@pytest.mark.parametrize("prepare", [
    lambda folder: folder.chmod(0o777),
    lambda folder: (folder.rmdir(), folder.symlink_to("/tmp")),
    lambda folder: (folder.rmdir(), folder.write_text("a file")),
    lambda folder: (folder / ".lock").symlink_to("/etc/passwd"),
    lambda folder: (folder / "tasks").symlink_to("/tmp"),
])  # fmt: skip
def test_a_folder_that_is_not_ours_alone_is_refused(tmp_path: Path, prepare: Callable[[Path], object]) -> None:
    folder = tmp_path / "out"
    folder.mkdir(mode=0o700)
    prepare(folder)
    with pytest.raises(UsageError), output.held(str(folder)):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"suite": 7}', '{"suite": "xyz"}', "null"])
def test_a_torn_number_is_made_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "suite.json").write_text(text)
    first = output.suite_number(str(tmp_path))
    assert len(first) == 64 and output.suite_number(str(tmp_path)) == first


# ---- running all


class _Executor:
    """Answers as it was told to, in turns."""

    def __init__(self, answers: dict[str, list[Result]]) -> None:
        self.slots, self._answers, self._waiting = 2, answers, list[Entry]()

    def submit(self, entry: Entry) -> None:
        self._waiting.append(entry)

    def results(self) -> Iterator[Result]:
        while self._waiting:
            yield self._answers[self._waiting.pop(0).id].pop(0)

    def cancel(self, entry_id: str) -> None: ...
    def close(self) -> None: ...


def _run(answers: dict[str, list[Result]], retries: int = 2) -> dict[str, Row]:
    executor: Executor = _Executor(answers)
    rows = run_all([s.entry(name) for name in answers], s.order(), executor, public_key=s.KEY.public_hex,
                   retries=retries, progress=SuiteProgress(live=False))  # fmt: skip
    return {row.id: row for row in rows}


def _failed(name: str) -> Result:
    return Result(id=name, state=State.FAILED, error="no space left")


def test_what_the_machine_failed_is_tried_again_and_nothing_else(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    good, bad = s.complete_folder(tasks, "a"), s.complete_folder(tasks, "b", passed=False)
    rows = _run({
        "a": [_failed("a"), _failed("a"), good],
        "b": [bad],
        "c": [_failed("c")] * 3,
        "d": [Result(id="d", state=State.REFUSED, error="malformed")],
    })  # fmt: skip
    assert {name: (row.word, row.attempts) for name, row in rows.items()} == {
        "a": ("pass", 3), "b": ("fail", 1), "c": ("failed", 3), "d": ("refused", 1)}  # fmt: skip


def test_a_workers_word_is_no_verdict(tmp_path: Path) -> None:
    lie = Result(id="a", state=State.VERDICT, out=str(tmp_path / "nothing"))
    swapped = Result(id="b", state=State.VERDICT, out=s.complete_folder(tmp_path / "tasks", "other").out)
    rows = _run({"a": [lie], "b": [swapped]}, retries=0)
    assert [row.word for row in rows.values()] == ["failed", "failed"]
    assert "is not valid" in rows["a"].error


def test_results_that_nobody_asked_for_or_that_come_twice_count_once(tmp_path: Path) -> None:
    good = s.complete_folder(tmp_path / "tasks", "a")

    class Doubling(_Executor):
        def results(self) -> Iterator[Result]:
            yield from (good, good, Result(id="stranger", state=State.VERDICT), _failed("a"))

    rows = run_all([s.entry("a")], s.order(), Doubling({}), public_key=s.KEY.public_hex, retries=2,
                   progress=SuiteProgress(live=False))  # fmt: skip
    assert [(row.id, row.word) for row in rows] == [("a", "pass")]


def test_tasks_that_turn_out_to_have_one_id_have_no_verdict(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    answers = {name: [s.complete_folder(tasks, name, task_id="same")] for name in ("a", "b")}
    answers["c"] = [s.complete_folder(tasks, "c")]
    rows = _run(answers)
    assert [row.word for row in rows.values()] == ["refused", "refused", "pass"]
    assert rows["a"].error == "its task has the id 'same', as has that of 'b'"
    write_reports(str(tmp_path), [*rows.values()], [s.entry(name) for name in rows], s.order(), s.KEY, "t")
    assert os.listdir(tasks) == ["c"]
    withdraw(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["harbor", "tasks"]


def test_no_secret_is_in_the_words_of_an_order() -> None:
    told = repr(s.order(environment={"TOKEN": "hunter2"}))
    assert "hunter2" not in told and "7" * 64 not in told
