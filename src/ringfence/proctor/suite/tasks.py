"""What a suite consists of: a directory of tasks, one task, or a data set of SWE-bench. Nothing runs here.

The format of a task is told by its files. A directory that is not a task is an error, never skipped silently; so is an
id that two tasks share. Names come from others: no name becomes a path. """

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.paths import within
from ringfence.model.printed import counted
from ringfence.model.system_text import escape_controls
from ringfence.model.ways.walk import absolute, real
from ringfence.proctor.foreign.instance import instance_of, rows_of
from ringfence.proctor.foreign.terminal_tasks import kind_of
from ringfence.proctor.suite.entry import Entry, folder_name
from ringfence.proctor.suite.loading import load
from ringfence.proctor.task import ID_CHARS

_NOTHING: Mapping[str, str] = MappingProxyType({})
_DATA_SETS = (".json", ".jsonl")


def tasks_of(
    suite: str, *, repos: str = "", options: Mapping[str, str] = _NOTHING, only: Sequence[str] = (),
    skip: Sequence[str] = (), rootfs: str = "",
) -> tuple[Entry, ...]:  # fmt: skip
    """Every task of a suite, in the order of their ids. ``options``: those of its entries. ``only`` and ``skip``:
    patterns of ids, as a shell has them.

    UsageError names the file, and the key where there is one.
    """
    given = {name: value for name, value in {"rootfs": rootfs, **options}.items() if value}
    found = [*_entries(absolute(suite), absolute(repos) if repos else "", given)]
    chosen = [entry for entry in found if _is_chosen(entry.id, only, skip)]
    if not chosen:
        raise UsageError(f"{suite}: none of {counted(len(found), 'task')} is selected" if found else
                         f"{suite} has no task in it", hint="proctor init makes the directory of one")  # fmt: skip
    _refuse_doubles(chosen)
    _refuse_others(chosen, absolute(suite))
    return tuple(sorted(_checked(chosen), key=lambda entry: entry.id))


def asked_for(entries: Sequence[Entry]) -> tuple[list[str], list[str]]:
    """For tasks of our own format: the caller's variables that they want, and the hosts that they may reach. Other
    tasks have what ``allow`` and ``env`` name."""
    asked = [load(entry).policy.asks() for entry in entries if entry.kind == "generic"]
    variables, hosts = ([*dict.fromkeys(name for each in asked for name in each[place])] for place in (0, 1))
    return variables, hosts


def _entries(suite: str, repos: str, options: Mapping[str, str]) -> Iterator[Entry]:
    if suite.endswith(_DATA_SETS) and not os.path.isdir(suite):
        yield from _instances(suite, repos, options)
        return
    if repos:
        raise UsageError(f"--repos is for a SWE-bench data set, and {suite} is not one")
    if not os.path.isdir(suite):
        raise UsageError(f"{suite} is not a directory", hint="a suite is a directory of tasks, or a *.json or *.jsonl")
    if kind := _kind_of(suite):
        yield Entry(id=os.path.basename(suite), kind=kind, path=suite, options=options)
        return
    for name in sorted(os.listdir(suite)):
        folder = os.path.join(suite, name)
        if os.path.isdir(folder) and not name.startswith("."):
            yield Entry(id=_id(name, suite), kind=_kind_of(folder), path=folder, options=options)


def _instances(path: str, repos: str, options: Mapping[str, str]) -> Iterator[Entry]:
    if not repos:
        raise UsageError(f"{path} needs --repos: the directory of its clones", hint="such as DIR/owner__name")
    for row in rows_of(path):
        instance = instance_of(row, path)
        repo = _repository(instance.repo, repos, path)
        yield Entry(id=_id(instance.instance_id, path), kind="swebench", path=path, options={**options, "repo": repo})


def _repository(name: str, repos: str, path: str) -> str:
    """The clone of ``owner/name``: DIR/owner__name, DIR/owner/name or DIR/name, and nothing outside of DIR."""
    parts = name.split("/")
    if any(part in (".", "..") for part in parts):
        raise UsageError(f"{path}: repo: {name!r} is not owner/name")
    places = [os.path.join(repos, *words) for words in (["__".join(parts)], parts, [parts[1]])]
    found = next((place for place in places if os.path.isdir(place)), "")
    if not found:
        raise UsageError(f"{path}: repo: there is no clone of {name} in {repos}", hint=f"put it at {places[0]}")
    return found


def _kind_of(folder: str) -> str:
    """Empty: it is no task."""
    ours = any(os.path.lexists(os.path.join(folder, name)) for name in ("workspace", "grade.sh"))
    return kind_of(folder) or ("generic" if ours else "")


def _id(name: str, where: str) -> str:
    if not name or len(name) > ID_CHARS or not name.isprintable():
        shown = escape_controls(name[:ID_CHARS])
        raise UsageError(f"{where}: {shown!r} is not a task id", hint=f"up to {ID_CHARS} printable characters")
    return name


def _is_chosen(name: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    wanted = not only or any(fnmatchcase(name, pattern) for pattern in only)
    return wanted and not any(fnmatchcase(name, pattern) for pattern in skip)


def _refuse_doubles(entries: Sequence[Entry]) -> None:
    """Also two ids that would share a directory."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        other = seen.setdefault(folder_name(entry.id), entry)
        if other is not entry:
            raise UsageError(f"{entry.path}: the id {entry.id!r} appears twice, also in {other.path}")


def _refuse_others(entries: Sequence[Entry], suite: str) -> None:
    """A suite may be somebody else's: no link in it turns a directory of the caller's into a task."""
    for entry in entries:
        if entry.path != suite and not within(real(entry.path), real(suite)):
            raise UsageError(f"{entry.path} is a link that points outside the suite", hint="put the task itself there")


def _checked(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Tasks of our own format are read now, so their errors are reported before any task runs."""
    names: dict[str, str] = {}
    for entry in entries:
        if not entry.kind:
            raise UsageError(
                f"{entry.path} is not a task: no task.toml, no task.yaml with run-tests.sh, no workspace/, no grade.sh",
                hint=f"skip it with --skip {entry.id!r}",
            )
        if entry.kind in ("harbor", "terminal-bench") and "policy" in entry.options:
            raise UsageError(f"{entry.path} sets its agent's policy by itself", hint="omit --policy")
        if entry.kind == "generic":
            task = load(entry)
            other = names.setdefault(task.id, entry.path)
            if other != entry.path:
                raise UsageError(f"{os.path.join(entry.path, 'task.yaml')}: id: {task.id!r} is that of {other} too")
        yield entry


