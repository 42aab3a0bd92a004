"""``pytest --ringfence``: as without it, but inside; and the fixture that hands a test a box."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import eventually

from ringfence.roles.removal import remove_tree

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.unmeasured]

MODULE = "ringfence.integrations.pytest_plugin"
INSTALLED = any(point.name == "ringfence" for point in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", MODULE)
TESTS = """\
import os, pkg, pytest
def test_ok(): assert pkg.double(2) == 4
def test_bad(): assert 1 == 2
def test_skipped(): pytest.skip("no")
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): assert n
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "test_a.py").write_text(TESTS)
    return folder


def _pytest(
    project: Path, *words: str, options: tuple[str, ...] = ("-P",), search: str = ""
) -> subprocess.CompletedProcess[str]:
    """``options``: of Python; ``search``: what is added to the caller's PYTHONPATH."""
    command = [sys.executable, *options, "-m", "pytest", *PLUGIN, "-p", "no:hypothesispytest", *words]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    given = os.environ.get("PYTHONPATH", "")
    if search:
        environment["PYTHONPATH"] = f"{search}{os.pathsep}{given}"
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600,
                          check=False)  # fmt: skip


def _summary(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    lines = done.stdout.strip().splitlines()
    return done.returncode, re.sub(r" in [\d.:s() ]+", "", lines[-1]).strip("= ") if lines else ""


def test_the_entry_point_names_the_plug_in() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ringfence": MODULE}


@pytest.mark.privileges
def test_results_reports_and_the_cache_are_as_without_it(project: Path) -> None:
    plain, inside = project.parent / "plain", project
    subprocess.run(["cp", "-r", str(project), str(plain)], check=True)
    words = ("--junitxml=out/j.xml", "--cov=pkg", "--cov-report=xml", "test_a.py")
    for place in (plain, inside):
        (place / "out").mkdir()
    first = [_summary(_pytest(plain, *words)), _summary(_pytest(inside, "--ringfence", *words))]
    assert first[0] == first[1] == (1, "1 failed, 3 passed, 1 skipped")
    for name in ("out/j.xml", "coverage.xml", ".coverage", ".pytest_cache/v/cache/lastfailed"):
        assert (inside / name).is_file(), name
    cases = [ElementTree.parse(place / "out/j.xml").findall(".//testcase") for place in (plain, inside)]
    assert [case.get("name") for case in cases[0]] == [case.get("name") for case in cases[1]]
    rates = [ElementTree.parse(place / "coverage.xml").getroot().get("line-rate") for place in (plain, inside)]
    assert rates == ["1", "1"]
    again = [_summary(_pytest(plain, "--lf")), _summary(_pytest(inside, "--ringfence", "--lf"))]
    assert again[0] == again[1] and again[0][1].startswith("1 failed")


@pytest.mark.long
@pytest.mark.parametrize("words", [("-x",), ("-k", "ok or many"), ("-k", "nothing"), ("--collect-only", "-q"),
                                   ("no_such_file.py",)])  # fmt: skip
def test_choosing_and_ending_are_as_without_it(project: Path, words: tuple[str, ...]) -> None:
    assert _summary(_pytest(project, "--ringfence=strict", *words)) == _summary(_pytest(project, *words))


@pytest.mark.long
def test_workers_of_xdist_run_inside(project: Path) -> None:
    assert _summary(_pytest(project, "--ringfence", "-n", "2")) == (1, "1 failed, 3 passed, 1 skipped")


@pytest.mark.parametrize(("words", "said"), [
    (("--pdb",), "--pdb needs your terminal"),
    (("--trace",), "--trace needs your terminal"),
    (("--ringfence=wet",), "'wet' is not one of"),
    (("--ringfence-policy=no.yaml",), "no.yaml"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_a_word(project: Path, words: tuple[str, ...], said: str) -> None:
    done = _pytest(project, "--ringfence", *words)
    assert done.returncode == 4 and said in done.stderr and "Traceback" not in done.stderr


def test_the_flag_in_a_file_of_arguments_is_refused(project: Path) -> None:
    (project / "conftest.py").write_text("open('ran', 'w').close()\n")
    (project / "words").write_text("--ringfence=strict\n")
    done = _pytest(project, "@words", "test_a.py")
    assert done.returncode == 4 and "in a file of arguments" in done.stderr
    assert not (project / "ran").exists()
    (project / "words").write_text("-q\n")
    _pytest(project, "@words", "test_a.py")
    assert (project / "ran").exists(), "the control"


@pytest.mark.privileges
@pytest.mark.parametrize("where", ["conftest.py", "test_a.py"])
def test_nothing_of_the_project_runs_outside(project: Path, where: str) -> None:
    outside = project.parent / "outside"
    evil = f"try: open({str(outside)!r}, 'w').close()\nexcept OSError: pass\n"
    (project / where).write_text(f"{evil}def test_one(): pass\n")
    _pytest(project, "--ringfence")
    assert not outside.exists()
    _pytest(project)
    assert outside.exists(), "the control"


def test_a_plug_in_of_the_project_that_pytest_loads_too_early_is_refused(project: Path) -> None:
    (project / "early.py").write_text("")
    (project / "pytest.ini").write_text("[pytest]\naddopts = -p early\n")
    done = _pytest(project, "--ringfence", search=".")
    assert done.returncode == 4 and "was loaded before" in done.stderr
    assert _pytest(project, "-k", "ok", search=".").returncode == 0, "the control"


@pytest.fixture
def installable(project: Path) -> Path:
    """The project has a plug-in of pytest, as an installed package has one; it notes where it was loaded."""
    (project / "evil-1.0.dist-info").mkdir()
    (project / "evil-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (project / "evil-1.0.dist-info" / "entry_points.txt").write_text("[pytest11]\nevil = evil_plugin\n")
    note = f"try: open({str(project.parent / 'outside')!r}, 'w').close()\nexcept OSError: pass\n"
    (project / "evil_plugin.py").write_text(note)
    (project / "test_a.py").write_text("def test_one(): pass\n")
    return project


def test_the_current_directory_on_the_search_path_is_refused(installable: Path) -> None:
    done = _pytest(installable, "--ringfence", options=())
    assert done.returncode == 4 and "python -P -m pytest" in done.stderr and "1 passed" not in done.stdout
    assert (installable.parent / "outside").exists(), "what the refusal is for"
    (installable.parent / "outside").unlink()
    assert _summary(_pytest(installable, "--ringfence")) == (0, "1 passed"), "the control"
    assert not (installable.parent / "outside").exists()


@pytest.mark.parametrize(("search", "status"), [("", 4), (".", 0)])
def test_a_search_path_that_names_the_project_is_the_callers_choice(
    installable: Path, search: str, status: int
) -> None:
    """An empty part of it names nothing: Python takes it for the current directory."""
    assert _pytest(installable, "--ringfence", search=search or os.pathsep).returncode == status


def test_what_the_projects_own_search_path_has_loaded_outside_is_refused(installable: Path) -> None:
    (installable / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    done = _pytest(installable, "--ringfence")
    assert done.returncode == 4 and "evil_plugin was found by its pythonpath" in done.stderr
    (installable / "evil-1.0.dist-info" / "entry_points.txt").unlink()
    assert _summary(_pytest(installable, "--ringfence")) == (0, "1 passed"), "the control"


def test_the_projects_own_search_path_holds_inside_alone(project: Path) -> None:
    """Outside, a module of its own would take the place of one that is imported for the sandbox."""
    (project / "lib").mkdir()
    outside = project.parent / "outside"
    note = f"try: open({str(outside)!r}, 'w').close()\nexcept OSError: pass\n"
    (project / "lib" / "ctypes.py").write_text(note)
    (project / "lib" / "near_module.py").write_text("X = 1\n")
    (project / "pytest.ini").write_text("[pytest]\npythonpath = lib\n")
    (project / "test_a.py").write_text("import near_module\ndef test_one(): pass\n")
    assert _summary(_pytest(project, "--ringfence")) == (0, "1 passed")
    assert not outside.exists()
    (project / "test_a.py").write_text("import ctypes, near_module\ndef test_one(): pass\n")
    assert _summary(_pytest(project)) == (0, "1 passed") and outside.exists(), "the control"


@pytest.mark.privileges
def test_the_search_path_of_the_policy_is_used(project: Path) -> None:
    (project / "lib").mkdir()
    (project / "lib" / "far_module.py").write_text("X = 1\n")
    (project / "test_a.py").write_text("import far_module\ndef test_ok(): pass\n")
    # It takes the place of ours, by which pytest may find this package.
    search = os.pathsep.join(filter(None, [f"{project}/lib", os.environ.get("PYTHONPATH")]))
    (project / "with_lib.yaml").write_text(f"environment: {{PYTHONPATH: '{search}'}}\n")
    done = _pytest(project, "--ringfence", "--ringfence-policy=with_lib.yaml", "-q", "test_a.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("end", ["os._exit(0)", "pytest.exit('all is well', 0)"])
def test_a_test_that_ends_the_process_does_not_pass(project: Path, end: str) -> None:
    (project / "test_a.py").write_text(f"import os, pytest\ndef test_end(): {end}\ndef test_bad(): assert 0\n")
    done = _pytest(project, "--ringfence")
    assert done.returncode == 1 and "exit code 0, but" in done.stderr
    assert _pytest(project).returncode == 0, "the control"


def test_a_project_that_asks_for_no_tests_does_not_pass(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    done = _pytest(project, "--ringfence", "-q")
    assert done.returncode == 1 and "exit code 0, but" in done.stderr
    (project / "pytest.ini").write_text("[pytest]\n")
    assert _pytest(project, "--ringfence", "-q", "--collect-only").returncode == 0, "who runs it may ask"


def test_a_link_in_place_of_a_report_is_not_carried_over(project: Path) -> None:
    target = project.parent / "target"
    target.mkdir()
    tests = "import os\ndef test_link(): os.symlink({!r}, 'keep')\ndef test_file(): open('made', 'w').write('x')\n"
    (project / "test_a.py").write_text(tests.format(str(target)))
    done = _pytest(project, "--ringfence", "--ringfence-keep=keep", "--ringfence-keep=made", "-p", "no:cacheprovider")
    assert done.returncode == 0 and "is a link that the tests made" in done.stderr
    assert not os.path.lexists(project / "keep") and (project / "made").read_text() == "x"
    assert _pytest(project, "-p", "no:cacheprovider").returncode == 0
    assert (project / "keep").is_symlink(), "the control"


DEEP = """\
import os
def test_deep():
    for _ in range(2000):
        os.mkdir("d")
        os.chdir("d")
"""


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where ringfence makes its own directories; pytest can't remove what is too deep there."""
    folder = tmp_path / "private"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    remove_tree(str(folder))


def test_nothing_that_tests_leave_in_the_layer_stays(project: Path, private: Path) -> None:
    (project / "test_a.py").write_text(DEEP)
    done = _pytest(project, "--ringfence", "-p", "no:cacheprovider")
    assert (*_summary(done), done.stderr) == (0, "1 passed", "")
    assert not list(private.rglob("pytest-*"))
    left = private / "control"
    left.mkdir()
    subprocess.run([sys.executable, "-c", f"{DEEP}test_deep()"], cwd=left, check=True)
    with pytest.raises(RecursionError):
        shutil.rmtree(left, ignore_errors=True)


def test_ctrl_c_lets_pytest_sum_up(project: Path) -> None:
    slow = "def test_slow():\n    print('begun', flush=True)\n    time.sleep(600)\n"
    (project / "test_a.py").write_text(f"import time\ndef test_one(): pass\n{slow}")
    command = [sys.executable, "-P", "-m", "pytest", *PLUGIN, "--ringfence", "-s", "-v"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        assert running.stdout is not None
        seen = b""
        while b"begun" not in seen:
            piece = running.stdout.read1(1000)
            assert piece, seen
            seen += piece
        running.send_signal(signal.SIGINT)
        seen += running.stdout.read()
        eventually(lambda: running.poll() is not None)
    assert running.returncode == 2 and b"1 passed" in seen and b"KeyboardInterrupt" in seen


def _begun(project: Path) -> subprocess.Popen[str]:
    """A run whose only test does not end."""
    (project / "test_a.py").write_text("import time\ndef test_slow(): print('begun', flush=True), time.sleep(600)\n")
    command = [sys.executable, "-P", "-m", "pytest", *PLUGIN, "--ringfence", "-s", "-p", "no:cacheprovider"]
    return subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_leaves_no_layer(project: Path, private: Path, number: int) -> None:
    with _begun(project) as running:
        assert running.stdout is not None
        assert any("begun" in line for line in running.stdout)
        assert list(private.rglob("pytest-*")), "the control"
        running.send_signal(number)
        running.communicate()
    assert running.returncode == 128 + number
    assert not list(private.rglob("pytest-*"))


def test_ctrl_c_before_the_sandbox_is_there_is_not_lost(project: Path, private: Path) -> None:
    with _begun(project) as running:
        eventually(lambda: bool(list(private.rglob("pytest-*"))))
        running.send_signal(signal.SIGINT)
        running.communicate()
    assert running.returncode == 2
    assert not list(private.rglob("pytest-*"))


def test_the_fixture_hands_a_test_a_box(project: Path) -> None:
    (project / "test_a.py").write_text("""\
import pytest
def test_box(sandbox):
    sandbox.put("a", b"1")
    assert sandbox.run(["cat", "a"]).stdout == b"1"
@pytest.mark.sandbox(wall_time_s=1)
def test_policy(sandbox):
    assert str(sandbox.run(["sleep", "100"]).status) == "TIMEOUT"
""")
    assert _summary(_pytest(project, "--strict-markers")) == (0, "2 passed")


def test_markers_of_module_class_and_test_make_one_policy(project: Path) -> None:
    (project / "test_a.py").write_text("""\
import pytest
pytestmark = pytest.mark.sandbox(environment={"FROM": "module"}, wall_time_s=30, nofile=64)
@pytest.mark.sandbox(nofile=128)
class TestOfClass:
    @pytest.mark.sandbox(wall_time_s=1)
    def test_all(self, sandbox):
        assert sandbox.run(["sh", "-c", "echo $FROM $(ulimit -n)"]).stdout == b"module 128\\n"
        assert str(sandbox.run(["sleep", "100"]).status) == "TIMEOUT"
def test_of_the_module(sandbox):
    assert sandbox.run(["sh", "-c", "ulimit -n"]).stdout == b"64\\n"
""")
    assert _summary(_pytest(project, "--strict-markers")) == (0, "2 passed")


@pytest.mark.parametrize(
    ("flag", "answer"), [("--ringfence", (1, "1 error")), ("--ringfence=process", (0, "1 passed"))]
)
def test_the_fixture_in_a_sandbox_of_all_tests_says_what_to_do(
    project: Path, flag: str, answer: tuple[int, str]
) -> None:
    (project / "test_a.py").write_text("def test_box(sandbox):\n    assert sandbox.run(['true']).ok\n")
    done = _pytest(project, flag)
    assert _summary(done) == answer
    assert ("do not nest" in done.stdout and "use --ringfence=process" in done.stdout) == bool(answer[0])


CHANGES = """\
import pathlib
def test_changes():
    for name in ("pkg/__init__.py", "hook", "hidden/x", "made.xml", ".pytest_cache/own"):
        path = pathlib.Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("changed")
    try:
        seen = pathlib.Path("../beside").read_text()
    except OSError:
        seen = ""
    assert not seen, "the policy is the project's"
"""
FORGED = """\
[pytest]
addopts = --ringfence-policy=wide.yaml --ringfence-keep=pkg --junitxml=hook --log-file=hidden/x
cache_dir = .
"""


@pytest.mark.privileges
def test_a_project_chooses_neither_its_policy_nor_what_it_leaves_behind(project: Path) -> None:
    beside = project.parent / "beside"
    beside.write_text("a secret")
    (project / "test_a.py").write_text(CHANGES)
    (project / "pytest.ini").write_text(FORGED)
    (project / "wide.yaml").write_text(f"readable_paths: [{beside}]\n")
    before = (project / "pkg" / "__init__.py").read_text()
    done = _pytest(project, "--ringfence", "-q", "test_a.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "pkg" / "__init__.py").read_text() == before
    assert not (project / "hook").exists() and not (project / "hidden").exists()
    # Controls: the same said by who runs it.
    (project / "pytest.ini").write_text("[pytest]\n")
    words = ("--ringfence-keep=pkg", "--junitxml=made.xml", "--ringfence-policy=wide.yaml", "-o", "cache_dir=hidden")
    done = _pytest(project, "--ringfence", "-q", "test_a.py", *words)
    assert "the policy is the project's" in done.stdout
    assert (project / "pkg" / "__init__.py").read_text() == "changed"
    assert (project / "made.xml").is_file() and (project / "hidden").is_dir()
