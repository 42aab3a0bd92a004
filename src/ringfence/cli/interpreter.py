"""Which Python runs tests and files: the one that is named, else the active environment's."""

from __future__ import annotations

import os
import sys
from _collections_abc import Mapping

from ringfence.errors import UsageError
from ringfence.model.ways.walk import absolute, real

FLAG = "--interpreter"
HELP = "the Python to use, as a file, a name on the PATH or an environment's directory (default: the active one)"
_HINT = f"name a Python with {FLAG}, e.g. {FLAG} .venv/bin/python"
_PYENV_PATIENCE_S = 30


def chosen(named: str | None) -> str:
    """The path of the interpreter. Links are not resolved: Python finds an environment by its interpreter's place."""
    return _named(named) if named is not None else _active(os.environ)


def _named(name: str) -> str:
    if os.path.isdir(name):
        return _of_environment(name, f"{FLAG} {name}")
    import shutil

    found = shutil.which(name)
    if found is None:
        problem = "can't be executed" if os.path.lexists(name) else "not found as a file or on the PATH"
        raise UsageError(f"{FLAG} {name}: {problem}", hint=_HINT)
    return absolute(found)


def _active(environment: Mapping[str, str]) -> str:
    """The one that a shell would start: a virtual environment's, conda's or pyenv's; else ringfence's own."""
    if folder := environment.get("VIRTUAL_ENV"):
        return _of_environment(folder, f"VIRTUAL_ENV={folder}")
    folder = environment.get("CONDA_PREFIX")
    if folder and os.access(_program_in(folder), os.X_OK):
        return _program_in(folder)
    return sys.executable if _is_meant_itself() else _of_pyenv(environment) or sys.executable


def _is_meant_itself() -> bool:
    """Whether this environment was named in the call, as by ``.venv/bin/ringfence`` or ``python -m ringfence``. What
    pipx and the like install is started through a link elsewhere, and nobody means the environment behind it."""
    started = absolute(sys.argv[0])
    return os.path.basename(started) == "__main__.py" or os.path.dirname(started) == os.path.dirname(sys.executable)


def _program_in(folder: str) -> str:
    return os.path.join(absolute(folder), "bin", "python")


def _of_environment(folder: str, said: str) -> str:
    if not os.access(_program_in(folder), os.X_OK):
        raise UsageError(f"{said}: there is no bin/python in it", hint=_HINT)
    return _program_in(folder)


def _of_pyenv(environment: Mapping[str, str]) -> str | None:
    """The Python behind pyenv's shim, if that comes first on the PATH: a shim is a script that chooses by directory."""
    import shutil

    root = environment.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    shim = shutil.which("python3") or ""
    is_shim = real(os.path.dirname(shim)) == real(os.path.join(root, "shims"))
    return _behind_shim(os.path.join(root, "bin", "pyenv")) if is_shim else None


def _behind_shim(pyenv: str) -> str:
    import subprocess

    try:
        asked = subprocess.run([pyenv, "which", "python3"], capture_output=True, text=True, check=False,
                               stdin=subprocess.DEVNULL, timeout=_PYENV_PATIENCE_S)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"pyenv can't be asked for its Python: {error}", hint=_HINT) from error
    if asked.returncode != 0:
        said = asked.stderr.strip().partition("\n")[0]
        raise UsageError(f"pyenv has no Python for this directory: {said}", hint=_HINT)
    return asked.stdout.strip()
