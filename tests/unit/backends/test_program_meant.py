"""A sandbox starts the program that the caller means: through links, ``#!`` lines and virtual environments, and never
another one of the same name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, SandboxPolicy, SetupError, run

pytestmark = [pytest.mark.system, pytest.mark.privileges]

STRICT = SandboxPolicy(isolation="strict")
_LEFT_OUT = shutil.ignore_patterns("test*", "__pycache__", "site-packages", "dist-packages", "config-*", "idlelib",
                                   "ensurepip", "tkinter", "lib2to3")  # fmt: skip


@pytest.fixture(autouse=True)
def open_to_all(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own in a directory that no sandbox shows by itself, as pyenv, uv and conda have it."""
    prefix = tmp_path_factory.mktemp("pythons") / "own"
    (prefix / "bin").mkdir(parents=True)
    executable = prefix / "bin" / "python3"
    shutil.copy(os.path.realpath(sys.executable), executable)
    library = sysconfig.get_path("stdlib")
    shutil.copytree(library, prefix / "lib" / os.path.basename(library), ignore=_LEFT_OUT, symlinks=True)
    for shared in Path(library).parent.glob("libpython3*.so*"):
        shutil.copy(shared, prefix / "lib")
    (prefix / "secret").write_text("PRIVATE")
    return prefix


@pytest.fixture
def environment(installation: Path, tmp_path: Path) -> Path:
    """A virtual environment of that Python, with a script."""
    folder = tmp_path / "venv"
    subprocess.run([installation / "bin" / "python3", "-m", "venv", "--without-pip", folder], check=True)
    _script(folder / "bin" / "tool", f"#!{folder}/bin/python3", "import sys; print(sys.base_prefix)")
    return folder


def _script(path: Path, *lines: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def _by_path(monkeypatch: pytest.MonkeyPatch, folder: Path | str) -> None:
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


_ARGUMENTS = {"awk": ["BEGIN{print 1}"], "which": ["ls"], "cc": ["--version"], "java": ["-version"],
              "vi": ["--version"], "pager": ["--version"], "nawk": ["BEGIN{print 1}"]}  # fmt: skip


def test_programs_behind_alternatives_start() -> None:
    there = [name for name in _ARGUMENTS if os.path.realpath(f"/usr/bin/{name}") != f"/usr/bin/{name}"]
    assert "awk" in there
    for name in there:
        outcome = run([name, *_ARGUMENTS[name]], SandboxPolicy(isolation="strict", mem_bytes=8 << 30))
        assert outcome.ok, (name, outcome.stderr)


@pytest.mark.parametrize("words", [["tool"], ["sh", "-c", "tool"]], ids=["program", "shell"])
@pytest.mark.parametrize("level", ["process", "strict"])
def test_a_script_of_an_environment_runs_its_own_python(
    environment: Path, installation: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], level: str
) -> None:
    _by_path(monkeypatch, environment / "bin")
    outcome = run(words, SandboxPolicy(isolation=level))
    assert outcome.stdout.decode().strip() == str(installation), outcome.stderr


def test_python3_in_a_shell_is_the_one_of_the_callers_path(
    installation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _by_path(monkeypatch, installation / "bin")
    outcome = run(["sh", "-c", "python3 -c 'import sys; print(sys.base_prefix)'"], STRICT)
    assert outcome.stdout.decode().strip() == str(installation), outcome.stderr
    with ringfence.open(STRICT) as box:
        told = box.run(["python3", "-c", "import sys; print(sys.base_prefix)"])
    assert told.stdout.decode().strip() == str(installation), told.stderr


def test_a_folder_of_the_path_may_be_relative(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(environment.parent)
    _by_path(monkeypatch, "venv/bin")
    outcome = run(Job(argv=("tool",), cwd=str(environment.parent)), STRICT)
    assert outcome.ok, outcome.stderr


def test_only_what_an_interpreter_needs_is_shown_of_its_installation(
    environment: Path, installation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    script = _script(environment / "bin" / "look", f"#!{environment}/bin/python3",
                     f"print(open({str(installation / 'secret')!r}).read())")  # fmt: skip
    outcome = run([script], STRICT)
    assert b"FileNotFoundError" in outcome.stderr and b"PRIVATE" not in outcome.stdout
    shown = run([script], SandboxPolicy(isolation="strict", readable_paths=(str(installation / "secret"),)))
    assert b"PRIVATE" in shown.stdout, shown.stderr


@pytest.mark.parametrize("level", ["process", "strict"])
def test_no_other_program_of_the_same_name_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    _script(tmp_path / "bin" / "awk", "#!/nowhere/interpreter")
    _by_path(monkeypatch, tmp_path / "bin")
    with pytest.raises(SetupError, match="interpreter") as refused:
        run(["awk", "BEGIN{print 1}"], SandboxPolicy(isolation=level))
    assert "readable_paths" in refused.value.hint


def test_a_hidden_program_is_not_replaced_by_one_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(tmp_path / "bin" / "awk", "#!/bin/sh", "echo mine")
    _by_path(monkeypatch, tmp_path / "bin")
    assert run(["awk"], STRICT).stdout == b"mine\n"
    with pytest.raises(SetupError, match="awk"):
        run(["awk", "BEGIN{print 1}"], SandboxPolicy(isolation="strict", hidden_paths=(str(tmp_path / "bin"),)))


def test_a_name_that_is_not_in_the_path_is_not_looked_for_in_the_working_folder(tmp_path: Path) -> None:
    _script(tmp_path / "hostile-program", "#!/bin/sh", "echo started")
    job = Job(argv=("hostile-program",), cwd=str(tmp_path))
    for level in ("process", "strict"):
        with pytest.raises(SetupError, match="No such file"):
            run(job, SandboxPolicy(isolation=level))


@pytest.mark.parametrize("how", ["link", "#!", "home"])
@pytest.mark.parametrize("level", ["process", "strict"])
def test_what_a_workspace_names_is_not_shown_for_that(tmp_path: Path, how: str, level: str) -> None:
    """The program reads what it names; where it can't be started at all nothing is read either."""
    keys, work = tmp_path / ".ssh", tmp_path / "work"
    keys.mkdir()
    (work / "venv" / "bin").mkdir(parents=True)
    secret = keys / "id"
    secret.write_text("PRIVATE")
    secret.chmod(0o755)
    tool = work / "venv" / "bin" / "tool"
    reader = ["#!/bin/sh", f"cat {secret} {keys}/python3"]
    if how == "link":
        tool.symlink_to(secret)
        _script(work / "reader", *reader)
    elif how == "#!":
        _script(tool, f"#!{secret}")
    else:
        (keys / "python3").write_text("PRIVATE")
        (work / "venv" / "pyvenv.cfg").write_text(f"home = {keys}\n")
        _script(tool, *reader)
    policy = {"isolation": level} | ({"readable_paths": [str(work)]} if level == "process" else {})
    try:
        outcome = run(Job(argv=(str(tool),), cwd=str(work)), SandboxPolicy.from_dict(policy))
    except SetupError:
        return
    assert b"PRIVATE" not in outcome.stdout + outcome.stderr
    named = SandboxPolicy.from_dict(policy | {"readable_paths": [str(work), str(keys)]})
    if how == "home":
        assert b"PRIVATE" in run(Job(argv=(str(tool),), cwd=str(work)), named).stdout


def _environment_with(folder: Path, packages: str) -> Path:
    """A virtual environment of this Python; ``packages`` is the line of an editable install in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "editable.pth").write_text(f"{packages}\n")
    return folder


@pytest.mark.parametrize("level", ["process", "strict"])
def test_an_editable_install_shows_no_place_that_its_project_links_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    project, secret = tmp_path / "project", tmp_path / "keys" / "id"
    for folder in (project, secret.parent):
        folder.mkdir()
    secret.write_text("PRIVATE")
    (project / "src").symlink_to(secret.parent)
    environment = _environment_with(tmp_path / "venv", f"{project}/src")
    _by_path(monkeypatch, environment / "bin")
    policy = SandboxPolicy(isolation=level, readable_paths=(str(project),))
    cat = Job(argv=("cat", str(secret)), cwd=str(project))
    assert not run(cat, policy).stdout
    assert run(cat, policy.with_changes(readable_paths=(str(project), str(secret.parent)))).stdout == b"PRIVATE"
    monkeypatch.setattr(sys, "path", [*sys.path, *map(str, environment.glob("lib/*/site-packages"))])
    assert not run(cat, policy).stdout, "by the packages of the caller's own interpreter"


@pytest.mark.parametrize("level", ["process", "strict"])
def test_a_link_to_an_environment_shows_its_python_and_not_what_lies_around_it(tmp_path: Path, level: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    other = _environment_with(tmp_path / "other", "")
    (other / "secret").write_text("PRIVATE")
    (project / ".venv").symlink_to(other)
    policy = SandboxPolicy(isolation=level, readable_paths=(str(project),))
    read = f"import sys; print(sys.prefix, flush=True); print(open({str(other / 'secret')!r}).read())"
    outcome = run(Job(argv=(".venv/bin/python3", "-c", read), cwd=str(project)), policy)
    assert outcome.stdout.split() == [os.fsencode(project / ".venv")], outcome.stderr
    named = run(Job(argv=(f"{other}/bin/python3", "-c", read), cwd=str(project)), policy)
    assert b"PRIVATE" in named.stdout, named.stderr


def test_a_link_of_the_callers_into_a_workspace_starts_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, links, secret = (tmp_path / name for name in ("project", "links", "secret"))
    for folder in (project, links):
        folder.mkdir()
    _script(secret, "#!/bin/sh", "echo PRIVATE")
    _script(project / "good", "#!/bin/sh", "echo good")
    (project / "bad").symlink_to(secret)
    for name in ("good", "bad"):
        (links / name).symlink_to(project / name)
    _by_path(monkeypatch, links)
    assert run(Job(argv=("good",), cwd=str(project)), STRICT).stdout == b"good\n"
    with pytest.raises(SetupError, match="it is there"):
        run(Job(argv=("bad",), cwd=str(project)), STRICT)


@pytest.mark.parametrize("level", ["process", "strict"])
@pytest.mark.parametrize("opened", ["lib", "lib/python3.12/site-packages", "lib/python3.12/site-packages/x.pth"])
def test_an_environment_that_others_write_shows_no_place_that_it_points_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, opened: str
) -> None:
    """It is on the caller's PATH, and an editable install in it says where packages lie."""
    environment, secret = tmp_path / "venv", tmp_path / "keys/id"
    site = environment / "lib/python3.12/site-packages"
    for folder in (secret.parent, environment / "bin", site):
        folder.mkdir(parents=True)
    secret.write_text("PRIVATE")
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (site / "x.pth").write_text(f"{secret.parent}\n")
    _script(environment / "bin/tool", "#!/bin/sh", f"cat {secret}")
    _by_path(monkeypatch, environment / "bin")
    policy = SandboxPolicy(isolation=level, readable_paths=("/usr",))
    assert run(["tool"], policy).stdout == b"PRIVATE", "the control: nobody else writes it"
    (environment / opened).chmod(0o777)
    assert run(["tool"], policy).stdout == b""
