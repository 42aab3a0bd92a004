"""The outcome: the table of return codes and plain data for machines."""

from __future__ import annotations

import json
import pickle

from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import FIXED_RC, Enforcement, Mechanism, Outcome, Status, Usage


def test_the_return_codes_are_those_of_the_specification() -> None:
    assert {str(status): rc for status, rc in FIXED_RC.items()} == {
        "OK": 0, "TIMEOUT": 124, "CPU_LIMIT": 152, "MEM_LIMIT": 137, "KILLED_TERM": 143, "KILLED_KILL": 137,
        "FORBIDDEN_SYSCALL": 159, "INTERNAL_ERROR": 1,
    }  # fmt: skip


def test_only_ok_is_ok_and_only_ok_has_return_code_zero() -> None:
    assert [status for status in Status if Outcome(status=status, rc=0, reason="").ok] == [Status.OK]
    assert [status for status, rc in FIXED_RC.items() if rc == 0] == [Status.OK]


def full() -> Outcome:
    return Outcome(
        status=Status.FAILED, rc=3, reason="exit code 3", stdout=b"a\xffb", argv=("x", "\udcff"),
        enforced={"memory": Enforcement(requested=5, applied=True, mechanism="RLIMIT_DATA", by=(Mechanism.RLIMIT,))},
        usage=Usage(wall_s=0.5), limits_hit=("output",), message=None,
        events=(Event(kind=EventKind.EXIT, run_id="r", time_s=1.0, details={"paths": ("a", "b")}),),
    )  # fmt: skip


def test_plain_data_goes_through_json_whatever_the_job_printed() -> None:
    plain = json.loads(json.dumps(full().to_dict()))
    assert plain["status"] == "FAILED" and plain["stdout"] == "a\ufffdb" and plain["message"] is None
    assert plain["enforced"]["memory"] == {
        "requested": 5, "applied": True, "mechanism": "RLIMIT_DATA", "details": "", "by": ["rlimit"],
    }  # fmt: skip
    assert plain["usage"]["wall_s"] == 0.5 and plain["limits_hit"] == ["output"]
    assert plain["events"] == [{"kind": "exit", "run_id": "r", "time_s": 1.0, "details": {"paths": ["a", "b"]}}]


def test_an_outcome_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(full())) == full()


def test_the_return_code_has_the_name_of_subprocess_too() -> None:
    outcome = Outcome(status=Status.FAILED, rc=7, reason="exit code 7")
    assert outcome.returncode == outcome.rc == 7
    assert "returncode" not in outcome.to_dict()
