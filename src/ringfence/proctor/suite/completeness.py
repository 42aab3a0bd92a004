"""Whether a task's directory holds a complete result of this very run of the suite, so work is neither lost nor
trusted.

A directory counts where its bundle is signed by the suite's key, carries the nonce of this entry and binds the same
task, agent, policy and scaffold, and where every file in it is as the worker left it. Anything else is done again. """

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from ringfence.errors import SandboxError, UsageError
from ringfence.evidence.bundle import encode_bundle, write_beside
from ringfence.evidence.digest import file_digest
from ringfence.evidence.dsse import STATEMENT_TYPE, SUBJECT, exactly, opened, seal, shaped
from ringfence.evidence.inputs import inputs_document
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.schema import HEX64
from ringfence.evidence.shape import Items, Record
from ringfence.evidence.strictjson import parse
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import Verification, verify_bundle
from ringfence.model.own_files import check_private, read_regular
from ringfence.model.record import record
from ringfence.proctor.agents.resolve import resolve
from ringfence.proctor.signed.inputs import inputs_of
from ringfence.proctor.task import Task

RECEIPT, BUNDLE = "receipt.json", "bundle.json"
RECEIPT_TYPE = "urn:ringfence:suite-receipt:1"
MAX_BYTES = 64 << 20
_RECEIPT = Record(
    required={
        "_type": exactly(STATEMENT_TYPE),
        "subject": Items(item=SUBJECT),
        "predicateType": exactly(RECEIPT_TYPE),
        "predicate": Record(required={"nonce": HEX64}),
    }
)


@record
class Wanted:
    """What a result has to belong to."""

    task: Task
    agent: str
    scaffold: tuple[str, ...]
    nonce: str
    public_key: str


def is_complete(out: str, wanted: Wanted) -> bool:
    """Whether the directory has the result, complete and untouched; False: the task must be run."""
    try:
        proof = verified(out, wanted.public_key, wanted.nonce)
        return proof.verdict["task_id"] == wanted.task.id and _binds(proof, wanted)
    except (SandboxError, OSError):
        return False


def verified(out: str, public_key: str, nonce: str) -> Verification:
    """What the bundle of a directory proves. EvidenceError or UsageError where the directory is not as it was left."""
    check_private(os.lstat(out), out)
    _check_receipt(out, public_key, nonce)
    data = read_regular(os.path.join(out, BUNDLE), MAX_BYTES)[0]
    return verify_bundle(data, trust=Trust.pinned(public_key), artifacts_folder=out, nonce=nonce)


def write_receipt(out: str, nonce: str, key: SigningKey) -> None:
    """Sign the directory's content, also the report, which is in no bundle."""
    content = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in _files(out)],
        "predicateType": RECEIPT_TYPE,
        "predicate": {"nonce": nonce},
    }
    write_beside(os.path.join(out, RECEIPT), encode_bundle(seal(content, key)))


def _check_receipt(out: str, public_key: str, nonce: str) -> None:
    data = read_regular(os.path.join(out, RECEIPT), MAX_BYTES)[0]
    payload, _ = opened(data, Trust.pinned(public_key))
    content = shaped(parse(payload), _RECEIPT, "receipt")
    listed = [(each["name"], each["digest"]["sha256"]) for each in content["subject"]]
    if content["predicate"]["nonce"] != nonce or listed != [*_files(out)]:
        raise UsageError(f"{out} was changed after the run")


def _files(out: str, below: str = "") -> Iterator[tuple[str, str]]:
    """Each with its digest, in order; UsageError for anything that is no plain file and no directory."""
    for name in sorted(os.listdir(os.path.join(out, below))):
        inside = f"{below}/{name}" if below else name
        path = os.path.join(out, inside)
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            yield from _files(out, inside)
        elif not stat.S_ISREG(mode):
            raise UsageError(f"{path} is not a plain file")
        elif inside != RECEIPT:
            yield inside, file_digest(path).sha256


def _binds(proof: Verification, wanted: Wanted) -> bool:
    ready = resolve(wanted.agent, wanted.task)
    inputs = inputs_of(ready.task, ready.command, wanted.scaffold)
    return proof.inputs == inputs_document(inputs, ready.task.policy.env_allow)
