"""Reports a verification: to people in a few lines, to machines as one JSON object.

Owns the wording and exit codes of the commands that verify: 0 means ok and nothing else, 2 means anything else. It
verifies nothing itself. What can't be read, or is not a key, is a mistake in the call, and not «NOT OK».
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringfence.cli.json_text import print_json
from ringfence.errors import SandboxError, VerificationError
from ringfence.evidence.case import UNGRADED
from ringfence.model.system_text import escape_controls

if TYPE_CHECKING:
    from ringfence.evidence.trust import Trust
    from ringfence.evidence.verify import Verification

_PIN_HINT = "pin the signer with --pubkey or --trust; --allow-unknown-signer accepts this"
EXIT_OK = 0
EXIT_NOT_OK = 2
_MAX_FILE_BYTES = 64 << 20


def tell(
    what: str, verify: Callable[[], Verification], *, as_json: bool, allow_unknown_signer: bool = False
) -> int:
    """Run a verification and say how it ended; every refusal is exit code 2."""
    try:
        found = verify()
    except SandboxError as error:
        tell_failure(what, error, as_json=as_json)
        return EXIT_NOT_OK
    known = found.state == "ok"
    if as_json:
        print_json(as_document(found), indent=None)
    else:
        print("\n".join(as_lines(what, found)))
        if not known and not allow_unknown_signer:
            print(_PIN_HINT, file=sys.stderr)
    return EXIT_OK if known or allow_unknown_signer else EXIT_NOT_OK


def read_file(path: str) -> bytes:
    """What is to be verified. A file that can't be read is a mistake in the call: nothing in it was changed."""
    from ringfence.errors import UsageError
    from ringfence.model import files

    try:
        return files.read_file(path, _MAX_FILE_BYTES)
    except UsageError as error:
        raise UsageError(f"can't read {error}", hint=error.hint) from error


def refuse_absent(path: str) -> None:
    """A file or a directory that was named must exist."""
    from ringfence.errors import UsageError

    try:
        os.lstat(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read {path}: {getattr(error, 'strerror', error)}",
                         hint="name an existing file or directory") from error  # fmt: skip


def trust_from(pubkey: str | None, trust_file: str | None) -> Trust:
    """UsageError for a key or a trust file that is not one."""
    from ringfence.errors import EvidenceError, UsageError
    from ringfence.evidence.trust import Trust

    try:
        if pubkey is not None:
            return Trust.pinned(pubkey)
        return Trust.parse(read_file(trust_file)) if trust_file is not None else Trust.unsafe_any_signer()
    except EvidenceError as error:
        raise UsageError(f"{'--trust' if pubkey is None else '--pubkey'}: {error}", hint=error.hint) from error


def as_document(found: Verification) -> dict[str, Any]:
    from ringfence.evidence.keys import key_id

    return {
        "state": str(found.state),
        "format": found.format,
        "signers": [{"public_key": key, "key_id": key_id(key)} for key in found.signers],
        "unknown_signers": list(found.unknown_signers),
        "verdict": found.verdict,
        "artifacts": len(found.artifacts),
        "violations": list(found.violations),
        "environment": found.environment,
        "run": found.run,
        "inputs": found.inputs,
        "anchors": [
            {"type": anchor.kind, "known": anchor.known, "at": anchor.at.isoformat() if anchor.at else None}
            for anchor in found.anchors
        ],
        "notes": list(found.notes),
    }


def as_lines(what: str, found: Verification) -> list[str]:
    verdict = found.verdict
    title = f"{what} OK" if found.state == "ok" else f"{what} {found.state}"
    reward = f" reward={verdict['reward']}" if "reward" in verdict else ""
    name, passed = escape_controls(verdict["task_id"]), str(verdict["pass"]).lower()
    about = f"run={name} not graded" if found.format == UNGRADED else f"task={name} pass={passed}"
    lines = [
        f"{title}: " + " · ".join(_facts(found)),
        f"verdict: {about} status={verdict['status']} violations={verdict['violations_count']}{reward}",
    ]
    lines += [f"note: {escape_controls(note)}" for note in found.notes]
    return [*lines, "What this proves and what it does not: docs/explanation/bundle.md"]


def _facts(found: Verification) -> list[str]:
    facts = [f"signed by {' and '.join(found.signers)}"]
    if found.artifacts:
        facts += [f"chain of {len(found.violations)}", f"{len(found.artifacts)} artifacts bound"]
    if found.run is not None:
        asked = [row for row in found.run["enforcement"] if row["requested"]]
        facts.append(f"{sum(row['applied'] for row in asked)} of {len(asked)} protections applied")
    facts += [f"{anchor.kind} {anchor.at:%Y-%m-%d %H:%M:%S}Z" for anchor in found.anchors if anchor.at]
    return facts


def tell_failure(what: str, error: SandboxError, *, as_json: bool) -> None:
    step = error.step if isinstance(error, VerificationError) else None
    if as_json:
        print_json({"state": "failed", "step": step, "problem": str(error), "hint": error.hint}, indent=None)
        return
    print(f"{what} NOT OK: {escape_controls(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"  {escape_controls(error.hint)}", file=sys.stderr)
