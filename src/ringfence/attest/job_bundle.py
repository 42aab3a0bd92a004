"""One bundle of many runs that belong together and that nobody here graded, such as the commands of a job of another
harness (docs/explanation/bundle.md).

Each run is a phase, the first of them ``run``; a protection counts as applied where it was in force in every run; the
events are one chain. The harness's own statements are bound as artifacts, byte for byte, but not taken on trust.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from ringfence.attest.attempts import violations
from ringfence.attest.event_log import moment, write_events
from ringfence.attest.health import recorder
from ringfence.attest.plain import Plain, shown
from ringfence.attest.run_bundle import PHASE, POLICY_NAME, policy_text, put, written
from ringfence.attest.statements import host, phase, protections
from ringfence.errors import UsageError
from ringfence.evidence.bundle import Artifact, Ungraded, file_artifact, make_bundle, text_artifact
from ringfence.evidence.canonical import canonical
from ringfence.evidence.digest import sha256_hex
from ringfence.evidence.inputs import data_input, inputs_document
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.runrecord import Protection, RunRecord, fresh_nonce
from ringfence.evidence.schema import EVENTS_NAME
from ringfence.model.outcome import Outcome
from ringfence.model.own_files import write_whole
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import absolute

_MAKER_CHARS = 4096


def job_bundle(
    outcomes: Sequence[Outcome], *, key: SigningKey, policies: Sequence[SandboxPolicy], out: str | os.PathLike[str],
    name: str, command: str, artifacts: Mapping[str, bytes], variables: Iterable[str] = (),
) -> dict[str, object]:  # fmt: skip
    """Signed evidence at a new file; ``policies``: all that runs had; ``command``: what started them all;
    ``variables``: names that the runs were given."""
    if not any(outcome.events for outcome in outcomes):
        raise UsageError("nothing was run, so there is nothing to sign", hint="run it in a sandbox of ringfence")
    target = absolute(out)
    with written(target) as folder:
        made = _made(outcomes, folder, key, policies, name, command, artifacts, variables)
        put(made, folder, target)
    return made


def _made(
    outcomes: Sequence[Outcome], folder: str, key: SigningKey, policies: Sequence[SandboxPolicy], name: str,
    command: str, artifacts: Mapping[str, bytes], variables: Iterable[str],
) -> dict[str, object]:  # fmt: skip
    path = os.path.join(folder, EVENTS_NAME)
    events = [event for outcome in outcomes for event in outcome.events]
    count, head = write_events(path, events)
    times = [moment(event.time_s) for event in events]
    rows, asked = _enforcement(outcomes), _asked(outcomes[0], policies)
    record = RunRecord(
        task_id=shown(name), nonce=fresh_nonce(), started_at=min(times), ended_at=max(times),
        phases=tuple(phase(f"{PHASE} {number}" if number > 1 else PHASE, outcome, None)
                     for number, outcome in enumerate(outcomes, start=1)),
        enforcement=rows, recorder=recorder(outcomes, count, head), host=host(),
    )  # fmt: skip
    told = [record for outcome in outcomes for record in violations(outcome)]
    numbered = [{**each, "step": number} for number, each in enumerate(told, start=1)]
    environment = {
        "agent_command": Plain(_MAKER_CHARS).text(command), "rootfs_kind": "host", "proctor_commit": "",
        "policy_sha256": sha256_hex(asked.encode("utf-8")),
        "spec_sha256": sha256_hex(canonical([vars(row) for row in rows])),
    }  # fmt: skip
    words = b"".join(os.fsencode(part) + b"\0" for outcome in outcomes for part in (*outcome.argv, ""))
    inputs = (data_input("agent", "argv", words), data_input("policy", POLICY_NAME, asked.encode("utf-8")))
    bound = [_written(folder, each, data) for each, data in artifacts.items()]
    return make_bundle(
        result=Ungraded(task_id=record.task_id), violations=numbered, environment=environment, run=record,
        inputs=inputs_document(inputs, [shown(each) for each in variables]),
        artifacts=(file_artifact(EVENTS_NAME, path), text_artifact(POLICY_NAME, asked), *bound), key=key,
    )  # fmt: skip


def _asked(outcome: Outcome, policies: Sequence[SandboxPolicy]) -> str:
    """The policy, or a list of them: one policy can't represent another, which may have allowed more."""
    texts = list(dict.fromkeys(policy_text(outcome, policy) for policy in policies))
    return texts[0] if len(texts) == 1 else f"[{','.join(texts)}]"


def _written(folder: str, name: str, data: bytes) -> Artifact:
    place = os.path.join(folder, name)
    os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    write_whole(place, data, sync=True)
    return Artifact(name=name, sha256=sha256_hex(data), bytes=len(data))


def _enforcement(outcomes: Sequence[Outcome]) -> tuple[Protection, ...]:
    """Each protection once: applied if it was in every run, else with the number of runs."""
    found: dict[str, list[Protection]] = {}
    for outcome in outcomes:
        for row in protections(outcome):
            found.setdefault(row.protection, []).append(row)
    return tuple(_joined(rows, len(outcomes)) for rows in found.values())


def _joined(rows: Sequence[Protection], runs: int) -> Protection:
    first = rows[0]
    applied = sum(row.applied for row in rows)
    told = dict.fromkeys(row.mechanism for row in rows)
    detail = first.detail if applied in (0, runs) else f"in {applied} of {runs} runs; {first.detail}"
    requested = any(row.requested for row in rows)
    return Protection(protection=first.protection, requested=requested, applied=applied == runs,
                      mechanism=", ".join(filter(None, told)), detail=detail)  # fmt: skip
