"""Who names a hidden path is found; who does not is not looked at for longer than needed; who lies is no trouble."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from struct import pack

import pytest

from ringfence.linux import watching
from ringfence.linux.notify import Notification
from ringfence.linux.seccomp_open import OPEN
from ringfence.linux.syscall_numbers import AUDIT_ARCH, NUMBERS, architecture
from ringfence.linux.watched_calls import WATCHED
from ringfence.linux.watching import Sighting, Watcher

pytestmark = pytest.mark.privileges

ARCH = architecture()
AT_FDCWD = -100


class Guest:
    """This very process, as a watcher would be told of it."""

    def __init__(self, hidden: str) -> None:
        self.losses: list[str] = []
        self.watcher = Watcher([hidden], lambda count, reason: self.losses.append(reason))

    def look(self, call: str, *args: object, thread: int = 0) -> list[Sighting]:
        held = [ctypes.create_string_buffer(arg) if isinstance(arg, bytes) else arg for arg in args]
        registers = [ctypes.addressof(arg) if isinstance(arg, ctypes.Array) else int(str(arg)) for arg in held]
        registers += [0] * (6 - len(registers))
        unsigned = [value & (2**64 - 1) for value in registers]
        head = (1, thread or os.getpid(), 0, NUMBERS[ARCH].get(call, 0), AUDIT_ARCH[ARCH], 0)
        raw = pack("<QIIiIQ6Q", *head, *unsigned)
        return self.watcher.look(Notification(raw), call)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/file").write_text("x")
    monkeypatch.chdir(tmp_path / "work")
    return Path(os.path.realpath(tmp_path))


def test_a_hidden_path_is_seen_whatever_it_is_relative_to(place: Path) -> None:
    guest = Guest(f"{place}/vault")
    resolved = os.fsencode(place / "vault/key")
    folder = os.open(place, os.O_PATH)
    os.symlink(place, "up")
    asked = [(AT_FDCWD, resolved), (AT_FDCWD, b"../vault/key"), (folder, b"vault/key"), (AT_FDCWD, b"up/vault/key"),
             (AT_FDCWD, b"/proc/self/cwd/../vault/key"), (2**32 - 100, b"../vault/key")]  # fmt: skip
    for base, path in asked:
        assert guest.look("openat", base, path) == [Sighting(asked=path, resolved=resolved, absent=True)], path
    os.close(folder)
    assert guest.look("openat", AT_FDCWD, b"file") == [] == guest.look("openat", AT_FDCWD, b"../vaults")
    assert guest.losses == []


def test_both_paths_of_a_rename_are_looked_at(place: Path) -> None:
    guest = Guest(f"{place}/vault")
    both = guest.look("renameat2", AT_FDCWD, b"../vault/a", AT_FDCWD, b"../vault/b")
    assert [sighting.asked for sighting in both] == [b"../vault/a", b"../vault/b"]
    assert [sighting.asked for sighting in guest.look("rename", b"file", b"../vault/b")] == [b"../vault/b"]


def test_a_link_to_something_hidden_is_an_attempt_only_when_it_is_followed(place: Path) -> None:
    guest = Guest(f"{place}/vault")
    os.symlink("../vault/key", "link")
    assert guest.look("newfstatat", AT_FDCWD, b"link", 0, 0)
    assert not guest.look("newfstatat", AT_FDCWD, b"link", 0, 0x100)
    assert not guest.look("openat", AT_FDCWD, b"link", os.O_NOFOLLOW) and not guest.look("unlinkat", AT_FDCWD, b"link")
    assert guest.look("linkat", AT_FDCWD, b"link", AT_FDCWD, b"x", 0x400)
    assert not guest.look("linkat", AT_FDCWD, b"link", AT_FDCWD, b"x", 0)


def test_what_the_guest_made_at_a_hidden_place_is_told_apart(place: Path) -> None:
    guest = Guest(f"{place}/vault")
    assert guest.look("mkdirat", AT_FDCWD, b"../vault")[0].absent
    (place / "vault").mkdir()
    assert not guest.look("openat", AT_FDCWD, b"../vault".replace(b"..", os.fsencode(place)))[0].absent


def test_a_path_that_no_kernel_could_reach_is_seen_by_what_it_says(place: Path) -> None:
    guest = Guest(f"{place}/vault")
    asked = os.fsencode(place / "absent/../vault")
    assert guest.look("openat", AT_FDCWD, asked)[0].resolved == os.fsencode(place / "vault")


def test_socket_addresses_count_when_they_are_paths(place: Path) -> None:
    guest = Guest(f"{place}/vault")
    assert guest.look("connect", 0, pack("<H", 1) + b"../vault/socket", 20)
    assert guest.look("bind", 0, pack("<H", 1) + b"../vault/socket", 20)
    assert not guest.look("connect", 0, pack("<H", 1) + b"\0../vault/socket", 20)
    assert not guest.look("connect", 0, pack("<H", 2) + b"../vault/socket", 20)


@pytest.mark.parametrize("address", [0, 1, 2**47 - 8, 2**64 - 1])
def test_a_bad_pointer_is_nothing(place: Path, address: int) -> None:
    guest = Guest(f"{place}/vault")
    assert guest.look("openat", AT_FDCWD, address) == [] and guest.losses == []


def test_a_bad_descriptor_and_a_gone_process_are_nothing(place: Path) -> None:
    guest = Guest(f"{place}/vault")
    assert guest.look("openat", 9999, b"x") == [] == guest.look("openat", -5, b"x")
    assert guest.look("openat", AT_FDCWD, b"x", thread=2**22 + 1) == [] and guest.losses == []


def test_a_path_that_can_t_be_followed_is_a_loss(place: Path) -> None:
    guest = Guest(f"{place}/vault")
    os.mkdir("d")
    assert guest.look("openat", AT_FDCWD, b"d/../" * 500 + b"absent/x") == []
    assert len(guest.losses) == 1 and "names on the way" in guest.losses[0]


def test_memory_that_may_not_be_read_is_a_loss(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: int, address: int) -> bytes:
        raise PermissionError(1, "Operation not permitted")

    guest = Guest(f"{place}/vault")
    monkeypatch.setattr(watching.memory, "read_string", refuse)
    assert guest.look("openat", AT_FDCWD, b"x") == [] and "not permitted" in guest.losses[0]


def test_memory_of_paths_is_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_MOST_REMEMBERED", 10)
    guest = Guest(f"{place}/vault")
    for number in range(50):
        guest.look("openat", AT_FDCWD, b"/absent/%d/x" % number)
        assert len(guest.watcher._changing) <= 10 and len(guest.watcher._harmless[True]) <= 10


@pytest.mark.parametrize(
    ("path", "hidden"),
    [(b"/a/b", True), (b"/a/b/", True), (b"/a/b/c/d", True), (b"/a", False), (b"/a/bc", False), (b"/", False),
     (b"", False), (b"a/b", False), (b"x/a/b", False)],
)  # fmt: skip
def test_hidden_is_the_path_itself_and_what_lies_below(path: bytes, hidden: bool) -> None:
    assert Watcher(["/a/b", "/c"], lambda count, reason: None)._is_hidden(path) is hidden


_NOT_BY_PATH = frozenset((
    "close", "close_range", "getdents", "getdents64", "getcwd", "fchdir", "memfd_create", "pipe", "pipe2",
    "dup", "dup2", "dup3", "fcntl", "flock", "ioctl", "umask", "fstat", "fstatfs", "fgetxattr", "flistxattr",
    "fchmod", "fchown", "fsetxattr", "fremovexattr",
))  # fmt: skip


def test_every_open_call_of_the_file_families_is_watched() -> None:
    """A call that a later version opens must be put into the table or into the list above."""
    families = [rule for rule in OPEN if rule.reason.startswith(("open files", "look at files", "change files"))]
    assert len(families) == 3
    assert {call for rule in families for call in rule.calls} - _NOT_BY_PATH <= WATCHED.keys()
