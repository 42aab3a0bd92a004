"""``Instance``: one row of SWE-bench's data set, read and checked. Every error names the file and the key.

The data set's own forms: JSON with one row or a list of them, or JSONL. ``FAIL_TO_PASS`` and ``PASS_TO_PASS`` are
lists, or JSON inside a string. Unknown keys are ignored: there are several editions of the data set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ringfence.errors import UsageError
from ringfence.model.files import read_file
from ringfence.model.record import record
from ringfence.model.system_text import is_system_text
from ringfence.proctor.foreign.patches import FilePatch, PatchError, read_patch

MAX_BYTES = 1 << 30
"""Of a whole data set."""
MAX_TESTS = 200_000
_HEX = frozenset("0123456789abcdef")
_TEXTS = ("instance_id", "repo", "base_commit", "problem_statement")
_PATCHES = ("test_patch", "patch")
_TEST_SETS = ("FAIL_TO_PASS", "PASS_TO_PASS")


@record
class Instance:
    """A task of SWE-bench."""

    instance_id: str
    repo: str
    """``owner/name``."""
    base_commit: str
    problem_statement: str
    test_patch: str = ""
    patch: str = ""
    """The one that solves it."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    version: str = ""
    """Of the package, as the data set has it; empty: it does not say."""
    image: str = ""
    """The name of its image, where the row has one."""
    text: bytes = b""
    """The row as JSON, for the evidence."""
    source: str = ""
    """The file that it came from."""

    @property
    def where(self) -> str:
        """Which row it is, for errors."""
        return f"{self.source}: {self.instance_id}" if self.source else self.instance_id

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests of both sets, each once."""
        return tuple(dict.fromkeys((*self.fail_to_pass, *self.pass_to_pass)))


def read_instance(path: str, instance_id: str = "") -> Instance:
    """Return the one row of a file, or the one that is named."""
    found = [row for row in rows_of(path) if not instance_id or row.get("instance_id") == instance_id]
    if len(found) == 1:
        return instance_of(found[0], path)
    if instance_id:
        raise UsageError(f"{path}: {len(found)} rows have the instance_id {instance_id!r}; exactly one is needed")
    raise UsageError(f"{path}: the file has {len(found)} rows, and one instance is run at a time",
                     hint="choose one with --instance-id, or run all with proctor bench")  # fmt: skip


def rows_of(path: str) -> list[Mapping[str, object]]:
    """Return the rows of a data set or of predictions: JSON with one object or a list, or JSONL."""
    data = read_file(path, MAX_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from error
    rows = [*_rows(path, text)]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise UsageError(f"{path}: row {number} is not an object", hint="a row is a JSON object with instance_id")
    return [row for row in rows if isinstance(row, Mapping)]


def _rows(path: str, text: str) -> Iterator[object]:
    """A text that is not JSON as a whole has one value per line."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2:
            raise UsageError(f"{path}: not JSON: {error}") from error
        yield from (_line(path, number, line) for number, line in lines)
    except RecursionError as error:
        raise UsageError(f"{path}: JSON that is nested too deep") from error
    else:
        yield from whole if isinstance(whole, list) else (whole,)


def _line(path: str, number: int, line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}, line {number}: not JSON: {error}") from error


def instance_of(row: Mapping[str, object], path: str) -> Instance:
    """Check a row and return it; UsageError names the file and the first key that is wrong."""
    where = f"{path}: {row['instance_id']}" if isinstance(row.get("instance_id"), str) else path
    texts = {key: _text(row, key, where) for key in _TEXTS}
    _check_names(texts, where)
    patches = {key: _patch(row, key, where) for key in _PATCHES}
    tests = {key.lower(): _test_set(row, key, where) for key in _TEST_SETS}
    more = {field: str(row[key]) for field, key in (("version", "version"), ("image", "image_name")) if row.get(key)}
    return Instance(
        **texts, **patches, **tests, **more, source=path,  # type: ignore[arg-type]
        text=json.dumps(row, sort_keys=True, ensure_ascii=True).encode(),
    )  # fmt: skip


def _wrong(where: str, key: str, problem: str) -> UsageError:
    return UsageError(f"{where}: {key}: {problem}", hint="docs/reference/proctor/swebench.md lists its keys")


def _text(row: Mapping[str, object], key: str, where: str) -> str:
    found = row.get(key)
    if not isinstance(found, str) or not found:
        raise _wrong(where, key, "is missing" if key not in row else "must be a non-empty string")
    if not is_system_text(found):
        raise _wrong(where, key, "must not contain NUL, and must be valid text")
    return found


def _check_names(texts: Mapping[str, str], where: str) -> None:
    name = texts["instance_id"]
    if not name.isprintable() or "/" in name or name in (".", ".."):
        raise _wrong(where, "instance_id", f"{name!r} is not a name")
    owner, slash, project = texts["repo"].partition("/")
    if not (owner and slash and project) or "/" in project or not texts["repo"].isprintable():
        raise _wrong(where, "repo", f"{texts['repo']!r} is not owner/name")
    commit = texts["base_commit"]
    if len(commit) != 40 or not set(commit) <= _HEX:
        raise _wrong(where, "base_commit", f"{commit[:80]!r} is not 40 hex digits")


def _patch(row: Mapping[str, object], key: str, where: str) -> str:
    found = row.get(key, "")
    if not isinstance(found, str):
        raise _wrong(where, key, "must be a string")
    if key == "test_patch" and key not in row:
        raise _wrong(where, key, "is missing")
    checked_patch(found, f"{where}: {key}")
    return found


def checked_patch(text: str, where: str) -> list[FilePatch]:
    """Return what a patch does; UsageError says what is wrong with it, and where."""
    try:
        return read_patch(text)
    except (PatchError, UnicodeEncodeError) as error:
        raise UsageError(f"{where}: {error}") from error


def _test_set(row: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    """A list, or a text with one in JSON."""
    found = row.get(key)
    if key not in row:
        raise _wrong(where, key, "is missing")
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise _wrong(where, key, f"is a string that is not JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise _wrong(where, key, "must be a list of test names, or one as a JSON string")
    if len(found) > MAX_TESTS:
        raise _wrong(where, key, f"has more than {MAX_TESTS} names")
    return tuple(dict.fromkeys(found))
