"""``ringfence.bundle``: any outcome becomes a bundle that verifies, says no more than is known, or is an error."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from attested import HELD, KEY, RUN_ID, SURE, attempt, decided, event, outcome, verified

import ringfence
from ringfence.attest import run_bundle
from ringfence.attest.run_bundle import artifacts_folder, bundle
from ringfence.attest.statements import host, phase, protections
from ringfence.errors import EvidenceError, UsageError, VerificationError
from ringfence.evidence.inputs import data_input
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle
from ringfence.model.events import EventKind
from ringfence.model.job import Job
from ringfence.model.outcome import Change, ChangeKind, Enforcement, Outcome, Status, Usage
from ringfence.model.policy import SandboxPolicy

POLICY = SandboxPolicy(wall_time_s=7, environment={"TOKEN": "hunter2"}, pass_environment=("LANG",))


def test_it_is_a_public_name() -> None:
    assert ringfence.bundle is bundle and "bundle" in ringfence.__all__


def test_a_quiet_run_is_clean_and_never_a_pass() -> None:
    found = verified(bundle(outcome(), key=KEY, policy=POLICY))
    assert found.format == "ringfence-run-1"
    assert (found.verdict["status"], found.verdict["pass"], "reward" in found.verdict) == ("clean", False, False)
    assert found.verdict["task_id"] == RUN_ID
    assert found.run is not None and [row["name"] for row in found.run["phases"]] == ["run"]
    assert (found.run["started_at"], found.run["ended_at"]) == (
        "2026-11-06T21:20:00.250000Z", "2026-11-06T21:20:01.250000Z")  # fmt: skip


def test_an_outcome_alone_is_enough() -> None:
    found = verified(bundle(outcome(), key=KEY))
    assert found.inputs is not None and [row["role"] for row in found.inputs["inputs"]] == ["agent", "policy"]


def test_what_was_tried_makes_it_compromised() -> None:
    found = verified(bundle(outcome(attempt(), decided()), key=KEY, policy=POLICY))
    assert found.verdict["status"] == "compromised"
    assert [record["kind"] for record in found.violations] == ["masked_read", "blocked_connect"]


@pytest.mark.parametrize("changes", [
    {"recorder": {}},
    {"recorder": SURE | {"complete": False, "lost": 3}},
    {"recorder": SURE | {"kept": 4}},
    {"enforced": HELD | {"hidden_paths": Enforcement(requested=("/x",), applied=False, mechanism="none")},
     "partial": True},
    {"enforced": {}, "recorder": {}},
], ids=["no recorder", "lost", "not arrived", "partial", "nothing enforced"])  # fmt: skip
def test_who_can_not_be_sure_does_not_say_clean(changes: dict[str, Any]) -> None:  # shortcoming 7
    found = verified(bundle(outcome(**changes), key=KEY, policy=POLICY))
    assert found.verdict["status"] == "compromised"
    assert any("the recorder was not healthy" in note for note in found.notes)


def test_what_was_not_enforced_is_told() -> None:  # shortcoming 9
    absent = Enforcement(requested=1 << 29, applied=False, mechanism="none", details="missing: a control group")
    found = verified(bundle(outcome(enforced=HELD | {"memory": absent}, partial=True), key=KEY, policy=POLICY))
    assert "asked for but not enforced: memory" in found.notes


def test_the_command_is_bound_byte_for_byte_and_shown_harmlessly() -> None:
    words = ("sh", "-c", "\udcff\x1b[2J", "two words")
    found = verified(bundle(outcome(argv=words), key=KEY))
    assert found.inputs is not None and found.environment is not None
    argv = next(row for row in found.inputs["inputs"] if row["name"] == "argv")
    assert argv["sha256"] == hashlib.sha256(b"sh\0-c\0\xff\x1b[2J\0two words\0").hexdigest()
    assert found.environment["agent_command"].isprintable()
    assert "'two words'" in found.environment["agent_command"]


def test_of_variables_no_value_is_written_anywhere(tmp_path: Path) -> None:
    job = Job(argv=("make",), environment={"SECRET": "hunter2"}, stdin=b"typed", files={"in/put": b"data"})
    out = tmp_path / "b.json"
    found = verified(bundle(outcome(), key=KEY, policy=POLICY, job=job, out=out))
    assert found.inputs is not None and found.inputs["environment_variables"] == ["LANG", "SECRET", "TOKEN"]
    assert {"stdin", "files/in/put"} <= {row["name"] for row in found.inputs["inputs"]}
    for path in (out, *(tmp_path / "b.artifacts").iterdir()):
        assert b"hunter2" not in path.read_bytes()


def test_inputs_nonce_and_name_of_the_caller_are_bound() -> None:
    made = bundle(outcome(), key=KEY, name="nightly", nonce="cd" * 32, inputs=[data_input("scaffold", "AGENTS", b"x")])
    found = verified(made, nonce="cd" * 32)
    assert found.verdict["task_id"] == "nightly"
    with pytest.raises(VerificationError, match="nonce"):
        verified(bundle(outcome(), key=KEY), nonce="cd" * 32)


def test_with_a_file_all_that_is_bound_lies_beside_it(tmp_path: Path) -> None:
    changes = (Change(path="a\udcff\n", kind=ChangeKind.ADDED),)
    out = tmp_path / "evidence.json"
    ran = outcome(attempt(), stdout=b"\xff\x1b[2J" * 400_000, stderr=b"", changes=changes, message=b"\0")
    bundle(ran, key=KEY, policy=POLICY, out=out)
    folder = artifacts_folder(str(out))
    found = verify_bundle(out.read_bytes(), trust=Trust.pinned(KEY.public_hex), artifacts_folder=folder)
    names = ["changes.json", "events.jsonl", "inputs.json", "policy.json", "run.json", "run.message", "run.stderr",
             "run.stdout"]  # fmt: skip
    assert [row["name"] for row in found.artifacts] == sorted(os.listdir(folder)) == names
    assert json.loads(Path(folder, "changes.json").read_text())["changes"] == [["added", "a\\xff\\n"]]
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert sorted(os.listdir(tmp_path)) == ["evidence.artifacts", "evidence.json"]


def test_a_changed_artifact_is_noticed(tmp_path: Path) -> None:
    out = tmp_path / "evidence.json"
    bundle(outcome(), key=KEY, out=out)
    (tmp_path / "evidence.artifacts" / "run.stdout").write_bytes(b"hellO\n")
    with pytest.raises(VerificationError) as caught:
        verify_bundle(out.read_bytes(), trust=Trust.pinned(KEY.public_hex),
                      artifacts_folder=str(tmp_path / "evidence.artifacts"))  # fmt: skip
    assert caught.value.step == 21


@pytest.mark.parametrize("there", ["evidence.json", "evidence.artifacts"])
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_evidence_is_not_written_over_anything(tmp_path: Path, there: str, kind: str) -> None:  # shortcoming 14
    path = tmp_path / there
    if kind == "file":
        path.write_bytes(b"mine")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "target")
    with pytest.raises(UsageError, match="already exists"):
        bundle(outcome(), key=KEY, out=tmp_path / "evidence.json")
    assert os.listdir(tmp_path) == [there]


def test_without_its_folder_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        bundle(outcome(), key=KEY, out=tmp_path / "no" / "b.json")


@pytest.mark.parametrize("broken", ["write_whole", "write_beside", "write_events"])
def test_what_can_not_be_written_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Never a clean bundle, and never half of one."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_bundle, broken, full)
    with pytest.raises(EvidenceError, match="No space left"):
        bundle(outcome(), key=KEY, out=tmp_path / "evidence.json")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_appeared_meanwhile_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that writes to the host may make a link in the place of the directory."""

    def made(*arguments: Any, **more: Any) -> dict[str, object]:
        (tmp_path / "evidence.artifacts").symlink_to(tmp_path)
        return real(*arguments, **more)

    real = run_bundle.make_bundle
    monkeypatch.setattr(run_bundle, "make_bundle", made)
    with pytest.raises(UsageError, match="already exists"):
        bundle(outcome(), key=KEY, out=tmp_path / "evidence.json")
    assert os.listdir(tmp_path) == ["evidence.artifacts"]


def test_an_outcome_without_events_or_with_a_strange_clock_is_an_error() -> None:
    with pytest.raises(EvidenceError, match="has no events"):
        bundle(outcome(events=()), key=KEY)
    with pytest.raises(EvidenceError, match="not an event time"):
        bundle(outcome(event(EventKind.LIMIT, 1e300, capability="memory")), key=KEY)


@pytest.mark.parametrize("changes", [{"argv": ("echo", "\ud800")}, {"run_id": "\ud800"}], ids=["argv", "run id"])
def test_half_a_character_is_told_or_an_error(changes: dict[str, Any]) -> None:
    try:
        made = bundle(outcome(**changes), key=KEY)
    except EvidenceError as error:
        assert "an unpaired surrogate" in str(error)
    else:
        assert verified(made).verdict["task_id"] == "\\ud800"


def test_inputs_with_half_a_character_are_an_error() -> None:
    with pytest.raises(EvidenceError, match="an unpaired surrogate"):
        bundle(outcome(), key=KEY, inputs=[data_input("other", "\ud800", b"")])


def test_a_clock_that_was_set_back_breaks_nothing() -> None:
    back = outcome(event(EventKind.LIMIT, -86_400, capability="memory"))
    verified(bundle(back, key=KEY))


def test_two_inputs_of_one_name_are_an_error() -> None:
    with pytest.raises(VerificationError):
        bundle(outcome(), key=KEY, inputs=[data_input("agent", "argv", b"other")])


@pytest.mark.parametrize(("ended", "expected"), [
    ((Status.OK, 0), (0, None, False)),
    ((Status.FAILED, 5), (5, None, False)),
    ((Status.KILLED_KILL, 137), (None, 9, False)),
    ((Status.CRASHED, 139), (None, 11, False)),
    ((Status.TIMEOUT, 124), (None, None, True)),
    ((Status.MEM_LIMIT, 137), (None, None, False)),
    ((Status.FORBIDDEN_SYSCALL, 159), (None, None, False)),
])  # fmt: skip
def test_a_phase_tells_how_it_ended(
    ended: tuple[Status, int], expected: tuple[int | None, int | None, bool]
) -> None:  # shortcoming 12
    found = phase("agent", outcome(status=ended[0], rc=ended[1]), 7.5)
    assert (found.exit_code, found.signal, found.timed_out) == expected
    assert (found.wall_limit_ms, found.wall_ms, found.status) == (7500, 1200, str(ended[0]))
    assert phase("agent", outcome(), None).wall_limit_ms is None


def test_a_phase_tells_what_was_used_and_what_was_not_kept() -> None:
    used = Usage(cpu_user_s=1.5, cpu_system_s=0.25, peak_memory_bytes=10, processes=3)
    found = phase("run", outcome(usage=used, stdout_dropped=9), 1).usage
    assert (found["cpu_ms"], found["peak_memory_bytes"], found["stdout_dropped_bytes"]) == (1750, 10, 9)


def test_protections_say_what_was_asked_and_what_holds_it() -> None:
    found = {row.protection: row for row in protections(outcome(), "agent.")}
    assert found["agent.memory"].applied and found["agent.memory"].mechanism == "cgroup v2"
    assert found["agent.hidden_paths"].detail == "/oracle; absent"
    nothing = protections(Outcome(status=Status.OK, rc=0, reason=""))
    assert [(row.protection, row.requested, row.applied) for row in nothing] == [("sandbox", True, False)]


def test_the_host_says_what_it_is() -> None:
    found = host()
    assert (found.system, found.kernel, found.machine) == tuple(
        getattr(os.uname(), name) for name in ("sysname", "release", "machine"))  # fmt: skip
    assert found.posture["caller"] == ("root" if os.geteuid() == 0 else "ordinary user")
