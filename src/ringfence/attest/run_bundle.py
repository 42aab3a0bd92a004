"""The bundle of a run that nobody graded: ``ringfence.bundle``, ``ringfence run --bundle``.

docs/explanation/bundle.md says what it proves.

Owns: which artifacts and inputs such a bundle has, and where its files lie. A failed write is an error, and leaves
nothing behind: there is no half bundle. Does not: grade, choose a key or print.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from ringfence.attest.attempts import violations
from ringfence.attest.event_log import moment, write_events
from ringfence.attest.health import recorder
from ringfence.attest.plain import Plain, shown
from ringfence.attest.statements import host, phase, protections
from ringfence.errors import EvidenceError, UsageError
from ringfence.evidence.bundle import (
    Artifact,
    Ungraded,
    encode_bundle,
    file_artifact,
    make_bundle,
    text_artifact,
    write_beside,
)
from ringfence.evidence.canonical import canonical
from ringfence.evidence.digest import sha256_hex
from ringfence.evidence.inputs import Input, data_input, inputs_document
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.runrecord import Protection, RunRecord, fresh_nonce
from ringfence.evidence.schema import EVENTS_NAME
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.own_files import PART, write_whole
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import absolute

POLICY_NAME = "policy.json"
PHASE = "run"
_WHOLE = 1 << 62
"""Of a document that is bound: nothing of it is cut."""
_COMMAND_CHARS = 32 * 1024


def bundle(
    outcome: Outcome,
    *,
    key: SigningKey,
    policy: SandboxPolicy | None = None,
    job: Job | None = None,
    out: str | os.PathLike[str] | None = None,
    name: str = "",
    nonce: str = "",
    inputs: Iterable[Input] = (),
) -> dict[str, object]:
    """Signed evidence of a run that nobody graded; docs/explanation/bundle.md says what it proves.

    With ``out`` it is written to that new file, and what it binds into the directory ``artifacts_folder(out)``.
    ``policy`` and ``job`` are those of the run; without a policy, what the outcome says was requested takes its place.
    ``name`` is by default the run's id, ``nonce`` a challenge that somebody handed out, as 64 hex characters. """
    target = None if out is None else absolute(out)
    with written(target) as folder:
        made = _made(outcome, folder, key, policy, job, name or outcome.run_id, nonce or fresh_nonce(), inputs)
        if target is not None:
            put(made, folder, target)
    return made


def artifacts_folder(out: str) -> str:
    """Where the artifacts of a bundle lie: ``verify-bundle --artifacts``.

    >>> artifacts_folder("out/bundle.json")
    'out/bundle.artifacts'
    """
    return f"{out.removesuffix('.json')}.artifacts"


def require_new(out: str) -> None:
    """UsageError unless a bundle can be made there: evidence is never written over evidence."""
    for path in (out, artifacts_folder(out)):
        if os.path.lexists(path):
            raise UsageError(f"{path} already exists", hint="name a new file: evidence is never overwritten")
    above = os.path.dirname(absolute(out))
    if not os.path.isdir(above):
        raise UsageError(f"{above}: no such directory", hint="create the directory first")


def _made(
    outcome: Outcome, folder: str, key: SigningKey, policy: SandboxPolicy | None, job: Job | None, name: str,
    nonce: str, inputs: Iterable[Input],
) -> dict[str, object]:  # fmt: skip
    events = os.path.join(folder, EVENTS_NAME)
    count, head = write_events(events, outcome.events)
    rows = protections(outcome)
    started_at, ended_at = _times(outcome)
    asked = policy_text(outcome, policy)
    record = RunRecord(
        task_id=shown(name), nonce=nonce, started_at=started_at, ended_at=ended_at,
        phases=(phase(PHASE, outcome, policy.wall_time_s if policy else None),),
        enforcement=rows, recorder=recorder((outcome,), count, head), host=host(),
    )  # fmt: skip
    return make_bundle(
        result=Ungraded(task_id=record.task_id), violations=violations(outcome),
        environment=_environment(outcome, asked, rows), run=record,
        inputs=inputs_document((*_own_inputs(outcome, asked, job), *inputs), _variables(policy, job)),
        artifacts=(file_artifact(EVENTS_NAME, events), text_artifact(POLICY_NAME, asked), *_outputs(outcome, folder)),
        key=key,
    )  # fmt: skip


def _times(outcome: Outcome) -> tuple[datetime, datetime]:
    """Start and end by this host's clock, which may have been set back meanwhile."""
    if not outcome.events:
        raise EvidenceError("the outcome has no events, so its time is unknown")
    times = [moment(event.time_s) for event in outcome.events]
    return times[0], max(times)


def policy_text(outcome: Outcome, policy: SandboxPolicy | None) -> str:
    """Only the names of variables: their values are secrets."""
    plain = Plain(_WHOLE, text=_WHOLE, items=_WHOLE)
    if policy is None:
        asked: Mapping[str, object] = {name: entry.requested for name, entry in outcome.enforced.items()}
    else:
        asked = {**policy.to_dict(), "environment": sorted(policy.environment)}
    return canonical(plain.of(asked)).decode("utf-8")


def _environment(outcome: Outcome, asked: str, rows: Iterable[Protection]) -> dict[str, str]:
    enforced = canonical([vars(row) for row in rows])
    return {
        "agent_command": Plain(_COMMAND_CHARS).text(" ".join(_word(part) for part in outcome.argv)),
        "rootfs_kind": "host",
        "proctor_commit": "",
        "policy_sha256": sha256_hex(asked.encode("utf-8")),
        "spec_sha256": sha256_hex(enforced),
    }


def _word(part: str) -> str:
    import shlex

    return shlex.quote(shown(part))


def _own_inputs(outcome: Outcome, asked: str, job: Job | None) -> Iterator[Input]:
    """The command byte for byte, as /proc shows it, and what the job was given besides."""
    words = b"".join(os.fsencode(part) + b"\0" for part in outcome.argv)
    yield data_input("agent", "argv", words)
    yield data_input("policy", POLICY_NAME, asked.encode("utf-8"))
    if job is None:
        return
    if isinstance(job.stdin, bytes):
        yield data_input("other", "stdin", job.stdin)
    for name, data in job.files.items():
        yield data_input("other", f"files/{shown(name)}", data)


def _variables(policy: SandboxPolicy | None, job: Job | None) -> Iterator[str]:
    """What was added to the small clean environment that every job has."""
    given = (*policy.environment, *policy.pass_environment) if policy is not None else ()
    yield from (shown(name) for name in (*given, *(job.environment if job is not None else ())))


def _outputs(outcome: Outcome, folder: str) -> Iterator[Artifact]:
    """What came out, as files of the directory."""
    files = {f"{PHASE}.stdout": outcome.stdout, f"{PHASE}.stderr": outcome.stderr, f"{PHASE}.message": outcome.message}
    found = {name: data for name, data in files.items() if data is not None}
    for name, data in {**found, "changes.json": _changes(outcome)}.items():
        write_whole(os.path.join(folder, name), data, sync=True)
        yield Artifact(name=name, sha256=sha256_hex(data), bytes=len(data))


def _changes(outcome: Outcome) -> bytes:
    rows = [[str(change.kind), shown(change.path)] for change in outcome.changes]
    return canonical({"changes": rows, "complete": outcome.changes_complete, "committed": outcome.committed})


@contextmanager
def written(target: str | None) -> Iterator[str]:
    """A ``workplace``; what can't be written is an error of the evidence."""
    try:
        with workplace(target) as folder:
            yield folder
    except OSError as error:
        raise EvidenceError(f"the evidence could not be written: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise EvidenceError("an argument or a name contains an unpaired surrogate (not valid Unicode)",
                            hint="remove it from the argument or the name") from error  # fmt: skip


@contextmanager
def workplace(target: str | None) -> Iterator[str]:
    """A new private directory beside its final place; removed at the end if it was not moved there."""
    if target is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="evidence-", dir=state_folder.private_place()) as folder:
            yield folder
        return
    require_new(target)
    folder = f"{artifacts_folder(target)}.{os.urandom(8).hex()}{PART}"
    os.mkdir(folder, 0o700)
    try:
        yield folder
    finally:
        _remove(folder)


def put(made: Mapping[str, object], folder: str, target: str) -> None:
    """Both appear, the bundle last, or neither."""
    contents = made["contents"]
    assert isinstance(contents, dict)
    for name, text in contents.items():
        write_whole(os.path.join(folder, name), text.encode("utf-8"), sync=True)
    require_new(target)  # again: a job that writes to the host may have been here
    final = artifacts_folder(target)
    os.rename(folder, final)
    try:
        write_beside(target, encode_bundle(made))
    except BaseException:
        _remove(final)
        raise


def _remove(folder: str) -> None:
    """Remove it if it still exists."""
    if os.path.lexists(folder):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
