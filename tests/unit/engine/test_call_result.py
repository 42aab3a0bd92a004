"""What a call came to: the value, or one error that says why there is none, and only when it is asked for."""

from __future__ import annotations

import traceback

import pytest

from ringfence.engine.call_result import CallResult, call_result
from ringfence.errors import CallError, SandboxError
from ringfence.model.outcome import Outcome, Status
from ringfence.model.record import replace
from ringfence.python_jobs.reply import ReplyKind, pack_raised, pack_value

VALUE = pack_value([1], 100)
RAISED = pack_raised("app.Oops", "first line\nsecond", "Traceback…\n  guest frame\n")


def _ended(message: bytes | None, status: Status = Status.OK, reason: str = "exited with 0") -> CallResult:
    return call_result(Outcome(status=status, rc=0, reason=reason, message=message))


def test_a_value_is_returned() -> None:
    done = _ended(VALUE)
    assert (done.ok, done.status, done.value, done.problem, done.raised) == (True, Status.OK, [1], "", None)


def test_none_is_a_value() -> None:
    assert _ended(pack_value(None, 100)).value is None and _ended(pack_value(None, 100)).ok


def test_the_guests_exception_is_data_until_the_value_is_asked_for() -> None:
    done = _ended(RAISED, Status.FAILED, "exited with 1")
    assert not done.ok and done.problem == "app.Oops: first line"
    assert done.raised is not None and done.raised.type_name == "app.Oops"
    with pytest.raises(CallError) as error:
        _ = done.value
    assert isinstance(error.value, SandboxError)
    assert (error.value.type_name, error.value.problem) == ("app.Oops", "first line\nsecond")
    shown = "".join(traceback.format_exception(error.value))
    assert "inside the sandbox" in shown and "guest frame" in shown


@pytest.mark.parametrize("status", [each for each in Status if each not in (Status.OK, Status.FAILED)])
@pytest.mark.parametrize("message", (VALUE, RAISED, b""), ids=("value", "raised", "nothing"))
def test_how_it_ended_outweighs_what_the_guest_says(status: Status, message: bytes) -> None:
    done = _ended(message, status, "said by us")
    assert not done.ok and done.raised is None
    with pytest.raises(CallError, match=f"^{status}: said by us$"):
        _ = done.value


def test_a_value_of_a_job_that_then_failed_is_none() -> None:
    done = _ended(VALUE, Status.FAILED, "exited with 3")
    with pytest.raises(CallError, match=r"^FAILED: exited with 3$"):
        _ = done.value


@pytest.mark.parametrize(("message", "kind", "word"), (
    (b"", ReplyKind.NOTHING, "without returning"), (None, ReplyKind.OVERFLOW, "more into its channel"),
    (b"junk!", ReplyKind.GARBLED, "not a message"), (VALUE[:-1], ReplyKind.HALF, "too early"),
    (VALUE * 2, ReplyKind.TRAILING, "follow"), (pack_value(object(), 99), ReplyKind.UNSENDABLE, "object"),
    (pack_value("x" * 999, 99), ReplyKind.TOO_LARGE, "99 are allowed"),
), ids=lambda part: str(part)[:12])  # fmt: skip
def test_every_other_reply_is_told_in_words(message: bytes | None, kind: ReplyKind, word: str) -> None:
    done = _ended(message)
    assert done.reply.kind is kind and not done.ok
    with pytest.raises(CallError, match=word):
        _ = done.value


def test_a_limit_is_not_explained_by_the_missing_reply() -> None:
    late = Outcome(status=Status.TIMEOUT, rc=124, reason="too long", message=b"", limits_hit=("wall_time",))
    killed = call_result(late)
    with pytest.raises(CallError, match="TIMEOUT") as error:
        _ = killed.value
    assert error.value.hint == "raise wall_time_s of the policy, if it may need so much"
    with pytest.raises(CallError) as crashed:
        _ = _ended(b"", Status.CRASHED, "crashed with SIGSEGV").value
    assert crashed.value.hint == ""
    with pytest.raises(CallError) as silent:
        _ = _ended(b"").value
    assert "ended the process itself" in silent.value.hint


@pytest.mark.parametrize(("near", "status"), [(("memory",), Status.MEM_LIMIT), ((), Status.FAILED)])
def test_a_memory_error_is_the_limit_where_one_is_near(near: tuple[str, ...], status: Status) -> None:
    message = pack_raised("MemoryError", "", "Traceback…\n")
    outcome = Outcome(status=Status.FAILED, rc=1, reason="exit code 1", message=message, near_limits=near)
    assert call_result(outcome).status is status
    own = replace(outcome, message=pack_raised("app.MemoryError", "", ""))
    assert call_result(own).status is Status.FAILED
