"""The repositories of SWE-bench as data: how each runs its tests, where its package lies, and its other names.

A repository that is not in the table is taken to use pytest and to have a package of its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.model.record import record

PYTEST, DJANGO, SYMPY = "pytest", "django", "sympy"
RUNNERS = (PYTEST, DJANGO, SYMPY)
METADATA = (".egg-info", ".dist-info", ".egg-link")
"""Files that name plug-ins which a runner loads by itself."""
IMAGE_PYTHON = "/opt/miniconda3/envs/testbed/bin/python"
"""Of the data set's own images."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


@record
class TestedRepository:
    """How one is tested."""

    runner: str = PYTEST
    arguments: tuple[str, ...] = ()
    """What the runner gets before the test files."""
    sources: tuple[str, ...] = ("", "src")
    """Directories that packages are imported from, as an editable installation would have it."""
    install: str = ""
    """Shell commands that build in place what can't be imported without them; they run before the agent."""
    environment: Mapping[str, str] = _NOTHING
    distributions: tuple[str, ...] = ()
    """What the package is called where it is installed; the leak scan looks for copies of it."""
    packages: tuple[str, ...] = ()
    """What is imported of it."""
    harness: tuple[str, ...] = ()
    """Its own files that run tests; they are graded as the base commit has them."""


_BUILD = "python3 setup.py build_ext --inplace"
_PYTEST_VERSION = r"""
if test -d src/_pytest && test ! -e src/_pytest/_version.py; then
    numbers=$(echo "$VERSION" | tr . ,)
    printf 'version = "%s.0"\nversion_tuple = (%s, 0)\n' "$VERSION" "$numbers" > src/_pytest/_version.py
fi"""
"""What its installation would write: pytest does not start without its version number."""

REPOSITORIES: Mapping[str, TestedRepository] = {
    "astropy/astropy": TestedRepository(
        install=_BUILD, arguments=("-o", "console_output_style=classic"),
        distributions=("astropy",), packages=("astropy",),
    ),
    "django/django": TestedRepository(
        runner=DJANGO, arguments=("--settings=test_sqlite", "--parallel", "1"), sources=("",),
        environment={"LANG": "en_US.UTF-8", "PYTHONIOENCODING": "utf8"},
        distributions=("django",), packages=("django",),
        harness=("tests/runtests.py", "tests/test_sqlite.py", "tests/urls.py"),
    ),
    "pallets/flask": TestedRepository(distributions=("flask",), packages=("flask",)),
    "matplotlib/matplotlib": TestedRepository(
        install=_BUILD, sources=("lib", ""), environment={"MPLBACKEND": "agg"},
        distributions=("matplotlib",), packages=("matplotlib", "mpl_toolkits", "pylab"),
    ),
    "mwaskom/seaborn": TestedRepository(
        environment={"MPLBACKEND": "agg"}, distributions=("seaborn",), packages=("seaborn",)
    ),
    "psf/requests": TestedRepository(distributions=("requests",), packages=("requests",)),
    "pydata/xarray": TestedRepository(distributions=("xarray",), packages=("xarray",)),
    "pylint-dev/pylint": TestedRepository(distributions=("pylint",), packages=("pylint",)),
    "pytest-dev/pytest": TestedRepository(
        sources=("src", ""), distributions=("pytest",), packages=("pytest", "_pytest"),
        install=_PYTEST_VERSION,
    ),
    "scikit-learn/scikit-learn": TestedRepository(
        install=_BUILD, distributions=("scikit-learn", "sklearn"), packages=("sklearn",)
    ),
    "sphinx-doc/sphinx": TestedRepository(distributions=("sphinx",), packages=("sphinx",), sources=("",)),
    "sympy/sympy": TestedRepository(
        runner=SYMPY, arguments=("-C", "--verbose"), sources=("",),
        environment={"PYTHONWARNINGS": "ignore::UserWarning,ignore::SyntaxWarning"},
        distributions=("sympy",), packages=("sympy",), harness=("bin/test", "bin/get_sympy.py"),
    ),
}  # fmt: skip


def repository_of(name: str) -> TestedRepository:
    """Return the row of ``owner/name``; former names of a project lead to its present one."""
    found = REPOSITORIES.get(_RENAMED.get(name, name))
    if found is not None:
        return found
    project = name.rpartition("/")[2]
    return TestedRepository(distributions=(project.lower(),), packages=(project.replace("-", "_"),))


_RENAMED = {"PyCQA/pylint": "pylint-dev/pylint", "kennethreitz/requests": "psf/requests"}


def image_of(instance_id: str) -> str:
    """Return the name of the data set's own image of an instance.

    >>> image_of("psf__requests-1142")
    'swebench/sweb.eval.x86_64.psf_1776_requests-1142:latest'
    """
    return f"swebench/sweb.eval.x86_64.{instance_id.lower().replace('__', '_1776_')}:latest"
