"""One signature over all files of a release: an in-toto statement in a DSSE envelope, made and checked.

Owns: what the statement says, and whether files on disk are those that it names.
Does not: build anything (release/ in the repository), or decide whom to trust (trust).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ringfence.errors import EvidenceError
from ringfence.evidence.digest import file_digest
from ringfence.evidence.dsse import STATEMENT_TYPE, opened, seal, shaped, statement_shape
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.schema import TEXT
from ringfence.evidence.shape import Items, Record
from ringfence.evidence.strictjson import parse
from ringfence.evidence.trust import Moment, Trust, judge_signers
from ringfence.model.record import record

NAME = "release.dsse.json"
PREDICATE_TYPE = "urn:ringfence:release:1"
_STATEMENT = statement_shape(PREDICATE_TYPE, Record(required={
    **dict.fromkeys(("version", "commit", "source_date_epoch", "python"), TEXT), "tools": Items(item=TEXT),
}))  # fmt: skip


@record
class Release:
    """What an attestation proves of the files that were checked."""

    version: str
    commit: str
    files: tuple[str, ...]
    signers: tuple[str, ...]


def made(folder: str, about: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """Return the signed envelope over every file in the directory but the envelope itself."""
    names = sorted(name for name in os.listdir(folder) if name != NAME)
    digests = [file_digest(os.path.join(folder, name)).sha256 for name in names]
    content = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": each}} for name, each in zip(names, digests, strict=True)],
        "predicateType": PREDICATE_TYPE,
        "predicate": dict(about),
    }
    return seal(shaped(content, _STATEMENT, "release"), key)


def check_folder(data: bytes, folder: str, trust: Trust) -> Release:
    """Verify that a directory has the files of a release, all of them and no other; EvidenceError says which is not."""
    content, signers = _opened(data, trust)
    signed = _signed(content)
    here = set(os.listdir(folder)) - {NAME}
    for name in sorted(here - signed.keys()):
        raise EvidenceError(f"{name!a} is not part of the release", hint="remove it, or check the files one by one")
    for name in sorted(signed.keys() - here):
        raise EvidenceError(f"{name!a} is missing", hint="to check some files of a release, name these files")
    return _checked(content, signers, [os.path.join(folder, name) for name in sorted(signed)])


def check_files(data: bytes, paths: Sequence[str], trust: Trust) -> Release:
    """Verify that each of these files is part of a release, by its name and its content."""
    content, signers = _opened(data, trust)
    return _checked(content, signers, paths)


def _opened(data: bytes, trust: Trust) -> tuple[dict[str, Any], tuple[str, ...]]:
    payload, signers = opened(data, trust)
    judge_signers(trust, signers, Moment(at=datetime.now(UTC), anchored=False))
    return shaped(parse(payload), _STATEMENT, "release"), signers


def _signed(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each name; a name is that of a file beside the attestation, never a path."""
    signed: dict[str, str] = {}
    for subject in content["subject"]:
        name = subject["name"]
        if name in signed:
            raise EvidenceError(f"the attestation names {name!a} twice")
        if name in ("", ".", "..", NAME) or "/" in name or "\\" in name or "\0" in name:
            raise EvidenceError(f"the attestation names {name!a}, which is not a file of a release")
        signed[name] = subject["digest"]["sha256"]
    return signed


def _checked(content: Mapping[str, Any], signers: tuple[str, ...], paths: Sequence[str]) -> Release:
    signed = _signed(content)
    for path in paths:
        name = os.path.basename(path)
        if name not in signed:
            raise EvidenceError(f"{name!a} is not part of the release", hint=f"it has: {', '.join(sorted(signed))}")
        if file_digest(path).sha256 != signed[name]:
            raise EvidenceError(f"{name!a} is not the file that was signed", hint="do not install it; fetch it again")
    predicate = content["predicate"]
    names = tuple(os.path.basename(path) for path in paths)
    return Release(version=predicate["version"], commit=predicate["commit"], files=names, signers=signers)
