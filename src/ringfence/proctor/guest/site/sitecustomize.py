"""Imported at the start of every Python in a grader's sandbox: modules of the submission come last on the search path.

With ``PYTHONSAFEPATH`` Python puts neither the script's directory nor the current one on its path. Those of the
grader and the oracle are put back in front, where scripts expect them. All others are behind the standard library
and the installed packages, so a ``json.py`` or ``pytest.py`` in the submission replaces nothing.

In the root of an image Python finds modules as its tasks expect it to, but for ``python -m pytest``: it looks in the
current directory first, which is the agent's. There the standard library and pytest are found where they belong, and
nowhere else. That Python may be any: the types are comments.
"""

import os
import sys

TRUSTED = ("/grader", "/oracle")
IN_AN_IMAGE = "/ringfence/tools/"
RUNNER = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "py")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_ENDS = "cm"
"""Options after which the program comes: a command, or a module."""


def program_of(words):  # type: (list[str]) -> tuple[str, str]
    """What this command line of Python runs: ``c``, ``m`` with a module, empty with a script, or nothing at all.

    >>> program_of(["python3", "-W", "error", "-u", "tests/run.py", "-v"]), program_of(["python3", "-Bc", "pass"])
    (('', 'tests/run.py'), ('c', 'pass'))
    >>> program_of(["python3", "-Im", "pytest", "-q"]), program_of(["python3", "-mpytest"])
    (('m', 'pytest'), ('m', 'pytest'))
    """
    left = list(words[1:])
    while left:
        word = left.pop(0)
        if word == "--" and left:
            return "", left[0]
        if not word.startswith("-") or word in ("-", "--"):
            return "", "" if word in ("-", "--") else word
        if word in _WITH_VALUE and left:
            left.pop(0)
        elif not word.startswith(("--", "-W", "-X")):
            for place, letter in enumerate(word[1:], 2):
                if letter in _ENDS:
                    return letter, word[place:] or (left[0] if left else "")
    return "", ""


def script_of(words):  # type: (list[str]) -> str
    """The script that a command line names; empty: a command, a module or standard input."""
    kind, name = program_of(words)
    return "" if kind else name


def is_trusted(folder):  # type: (str) -> bool
    return any(folder == top or folder.startswith(top + "/") for top in TRUSTED)


def arrange(path, words, workspace, here):  # type: (list[str], list[str], str, str) -> None
    """Put the script's directory, or the current one, and the workspace where they belong on the search path."""
    script = script_of(words)
    first = os.path.dirname(os.path.realpath(os.path.join(here, script))) if script else os.path.realpath(here)
    if is_trusted(first):
        path.insert(0, first)
    path += [folder for folder in dict.fromkeys((first, workspace)) if folder and folder not in path]


# ---- in an image


def is_installed(folder):  # type: (str) -> bool
    """Whether a place on the search path is Python's own, or one for packages.

    >>> [is_installed(each) for each in ("/usr/lib/python3.11", "/v/lib/python3/dist-packages", "/app", "/usr/src/app")]
    [True, True, False, False]
    """
    parts = folder.split("/")
    in_library = any(part in ("lib", "lib64") and next_part.startswith("python")
                     for part, next_part in zip(parts, parts[1:]))  # noqa: B905, RUF007  both came later
    return in_library or parts[-1] in ("site-packages", "dist-packages")


class Guard:
    """Finds the standard library and the runner of tests where they are installed, and nowhere else."""

    def __init__(self, finder, names, places):  # type: (type[PathFinder], frozenset[str], list[str]) -> None
        self.finder, self.names, self.places = finder, names, places

    def find_spec(self, name, path=None, target=None):
        # type: (str, Sequence[str] | None, ModuleType | None) -> ModuleSpec | None
        if path is not None or name not in self.names:
            return None
        spec = self.finder.find_spec(name, self.places)
        if spec is None and name in RUNNER:
            raise ImportError("No module named %r" % name)  # noqa: UP031  f-strings came later
        return spec


def guard():  # type: () -> None
    """Guard ``python -m pytest``, and no other program."""
    words = getattr(sys, "orig_argv", None)
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")[:-1]
    if program_of(words) != ("m", "pytest"):
        return
    from importlib.machinery import PathFinder

    names = getattr(sys, "stdlib_module_names", None)
    if names is None:
        names = [name.split(".")[0] for name in os.listdir(os.path.dirname(os.__file__))]
    place = sys.meta_path.index(PathFinder)
    sys.meta_path.insert(place, Guard(PathFinder, frozenset(names) | frozenset(RUNNER),
                                      [each for each in sys.path if is_installed(each)]))  # fmt: skip


def go_on():  # type: () -> None
    """Load the image's own module of this name, if it has one: this one took its place."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence  # noqa: F401  they stand in comments
    from importlib.machinery import ModuleSpec, PathFinder  # noqa: F401
    from types import ModuleType  # noqa: F401

own = os.path.dirname(os.path.abspath(__file__))
if own.startswith(IN_AN_IMAGE):
    sys.path[:] = [each for each in sys.path if each != own]
    try:
        guard()
        go_on()
    except ImportError:
        pass  # a Python that is too old for it
elif "PROCTOR_WORKSPACE" in os.environ and getattr(sys.flags, "safe_path", False):
    sys.path[:] = [each for each in sys.path if each != own]
    try:
        arrange(sys.path, sys.orig_argv, os.environ["PROCTOR_WORKSPACE"], os.getcwd())
    except OSError:
        pass  # the current directory is gone
