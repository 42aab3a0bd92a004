"""What an execution's result says of an outcome."""

from __future__ import annotations

import errno
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ringfence.engine.call_result import call_result
from ringfence.manager import result
from ringfence.manager.result import RollbackResult
from ringfence.manager.rollback import Checkpoint
from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import Outcome, Status
from ringfence.model.record import replace
from ringfence.monitor.violations import RULES, Violation
from ringfence.python_jobs.reply import pack_raised, pack_value


def outcome(status: Status = Status.OK, **more: object) -> Outcome:
    return Outcome(status=status, rc=0 if status is Status.OK else 1, reason="ended", **more)  # type: ignore[arg-type]


def tried(**details: object) -> Event:
    return Event(kind=EventKind.VIOLATION, run_id="1", time_s=0.0, details=details)


def test_a_value_is_a_success() -> None:
    done = result.of_call(call_result(outcome(message=pack_value([1], 100), stdout=b"hi\xff")), "sandbox_1")
    assert done.success and done.value == [1] and done.error is None and done.stdout == "hi�"


def test_an_exception_is_told_as_texts() -> None:
    message = pack_raised("ValueError", "no", "Traceback: no")
    done = result.of_call(call_result(outcome(Status.FAILED, message=message)), "sandbox_1")
    assert not done.success and (done.error, done.error_type) == ("ValueError: no", "ValueError")
    assert done.traceback == "Traceback: no" and done.value is None


def test_a_value_with_a_violation_is_no_success_and_says_which() -> None:
    events = (tried(operation="lookup", path="/etc/shadow", asked="/etc/shadow", errno=errno.ENOENT),) * 3
    done = result.of_call(call_result(outcome(message=pack_value(1, 100), events=events)), "sandbox_1")
    assert not done.success and done.violations == ("lookup /etc/shadow",)
    assert done.error == "violation: lookup /etc/shadow" and done.value == 1


def test_what_honest_programs_try_too_is_no_violation() -> None:
    quiet = (
        tried(operation="lookup", path="/etc/gitconfig", errno=errno.ENOENT),
        tried(operation="io_uring_setup", path="", errno=errno.ENOSYS),
        tried(operation="walk", path="/proc/1/environ", aim="process", errno=errno.EACCES),  # ps does
    )
    assert result.of_command(outcome(events=quiet), "sandbox_1").success
    writing = tried(operation="open", path="/etc/gitconfig", errno=errno.ENOENT, writes=True)
    assert not result.of_command(outcome(events=(writing,)), "sandbox_1").success
    writing = tried(operation="open", path="/proc/1/mem", aim="process", errno=errno.EACCES, writes=True)
    assert not result.of_command(outcome(events=(writing,)), "sandbox_1").success


def test_a_hidden_path_is_a_violation_by_a_call_that_no_kernel_has_too() -> None:
    asked = tried(operation="open", path="/hidden", aim="hidden", errno=errno.ENOSYS)
    assert result.violations(outcome(events=(asked,))) == ("open /hidden",)


@pytest.mark.parametrize("recorder", [{"unnamed": 7}, {"lost": 3, "unwritten": 4}, {"late": 7, "complete": False}])
def test_attempts_that_nobody_can_name_are_a_violation(recorder: dict[str, object]) -> None:
    done = result.of_command(outcome(recorder=recorder), "sandbox_1")
    assert not done.success and done.violations == ("7 attempts not named",)


def test_a_recorder_that_is_not_sure_is_a_violation_whatever_it_says() -> None:
    for recorder in ({"complete": False}, {"complete": None}, {"complete": 1, "lost": "many"}):
        assert result.violations(outcome(recorder=recorder)) == ("1 attempts not named",)
    assert result.violations(outcome(recorder={"complete": True, "total": 9, "summarised": 5})) == ()
    assert result.violations(outcome(recorder={})) == (), "no recorder: nothing was promised"


def test_a_limit_is_a_violation_but_cut_output_is_none() -> None:
    assert result.violations(outcome(limits_hit=("memory", "output"))) == ("limit memory reached",)


def test_a_name_that_a_guest_chose_is_harmless_on_a_terminal() -> None:
    (text,) = result.violations(outcome(events=(tried(operation="open", path="/a\x1b[2J\n", errno=2),)))
    assert text == "open /a\\x1b[2J\\n"


def test_a_flood_is_cut() -> None:
    events = tuple(tried(operation="open", path=f"/a{number}", errno=2) for number in range(1000))
    assert len(result.violations(outcome(events=events))) == result.MAX_VIOLATIONS


def test_a_command_that_fails_says_how() -> None:
    done = result.of_command(outcome(Status.TIMEOUT), "sandbox_1")
    assert not done.success and done.error == "TIMEOUT: ended" and done.status is Status.TIMEOUT


def test_it_is_plain_data_on_demand() -> None:
    undone = result.RollbackResult(
        success=True, checkpoint_id="c", rollback_type="full", files_restored=1, state_restored=True
    )
    done = replace(result.of_command(outcome(), "sandbox_1"), rollback=undone, rolled_back=True)
    plain = json.loads(json.dumps(done.to_dict()))
    assert plain["status"] == "OK" and plain["rollback"]["files_restored"] == 1 and "outcome" not in plain


def passed(name: str) -> Violation:
    return Violation(name=name, limit=1, measured=2, since=0.0, text=f"{name}: 2, limit 1")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ended", [Status.OK, Status.FAILED, Status.KILLED_KILL])
def test_a_limit_that_the_monitor_saw_is_the_status(rule: object, ended: Status) -> None:
    """Whether it was seen before or after the end of the job is chance."""
    seen = passed(rule.field)  # type: ignore[attr-defined]
    done = result.with_limit(result.of_command(outcome(ended), "sandbox_1", [str(seen)]), [seen])
    assert done.status not in (Status.OK, Status.FAILED, Status.KILLED_KILL) and done.rc != 0 and not done.success
    assert done.reason == str(seen) and done.error == f"{done.status}: {seen}"


def test_a_limit_that_the_kernel_held_comes_first_and_without_any_all_stays() -> None:
    ended = result.of_command(outcome(Status.TIMEOUT), "sandbox_1")
    assert result.with_limit(ended, [passed("max_cpu_percent")]) is ended and result.with_limit(ended, []) is ended


def test_what_a_rollback_came_to_may_be_given_without_names_as_the_specification_has_it() -> None:
    done = RollbackResult(True, "c1", "full", 3, True, None)
    assert (done.checkpoint_id, done.rollback_type, done.files_restored, done.error) == ("c1", "full", 3, None)
    made = Checkpoint("c1", datetime.now(UTC), "sandbox_1", Path("snapshots"), {"a": 1}, {"why": "before"})
    assert (made.sandbox_id, made.state_data, made.metadata) == ("sandbox_1", {"a": 1}, {"why": "before"})
