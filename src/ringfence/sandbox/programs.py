"""What a job's program needs of the host beside itself.

Follows links, ``#!`` lines as the kernel reads them, and the ``home`` of a pyvenv.cfg. The program, or the maker of the
directory that it lies in, may be hostile: something that a file merely names is shown only if it is an interpreter, and
then the interpreter alone with its library (ADR 0051).
"""

from __future__ import annotations

import os
import stat
import sys

from ringfence.model.paths import within
from ringfence.sandbox.search import Search

ALWAYS = ("python3", "python")
"""Programs that a job finds by name as its caller does, even if its first word is another program, e.g. a shell."""
_MOST_STEPS = 32
_LINE_BYTES = 256  # BINPRM_BUF_SIZE: what the kernel looks at
_CONFIGURATION_BYTES = 64 * 1024
_BLANKS = b" \t"
_PACKAGES = ("python3", "node_modules")


def needed(argv0: str, search: Search) -> list[str]:
    """What a job's program needs of the host, and what the Python needs that the job finds by name."""
    first = [search.which(name) for name in (argv0, *ALWAYS)]
    found: dict[str, None] = {}
    left = [search.taken_once(path) for path in dict.fromkeys(filter(None, first))]
    for path, named in left:  # the list grows meanwhile
        if named or _is_interpreter(path, search):
            vouched = named and search.vouches_for(path)
            found.update(dict.fromkeys(_shown_for(path, named, vouched, search)))
            known = {each for each, _ in left}
            led = [search.taken_once(each)[0] for each in _led_to(path, vouched, search)]
            new = [(each, vouched) for each in led if each not in known]
            left += new[: max(0, _MOST_STEPS - len(left))]
    return list(found)


def own_folders(search_path: str) -> list[str]:
    """What this interpreter needs: its prefix and its packages.

    ``search_path`` is the PYTHONPATH that the job gets. The caller's own sys.path is not shown: the directory of its
    script may be anything.
    """
    packages = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    given = filter(None, search_path.split(os.pathsep))
    return [sys.prefix, sys.base_prefix, *packages, *_editable(packages), *given]


def _editable(packages: list[str], search: Search | None = None) -> list[str]:
    """What package directories point to (editable installs). ``search``: only by files that no other user could have
    written; absent: this interpreter has read them already."""
    files = [os.path.join(folder, name) for folder in filter(os.path.isdir, packages) for name in _names(folder)
             if name.endswith(".pth")]  # fmt: skip
    return [path for file in files if search is None or search.trusts_text_of(file) for path in _pointed_to(file)]


def _pointed_to(pth: str) -> list[str]:
    lines = [line.strip() for line in _text(pth).splitlines()]
    return [line for line in lines if os.path.isabs(line) and os.path.isdir(line)]


def _shown_for(program: str, named: bool, vouched: bool, search: Search) -> list[str]:
    """What a program outside the system needs beside itself; never a whole home because of ~/bin.

    ``named``: by the caller, and not by a file. Then a virtual environment, conda's or pyenv's root is shown whole,
    another prefix with packages (such as ~/.local) by the two directories that hold programs and packages, and any
    other program alone. ``vouched``: links in it are its owner's, and lead where they should. """
    folder = os.path.dirname(program)
    prefix = os.path.dirname(folder)
    if not named:
        parts = [program, *_python_parts(prefix)]
    elif _is_installation(folder, prefix) and not _is_above_others(prefix, search):
        parts = [prefix]
    elif os.path.basename(folder) == "bin" and _packages(os.path.join(prefix, "lib")):
        parts = [folder, os.path.join(prefix, "lib"), *_there(os.path.join(prefix, "pyvenv.cfg"))]
    else:
        parts = [program]
    if vouched:
        return [*parts, *(path for path in _editable(_sites(prefix), search) if not _is_above_others(path, search))]
    return [path for path in parts if (_is_harmless(path, search) if path == program else _stays(path, prefix, search))]


def _is_harmless(program: str, search: Search) -> bool:
    """Whether it is itself what it claims to be, or an interpreter, and not a link to something else on the host."""
    if os.path.islink(program) or any(within(program, folder) for folder in search.hostile):
        return _is_python(program, search)
    return True


def _stays(path: str, prefix: str, search: Search) -> bool:
    """Whether a part of an installation is in it, and not a link to something else."""
    return within(search.real(path), search.real(prefix))


def _is_installation(folder: str, prefix: str) -> bool:
    if os.path.basename(folder) == "shims":
        return os.path.isdir(os.path.join(prefix, "versions"))
    marks = ("pyvenv.cfg", "conda-meta")
    return prefix == sys.base_prefix or any(os.path.exists(os.path.join(prefix, name)) for name in marks)


def _is_above_others(prefix: str, search: Search) -> bool:
    """Whether more than an installation is there: a home, or what the job works on."""
    return any(within(search.real(path), search.real(prefix)) for path in (_home(), *search.hostile))


def _home() -> str:
    return os.path.expanduser("~")


def _sites(prefix: str) -> list[str]:
    """The package directories of a virtual environment."""
    lib = os.path.join(prefix, "lib")
    there = _packages(lib) if _there(os.path.join(prefix, "pyvenv.cfg")) else []
    return [os.path.join(lib, name, "site-packages") for name in there]


def _python_parts(prefix: str) -> list[str]:
    """The libraries of a Python, and the file that names its base; nothing for another program."""
    configuration = _there(os.path.join(prefix, "pyvenv.cfg"))
    libraries = [path for path in _libraries(prefix) if configuration or _is_standard_library(path)]
    return [*libraries, *_starting(prefix, "libpython3"), *configuration]


def _libraries(prefix: str) -> list[str]:
    return _starting(prefix, "python3")


def _starting(prefix: str, start: str) -> list[str]:
    lib = os.path.join(prefix, "lib")
    return [os.path.join(lib, name) for name in _names(lib) if name.startswith(start)]


def _is_standard_library(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "os.py"))


def _packages(lib: str) -> list[str]:
    return [name for name in _names(lib) if name.startswith(_PACKAGES)]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _there(path: str) -> list[str]:
    return [path] if os.path.isfile(path) else []


def _is_interpreter(path: str, search: Search) -> bool:
    """Whether a file of unknown origin may cause it to be shown: a Python, or a program found by name in the caller's
    PATH that is machine code or a script of a virtual environment. Nobody keeps a secret in one of these."""
    if _is_python(path, search):
        return True
    of_a_kind = _is_machine_code(path) or _is_of_environment(path, search)
    return of_a_kind and _can_start(path) and search.vouches_for(path)


def _is_python(path: str, search: Search) -> bool:
    """Whether it is the interpreter of an installation or an environment of Python."""
    place = search.real(path)
    prefix = os.path.dirname(os.path.dirname(place))
    of_python = bool(_there(f"{prefix}/pyvenv.cfg")) or any(map(_is_standard_library, _libraries(prefix)))
    return of_python and os.path.basename(place).startswith("python") and _can_start(path) and _is_machine_code(path)


def _is_of_environment(path: str, search: Search) -> bool:
    """Whether it is a script of a virtual environment."""
    folder = os.path.dirname(search.real(path))
    in_one = os.path.basename(folder) == "bin" and bool(_there(f"{os.path.dirname(folder)}/pyvenv.cfg"))
    return in_one and (_head(path) or b"").startswith(b"#!")


def _is_machine_code(path: str) -> bool:
    return (_head(path) or b"").startswith(b"\x7fELF")


def _can_start(path: str) -> bool:
    return os.access(path, os.X_OK)


def _link(path: str) -> str:
    """Where a link leads; empty: it is not a link."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return ""


def _led_to(path: str, vouched: bool, search: Search) -> list[str]:
    """What is needed to start a program: the target of a link, an interpreter, the base of its environment.
    ``vouched``: a link is its owner's, and may lead to any program; else to a Python alone."""
    bases = _bases(os.path.dirname(path))
    if to := _link(path):
        led = os.path.join(os.path.dirname(path), to)
        return [led, *bases] if vouched or _is_python(led, search) else bases
    line = interpreter_line(_head(path) or b"")
    if line is None:
        return bases
    interpreter, argument = line
    found = [os.path.join(search.here, interpreter)]
    if os.path.basename(interpreter) == "env":
        found += filter(None, [search.which(_started_by_env(argument))])
    return found + bases


def interpreter_line(head: bytes) -> tuple[str, str] | None:
    """(interpreter, its one argument) of a script, as the kernel reads it; None: it is no script, or can't be one.

    >>> interpreter_line(b"#! /bin/sh -e x \\necho"), interpreter_line(b"#!/bin/sh\\r\\n")
    (('/bin/sh', '-e x'), ('/bin/sh\\r', ''))
    """
    if not head.startswith(b"#!"):
        return None
    line, newline, _ = head[2:_LINE_BYTES].partition(b"\n")
    line = line.lstrip(_BLANKS).partition(b"\0")[0]
    end = next((place for place, byte in enumerate(line) if byte in _BLANKS), len(line))
    if not end or (end == len(line) and not newline and len(head) >= _LINE_BYTES):
        return None  # nothing, or a name that is cut off: the kernel does not guess
    return os.fsdecode(line[:end]), os.fsdecode(line[end:].strip(_BLANKS))


def _started_by_env(argument: str) -> str:
    """The program that ``env`` starts: past its options and settings. It has one argument, which -S has it split."""
    option, _, rest = argument.partition("S")
    is_split = option == "-" or (option.startswith("-") and option[1:].isalpha())
    words = rest.split() if is_split else [argument.removeprefix("--split-string=")]
    return next((word for word in words if not word.startswith("-") and "=" not in word), "")


def _bases(folder: str) -> list[str]:
    """The Python that a virtual environment is made of, where the directory is one's ``bin``."""
    rows = (line.partition("=") for line in _text(os.path.join(os.path.dirname(folder), "pyvenv.cfg")).splitlines())
    home = next((value.strip() for key, _, value in rows if key.strip().lower() == "home"), "")
    pythons = [os.path.join(home, name) for name in ALWAYS] if os.path.isabs(home) else []
    return [path for path in pythons if os.path.exists(path)]


def _text(path: str) -> str:
    content = _head(path, _CONFIGURATION_BYTES)
    return (content or b"").decode("utf-8", "surrogateescape")


def _head(path: str, size: int = _LINE_BYTES) -> bytes | None:
    """The first bytes of a plain file. None for anything else, which is not even opened: a device may act on that."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        return os.read(descriptor, size) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
