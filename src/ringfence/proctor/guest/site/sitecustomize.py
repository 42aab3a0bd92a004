"""Imported at the start of every Python in a grader's sandbox: modules of the submission come last on the search path.

With ``PYTHONSAFEPATH`` Python puts neither the script's directory nor the current one on its path. Those of the
grader and the oracle are put back in front, where scripts expect them. A Python before 3.11 does not know that
variable; what it puts in front is taken away at its first import. All others are behind the standard library and the
installed packages, so a ``json.py`` or ``pytest.py`` in the submission replaces nothing. What of these is not installed
is not found at all: the standard library tries to import modules that only other systems have.

In the root of an image Python finds modules as its tasks expect it to, but for ``python -m pytest``: it looks in the
current directory first, which is the agent's. There the standard library and pytest are found where they belong, and
nowhere else. That Python may be any: the types are comments.
"""

import os
import sys

TRUSTED = ("/grader", "/oracle")
IN_AN_IMAGE = "/ringfence/tools/"
RUNNER = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "py")
ASKED_FOR = ("org", "java", "vms_lib", "_winreg", "_manylinux")
"""Of other Pythons and systems: the standard library and the runner try to import them, and go on without."""
OPTIONAL = ("_winapi", "_overlapped", "_scproxy", "_wmi", "_msi", "msvcrt", "nt", "winreg", "winsound", "_bz2",
            "_crypt", "_ctypes", "_curses", "_curses_panel", "_dbm", "_gdbm", "_hashlib", "_lzma", "_posixshmem",
            "_sqlite3", "_ssl", "_tkinter", "_uuid", "_zoneinfo", "nis", "ossaudiodev", "readline", "spwd")  # fmt: skip
"""Parts of the standard library that a Python may lack; those before 3.10 have no list of all parts."""
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


def arrange(path, words, workspace, here):  # type: (list[str], list[str], str, str) -> str
    """Put the script's directory, or the current one, and the workspace where they belong on the search path; return
    the first of them if it belongs at the end."""
    script = script_of(words)
    first = os.path.dirname(os.path.realpath(os.path.join(here, script))) if script else os.path.realpath(here)
    if is_trusted(first):
        path.insert(0, first)
    path += [folder for folder in dict.fromkeys((first, workspace)) if folder and folder not in path]
    return "" if is_trusted(first) else first


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


class InstalledFinder:
    """Finds the standard library and the runner of tests where they are installed, and nowhere else."""

    def __init__(self, finder, knows, late=""):  # type: (type[PathFinder], Callable[[str], bool], str) -> None
        """``late``: a directory that belongs at the end of the path, but is put in front after us."""
        self.finder, self.knows, self.late, self.names = finder, knows, late, standard_names()

    def find_spec(self, name, path=None, target=None):
        # type: (str, Sequence[str] | None, ModuleType | None) -> ModuleSpec | None
        if self.late and put_last(sys.path, self.late):
            self.late = ""
        if path is not None or not (name in self.names or name in RUNNER):
            return None
        spec = self.find(name)
        if spec is None and self.is_asked_for(name):
            raise not_found(name)
        return spec

    def find(self, name):  # type: (str) -> ModuleSpec | None
        return self.finder.find_spec(name, [each for each in sys.path if self.knows(each)])

    def is_asked_for(self, name):  # type: (str) -> bool
        """Whether something that is installed may ask for it. Nothing asks for parts of a runner that is not there: a
        submission may be such a part itself."""
        return name not in RUNNER[2:] or self.find(RUNNER[0]) is not None


def put_last(path, folder):  # type: (list[str], str) -> bool
    """Leave only the last entry for a directory; whether there were more.

    >>> path = ["", "/usr/lib/python3", os.getcwd()]
    >>> put_last(path, os.path.realpath("")), path == ["/usr/lib/python3", os.getcwd()]
    (True, True)
    """
    found = [place for place, each in enumerate(path) if os.path.realpath(each) == folder]
    for place in reversed(found[:-1]):
        del path[place]
    return len(found) > 1


def not_found(name):  # type: (str) -> ImportError
    kind = ModuleNotFoundError if sys.version_info >= (3, 6) else ImportError
    return kind("No module named %r" % name, name=name)  # noqa: UP031  f-strings came later


def standard_names():  # type: () -> frozenset[str]
    """All that the standard library of any system has, as far as this Python knows it, and what it asks for."""
    names = getattr(sys, "stdlib_module_names", None)
    if names is None:
        top = os.path.dirname(os.__file__)
        folders = [each for each in (top, os.path.join(top, "lib-dynload")) if os.path.isdir(each)]
        names = [name.split(".")[0] for each in folders for name in os.listdir(each)]
    return frozenset(names) | frozenset(ASKED_FOR + OPTIONAL)


def words_of():  # type: () -> list[str]
    """The command line of this Python."""
    words = getattr(sys, "orig_argv", None)
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")[:-1]
    return words


def guard(knows, late=""):  # type: (Callable[[str], bool], str) -> None
    """``knows``: whether a place on the search path is trusted with these names."""
    from importlib.machinery import PathFinder

    sys.meta_path.insert(sys.meta_path.index(PathFinder), InstalledFinder(PathFinder, knows, late))


def guard_in_an_image():  # type: () -> None
    """Guard ``python -m pytest``, and no other program."""
    own_library = os.path.dirname(os.__file__)  # of a PyPy, its name does not tell
    installed = frozenset(each for each in sys.path if each == own_library or is_installed(each))
    if program_of(words_of()) == ("m", "pytest"):
        guard(lambda each: each in installed)


def go_on():  # type: () -> None
    """Load the image's own module of this name, if it has one: this one took its place."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence  # noqa: F401  they stand in comments
    from importlib.machinery import ModuleSpec, PathFinder  # noqa: F401
    from types import ModuleType  # noqa: F401

own = os.path.dirname(os.path.abspath(__file__))
if own.startswith(IN_AN_IMAGE):
    sys.path[:] = [each for each in sys.path if each != own]
    try:
        guard_in_an_image()
        go_on()
    except ImportError:
        pass  # a Python that is too old for it
elif "PROCTOR_WORKSPACE" in os.environ and getattr(sys.flags, "safe_path", True):
    sys.path[:] = [each for each in sys.path if each != own]
    before = frozenset(sys.path)
    try:
        late = arrange(sys.path, words_of(), os.environ["PROCTOR_WORKSPACE"], os.getcwd())
    except OSError:
        late = ""  # the current directory is gone
    added = frozenset(sys.path) - before
    try:
        guard(lambda each: each in before or is_trusted(each) or (is_installed(each) and each not in added),
              "" if hasattr(sys.flags, "safe_path") else late)  # fmt: skip
    except ImportError:
        pass  # a Python that is too old for it
