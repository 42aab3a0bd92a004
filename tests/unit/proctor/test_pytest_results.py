"""What is believed of a worker's results: contradictions to what it can't choose are told apart from plain failures."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.model.outcome import Outcome, Status
from ringfence.model.record import replace
from ringfence.proctor.grading import Grading
from ringfence.proctor.pytest_grader import PreparedTests, judged
from ringfence.proctor.pytest_results import Expected, parse
from ringfence.proctor.pytest_sandbox import Imports

TESTS = {"t.py::r1": "t.py::test_a", "t.py::r2": "t.py::test_b"}
TWINS = {"t.py::w1": ("t.py::test_a", ""), "t.py::w2": ("t.py::test_b", "")}
EXPECTED = Expected(
    tests=TESTS, twins=TWINS, collected=dict.fromkeys(TESTS.values(), "passed"), failing=frozenset(TESTS.values()),
)  # fmt: skip
RIGHT = {"t.py::r1": "passed", "t.py::w1": "failed", "t.py::r2": "passed", "t.py::w2": "failed"}


def _line(**record: object) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _message(ends: dict[str, str], *more: bytes, took: float = 0.01, finished: int | None = 1) -> bytes:
    lines = [_line(test=name, outcome=how, duration_s=took, message="") for name, how in ends.items()]
    end = [] if finished is None else [_line(finished=finished)]
    return b"".join([*lines, *more, *end])


def _judge(
    message: bytes | None, rc: int = 1, expected: Expected = EXPECTED, status: Status = Status.FAILED
) -> Grading:
    outcome = Outcome(status=status, rc=rc, reason="exit code 1", message=message, duration_ms=1000)
    return judged(PreparedTests(texts={}, expected=expected, imports=Imports()), outcome)


def test_tests_that_pass_with_twins_that_fail_are_a_pass() -> None:
    grading = _judge(_message(RIGHT))
    assert grading.passed and grading.reward == 1.0 and not grading.forged
    told = {"pairs": 2, "failed": 2, "weak": False, "both_passed": [], "without_twin": []}
    assert grading.details["counter_tests"] == told


@pytest.mark.parametrize("ends", [
    {"t.py::r1": "failed", "t.py::w1": "failed"},
    {"t.py::r1": "failed", "t.py::w1": "passed"},
    {"t.py::r1": "skipped"}, {"t.py::r1": "xfailed"}, {"t.py::r1": "error"}, {"t.py::r1": "xpassed"},
], ids=str)  # fmt: skip
def test_a_wrong_program_is_a_plain_fail(ends: dict[str, str]) -> None:
    grading = _judge(_message(RIGHT | ends))
    assert not grading.passed and not grading.forged and grading.reward == 0.0
    assert grading.reason == "1 tests did not pass: t.py::test_a"


FORGERIES = {
    "passed, and so did what contradicts it": _message(RIGHT | {"t.py::w1": "passed"}),
    "is reported twice": _message(RIGHT, _line(test="t.py::r1", outcome="passed", duration_s=0, message="")),
    "a line of its results can't be read": _message(RIGHT, b"7 passed in 0.01s\n"),
    "reports a test that does not exist": _message(RIGHT | {"t.py::test_other": "passed"}),
    "something was reported after its end": _message(RIGHT) + _line(finished=1),
    "t.py::test_a was deselected": _message(RIGHT, _line(deselected="t.py::r1")),
    "came to its end without t.py::test_b": _message({name: how for name, how in RIGHT.items() if name != "t.py::r2"}),
    "without the twin of t.py::test_b": _message({name: how for name, how in RIGHT.items() if name != "t.py::w2"}),
    "exit status 1 without a failed test": _message({"t.py::r1": "passed"}),
    "in a run of 1.0 s": _message(RIGHT, took=100.0),
    "gave exit status 0, and the process ended with 1": _message(RIGHT, finished=0),
    "more was written into its channel": None,
}


@pytest.mark.parametrize("why", FORGERIES)
def test_what_no_honest_run_leads_to_is_a_forgery(why: str) -> None:
    grading = _judge(FORGERIES[why])
    assert why in grading.forged and not grading.passed and grading.reward == 0.0


def test_failed_tests_with_exit_status_0_are_a_forgery() -> None:
    assert "exit status 0 with failed tests" in _judge(_message(RIGHT, finished=0), rc=0, status=Status.OK).forged


@pytest.mark.parametrize(("rc", "status", "forged"), [
    (0, Status.OK, True), (1, Status.FAILED, False), (124, Status.TIMEOUT, False), (137, Status.KILLED_KILL, False),
])  # fmt: skip
def test_an_end_before_the_tests_is_a_forgery_if_it_looks_like_success(rc: int, status: Status, forged: bool) -> None:
    grading = _judge(_message({}, finished=None), rc=rc, status=status)
    assert not grading.passed and bool(grading.forged) is forged


def test_a_program_that_can_not_be_imported_is_a_plain_fail() -> None:
    error = _line(uncollected="t.py", outcome="failed", message="SyntaxError: \x1b[2Jinvalid")
    grading = _judge(_message({}, error))
    assert not grading.passed and not grading.forged
    assert "\\x1b[2J" in grading.reason and "\x1b" not in json.dumps(dict(grading.details), ensure_ascii=False)


def test_a_test_that_was_skipped_before_may_be_skipped() -> None:
    before = Expected(tests=TESTS, twins=TWINS, collected={"t.py::test_a": "skipped", "t.py::test_b": "passed"},
                      failing=frozenset({"t.py::test_b"}))  # fmt: skip
    assert _judge(_message(RIGHT | {"t.py::r1": "skipped", "t.py::w1": "skipped"}), expected=before).passed


def test_what_the_oracles_options_deselected_before_is_no_forgery() -> None:
    assert _judge(_message(RIGHT, _line(deselected="t.py::test_slow"))).passed


def test_tests_and_twins_that_a_class_inherits_are_known_by_their_functions() -> None:
    tests, twins = {"t.py::A::r1": "t.py::A::test_a"}, {"t.py::A::w1": ("t.py::A::test_a", "")}
    weak = Expected(tests=tests, twins=twins, collected={"t.py::B::test_a": "failed", "t.py::A::test_a": ""}, weak=True)
    ends = {"t.py::A::r1": "passed", "t.py::A::w1": "failed", "t.py::B::r1": "passed", "t.py::B::w1": "failed"}
    assert _judge(_message(ends), expected=weak).passed
    forged = _judge(_message(dict.fromkeys(ends, "passed"), finished=0), 0, weak, Status.OK)
    assert forged.details["counter_tests"]["both_passed"] == ["t.py::A::test_a", "t.py::B::test_a"] and forged.forged
    assert not _judge(_message({"t.py::A::r1": "passed", "t.py::A::w1": "failed"}), expected=weak).passed


def test_a_test_that_only_the_text_showed_and_nobody_collects_is_no_forgery() -> None:
    unseen = Expected(tests=TESTS, twins=TWINS, collected={"t.py::test_a": "", "t.py::test_b": ""}, weak=True,
                      open_files=frozenset({"t.py"}))  # fmt: skip
    grading = _judge(_message({"t.py::r1": "passed", "t.py::w1": "failed"}), 1, unseen)
    assert not grading.passed and not grading.forged


def test_cases_that_come_from_the_code_under_test_are_no_forgery() -> None:
    collected = {"t.py::test_a[1]": "passed", "t.py::test_a[2]": "passed"}
    cases = Expected(tests={"t.py::r1": "t.py::test_a"}, collected=collected)
    grading = _judge(_message({"t.py::r1[1]": "passed", "t.py::r1[3]": "passed"}, finished=0), 0, cases, Status.OK)
    assert not grading.passed and not grading.forged and "t.py::test_a[2]" in grading.reason


def test_a_twin_of_one_case_says_nothing_of_the_others() -> None:
    cases = Expected(tests={"t.py::r1": "t.py::test_a"}, twins={"t.py::w1": ("t.py::test_a", "bb")}, weak=True,
                     collected={"t.py::test_a[aa]": "passed", "t.py::test_a[bb]": "passed"})  # fmt: skip
    ends = {"t.py::r1[aa]": "passed", "t.py::r1[bb]": "passed", "t.py::w1[aa]": "passed", "t.py::w1[bb]": "failed"}
    assert _judge(_message(ends), expected=cases).passed


OTHER_CASES = {"t.py::r1[x]": "passed", "t.py::w1[y]": "passed", "t.py::r2[x]": "passed", "t.py::w2[y]": "passed"}
UNKNOWN = Expected(tests=TESTS, twins=TWINS, collected=dict.fromkeys(TESTS.values(), ""), weak=True,
                   open_files=frozenset({"t.py"}))  # fmt: skip


@pytest.mark.parametrize("expected", [EXPECTED, UNKNOWN], ids=["with a reference", "without"])
def test_results_of_cases_that_are_none_are_no_results(expected: Expected) -> None:
    """A test and a twin that are told of with different cases would not contradict each other."""
    assert not _judge(_message(OTHER_CASES, finished=0), 0, expected, Status.OK).passed
    assert _judge(_message(RIGHT), expected=expected).passed


@pytest.mark.parametrize("weak", [False, True])
def test_a_twin_without_the_case_that_contradicts_is_no_twin(weak: bool) -> None:
    cases = Expected(tests={"t.py::r1": "t.py::test_a"}, twins={"t.py::w1": ("t.py::test_a", "bb")}, weak=weak,
                     collected={"t.py::test_a": ""} if weak else {"t.py::test_a[bb]": "passed"},
                     failing=frozenset() if weak else frozenset({"t.py::test_a[bb]"}))  # fmt: skip
    for case in ("bb", "aa"):
        ends = {f"t.py::r1[{case}]": "passed", "t.py::w1[aa]": "passed"}
        assert not _judge(_message(ends, finished=0), 0, cases, Status.OK).passed
    assert _judge(_message({"t.py::r1[bb]": "passed", "t.py::w1[bb]": "failed"}), expected=cases).passed


def test_without_a_reference_one_pair_is_told_and_two_are_a_forgery() -> None:
    weak = Expected(tests=TESTS, twins=TWINS, collected=dict.fromkeys(TESTS.values(), "failed"), weak=True)
    one = _judge(_message(RIGHT | {"t.py::w1": "passed"}), expected=weak)
    assert one.passed and one.details["counter_tests"]["both_passed"] == ["t.py::test_a"]
    two = _judge(_message(dict.fromkeys(RIGHT, "passed"), finished=0), 0, weak, Status.OK)
    assert "t.py::test_a and 1 more passed" in two.forged


def test_no_test_is_no_pass() -> None:
    assert not _judge(b"").passed
    assert not _judge(_message({}, finished=0), 0, Expected(tests={}), Status.OK).passed


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_can_be_read(message: bytes) -> None:
    assert not _judge(message + b"\n").passed


KEYS = st.sampled_from(["test", "outcome", "duration_s", "message", "finished", "deselected", "uncollected", "missing"])
LEAVES = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)


@pytest.mark.slow
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_any_json_can_be_read(value: object) -> None:
    parse(json.dumps(value).encode() + b"\n")


TIMED = replace(EXPECTED, clocks=frozenset({"time"}))


def _clock(off: float, name: str = "time", lived: float = 0.9) -> bytes:
    return _line(clock=name, off_s=off, lived_s=lived)


def test_a_clock_that_went_wrong_is_a_fail_and_one_that_is_not_told_a_forgery() -> None:
    assert _judge(_message(RIGHT, _clock(0.0)), expected=TIMED).passed
    wrong = _judge(_message(RIGHT, _clock(1.2)), expected=TIMED)
    assert not wrong.passed and not wrong.forged and "the clock time" in wrong.reason
    assert "how its clock" in _judge(_message(RIGHT), expected=TIMED).forged
    assert _judge(_message(RIGHT, _clock(0.0), _clock(9.0, "monotonic")), expected=TIMED).passed  # as then
    assert "can't be read" in _judge(_message(RIGHT, _clock(-1)), expected=TIMED).forged


@pytest.mark.parametrize(("off", "lived"), [(10**400, 1), (0, 10**400), (0, float("inf")), (float("nan"), 1)],
                         ids=["off", "lived", "endless", "none"])  # fmt: skip
def test_a_clock_that_no_number_can_tell_is_a_forgery_and_no_error(off: float, lived: float) -> None:
    """An error would be no verdict, and the agent would have another try."""
    assert "can't be read" in _judge(_message(RIGHT, _clock(off, lived=lived)), expected=TIMED).forged


def test_clocks_that_ran_shorter_than_the_process_are_a_fail() -> None:
    outcome = Outcome(status=Status.FAILED, rc=1, reason="", message=_message(RIGHT, _clock(0.0)), duration_ms=90_000)
    graded = judged(PreparedTests(texts={}, expected=TIMED, imports=Imports()), outcome)
    assert not graded.passed and not graded.forged and "its clocks told 0.9 s" in graded.reason


def _halves(one: dict[str, str], other: dict[str, str]) -> Grading:
    prepared = PreparedTests(texts={"t.py": "1"}, other_texts={"t.py": "2"}, expected=EXPECTED, imports=Imports())
    ends = []
    for ended in (one, other):
        status = int("failed" in ended.values())
        how = Status.FAILED if status else Status.OK
        message = _message(ended, finished=status)
        ends.append(Outcome(status=how, rc=status, reason="", message=message, duration_ms=1000))
    return judged(prepared, *ends)


def test_two_runs_with_one_of_each_are_judged_as_one() -> None:
    real = dict.fromkeys(TESTS, "passed")
    twins = dict.fromkeys(TWINS, "failed")
    assert _halves(real, twins).passed
    assert _halves({"t.py::r1": "passed", "t.py::w2": "failed"}, {"t.py::w1": "failed", "t.py::r2": "passed"}).passed
    assert "contradicts" in _halves(real, dict.fromkeys(TWINS, "passed")).forged
    fail = _halves({**real, "t.py::r1": "failed"}, twins)
    assert not fail.passed and not fail.forged
    assert _halves(real, {"t.py::w1": "failed"}).forged  # one that is in neither run
    assert not _halves({**real, "t.py::r1": "failed"}, {**twins, "t.py::r1": "passed"}).passed  # the worse counts
