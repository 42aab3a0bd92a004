"""``ringfence setup apparmor``: what it writes, and where it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.cli import main, setup
from ringfence.errors import SandboxError, UsageError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX only")


def test_a_dry_run_prints_the_profile_and_changes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/ringfence/bin/ringfence"])
    before = os.path.lexists(setup.PLACE)
    assert main(["setup", "apparmor", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert 'profile ringfence "/opt/ringfence/bin/{ringfence,proctor}" flags=(unconfined) {\n  userns,\n}' in told
    assert os.path.lexists(setup.PLACE) is before


@pytest.mark.parametrize("folder", ["/a*", '/a"b', "/{a,b}", "/@{HOME}", "/a\nb", "relative"])
def test_a_path_that_means_more_than_itself_is_refused(folder: str) -> None:
    """In a profile it would be for other programs too."""
    with pytest.raises(UsageError, match="characters that AppArmor profiles can't contain"):
        setup.profile(folder)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One where it is needed and possible, as far as the command can see."""
    (tmp_path / "switch").write_text("1\n")
    (tmp_path / "bin").mkdir(mode=0o755)
    (tmp_path / "bin" / "ringfence").touch(mode=0o755)
    real = os.stat

    def owned_by_root(path: str, **more: bool) -> os.stat_result:
        found = list(real(path, **more))  # type: ignore[call-overload]
        found[4] = 0
        if not str(path).startswith(str(tmp_path)):
            found[0] &= ~0o022  # whatever umask the tests were installed with
        return os.stat_result(found)

    monkeypatch.setattr(setup, "PLACE", str(tmp_path / "profile"))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup.os, "stat", owned_by_root)
    return tmp_path


def _refused(host: Path) -> str:
    try:
        setup.refuse(str(host / "bin"), str(host / "switch"))
    except SandboxError as error:
        return str(error)
    return ""


def test_it_goes_on_where_it_is_needed(host: Path) -> None:
    assert _refused(host) == ""


def test_it_refuses_where_nothing_is_taken_away(host: Path) -> None:
    (host / "switch").write_text("0\n")
    assert "nothing to set up" in _refused(host)
    (host / "switch").unlink()
    assert "nothing to set up" in _refused(host)


def test_it_refuses_who_is_not_root(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)
    assert "only root" in _refused(host)


def test_it_refuses_without_the_parser(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "apparmor_parser was not found" in _refused(host)


def test_it_refuses_where_the_command_is_not_installed(host: Path) -> None:
    (host / "bin" / "ringfence").unlink()
    assert "/ringfence was not found" in _refused(host)


@pytest.mark.parametrize("name", ["", "bin", "bin/ringfence"])
def test_it_refuses_programs_that_others_can_change(host: Path, name: str) -> None:
    (host / name).chmod(0o775)
    assert "by users other than root" in _refused(host)


@pytest.mark.parametrize("part", ["package", "interpreter"])
def test_it_refuses_a_package_or_a_python_that_others_can_change(
    host: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "lib" / "cli").mkdir(parents=True)
    (host / "lib" / "python3").touch()
    if part == "package":
        monkeypatch.setattr(setup, "__file__", str(host / "lib" / "cli" / "setup.py"))
    else:
        monkeypatch.setattr("sys.executable", str(host / "lib" / "python3"))
    assert _refused(host) == ""
    (host / "lib").chmod(0o775)
    assert "by users other than root" in _refused(host)


def test_a_profile_that_is_there_stays(host: Path) -> None:
    (host / "profile").write_text("somebody's")
    assert "already exists" in _refused(host)
