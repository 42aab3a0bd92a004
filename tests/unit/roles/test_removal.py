"""Removing what a hostile program left: any depth, mode and name, and nothing outside."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.errors import is_of_a_call
from ringfence.roles import removal
from ringfence.roles.removal import remove_tree

pytestmark = pytest.mark.privileges

NOBODY = 65534


def deep_tree(top: Path, levels: int) -> None:
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.slow
def test_a_tree_of_three_thousand_levels_is_removed(tmp_path: Path) -> None:
    deep_tree(tmp_path / "deep", 3000)
    remove_tree(str(tmp_path / "deep"))
    assert not (tmp_path / "deep").exists()


@pytest.mark.slow
def test_the_standard_library_fails_at_such_a_tree(nobodys: Path) -> None:
    """Where it recurses, which it does not any more from Python 3.13 on."""
    deep_tree(nobodys / "deep", 3000)
    if sys.version_info < (3, 13):
        with pytest.raises((RecursionError, OSError)):
            shutil.rmtree(nobodys / "deep")
    remove_tree(str(nobodys / "deep"))
    assert not (nobodys / "deep").exists()


IS_OF_A_CALL = inspect.getsource(is_of_a_call)


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A directory that nobody can work in. Not in ``nobodys``: the directories above that are root's alone, and every
    pytest that begins makes them so again."""
    folder = Path(tempfile.mkdtemp(prefix="ringfence-removal-", dir="/tmp"))
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    remove_tree(str(folder))


def as_ordinary_user(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Modes bind only an ordinary user; as root, become nobody first."""
    prelude = f"import os, sys\nif os.getuid() == 0: os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    # Nobody may be able to read the package, so the source goes along, and what it imports is in it.
    source = Path(removal.__file__).read_text().replace("from ringfence.errors import is_of_a_call", IS_OF_A_CALL)
    done = [source, f"os.chdir({str(folder)!r})", code]
    script = prelude + "\n".join(done).replace("from __future__ import annotations", "")
    return subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)


LOCKED = """
os.makedirs('t/a/b/c'); open('t/a/b/f', 'w').close()
os.chmod('t/a/b/c', 0); os.chmod('t/a/b', 0o500); os.chmod('t/a', 0); os.chmod('t', 0)
"""


@pytest.mark.system
def test_folders_without_permissions_are_removed_the_top_one_too(nobodys: Path) -> None:
    done = as_ordinary_user(LOCKED + "remove_tree(os.path.abspath('t')); print(os.path.lexists('t'))", nobodys)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.system
def test_without_giving_permissions_back_such_folders_stay(nobodys: Path) -> None:
    without = LOCKED + "_allow = lambda *_: None\nremove_tree(os.path.abspath('t'))"
    done = as_ordinary_user(without, nobodys)
    assert "PermissionError" in done.stderr
    assert as_ordinary_user("remove_tree(os.path.abspath('t'))", nobodys).stderr == ""


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o711)
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    for place in (tree, tree / "below"):
        (place / "to directory").symlink_to(outside)
        (place / "to file").symlink_to(outside / "precious")
        (place / "to nothing").symlink_to("nowhere")
    remove_tree(str(tree))
    assert not tree.exists() and (outside / "precious").read_text() == "x"
    assert outside.stat().st_mode & 0o777 == 0o711


def test_a_link_or_a_file_in_place_of_the_tree_is_all_that_goes(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "file").write_text("x")
    remove_tree(str(tmp_path / "link"))
    remove_tree(str(tmp_path / "file"))
    remove_tree(str(tmp_path / "never was"))
    assert sorted(os.listdir(tmp_path)) == ["outside"]


def test_a_folder_that_is_swapped_for_a_link_does_not_lend_its_permissions(tmp_path: Path) -> None:
    """What a program that is still being killed can do between our look and our step."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o711)
    (tmp_path / "swapped").symlink_to(victim)
    top = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError):
        removal._allow("swapped", top)
    assert victim.stat().st_mode & 0o777 == 0o711
    os.chmod("swapped", 0o700, dir_fd=top)  # the control: a plain chmod goes through
    assert victim.stat().st_mode & 0o777 == 0o700
    os.close(top)


def test_any_name_and_any_kind_of_file_is_removed(tmp_path: Path) -> None:
    tree = os.fsencode(tmp_path / "tree")
    os.makedirs(tree + b"/\xff\xfe/ \n")
    os.mkfifo(tree + b"/pipe")
    for name in (b"-rf", b"\x01", b"x" * 255, b".ringfence-lifted-1"):
        with open(os.path.join(tree, name), "wb"):
            pass
    os.makedirs(tree + b"/.ringfence-lifted-2/.ringfence-lifted-3/.ringfence-lifted-2")
    remove_tree(os.fsdecode(tree))
    assert not os.path.lexists(tree)


def test_a_wide_tree_takes_no_descriptors_with_it(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for number in range(200):
        (tmp_path / "wide" / str(number) / "below").mkdir(parents=True)
    remove_tree(str(tmp_path / "wide"))
    assert len(os.listdir("/dev/fd")) == before and not (tmp_path / "wide").exists()


def test_a_program_that_still_writes_for_a_moment_does_not_make_it_fail(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                os.mkdir(tree / str(number))
            except OSError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    threading.Timer(0.1, stop.set).start()
    remove_tree(str(tree))
    writer.join()
    assert not tree.exists()


def test_a_folder_that_fills_again_is_emptied_again(tmp_path: Path, monkeypatch) -> None:
    tree, rmdir, late = tmp_path / "tree", os.rmdir, iter(("late", "later"))
    tree.mkdir()

    def fill_first(path: str, **place: int) -> None:
        for name in late:
            (tree / name).write_text("x")
            break
        rmdir(path, **place)

    monkeypatch.setattr(os, "rmdir", fill_first)
    remove_tree(str(tree))
    assert not tree.exists()


def test_what_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "t").mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "immutable")

    monkeypatch.setattr(removal, "_PAUSES_S", (0.0,))
    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(PermissionError):
        remove_tree(str(tmp_path / "t"))
