"""Who names a hidden path is found; who does not is not looked at for longer than needed; who lies is no trouble."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from struct import pack

import pytest

from ringfence.kernel.seccomp import interpreters, watching
from ringfence.kernel.seccomp.notify import Notification
from ringfence.kernel.seccomp.open_half import OPEN
from ringfence.kernel.seccomp.watched_calls import WATCHED
from ringfence.kernel.seccomp.watching import Sighting, Watcher
from ringfence.kernel.syscall_numbers import AUDIT_ARCH, NUMBERS, architecture

pytestmark = pytest.mark.privileges

ARCH = architecture()
AT_FDCWD = -100


class SandboxEnd:
    """This very process, as a watcher would be told of it."""

    def __init__(self, *hidden: str, private: bool = False) -> None:
        self.losses: list[str] = []
        self.watcher = Watcher(hidden, hidden if private else [])

    def look(self, call: str, *args: object, thread: int = 0) -> list[Sighting]:
        held = [ctypes.create_string_buffer(arg) if isinstance(arg, bytes) else arg for arg in args]
        registers = [ctypes.addressof(arg) if isinstance(arg, ctypes.Array) else int(str(arg)) for arg in held]
        registers += [0] * (6 - len(registers))
        unsigned = [value & (2**64 - 1) for value in registers]
        head = (1, thread or os.getpid(), 0, NUMBERS[ARCH].get(call, 0), AUDIT_ARCH[ARCH], 0)
        raw = pack("<QIIiIQ6Q", *head, *unsigned)
        look = self.watcher.look(Notification(raw), call)
        self.losses += filter(None, [look.problem])
        return list(look.sightings)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk/file").write_text("x")
    monkeypatch.chdir(tmp_path / "desk")
    return Path(os.path.realpath(tmp_path))


def test_a_hidden_path_is_seen_whatever_it_is_relative_to(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    resolved = os.fsencode(place / "vault/key")
    folder = os.open(place, os.O_PATH)
    os.symlink(place, "up")
    asked = [(AT_FDCWD, resolved), (AT_FDCWD, b"../vault/key"), (folder, b"vault/key"), (AT_FDCWD, b"up/vault/key"),
             (AT_FDCWD, b"/proc/self/cwd/../vault/key"), (2**32 - 100, b"../vault/key")]  # fmt: skip
    root = os.fsencode(place / "vault")
    for base, path in asked:
        found = [Sighting(asked=path, resolved=resolved, root=root, absent=True)]
        assert guest.look("openat", base, path) == found, path
    os.close(folder)
    assert guest.look("openat", AT_FDCWD, b"file") == [] == guest.look("openat", AT_FDCWD, b"../vaults")
    assert guest.losses == []


def test_what_a_guest_makes_in_a_folder_of_its_own_is_no_attempt(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault", f"{place}/vault/key", private=True)
    assert guest.look("openat", AT_FDCWD, b"../vault/key") and guest.look("chdir", b"../vault")
    assert guest.look("openat", AT_FDCWD, b"../vault/key", os.O_WRONLY | os.O_CREAT)
    assert guest.look("mkdirat", AT_FDCWD, b"../vault") == [] == guest.look("unlinkat", AT_FDCWD, b"../vault")
    os.mkdir("../vault")
    assert guest.look("openat", AT_FDCWD, b"../vault/key") == []
    os.rmdir("../vault")
    assert guest.look("openat", AT_FDCWD, b"../vault/key")


def test_both_paths_of_a_rename_are_looked_at(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    both = guest.look("renameat2", AT_FDCWD, b"../vault/a", AT_FDCWD, b"../vault/b")
    assert [sighting.asked for sighting in both] == [b"../vault/a", b"../vault/b"]
    assert [sighting.asked for sighting in guest.look("rename", b"file", b"../vault/b")] == [b"../vault/b"]


def test_a_link_to_something_hidden_is_an_attempt_only_when_it_is_followed(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    os.symlink("../vault/key", "link")
    assert guest.look("newfstatat", AT_FDCWD, b"link", 0, 0)
    assert not guest.look("newfstatat", AT_FDCWD, b"link", 0, 0x100)
    assert not guest.look("openat", AT_FDCWD, b"link", os.O_NOFOLLOW) and not guest.look("unlinkat", AT_FDCWD, b"link")
    assert guest.look("linkat", AT_FDCWD, b"link", AT_FDCWD, b"x", 0x400)
    assert not guest.look("linkat", AT_FDCWD, b"link", AT_FDCWD, b"x", 0)


def test_what_the_guest_made_at_a_hidden_place_is_told_apart(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    assert guest.look("mkdirat", AT_FDCWD, b"../vault")[0].absent
    (place / "vault").mkdir()
    assert not guest.look("openat", AT_FDCWD, b"../vault".replace(b"..", os.fsencode(place)))[0].absent


def test_a_path_that_no_kernel_could_reach_is_seen_by_what_it_says(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    asked = os.fsencode(place / "absent/../vault")
    assert guest.look("openat", AT_FDCWD, asked)[0].resolved == os.fsencode(place / "vault")


def test_socket_addresses_count_when_they_are_paths(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    assert guest.look("connect", 0, pack("<H", 1) + b"../vault/socket", 20)
    assert guest.look("bind", 0, pack("<H", 1) + b"../vault/socket", 20)
    assert not guest.look("connect", 0, pack("<H", 1) + b"\0../vault/socket", 20)
    assert not guest.look("connect", 0, pack("<H", 2) + b"../vault/socket", 20)


def test_what_stands_behind_a_socket_address_is_no_part_of_its_path(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    address = pack("<H", 1) + b"../vault"
    assert guest.look("connect", 0, address + b"s/and/more", len(address))[0].resolved == os.fsencode(place / "vault")
    assert not guest.look("connect", 0, address + b"s/and/more", len(address) + 1)


@pytest.mark.parametrize("route", ["../link/key", "/proc/self/cwd/../link/key", ".././desk/../link/key"])
def test_a_folder_that_was_removed_leads_up_whatever_has_its_name_now(place: Path, route: str) -> None:
    guest = SandboxEnd(f"{place}/vault")
    os.symlink("vault", place / "link")
    (place / "harmless/below").mkdir(parents=True)
    (place / "gone").mkdir()
    os.chdir(place / "gone")
    (place / "gone").rmdir()
    os.symlink("harmless/below", place / "gone (deleted)")
    (place / "harmless/link").mkdir()
    (place / "harmless/link/key").write_text("not this one")
    assert guest.look("openat", AT_FDCWD, os.fsencode(route))[0].resolved == os.fsencode(place / "vault/key")


def _elf(loader: bytes, *, bits: int) -> bytes:
    """A program of this machine's kind, as far as its loader goes."""
    if bits == 64:
        head = b"\x7fELF\x02\x01\x01" + bytes(25) + pack("<QQIHHHHHH", 64, 0, 0, 64, 56, 1, 0, 0, 0)
        return head + pack("<IIQQQQQQ", 3, 4, 200, 0, 0, len(loader) + 1, 0, 1) + bytes(80) + loader + b"\0"
    head = b"\x7fELF\x01\x01\x01" + bytes(21) + pack("<IIIHHHHHH", 52, 0, 0, 52, 32, 1, 0, 0, 0)
    return head + pack("<IIIIIIII", 3, 200, 0, 0, len(loader) + 1, 0, 4, 1) + bytes(116) + loader + b"\0"


@pytest.mark.parametrize("made", ["script", "blanks", "chain", "elf 64", "elf 32", "relative"])
def test_what_the_kernel_opens_to_execute_a_program_is_seen(place: Path, made: str) -> None:
    guest = SandboxEnd(f"{place}/vault")
    hidden = os.fsencode(place / "vault/interpreter")
    contents = {
        "script": b"#!" + hidden + b" -x\n", "blanks": b"#! \t" + hidden,
        "chain": b"#!%s/desk/next\n" % os.fsencode(place),
        "elf 64": _elf(hidden, bits=64), "elf 32": _elf(hidden, bits=32), "relative": b"#!../vault/interpreter\n",
    }  # fmt: skip
    Path("next").write_bytes(contents["script"])
    Path("program").write_bytes(contents[made])
    Path("plain").write_bytes(contents[made].replace(b"vault", b"vaults").replace(b"next", b"none"))
    file = os.open("program", os.O_PATH)
    for call in (("execve", b"program"), ("execveat", file, b"", 0, 0, 0x1000), ("execve", b"/proc/self/fd/%d" % file)):
        assert [seen.resolved for seen in guest.look(*call)] == [hidden], call
    os.close(file)
    assert guest.look("execve", b"plain") == guest.look("openat", AT_FDCWD, b"program") == guest.losses == []


@pytest.mark.parametrize(("line", "name"), [
    (b"#!./a\rb -x\n", b"./a\rb"), (b"#!./a\vb\n", b"./a\vb"), (b"#! \t./a\fb\tx y\n", b"./a\fb"),
    (b"#!./a\xa0b\n", b"./a\xa0b"), (b"#!./a\0b\n", b"./a"), (b"#!\0/b\n", b""), (b"#! \t\n/b", b""), (b"#!", b""),
])  # fmt: skip
def test_only_blanks_tabs_and_the_end_of_the_line_end_the_name_of_an_interpreter(line: bytes, name: bytes) -> None:
    assert interpreters.named_in(-1, line) == ([name] if name else [])


def test_a_program_without_a_name_is_looked_at_too(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    file = os.memfd_create("program")
    os.write(file, b"#!../vault/interpreter\n")
    for call in (("execveat", file, b"", 0, 0, 0x1000), ("execve", b"/proc/self/fd/%d" % file)):
        assert [seen.resolved for seen in guest.look(*call)] == [os.fsencode(place / "vault/interpreter")], call
    os.close(file)


def test_a_pipe_a_folder_or_a_broken_program_are_no_trouble(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    os.mkfifo("pipe")
    for name, content in {"empty": b"", "short": b"\x7fELF", "far": _elf(b"x", bits=64)[:32] + b"\xff" * 300}.items():
        Path(name).write_bytes(content)
    for name in (b"pipe", b".", b"empty", b"short", b"far", b"/dev/null", b"absent", b"/proc/self/fd/999"):
        assert guest.look("execve", name) == []
    assert guest.losses == []


def test_a_program_that_can_t_be_read_is_a_loss(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guest, real = SandboxEnd(f"{place}/vault"), os.open
    Path("program").write_bytes(b"#!../vault/x\n")

    def refuse(path: object, flags: int, *args: object, **more: object) -> int:
        if str(path).startswith("/proc/self/fd/"):
            raise BlockingIOError(11, "Resource temporarily unavailable")  # as a lease has it
        return real(path, flags, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(watching.os, "open", refuse)
    assert guest.look("execve", b"program") == [] and len(guest.losses) == 1


@pytest.mark.parametrize("address", [0, 1, 2**47 - 8, 2**64 - 1])
def test_a_bad_pointer_is_nothing(place: Path, address: int) -> None:
    guest = SandboxEnd(f"{place}/vault")
    assert guest.look("openat", AT_FDCWD, address) == [] and guest.losses == []


def test_a_bad_descriptor_and_a_gone_process_are_nothing(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    assert guest.look("openat", 9999, b"x") == [] == guest.look("openat", -5, b"x")
    assert guest.look("openat", AT_FDCWD, b"x", thread=2**22 + 1) == [] and guest.losses == []


def test_a_path_that_can_t_be_followed_is_a_loss(place: Path) -> None:
    guest = SandboxEnd(f"{place}/vault")
    os.mkdir("d")
    assert guest.look("openat", AT_FDCWD, b"d/../" * 500 + b"absent/x") == []
    assert len(guest.losses) == 1 and "names on the way" in guest.losses[0]


def test_memory_that_may_not_be_read_is_a_loss(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: int, address: int) -> bytes:
        raise PermissionError(1, "Operation not permitted")

    guest = SandboxEnd(f"{place}/vault")
    monkeypatch.setattr(watching.memory, "read_string", refuse)
    assert guest.look("openat", AT_FDCWD, b"x") == [] and "not permitted" in guest.losses[0]


def test_memory_of_paths_is_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_MOST_REMEMBERED", 10)
    guest = SandboxEnd(f"{place}/vault")
    for number in range(50):
        guest.look("openat", AT_FDCWD, b"/absent/%d/x" % number)
        assert len(guest.watcher._changing) <= 10 and len(guest.watcher._harmless[True]) <= 10


@pytest.mark.parametrize(
    ("path", "hidden"),
    [(b"/a/b", True), (b"/a/b/", True), (b"/a/b/c/d", True), (b"/a", False), (b"/a/bc", False), (b"/", False),
     (b"", False), (b"a/b", False), (b"x/a/b", False)],
)  # fmt: skip
def test_hidden_is_the_path_itself_and_what_lies_below(path: bytes, hidden: bool) -> None:
    assert bool(Watcher(["/a/b", "/c"])._root_of(path)) is hidden


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
