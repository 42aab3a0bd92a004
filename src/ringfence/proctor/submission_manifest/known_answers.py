"""Which texts give a task's answer away: strings, runs of lines and hunks of its oracle, and the ids of its tests.

A text counts when it is too long to be a coincidence, and is not in what everybody gets: the workspace and the
instruction. An answer in other words is not recognised.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from tempfile import TemporaryDirectory

from ringfence.model import state_folder
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute
from ringfence.proctor.history import materialise
from ringfence.proctor.submission_manifest.reading import files_below
from ringfence.proctor.submission_manifest.search import Answer, Search, squeezed
from ringfence.proctor.task import Task

MAX_ANSWERS = 4000
MAX_TEXT_BYTES = 4 << 20
"""Bytes of one file of the oracle that is searched for texts; a larger one is known by its digest alone."""
STRING, HUNK, TEST_ID, COPY = "oracle string", "patch hunk", "test id", "copy of a file"
_LINES = 3
"""So many lines in a row are no coincidence."""
_LEAST_LINES_CHARS, _LEAST_HUNK_CHARS, _LEAST_STRING, _LEAST_COPY = 48, 24, 8, 16
_MOST_STRING = 4096
_TOKEN = re.compile(rb"[A-Za-z0-9_{}+=-]{16,256}")
_TEST_NAME = re.compile(rb"\bdef (test_\w{8,200})\s*\(")
_TRIVIAL = (b"#", b"//", b"/*", b"*", b"--", b'"""', b"import ", b"from ", b"use ", b"package ", b"@@", b"diff ")
_INSTANCE_KEYS = ("patch", "test_patch")


@record
class Known:
    """All that is known of a task's answer."""

    answers: tuple[Answer, ...] = ()
    copies: frozenset[tuple[str, str]] = frozenset()
    """SHA-256 of whole files, each with where it is from."""
    complete: bool = True
    """False: there was more than is looked for."""


def known_answers(task: Task | None, more: Sequence[str] = ()) -> Known:
    """Return what gives the task away. ``more``: files and directories with further answers, such as a patch, a
    solution or an instance of SWE-bench."""
    rows = [(what, _whole(path)) for what, path in task.own_paths()] if task else []
    rows += [(os.path.basename(absolute(path)), path) for path in more]
    found = _Found()
    for what, path in rows:
        found.read(what, path)
    if task is not None and task.grader is not None and task.grader.instance is not None:
        found.answers.update(dict.fromkeys(texts_of("instance.json", task.grader.instance.text)))
    public = _Public(found)
    if task is not None:
        public.read(task)
    return public.left()


def _whole(path: str) -> str:
    """For a script in a directory called solution, that directory: the patch that it applies lies there too."""
    above = os.path.dirname(path)
    return above if os.path.basename(above) == "solution" else path


class _Found:
    """What the files of an answer have in them."""

    def __init__(self) -> None:
        self.answers: dict[Answer, None] = {}
        self.copies: dict[str, str] = {}

    def read(self, what: str, path: str) -> None:
        def look(relative: str, chunks: Iterator[bytes]) -> None:
            source = f"{what}/{relative}" if relative else what
            data = b"".join(islice(chunks, 1 + (MAX_TEXT_BYTES >> 22)))
            rest = sum(map(len, chunks))
            if len(data) + rest >= _LEAST_COPY and not rest:
                self.copies[hashlib.sha256(data).hexdigest()] = source
            if not rest and len(data) <= MAX_TEXT_BYTES and b"\0" not in data:
                self.answers.update(dict.fromkeys(texts_of(source, data)))

        files_below(path, look)


def texts_of(source: str, data: bytes) -> Iterator[Answer]:
    """Return which parts of one text to look for, the surest first."""
    instance = [*_instances(data)] if data.lstrip()[:1] in (b"{", b"[") else []
    if instance:
        for row in instance:
            yield from _of_instance(source, row)
        return
    whole = squeezed(data)
    is_patch = b"\n@@ " in b"\n" + data
    if _LEAST_STRING <= len(whole) <= _MOST_STRING and not is_patch:
        yield Answer(kind=STRING, source=source, text=whole)
    for name in _TEST_NAME.findall(data):
        yield Answer(kind=TEST_ID, source=source, text=name)
    for token in _TOKEN.findall(data):
        if _is_distinct(token):
            yield Answer(kind=STRING, source=source, text=token)
    yield from _hunks(source, data) if is_patch else _runs(source, data.splitlines(), STRING, _LEAST_LINES_CHARS)


def _is_distinct(token: bytes) -> bool:
    """A secret, a digest, a flag: letters and digits mixed, and not one of them again and again."""
    letters = sum(1 for each in token if chr(each).isalpha())
    digits = sum(1 for each in token if 48 <= each <= 57)
    return letters >= 3 and digits >= 3 and len(set(token)) >= 8


def _hunks(source: str, data: bytes) -> Iterator[Answer]:
    """The lines that a patch adds, hunk by hunk."""
    added: list[bytes] = []
    for line in [*data.splitlines(), b"@@"]:
        if line.startswith(b"+") and not line.startswith(b"+++"):
            added.append(line[1:])
        elif not line.startswith(b" ") and not line.startswith(b"-") and added:
            yield from _runs(source, added, HUNK, _LEAST_HUNK_CHARS)
            added = []
        elif line.startswith(b"diff "):
            added = []


def _runs(source: str, lines: Sequence[bytes], kind: str, least: int) -> Iterator[Answer]:
    """Every few meaningful lines in a row. Comments and imports prove nothing."""
    telling = [text for line in lines if (text := squeezed(line)) and not text.startswith(_TRIVIAL)]
    count = min(_LINES, len(telling))
    for start in range(len(telling) - count + 1 if count else 0):
        text = b" ".join(telling[start : start + count])
        if len(text) >= least:
            yield Answer(kind=kind, source=source, text=text)


def _instances(data: bytes) -> Iterator[dict[str, object]]:
    """Instances of SWE-bench, in a JSON or in lines of it; nothing of any other JSON."""
    for text in (data, *data.splitlines()):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        rows = [row for row in (value if isinstance(value, list) else [value]) if isinstance(row, dict)]
        found = [row for row in rows if any(isinstance(row.get(key), str) for key in _INSTANCE_KEYS)]
        if found:
            yield from found
            if text is data:
                return


def _of_instance(source: str, row: dict[str, object]) -> Iterator[Answer]:
    for key in _INSTANCE_KEYS:
        text = row.get(key)
        if isinstance(text, str):
            yield from _hunks(f"{source}: {key}", text.encode("utf-8", "surrogatepass"))
    ids = row.get("FAIL_TO_PASS")
    if isinstance(ids, str):
        try:
            ids = json.loads(ids)
        except ValueError:
            ids = [ids]
    for each in ids if isinstance(ids, list) else ():
        if isinstance(each, str) and len(each) >= 2 * _LEAST_STRING:
            yield Answer(kind=TEST_ID, source=f"{source}: FAIL_TO_PASS", text=squeezed(each.encode("utf-8", "replace")))


class _Public:
    """Takes away what everybody gets."""

    def __init__(self, found: _Found) -> None:
        self._answers = tuple(found.answers)
        self._copies = found.copies
        self._seen: set[Answer] = set()
        self._digests: set[str] = set()
        self._search = Search(self._answers, plain_only=True)

    def read(self, task: Task) -> None:
        texts = [task.instruction, *(step.instruction for step in task.steps)]
        self._look("", iter([text.encode("utf-8", "surrogateescape") for text in texts]))
        if not task.workspace:
            return  # an empty path is where the caller happens to be
        if not task.policy.base_commit:
            files_below(task.workspace, self._look)
            return
        with TemporaryDirectory(prefix="public-", dir=state_folder.private_place()) as place:
            base = os.path.join(place, "base")  # the clone may be at any commit, and have the fix
            materialise(task.workspace, task.policy.base_commit, base)
            files_below(base, self._look)

    def _look(self, _: str, chunks: Iterator[bytes]) -> None:
        hasher = hashlib.sha256()
        self._seen.update(answer for answer, _ in self._search.of(hashed(chunks, hasher.update)))
        self._digests.add(hasher.hexdigest())

    def left(self) -> Known:
        answers = [answer for answer in self._answers if answer not in self._seen]
        copies = frozenset((digest, source) for digest, source in self._copies.items() if digest not in self._digests)
        order = {TEST_ID: 0, HUNK: 1, STRING: 2}
        answers.sort(key=lambda answer: order[answer.kind])
        return Known(answers=tuple(answers[:MAX_ANSWERS]), copies=copies, complete=len(answers) <= MAX_ANSWERS)


def hashed(chunks: Iterable[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    """Pass the same chunks on, and tell a function about each."""
    for chunk in chunks:
        update(chunk)
        yield chunk
