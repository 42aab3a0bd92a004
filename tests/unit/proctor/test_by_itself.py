"""What an image's Python imports though no script names it, and whose an agent's changes to it are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from ringfence.checkpoint.entry import FILE, FOLDER, LINK, Entry
from ringfence.checkpoint.tree import Tree
from ringfence.proctor.rooted import layer as layers
from ringfence.proctor.rooted.by_itself import imported
from ringfence.proctor.rooted.layer import SiftedLayer, sift
from ringfence.proctor.task import Grader, Root, Task

CHANGED, NEW_FOLDER = Entry(kind=FILE, mode=0o755, digest="?"), Entry(kind=FOLDER, mode=0o755)
PACKAGES = "usr/local/lib/python3.11/site-packages"
HACK = "import os; enabled = True; enabled and __import__('_distutils_hack').add_shim(); "
COVERED = "import os, sys;exec('if \"COV\" in os.environ:\\n    from pytest_cov.embed import init\\n    init()')\n"
PLUGIN = "[console_scripts]\nx = cli:main\n\n[pytest11]\nhypo = _hypothesis_pytestplugin\n\n[more]\nx = other\n"


def _found(files: Mapping[str, str], folders: tuple[str, ...] = (), paths: tuple[str, ...] = ()) -> frozenset[str]:
    def names(folder: str) -> list[str]:
        inside = (path[len(folder) + 1 :] for path in files if path.startswith(f"{folder}/"))
        return [*dict.fromkeys(path.split("/")[0] for path in inside)]

    return imported(folders, paths, names, lambda path: files.get(path, "").encode())


@pytest.mark.parametrize(("line", "names"), [
    (HACK, {"_distutils_hack"}), (COVERED, {"pytest_cov", "init", "coverage"}), ("/app/src\n", set()),
    ("import _virtualenv", {"_virtualenv"}), ("import\ta,  B\n/app/import/x\n", {"a", "b"}),
    ("import __editable___x_finder; __editable___x_finder.install()", {"__editable___x_finder"}),
    ("import importlib; importlib.import_module(\"late\")", {"late"}), ("import os, sys", set()),
])  # fmt: skip
def test_what_a_line_of_the_images_imports_at_every_start(line: str, names: set[str]) -> None:
    assert _found({f"{PACKAGES}/x.pth": line, f"{PACKAGES}/x.txt": "import other"}) == names


@pytest.mark.parametrize("metadata", ["hypothesis-6.dist-info", "Hypothesis-6.EGG-INFO"])
def test_what_came_with_a_plugin_of_the_images_pytest(metadata: str) -> None:
    record = "../../../bin/x,sha256=1,2\n_Hypothesis_globals.py,sha256=1,2\nhypothesis/core.py,,\nhypothesis-6.x/R,,\n"
    files = {f"{PACKAGES}/{metadata}/entry_points.txt": PLUGIN, f"{PACKAGES}/{metadata}/RECORD": record,
             f"{PACKAGES}/{metadata}/top_level.txt": "extra\n"}  # fmt: skip
    assert _found(files) == {"_hypothesis_pytestplugin", "_hypothesis_globals", "hypothesis", "extra"}
    assert not _found({**files, f"{PACKAGES}/{metadata}/entry_points.txt": "[console_scripts]\nx = x:main\n"})


@pytest.mark.parametrize("top", ["usr", "usr/local", "opt/venv", "root/.pyenv/versions/3", "root/.local", ""])
@pytest.mark.parametrize("folder", ["lib/python3.11/site-packages", "lib64/python3/dist-packages"])
def test_every_python_that_programs_or_changes_lie_beside_is_asked(top: str, folder: str) -> None:
    files = {f"{top}/{folder}/x.pth".lstrip("/"): "import mine"}
    changed = f"{top}/lib/python3.9/site-packages/x".lstrip("/")
    assert _found(files, ("opt/venv/bin",), (changed,)) == {"mine"}
    assert bool(_found(files)) == (top in ("usr", "usr/local", "root/.local"))
    assert not _found({"srv/lib/python3.9/site-packages/x.pth": "import mine"}, (), ("srv/x",))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    for path, text in {
        "precedence.pth": HACK, "_distutils_hack/__init__.py": "", "_hypothesis_pytestplugin.py": "",
        "numpy/core.py": "",
        "hypothesis-6.dist-info/entry_points.txt": PLUGIN,
        "hypothesis-6.dist-info/RECORD": "_hypothesis_globals.py,,\nhypothesis/core.py,,\n",
        "hypothesis/core.py": "", "_hypothesis_globals.py": "", "x-1.dist-info/entry_points.txt": "[console_scripts]",
    }.items():  # fmt: skip
        (tmp_path / "image" / PACKAGES / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "image" / PACKAGES / path).write_text(text)
    (tmp_path / "image" / PACKAGES / "folder.pth").mkdir()
    (tmp_path / "image/usr/local/lib64").symlink_to("lib")
    return tmp_path / "image"


def _left(image: Path, *paths: str, as_left: bool = False) -> SiftedLayer:
    """What is graded of an agent's layer with these files, read from a disk."""
    upper = image.parent / "upper"
    for path in paths:
        (upper / path).parent.mkdir(parents=True, exist_ok=True)
        (upper / path).write_text("import os; os._exit(0)")
    grader = Grader(oracle_at="/tests", system_as_left=as_left)
    task = Task(id="t", root=Root(folder=str(image), environment={"PATH": "/usr/bin"}), grader=grader)
    with closing(Tree(str(upper))) as changes, closing(Tree(str(image))) as base:
        return layers.taken(changes, base, task, [])


@pytest.mark.system
@pytest.mark.parametrize("path", [
    f"{PACKAGES}/_distutils_hack/__init__.py", f"{PACKAGES}/_hypothesis_pytestplugin.py",
    f"{PACKAGES}/_hypothesis_globals.py", f"{PACKAGES}/hypothesis/core.py", f"{PACKAGES}/hypothesis/__init__.abi3.so",
    f"{PACKAGES}/_distutils_hack.abi3.so", f"{PACKAGES}/_hypothesis_pytestplugin/__init__.py",
    "usr/local/lib/python3.11/_distutils_hack.py", "usr/local/lib/python3.11/lib-dynload/_distutils_hack.py",
    "root/.local/lib/python3.11/site-packages/_distutils_hack.py", "usr/bin/_hypothesis_pytestplugin.py",
    f"{PACKAGES}/hypothesis-6.dist-info/RECORD",
])  # fmt: skip
def test_what_python_imports_by_itself_is_the_images(image: Path, path: str) -> None:
    sifted = _left(image, path, f"{PACKAGES}/numpy/core.py", f"{PACKAGES}/own.py", "app/hypothesis/core.py")
    kept = {path for path, entry in sifted.layer.items() if entry.kind == FILE}
    assert kept == {f"{PACKAGES}/numpy/core.py", f"{PACKAGES}/own.py", "app/hypothesis/core.py"}, sifted
    assert path not in _left(image, path).layer and path in _left(image, path, as_left=True).layer


def test_no_list_of_paths_leads_to_it(tmp_path: Path) -> None:
    task = Task(id="t", root=Root(folder=str(tmp_path)), grader=Grader(oracle_at="/tests"))
    listed, base = f"{PACKAGES}/x.pth", {PACKAGES: NEW_FOLDER}
    for brought in ({"opt/x/mine.py": CHANGED}, {"opt/x/mine": Entry(kind=LINK, target="/app")}):
        layer = {listed: CHANGED, **brought}
        assert listed in sift(layer, base, task, lambda _: (b"", b"/opt/x\n")).layer
        assert listed not in sift(layer, base, task, lambda _: (b"", b"/opt/x\n"), imported=("mine",)).layer
