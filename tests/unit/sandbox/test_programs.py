"""What a sandbox is shown of the host on its own account: what the program needs, and nothing around it."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfence.model.paths import within
from ringfence.sandbox import host, programs
from ringfence.sandbox.programs import interpreter_line
from ringfence.sandbox.search import Search

pytestmark = pytest.mark.privileges


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _program(path: Path, first_line: str = "#!/bin/sh") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first_line}\n")
    path.chmod(0o755)
    return str(path)


def _python(prefix: Path) -> str:
    """Looks like an installation of Python: machine code in bin, a library beside it."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib" / "python3.12").mkdir(parents=True)
    (prefix / "lib" / "python3.12" / "os.py").touch()
    (prefix / "share").mkdir()
    shutil.copy("/bin/true", prefix / "bin" / "python3")
    return str(prefix / "bin" / "python3")


def _environment(prefix: Path, base: str) -> Path:
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text(f"home = {os.path.dirname(base)}\nversion = 3.12\n")
    (prefix / "bin" / "python3").symlink_to(base)
    _program(prefix / "bin" / "tool", f"#!{prefix}/bin/python3")
    return prefix


def _shown(program: str, *, path: str = "/usr/bin", here: str = "/", hostile: tuple[str, ...] = ()) -> set[str]:
    found = programs.needed(program, Search(path=path, here=here, hostile=hostile))
    return {path for path in map(os.path.normpath, found) if not path.startswith(("/usr", "/bin", "/etc", "/lib"))}


def test_a_program_in_a_home_does_not_show_the_home(home: Path) -> None:
    program = _program(home / "bin" / "tool")
    (home / ".ssh").mkdir()
    assert _shown(program) == {program}


def test_a_virtual_environment_is_shown_whole_with_the_python_that_it_is_made_of(home: Path) -> None:
    base = _python(home / "pythons" / "3.12")
    environment = _environment(home / "venv", base)
    shown = {path for path in _shown(str(environment / "bin" / "tool")) if not path.startswith(f"{environment}/")}
    assert shown == {str(environment), base, str(home / "pythons" / "3.12" / "lib" / "python3.12")}


def test_copies_of_an_interpreter_need_the_home_that_their_environment_names(home: Path) -> None:
    base = _python(home / "pythons" / "3.12")
    environment = _environment(home / "venv", base)
    (environment / "bin" / "python3").unlink()
    shutil.copy(base, environment / "bin" / "python3")
    assert str(home / "pythons" / "3.12" / "lib" / "python3.12") in _shown(str(environment / "bin" / "tool"))


def test_an_environment_made_in_a_home_does_not_show_the_home(home: Path) -> None:
    base = _python(home / "pythons" / "3.12")
    _environment(home, base)
    assert str(home) not in _shown(str(home / "bin" / "tool"))
    assert {str(home / "bin"), str(home / "lib"), str(home / "pyvenv.cfg")} <= _shown(str(home / "bin" / "tool"))


def test_packages_of_a_user_are_shown_without_the_rest_of_his_folder(home: Path) -> None:
    program = _program(home / ".local" / "bin" / "tool")
    (home / ".local" / "lib" / "python3.11").mkdir(parents=True)
    (home / ".local" / "share" / "keyrings").mkdir(parents=True)
    assert _shown(program) == {str(home / ".local" / "bin"), str(home / ".local" / "lib")}


def test_shims_show_the_root_that_they_start_from(home: Path) -> None:
    program = _program(home / ".pyenv" / "shims" / "python3")
    (home / ".pyenv" / "versions").mkdir()
    assert _shown(program) == {str(home / ".pyenv")}


def test_the_python_of_the_path_is_shown_whatever_the_program_is(home: Path) -> None:
    base = _python(home / "mine")
    assert _shown("/bin/sh", path=os.path.dirname(base)) == {str(home / "mine" / "bin"), str(home / "mine" / "lib")}


def test_links_of_the_callers_own_are_followed_to_any_program(home: Path) -> None:
    real = _program(home / "real" / "tool")
    (home / "bin").mkdir()
    (home / "bin" / "tool").symlink_to("../real/tool")
    assert _shown("tool", path=str(home / "bin")) == {str(home / "bin" / "tool"), real}


def test_a_link_of_nobody_knows_whom_shows_no_file_but_an_interpreter(home: Path) -> None:
    secret = _program(home / "deploy", "#!/bin/sh\nTOKEN=1")
    (home / "download").mkdir()
    (home / "download" / "run").symlink_to(secret)
    assert _shown(str(home / "download" / "run")) == set()
    (home / "download" / "python").symlink_to(_python(home / "3.12"))
    assert str(home / "3.12" / "bin" / "python3") in _shown(str(home / "download" / "python"))


@pytest.mark.parametrize("how", ["link", "#!", "env", "home", "library", "configuration", "editable", "folder"])
def test_nothing_in_a_workspace_shows_a_secret(home: Path, how: str) -> None:
    keys, work = home / ".ssh", home / "work"
    keys.mkdir()
    secret = keys / "id"
    secret.write_text("PRIVATE")
    secret.chmod(0o755)
    base = _python(home / "pythons" / "3.12")
    venv = _environment(work / "venv", base)
    tool = venv / "bin" / "tool"
    if how == "link":
        tool.unlink()
        tool.symlink_to(secret)
    elif how == "#!":
        _program(tool, f"#!{secret}")
    elif how == "env":
        _program(tool, f"#!/usr/bin/env {secret}")
    elif how == "home":
        (keys / "python3").write_text("PRIVATE")
        (venv / "pyvenv.cfg").write_text(f"home = {keys}\n")
    elif how == "library":
        shutil.rmtree(venv / "lib")
        (venv / "lib").mkdir()
        (venv / "lib" / "python3.12").symlink_to(keys)
    elif how == "configuration":
        (venv / "pyvenv.cfg").unlink()
        (venv / "pyvenv.cfg").symlink_to(secret)
    elif how == "editable":
        (venv / "lib" / "python3.12" / "site-packages" / "x.pth").write_text(f"{keys}\n")
    else:
        shutil.rmtree(venv)
        venv.symlink_to(keys)
        (keys / "bin").mkdir()
        _program(keys / "bin" / "tool")
    for first, path in ((str(tool), "/usr/bin"), ("tool", str(tool.parent))):
        shown = {os.path.realpath(each) for each in _shown(first, path=path, hostile=(str(work),))}
        assert not [each for each in shown if each == str(keys) or each == str(secret)], how
        assert not [each for each in shown if str(keys).startswith(each + "/")], how


def test_the_jobs_search_path_is_shown_and_the_callers_is_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(home), str(home / "lib" / "site-packages")])
    assert {str(home / "lib" / "site-packages"), str(home / "mine")} <= set(programs.own_folders(str(home / "mine")))
    assert str(home) not in programs.own_folders("")


def test_packages_and_editable_installs_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, project = tmp_path / "site-packages", tmp_path / "project"
    packages.mkdir()
    project.mkdir()
    (packages / "editable.pth").write_text(f"import os\n{project}\nrelative\n/nowhere/at/all\n")
    monkeypatch.syspath_prepend(str(packages))
    shown = programs.own_folders("")
    assert {str(packages), str(project)} <= set(shown)
    assert not {"relative", "/nowhere/at/all", "import os"} & set(shown)


@pytest.mark.parametrize(
    ("head", "means"),
    [
        (b"#!/bin/sh\n", ("/bin/sh", "")),
        (b"#!/bin/sh", ("/bin/sh", "")),
        (b"#! \t /bin/sh  -e  -x \nrest", ("/bin/sh", "-e  -x")),
        (b"#!/bin/sh\r\n", ("/bin/sh\r", "")),
        (b"#!/usr/bin/env python3\n", ("/usr/bin/env", "python3")),
        (b"#!" + b"a" * 300, None),
        (b"#!" + b"a" * 253, ("a" * 253, "")),
        (b"#!/bin/sh " + b"x" * 300, ("/bin/sh", "x" * 246)),
        (b"#!\n/bin/sh", None),
        (b"#! \n", None),
        (b"\x7fELF", None),
        (b"", None),
        (b"#!/x\xff\n", ("/x\udcff", "")),
    ],
)
def test_a_first_line_is_read_as_the_kernel_reads_it(head: bytes, means: tuple[str, str] | None) -> None:
    assert interpreter_line(head[:256]) == means


@pytest.mark.parametrize("line", ["env tool", "env -S tool -x", "env -iS A=b tool", "env -vS tool"])
def test_the_program_that_env_starts_is_found(home: Path, line: str) -> None:
    tool = home / "bin" / "tool"
    tool.parent.mkdir()
    shutil.copy("/bin/true", tool)
    script = _program(home / "script", f"#!/usr/bin/{line}")
    assert _shown(script, path=str(tool.parent)) == {script, str(tool)}


def test_a_fifo_or_a_device_is_not_waited_for(home: Path) -> None:
    os.mkfifo(home / "pipe")
    (home / "pipe").chmod(0o755)
    script = _program(home / "script", f"#!{home}/pipe")
    assert _shown(script) == {script}
    assert _shown(_program(home / "other", "#!/dev/tty")) == {str(home / "other")}


def test_links_that_go_in_a_circle_end(home: Path) -> None:
    (home / "a").symlink_to(home / "b")
    (home / "b").symlink_to(home / "a")
    assert _shown(str(home / "a")) == set()


def test_a_program_that_is_a_link_to_itself_is_given_up(home: Path) -> None:
    (home / "work").mkdir()
    (home / "work" / "configure").symlink_to("configure")
    assert _shown("./configure", here=str(home / "work"), hostile=(str(home / "work"),)) == set()
    for number in range(60):  # the kernel follows 40
        (home / "work" / f"link-{number}").symlink_to(f"link-{number + 1}")
    (home / "work" / "link-60").symlink_to(_python(home / "3.12"))
    assert _shown("./link-0", here=str(home / "work"), hostile=(str(home / "work"),)) == set()
    assert _shown("./link-50", here=str(home / "work"), hostile=(str(home / "work"),)) != set()


def test_only_a_plain_file_is_a_program(home: Path) -> None:
    keys, place = home / ".ssh", home / "bin"
    for folder in (keys, place):
        folder.mkdir()
    (place / "make").symlink_to(keys)
    (place / "sub").mkdir()
    for name in ("make", "sub", str(place / "make"), str(keys), f"{place}/make/", "."):
        assert _shown(name, path=str(place), here=str(place)) == set(), name
    tool = _program(place / "tool")
    assert _shown("tool", path=str(place)) == {tool}


def test_what_is_behind_a_link_and_up_is_what_the_kernel_finds(home: Path) -> None:
    deep = home / "real" / "deep"
    deep.mkdir(parents=True)
    (home / "link").symlink_to(deep)
    (home / "tool").symlink_to("link/../tool")
    found = _program(home / "real" / "tool")
    assert _shown(f"{home}/link/../tool") == {found}
    assert _shown("link/../tool", here=str(home)) == {found}
    assert _shown("tool", path=f"{home}/link/..") == {found}


def test_a_link_on_the_path_that_others_could_have_put_there_leads_to_a_python_alone(home: Path) -> None:
    secret, place = _program(home / "deploy", "#!/bin/sh\nTOKEN=1"), home / "shared" / "bin"
    place.mkdir(parents=True)
    (place / "tool").symlink_to(secret)
    (place / "python3").symlink_to(_python(home / "3.12"))
    assert secret in _shown("tool", path=str(place))
    place.parent.chmod(0o777)
    shown = _shown("tool", path=str(place))
    assert secret not in shown and str(home / "3.12" / "bin" / "python3") in shown


@pytest.mark.parametrize("named", ["by a link", "by a first line", "by env"])
def test_what_a_workspace_names_is_shown_if_it_is_a_python_or_on_the_path(home: Path, named: str) -> None:
    work, own = home / "work", home / "own"
    for folder in (work, own):
        folder.mkdir()
    shutil.copy("/bin/true", own / "tool")
    tool = work / "configure"
    if named == "by a link":
        tool.symlink_to(own / "tool")
    else:
        _program(tool, f"#!{own}/tool" if named == "by a first line" else "#!/usr/bin/env tool")
    hostile = (str(work),)
    assert str(own / "tool") not in _shown(str(tool), hostile=hostile)
    on_path = str(own / "tool") in _shown(str(tool), path=str(own), hostile=hostile)
    assert on_path == (named != "by a link")


def test_packages_beside_a_link_to_a_python_are_not_the_pythons(home: Path) -> None:
    base = _python(home / "3.12")
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local" / "bin" / "python3").symlink_to(base)
    (home / ".local" / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    (home / "work").mkdir()
    (home / "work" / "python").symlink_to(home / ".local" / "bin" / "python3")
    shown = _shown(str(home / "work" / "python"), hostile=(str(home / "work"),))
    assert base in shown and str(home / "3.12" / "lib" / "python3.12") in shown
    assert not [path for path in shown if path.startswith(str(home / ".local" / "lib"))]


_NAMES = st.sampled_from(["a", "b", "c", "..", ".", "private"])
_TEXTS = st.tuples(st.booleans(), st.lists(_NAMES, min_size=1, max_size=8))
_PLACES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3)


@given(links=st.lists(st.tuples(_PLACES, _TEXTS), min_size=1, max_size=8), script=_PLACES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_links_of_a_workspace_show_anything_else(
    links: list[tuple[list[str], tuple[bool, list[str]]]], script: list[str]
) -> None:
    """Whatever a repository is made of: what a program in it brings along is what one without links does."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(os.path.realpath(name))
        for folder in ("private", "repo"):
            (top / folder).mkdir()
        _program(top / "private" / "a")
        _make_links(top, links)
        search = Search(path=f"{top}/repo:{top}/repo/a:/usr/bin:/bin", here=f"{top}/repo", hostile=(f"{top}/repo",))
        for word in ("./" + "/".join(script), "a", "b", "../repo/a/../c"):
            settled = search.settled(programs.needed(word, search), [])
            found = host.outside_the_system(settled, ("/usr", "/bin", "/lib"), search.look)
            assert not [path for path in found if within(path, str(top)) or within(str(top), path)], word


def _make_links(top: Path, links: list[tuple[list[str], tuple[bool, list[str]]]]) -> None:
    """Each where there is room for it: what an earlier one leads to counts, as long as that is not the host."""
    for place, (absolute, names) in links:
        path = top.joinpath("repo", *place)
        if not within(os.path.realpath(path.parent), str(top)):
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to((f"{top}/" if absolute else "") + "/".join(names))
        except (OSError, RuntimeError):
            continue


def test_a_script_beside_an_environments_programs_is_no_interpreter(home: Path) -> None:
    project = _environment(home / "project", _python(home / "pythons" / "3.12"))
    script = _program(home / "repo" / "run", f"#!{_program(project / 'deploy' / 'with-password')}")
    assert _shown(script, hostile=(str(home / "repo"),)) == set()


def test_nothing_is_shown_by_a_path_that_somebody_else_can_have_lead_elsewhere(home: Path) -> None:
    work, own = home / "repo", home / "own"
    for folder in (work, own):
        folder.mkdir()
    (work / "out").symlink_to(own)
    (own / "in").symlink_to(work)
    search = Search(path="", here="/", hostile=(str(work),))
    through = [str(work / "file"), str(work / "out" / "file"), str(own / "in" / "file"), f"{own}/in/out/file"]
    assert search.settled([*through, str(own), f"{work}/../own/file"], []) == [str(own)]
    apart = Search(path="", here="/", hostile=(str(work),), apart=(str(work),))
    assert apart.settled(through, []) == [through[0], through[2]]


def test_a_link_that_is_exchanged_between_two_looks_is_no_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = home / "desk"
    venv = _environment(desk / "venv", _python(home / "pythons" / "3.12"))
    (desk / "link").symlink_to(venv)

    def gone(path: object, **_: object) -> str:
        raise OSError(errno.EINVAL, "it was a link a moment ago", path)

    monkeypatch.setattr(os, "readlink", gone)
    assert _shown(f"{desk}/link/bin/python3", hostile=(str(desk),)) is not None
