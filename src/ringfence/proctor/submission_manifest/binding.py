"""Ties a manifest to a run: before the agent begins and after it has ended, the files are what the manifest says.

A mismatch is for the operator to fix, and there is no run. An answer in the files is the submitter's: it goes on
record, and the run is compromised (ADR 0089).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringfence.errors import EvidenceError, UsageError
from ringfence.kernel.recorder import printable
from ringfence.model.paths import within
from ringfence.model.record import record
from ringfence.model.ways.walk import real
from ringfence.proctor.agent_run import files_of, words_of
from ringfence.proctor.findings import Finding
from ringfence.proctor.severity import BREACH, MASKED_READ
from ringfence.proctor.submission_manifest.bound import Bound
from ringfence.proctor.submission_manifest.document import Submitted, capture, differences, read_manifest
from ringfence.proctor.submission_manifest.known_answers import COPY, Known, hashed, known_answers
from ringfence.proctor.submission_manifest.reading import Look
from ringfence.proctor.submission_manifest.search import Search
from ringfence.proctor.task import Task
from ringfence.sandbox.root import SYSTEM_FOLDERS

MANIFEST, KNOWN_ANSWERS = "submission.json", "known-answers.json"
SYSCALL = "submission"
"""Takes the place of a system call in a finding: there was no call, the answer was carried in."""
MAX_FOUND = 1000


@record
class Found:
    """An answer in what was handed in."""

    role: str
    name: str
    path: str
    """In its tree; empty: the file itself."""
    kind: str
    source: str
    form: str

    @property
    def place(self) -> str:
        return "/".join(filter(None, (self.role, self.name, self.path)))

    def __str__(self) -> str:
        return f"{printable(self.place)}: {self.kind} of {printable(self.source)}, {self.form}"


def inspect(submitted: Submitted, known: Known, command: str = "") -> tuple[dict[str, Any], list[Found]]:
    """Read everything that is handed in, once; return its manifest, and the answers in it."""
    found: list[Found] = []
    search = Search(known.answers)
    looks = {(role, name): _looker(role, name, search, known, found) for role, name, _ in submitted.named()}
    document = capture(submitted, looks)
    if command:
        _looker("agent", "command", search, known, found)("", iter([command.encode("utf-8", "surrogateescape")]))
    return document, found[:MAX_FOUND]


def _looker(role: str, name: str, search: Search, known: Known, found: list[Found]) -> Look:
    copies = dict(known.copies)

    def look(path: str, chunks: Iterator[bytes]) -> None:
        hasher = hashlib.sha256()
        rows = [(each.kind, each.source, form) for each, form in search.of(hashed(chunks, hasher.update))]
        for _ in hashed(chunks, hasher.update):
            pass
        if (digest := hasher.hexdigest()) in copies:
            rows = [(COPY, copies[digest], "as it is"), *rows]
        found.extend(
            Found(role=role, name=name, path=path, kind=kind, source=source, form=form) for kind, source, form in rows
        )

    return look


def bind(manifest: str, submitted: Submitted, task: Task, agent: str, answers: Sequence[str] = ()) -> Bound:
    """Compare what is there with a manifest and look for answers in it; a difference is an EvidenceError."""
    declared = read_manifest(manifest)
    _check_command(submitted, agent)
    known = known_answers(task, answers)
    here, found = inspect(submitted, known, agent)
    refuse_differences(manifest, declared, here)

    def confirm() -> None:
        refuse_differences(manifest, declared, capture(submitted), " after the run")

    told = [{key: printable(str(value)) for key, value in each.__dict__.items()} for each in found]
    looked = {"answers": len(known.answers) + len(known.copies), "complete": known.complete, "found": told}
    shown = (submitted.agent_binary, *submitted.scaffold, *submitted.instructions)
    return Bound(
        documents={MANIFEST: declared, KNOWN_ANSWERS: looked},
        findings=tuple(_finding(each) for each in found),
        shown=tuple(path for path in shown if not _is_of_the_system(real(path))),
        confirm=confirm,
    )


def refuse_differences(manifest: str, declared: Mapping[str, Any], here: Mapping[str, Any], when: str = "") -> None:
    """EvidenceError with all differences."""
    told = differences(declared, here)
    if told:
        hint = "proctor manifest create writes a new one, proctor manifest verify compares"
        raise EvidenceError(f"what is here is not what {manifest} says{when}: {'; '.join(told)}", hint=hint)


def binary_of(agent: str) -> str:
    """The program that a command starts; empty where that is not obvious."""
    words = words_of(agent)
    program = "" if not words or words[:2] == ("/bin/sh", "-c") else words[0]
    return (program if os.path.isabs(program) else shutil.which(program) or "") if program else ""


def _check_command(submitted: Submitted, agent: str) -> None:
    """UsageError where the command starts something else, or names files of the caller that were not handed in."""
    own = real(submitted.agent_binary)
    started = {real(path) for word in _all_words(agent) if (path := shutil.which(word) or word)}
    if own not in started and not any(within(path, own) for path in started):
        raise UsageError(f"the agent's command does not name its binary, {submitted.agent_binary}",
                         hint="hand in what the command starts, or name it in the command")  # fmt: skip
    handed_in = [real(path) for _, _, path in submitted.named()]
    for path in files_of(agent):
        if not any(within(path, top) for top in handed_in):
            raise UsageError(f"the agent's command names {path}, which is not handed in",
                             hint="name it with --scaffold, and in the manifest")  # fmt: skip


def _all_words(agent: str) -> Iterator[str]:
    """All words of a command, also of one for a shell."""
    yield from words_of(agent)
    try:
        yield from shlex.split(agent)
    except ValueError:
        return


def _is_of_the_system(path: str) -> bool:
    return any(within(path, folder) for folder in SYSTEM_FOLDERS)


def _finding(each: Found) -> Finding:
    told = f"a known answer was handed in: {each.kind} of {printable(each.source)}, {each.form}"
    return Finding(severity=BREACH, kind=MASKED_READ, time_s=time.time(), syscall=SYSCALL, path=printable(each.place),
                   result=told)  # fmt: skip
