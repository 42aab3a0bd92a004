"""The tree of errors: shape, what each carries, and that each survives the way home from a worker."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest

from ringfence import errors

ONE_OF_EACH = (
    errors.SandboxError("a", hint="h"),
    errors.UsageError("a", hint="h"),
    errors.FieldError("a", hint="h"),
    errors.PolicyError("f", "p", where="x:1:2: ", more=(errors.PolicyError("g", "q"),)),
    errors.UnavailableError("a", missing=("network",), hint="h"),
    errors.SetupError("exec", "no", hint="h"),
    errors.SupervisionError("a"),
    errors.FileError("a", errno=2, hint="h"),
    errors.CallError("no", type_name="ValueError", traceback_text="Traceback…", hint="h"),
    errors.RefusedError("delete", "no", risk_score=0.9, hint="h"),
    errors.AttackError("post", "no", findings=("f",), risk_score=0.9, hint="h"),
    errors.CheckpointError("a"),
    errors.ConflictError("a", paths=("b",), hint="h"),
    errors.LateAttemptError("a", attempts=("b",), since=("c",), hint="h"),
    errors.BusyError("a", pid=7, hint="h"),
    errors.ForeignError("a", hint="h"),
    errors.EvidenceError("a"),
    errors.VerificationError(3, "bad", hint="h"),
)


def test_the_examples_cover_the_whole_tree() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    # The service has some of its own, which never leave it.
    own = {kind for kind in below(errors.SandboxError) if kind.__module__ == errors.__name__}
    assert {type(error) for error in ONE_OF_EACH} == own


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", (lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy))
def test_an_error_survives_being_sent_between_processes(error, copied) -> None:
    back = copied(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    mine, theirs = dict(vars(error)), dict(vars(back))
    assert [str(each) for each in mine.pop("more", ())] == [str(each) for each in theirs.pop("more", ())]
    assert mine == theirs


def test_a_traceback_shows_what_to_do() -> None:
    error = errors.UnavailableError("no namespaces", fixes=("sysctl one", "or two"))
    assert "".join(traceback.format_exception(error)).endswith("no namespaces\nsysctl one; or two\n")
    plain = "".join(traceback.format_exception(errors.UsageError("no")))
    assert plain.endswith("UsageError: no\n"), "the control: without a hint there is no further line"


def test_a_policy_error_is_a_usage_error_and_names_place_field_and_problem() -> None:
    error = errors.PolicyError("pids_max", "0 must be greater than 0", where="p.yaml:3:1: ")
    assert isinstance(error, errors.UsageError)
    assert str(error) == "p.yaml:3:1: pids_max: 0 must be greater than 0"
    assert str(errors.PolicyError("", "not YAML")) == "not YAML"


def test_each_error_carries_what_its_line_in_the_tree_says() -> None:
    assert errors.SetupError("exec", "x").step == "exec"
    assert errors.UnavailableError("x", missing=("disk",)).missing == ("disk",)
    unavailable = errors.UnavailableError("x", fixes=("do this", "or that"))
    assert (unavailable.fixes, unavailable.hint) == (("do this", "or that"), "do this; or that")
    assert errors.VerificationError(4, "x").step == 4
    assert str(errors.VerificationError(4, "x")) == "step 4: x"
    assert errors.SandboxError("x").hint == ""
    attack = errors.AttackError("post", "no", findings=("f",), risk_score=0.9)
    assert (str(attack), attack.tool, attack.findings, attack.risk_score) == ("post: no", "post", ("f",), 0.9)
    assert isinstance(attack, errors.RefusedError)
    call = errors.CallError("bad", type_name="ValueError", traceback_text="Traceback…")
    assert (str(call), call.type_name, call.traceback_text) == ("ValueError: bad", "ValueError", "Traceback…")
    assert str(errors.CallError("TIMEOUT: late")) == "TIMEOUT: late"
