"""A path of a sandbox is resolved inside its root, as the kernel there would, and never on the host."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.kernel.proc import guest_paths
from ringfence.kernel.proc.guest_paths import MAX_LINKS, MAX_STEPS, PathEnd


class Root:
    """A tree that stands for a sandbox's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("desk/deep", "vault", "proc/7/fd", "proc/7/task/9"):
            (folder / name).mkdir(parents=True)
        (folder / "desk/file").write_text("x")
        self.fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)

    def link(self, name: str, to: str) -> None:
        (self.folder / name).symlink_to(to)

    def walk(self, path: str, *, follow: bool = True) -> PathEnd | None:
        return guest_paths.walk(self.fd, path.encode(), follow, lambda: (7, 9))

    def end(self, path: str, *, follow: bool = True) -> str:
        place = self.walk(path, follow=follow)
        assert place is not None
        return place.path.decode()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    (tmp_path / "root").mkdir()
    made = Root(tmp_path / "root")
    yield made
    os.close(made.fd)


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/desk/file", "/desk/file"),
        ("//desk/./deep//../file", "/desk/file"),
        ("/../../desk/file", "/desk/file"),
        ("/desk/deep/../../vault/key", "/vault/key"),
        ("/absent/vault", "/absent/vault"),
        ("/desk/file/below", "/desk/file/below"),
        ("/", "/"),
    ],
)
def test_names_and_dots_lead_where_the_kernel_goes(root: Root, path: str, end: str) -> None:
    assert root.end(path) == end


@pytest.mark.parametrize(
    ("name", "to", "path", "end"),
    [
        ("desk/near", "../vault/key", "/desk/near", "/vault/key"),
        ("desk/far", "/vault", "/desk/far/key", "/vault/key"),
        ("desk/chain", "deep/../near", "/desk/chain", "/desk/near"),
        ("desk/up", "..", "/desk/up/vault/key", "/vault/key"),
        ("proc/7/root", "/", "/proc/self/root/vault/key", "/vault/key"),
        ("proc/7/cwd", "/desk", "/proc/self/cwd/../vault/key", "/vault/key"),
        ("proc/7/fd/3", "/vault", "/proc/self/fd/3/key", "/vault/key"),
        ("proc/7/task/9/root", "/", "/proc/thread-self/root/vault/key", "/vault/key"),
        ("proc/7/fd/4", "pipe:[123]", "/proc/self/fd/4", "/proc/7/fd/pipe:[123]"),
    ],
)
def test_links_of_every_kind_are_followed(root: Root, name: str, to: str, path: str, end: str) -> None:
    root.link(name, to)
    assert root.end(path) == end


def test_an_absolute_link_never_leads_to_the_host(root: Root, tmp_path: Path) -> None:
    (tmp_path / "host-only").write_text("of the host")
    root.link("desk/out", str(tmp_path / "host-only"))
    assert os.path.exists(root.folder / "desk/out"), "control: followed on the host it would be found"
    place = root.walk("/desk/out")
    assert place == PathEnd(path=os.fsencode(tmp_path / "host-only"), there=False, steady=False)
    assert guest_paths.found(root.fd, b"/desk/out", True, 0) is None
    assert guest_paths.found(root.fd, b"/../host-only", True, 0) is None


def test_the_last_link_is_followed_only_where_the_call_does_so(root: Root) -> None:
    root.link("desk/link", "/vault/key")
    assert root.end("/desk/link", follow=False) == "/desk/link"
    assert root.end("/desk/link/", follow=False) == "/vault/key"
    device = os.stat(root.folder).st_dev
    assert guest_paths.found(root.fd, b"/desk/link", False, device) == bytes(root.folder / "desk/link")
    assert guest_paths.found(root.fd, b"/desk/link", False, -1) == b"", "not on that device"
    assert guest_paths.found(root.fd, b"/desk/link", True, device) is None


def test_an_absent_name_is_told_by_the_folder_that_it_would_be_in(root: Root) -> None:
    root.link("desk/up", "..")
    root.link("desk/dangling", "/vault/key")
    where = os.fsencode(root.folder)
    assert guest_paths.beside(root.fd, b"/desk/up/vault/key", True) == where + b"/vault/key"
    assert guest_paths.beside(root.fd, b"/key", True) == where + b"/key"
    assert guest_paths.beside(root.fd, b"/desk/dangling", False) == where + b"/desk/dangling"
    for path in (b"/desk/dangling", b"/absent/key", b"/desk/deep/..", b"/desk/deep/", b"/proc/self/x"):
        assert guest_paths.beside(root.fd, path, True) is None, path


def test_links_without_end_are_given_up_as_the_kernel_does(root: Root) -> None:
    root.link("desk/round", "round")
    assert root.walk("/desk/round") is None
    for number in range(MAX_LINKS):
        root.link(f"desk/{number}", f"{number + 1}")
    assert root.end("/desk/0") == f"/desk/{MAX_LINKS}"


def test_a_way_that_is_too_long_is_an_error_and_not_a_long_wait(root: Root) -> None:
    with pytest.raises(OSError) as caught:
        root.walk("/desk/.." * MAX_STEPS)
    assert caught.value.errno == errno.E2BIG


def test_a_fifo_on_the_way_is_never_opened(root: Root) -> None:
    os.mkfifo(root.folder / "desk/pipe")
    assert root.walk("/desk/pipe") == PathEnd(path=b"/desk/pipe", there=True, steady=False)
    assert guest_paths.found(root.fd, b"/desk/pipe", True, 0) is not None


def test_only_a_way_through_read_only_folders_is_steady() -> None:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    shown = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    try:
        steady = bool(os.fstatvfs(root).f_flag & os.ST_RDONLY)
        place = guest_paths.walk(root, b"/tmp", True, lambda: (0, 0))
        assert place is not None and place.steady is steady
        written = guest_paths.walk(shown, b"/status", True, lambda: (0, 0))
        assert written == PathEnd(path=b"/status", there=True, steady=False)
    finally:
        os.close(root)
        os.close(shown)


def test_a_thread_s_own_numbers_are_read_and_a_gone_one_has_none() -> None:
    process, thread = guest_paths.inside_numbers(os.getpid())
    assert process == thread > 0
    assert guest_paths.inside_numbers(2**22 + 1) == (0, 0)
