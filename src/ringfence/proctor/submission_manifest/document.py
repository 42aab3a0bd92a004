"""``submission.json``: makes, reads and compares manifests (docs/reference/formats.md, section 11).

A manifest names what somebody hands in by role and name, and by its digest: no path of a machine, and no value of a
variable. It is canonical JSON, so its own digest is the same wherever it is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ringfence.errors import EvidenceError, UsageError
from ringfence.evidence import shape, strictjson
from ringfence.evidence.canonical import canonical
from ringfence.evidence.inputs import Input, inputs_document
from ringfence.evidence.schema import SUBMISSION, SUBMISSION_FORMAT
from ringfence.model.files import read_file
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute
from ringfence.proctor.submission_manifest.reading import Look, no_look, read_input

MAX_MANIFEST_BYTES = 4 << 20


@record
class Submitted:
    """What is handed in, as paths of this machine, and the names of the variables that the agent needs."""

    agent_binary: str
    scaffold: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()

    def named(self) -> Iterator[tuple[str, str, str]]:
        """Role, name and path of each; UsageError where two would have the same name."""
        rows = [("agent", self.agent_binary), *(("instruction", path) for path in self.instructions),
                *(("scaffold", path) for path in self.scaffold)]  # fmt: skip
        seen: set[tuple[str, str]] = set()
        for role, path in rows:
            name = _name(path)
            if (role, name) in seen:
                raise UsageError(f"two {role} inputs are named {name}", hint="rename one of them")
            seen.add((role, name))
            yield role, name, path


def capture(submitted: Submitted, look: Mapping[tuple[str, str], Look] | None = None) -> dict[str, Any]:
    """Read everything that is handed in and return its manifest. ``look``: gives the function that sees the input of a
    role and a name while it is read."""
    looks = look or {}
    found = [read_input(role, name, path, looks.get((role, name), no_look)) for role, name, path in submitted.named()]
    return document_of(found, submitted.environment)


def document_of(inputs: Iterable[Input], environment: Iterable[str]) -> dict[str, Any]:
    document = inputs_document(inputs, environment) | {"format": SUBMISSION_FORMAT}
    _check(document, "the manifest")
    return document


def encode(document: Mapping[str, Any]) -> bytes:
    return canonical(dict(document))


def read_manifest(path: str) -> dict[str, Any]:
    """Read a manifest that somebody sent; an EvidenceError names what is wrong with it."""
    data = read_file(path, MAX_MANIFEST_BYTES, hint="proctor manifest create writes one")
    try:
        document = strictjson.parse(data)
        _check(document, path)
        if encode(document) != data:  # type: ignore[arg-type]  # the shape says that it is an object
            raise EvidenceError("it is not in its canonical form", hint="use the file that proctor manifest wrote")
    except EvidenceError as error:
        told = str(error)
        raise EvidenceError(told if told.startswith(path) else f"{path}: {told}", hint=error.hint) from error
    return document  # type: ignore[return-value]


def differences(declared: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """How the files differ from what a manifest says, one sentence for each difference; empty: not at all. Variables
    that are declared but not given are no difference."""
    said, there = _by_name(declared), _by_name(found)
    told = [f"{_title(key)} is in the manifest but not here" for key in said.keys() - there.keys()]
    told += [f"{_title(key)} is not in the manifest" for key in there.keys() - said.keys()]
    told += [_difference(key, said[key], there[key]) for key in said.keys() & there.keys() if said[key] != there[key]]
    extra = set(found["environment_variables"]) - set(declared["environment_variables"])
    return [*sorted(told), *(f"the variable {name} is not in the manifest" for name in sorted(extra))]


def names_in(variables: Sequence[str]) -> tuple[str, ...]:
    """Names of variables as they were given; UsageError for one that is invalid or has a value in it."""
    for name in variables:
        if not name or not name.isascii() or not name.isprintable() or "=" in name or " " in name:
            shown = name.partition("=")[0][:40]  # what follows may be a secret
            raise UsageError(f"{shown!r} is not the name of a variable", hint="write the name without a value")
    return tuple(variables)


def _name(path: str) -> str:
    """The last part of a path, which must be a text: JSON has no bytes."""
    name = os.path.basename(absolute(path))
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{path!a}: its name is not UTF-8",
                         hint="rename it; names inside it may be arbitrary") from None  # fmt: skip
    return name


def _by_name(document: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(row["role"], row["name"]): row for row in document["inputs"]}


def _title(key: tuple[str, str]) -> str:
    return f"{key[0]} {ascii(key[1])[1:-1]}"


def _difference(key: tuple[str, str], said: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    if said["kind"] != there["kind"]:
        return f"{_title(key)} is a {there['kind']}, and a {said['kind']} in the manifest"
    sizes = f"{there['files']} files of {there['bytes']} bytes, not {said['files']} of {said['bytes']}"
    same_size = (said["files"], said["bytes"]) == (there["files"], there["bytes"])
    return f"{_title(key)} differs: {'the same size, other content' if same_size else sizes}"


def _check(document: object, where: str) -> None:
    for problem in shape.problems(document, SUBMISSION):
        raise EvidenceError(f"{where}: {problem}")
