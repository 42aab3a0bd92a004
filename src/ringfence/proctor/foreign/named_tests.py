"""Which tests a name of the data set means. Pure.

The data set takes its names from logs that were split at blanks, and each runner prints its own: a pytest id is cut at
its first blank, a Django test goes by the first line of its docstring if it has one, a SymPy test by its function
alone. A name may stand for several tests: all of them have to pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ringfence.errors import UsageError
from ringfence.proctor.foreign.patches import FilePatch, PatchError, check_path
from ringfence.proctor.foreign.repositories import DJANGO, PYTEST, SYMPY

_BUTTONS = (("MouseButton.LEFT", "1"), ("MouseButton.RIGHT", "3"))
"""A log of matplotlib is read with these replaced."""
_NO_TESTS = (".json", ".png", ".csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")


def meant(names: Iterable[str], told: Mapping[str, str], runner: str) -> dict[str, tuple[str, ...]]:
    """Return the ids of the tests for each name; no id: there is no such test. ``told``: all ids, each with what the
    runner says of it."""
    by_label: dict[str, list[str]] = {}
    for test, words in told.items():
        for label in dict.fromkeys(_labels(test, words, runner)):
            by_label.setdefault(label, []).append(test)
    return {name: (name,) if name in told else tuple(by_label.get(name, ())) for name in names}


def _labels(test: str, words: str, runner: str) -> Iterator[str]:
    if runner == SYMPY:
        yield test.rpartition("::")[2]
    if runner == DJANGO:
        yield from _of_django(test, words)
    yield from _of_pytest(test)


def _of_pytest(test: str) -> Iterator[str]:
    yield test.split(None, 1)[0] if test.strip() else test
    shown = test
    for word, button in _BUTTONS:
        shown = shown.replace(word, button)
    yield shown.split(None, 1)[0] if shown.strip() else shown
    function, bracket, case = test.partition("[")
    if bracket and case.startswith("/") and not case.startswith("//") and "*" not in case:
        yield f"{function}[/{case.rstrip(']').rpartition('/')[2]}]"


def _of_django(test: str, words: str) -> Iterator[str]:
    """``test_x (app.tests.Class)``, as Python before 3.11 and since then writes it, or the docstring's first line."""
    label, _, described = words.partition("\n")
    yield label
    method, _, place = label.rstrip(")").partition(" (")
    if place.endswith(f".{method}"):
        yield f"{method} ({place.removesuffix(f'.{method}')})"
    elif place:
        yield f"{method} ({place}.{method})"
    if described:
        yield described


def files_to_run(names: Sequence[str], test_patch: Sequence[FilePatch], runner: str) -> tuple[str, ...]:
    """Return the files to run: those that the names begin with, else the Python files of the test patch."""
    named = dict.fromkeys(name.partition("::")[0] for name in names if "::" in name)
    if runner == PYTEST and named:
        return tuple(named)
    touched = (patch.new for patch in test_patch if patch.new and not patch.new.endswith(_NO_TESTS))
    return tuple(dict.fromkeys(path for path in touched if path.endswith(".py")))


def check_files(paths: Iterable[str], where: str) -> None:
    """UsageError for a file to run that lies outside of the repository: reading and restoring it would touch the host.
    A name that begins with a dash would be an option of the runner."""
    for path in paths:
        try:
            check_path(path)
            if path.startswith("-"):
                raise PatchError(f"{path!r} is an option, not a file")
        except PatchError as error:
            raise UsageError(f"{where}: FAIL_TO_PASS or PASS_TO_PASS: {error}") from error


def django_label(path: str) -> str:
    """Return what runtests.py calls a file.

    >>> django_label("tests/admin_views/test_forms.py")
    'admin_views.test_forms'
    """
    return path.removeprefix("tests/").removesuffix(".py").replace("/", ".")
