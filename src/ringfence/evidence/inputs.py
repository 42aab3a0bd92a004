"""The submission manifest: every input, content-addressed, as inputs.json (docs/reference/formats.md, section 5).

Owns: hashing inputs by role. Does not: decide what counts as an input; the doors list them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ringfence.errors import EvidenceError
from ringfence.evidence.digest import file_digest, sha256_hex, tree_digest
from ringfence.evidence.schema import INPUTS_FORMAT
from ringfence.model.record import record

_IMAGE_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@record
class Input:
    role: str
    name: str
    kind: str
    sha256: str
    bytes: int
    files: int


def file_input(role: str, name: str, path: str) -> Input:
    found = file_digest(path)
    return Input(role=role, name=name, kind="file", sha256=found.sha256, bytes=found.size_bytes, files=1)


def data_input(role: str, name: str, data: bytes) -> Input:
    return Input(role=role, name=name, kind="file", sha256=sha256_hex(data), bytes=len(data), files=1)


def tree_input(role: str, name: str, path: str) -> Input:
    found = tree_digest(path)
    return Input(
        role=role, name=name, kind="tree", sha256=found.sha256, bytes=found.size_bytes, files=found.files
    )


def image_input(name: str, digest: str) -> Input:
    """A container image by its digest, ``sha256:…``."""
    match = _IMAGE_DIGEST.fullmatch(digest)
    if match is None:
        raise EvidenceError(
            f"not an image digest: {ascii(digest)[:80]}", hint="write sha256: and 64 hexadecimal digits"
        )
    return Input(role="image", name=name, kind="image", sha256=match.group(1), bytes=0, files=0)


def inputs_document(inputs: Iterable[Input], environment_variables: Iterable[str]) -> dict[str, Any]:
    ordered = sorted(inputs, key=lambda entry: (entry.role.encode("utf-8"), entry.name.encode("utf-8")))
    return {
        "format": INPUTS_FORMAT,
        "inputs": [vars(entry).copy() for entry in ordered],
        "environment_variables": sorted(set(environment_variables), key=lambda name: name.encode("utf-8")),
    }
