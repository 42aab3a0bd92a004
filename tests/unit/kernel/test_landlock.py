"""Landlock on the real kernel: what a rule opens works, everything else does not, and without it both do."""

import errno
import os
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import landlockpy.flags as second_opinion
import pytest
from forked import Child, in_child, outcome

from ringfence.errors import PolicyError, SetupError, UnavailableError
from ringfence.kernel import landlock
from ringfence.kernel.landlock import DEVICES, FILE_RIGHTS, PORT_RIGHTS, READ, SCOPES, WRITE, Ruleset, known
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp.profiles import DEFAULT
from ringfence.kernel.syscall_numbers import architecture

NEWEST_ABI = max(first for rights in (FILE_RIGHTS, PORT_RIGHTS, SCOPES) for _, first in rights.values())
ABI = landlock.abi()


def needs(version: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(version > ABI, reason=f"Landlock ABI {version}, here {ABI}")


pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    needs(1),
]


@pytest.fixture
def tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        for name in ("open", "shut", "read"):
            (root / name).mkdir()
            (root / name / "file").write_text("text")
        yield root


def under(ruleset: Ruleset, work: Callable[[], object]) -> object:
    def restricted() -> object:
        landlock.restrict(ruleset)
        return work()

    return in_child(restricted, measured=True)


def walls(tree: Path) -> Ruleset:
    return Ruleset(
        files=known(FILE_RIGHTS, ABI),
        beneath=((str(tree / "open"), WRITE), (str(tree / "read"), READ), ("/usr", READ)),
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "minimum"),
    [
        (FILE_RIGHTS, second_opinion.AccessFS, second_opinion._FS_MIN_ABI),
        (PORT_RIGHTS, second_opinion.AccessNet, second_opinion._NET_MIN_ABI),
        (SCOPES, second_opinion.Scope, second_opinion._SCOPE_MIN_ABI),
    ],
)
def test_the_tables_agree_with_another_implementation(mine: dict, theirs: type, minimum: dict) -> None:
    assert mine == {right.name.lower(): (right.value, minimum[right]) for right in theirs}


def test_the_version_agrees_with_another_implementation() -> None:
    import landlockpy

    assert landlockpy.abi_version() == ABI


ACTIONS: dict[str, Callable[[Path], object]] = {
    "read_file": lambda place: (place / "file").read_text(),
    "write_file": lambda place: os.close(os.open(place / "file", os.O_WRONLY)),
    "read_dir": lambda place: os.listdir(place),
    "make_reg": lambda place: os.close(os.open(place / "new", os.O_CREAT | os.O_EXCL | os.O_RDONLY)),
    "make_dir": lambda place: os.mkdir(place / "new"),
    "make_sym": lambda place: os.symlink("file", place / "new"),
    "make_fifo": lambda place: os.mkfifo(place / "new"),
    "make_sock": lambda place: socket.socket(socket.AF_UNIX).bind(str(place / "new")),
    "remove_file": lambda place: os.unlink(place / "file"),
    "truncate": lambda place: os.truncate(place / "file", 0),
}


@pytest.mark.parametrize("right", ACTIONS)
def test_a_right_is_open_where_it_is_given_and_shut_elsewhere(tree: Path, right: str) -> None:
    def act(place: str) -> Callable[[], int]:
        return lambda: outcome(lambda: ACTIONS[right](tree / place) or 0)  # type: ignore[arg-type, return-value]

    assert under(walls(tree), act("shut")) == errno.EACCES
    assert under(walls(tree), act("open")) == 0
    assert under(walls(tree), act("read")) == (0 if right in READ else errno.EACCES)
    assert in_child(act("shut")) == 0


def test_nothing_is_executed_that_was_not_named(tree: Path) -> None:
    for name in ("read", "shut"):
        program = tree / name / "program"
        program.write_bytes(Path("/usr/bin/true").read_bytes())
        program.chmod(0o755)

    def run(place: str) -> Callable[[], int]:
        def execute() -> int:
            child = os.fork()
            if child == 0:
                try:
                    os.execv(tree / place / "program", ["program"])
                except OSError as error:
                    os._exit(error.errno)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        return execute

    # /lib is where the loader is found on most systems; it leads into /usr.
    ruleset = walls(tree)
    assert under(ruleset, run("read")) == 0
    assert under(ruleset, run("shut")) == errno.EACCES
    assert in_child(run("shut")) == 0


@needs(2)
def test_a_file_moves_between_open_folders_and_not_out_of_them(tree: Path) -> None:
    (tree / "open" / "below").mkdir()

    def move(target: str) -> Callable[[], int]:
        return lambda: outcome(lambda: os.rename(tree / "open/file", tree / target) or 0)

    assert under(walls(tree), move("shut/moved")) in (errno.EACCES, errno.EXDEV)
    assert under(walls(tree), move("open/below/moved")) == 0
    os.rename(tree / "open/below/moved", tree / "open/file")
    assert in_child(move("shut/moved")) == 0


@needs(5)
def test_a_device_takes_commands_only_where_that_is_open() -> None:
    def command() -> int:
        import fcntl

        with open("/dev/zero", "rb") as device:
            return outcome(lambda: fcntl.ioctl(device, 0x1234, 0))

    files = known(FILE_RIGHTS, ABI)
    assert in_child(command) == errno.ENOTTY
    assert under(Ruleset(files=files, beneath=(("/dev", READ),)), command) == errno.EACCES
    assert under(Ruleset(files=files, beneath=(("/dev", DEVICES),)), command) == errno.ENOTTY


def test_a_shell_can_write_to_the_null_device() -> None:
    def write() -> int:
        return outcome(lambda: os.close(os.open("/dev/null", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)) or 0)

    files = known(FILE_RIGHTS, ABI)
    assert under(Ruleset(files=files, beneath=(("/dev", DEVICES),)), write) == 0
    assert under(Ruleset(files=files), write) == errno.EACCES


def test_a_single_file_can_be_named_with_the_rights_of_a_folder(tree: Path) -> None:
    ruleset = Ruleset(files=known(FILE_RIGHTS, ABI), beneath=((str(tree / "shut/file"), WRITE),))
    assert under(ruleset, lambda: (tree / "shut/file").read_text()) == "text"
    assert under(ruleset, lambda: outcome(lambda: len(os.listdir(tree / "shut")))) == errno.EACCES


def test_an_open_descriptor_can_stand_for_a_path(tree: Path) -> None:
    descriptor = os.open(tree / "shut", os.O_PATH)
    ruleset = Ruleset(files=known(FILE_RIGHTS, ABI), beneath=((descriptor, READ),))
    assert under(ruleset, lambda: os.listdir(tree / "shut")) == ["file"]
    assert stat.S_ISDIR(os.fstat(descriptor).st_mode)
    os.close(descriptor)


@pytest.mark.parametrize("link", ["open/link", "open/link/shut", "open/magic"])
def test_a_link_that_a_guest_left_opens_nothing(tree: Path, link: str) -> None:
    (tree / "open/link").symlink_to(tree)
    (tree / "open/magic").symlink_to("/proc/self/root")
    assert (tree / link).exists()

    def attempt() -> str:
        try:
            landlock.restrict(Ruleset(files=known(FILE_RIGHTS, ABI), beneath=((str(tree / link), WRITE),)))
        except SetupError as error:
            return error.hint
        return "followed"

    assert "without links" in in_child(attempt, measured=True)


def test_a_rule_for_a_missing_path_is_a_setup_error_that_names_it() -> None:
    with pytest.raises(SetupError, match="/nowhere"):
        landlock.restrict(Ruleset(files=("read_file",), beneath=(("/nowhere", READ),)))
    assert os.listdir("/")


def tcp(action: str, port: int) -> Callable[[], int]:
    def work() -> int:
        with socket.socket() as end:
            return outcome(lambda: getattr(end, action)(("127.0.0.1", port)) or 0)

    return work


@needs(4)
def test_only_the_named_ports_can_be_reached_and_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        named, unnamed = server.getsockname()[1], other.getsockname()[1]
        ruleset = Ruleset(
            ports=("bind_tcp", "connect_tcp"), open_ports=((named, ("connect_tcp",)), (0, ("bind_tcp",)))
        )
        assert under(ruleset, tcp("connect", named)) == 0
        assert under(ruleset, tcp("connect", unnamed)) == errno.EACCES
        assert under(ruleset, tcp("bind", 0)) == 0
        assert under(ruleset, tcp("bind", named)) == errno.EACCES
        assert in_child(tcp("connect", unnamed)) == 0
        assert in_child(tcp("bind", named)) == errno.EADDRINUSE


def fast_open(port: int) -> int:
    with socket.socket() as end:
        end.settimeout(5)
        return outcome(lambda: end.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", port)))


def multipath(port: int) -> int:
    def connect() -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as end:
            return end.connect(("127.0.0.1", port)) or 0

    return outcome(connect)


@needs(4)
@pytest.mark.parametrize(
    ("detour", "refusal"), [(fast_open, errno.EOPNOTSUPP), (multipath, errno.EPROTONOSUPPORT)]
)
def test_the_filter_closes_the_detours_around_the_port_rules(
    detour: Callable[[int], int], refusal: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        shut = Ruleset(ports=("bind_tcp", "connect_tcp"))
        program = seccomp.compile(DEFAULT, architecture())

        def behind_both_walls() -> int:
            seccomp.install(program)
            return detour(port)

        unwalled = in_child(lambda: detour(port))
        if unwalled in (errno.EPROTONOSUPPORT, errno.ENOPROTOOPT):
            pytest.skip("this kernel has no MPTCP")
        # Fast Open begins to connect and says so. A kernel that closes the detour itself says EACCES.
        assert unwalled in (0, errno.EINPROGRESS)
        assert under(shut, lambda: detour(port)) in (0, errno.EINPROGRESS, errno.EACCES)
        assert under(shut, behind_both_walls) == refusal


@needs(4)
def test_without_a_port_rule_no_port_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ruleset = Ruleset(ports=("bind_tcp", "connect_tcp"))
        assert under(ruleset, tcp("connect", server.getsockname()[1])) == errno.EACCES
        assert under(ruleset, tcp("bind", 0)) == errno.EACCES
        assert under(Ruleset(ports=("bind_tcp",)), tcp("connect", server.getsockname()[1])) == 0


@needs(6)
def test_abstract_sockets_end_at_the_border() -> None:
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind("")  # the kernel picks an abstract name
        outside.listen()
        name = outside.getsockname()

        def reach_out() -> int:
            with socket.socket(socket.AF_UNIX) as end:
                return outcome(lambda: end.connect(name) or 0)

        def reach_in() -> int:
            with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as end:
                server.bind("")
                server.listen()
                return outcome(lambda: end.connect(server.getsockname()) or 0)

        scoped = Ruleset(scopes=("abstract_unix_socket",))
        assert in_child(reach_out) == 0
        assert under(scoped, reach_out) == errno.EPERM
        assert under(scoped, reach_in) == 0


@needs(6)
def test_signals_end_at_the_border() -> None:
    reader, writer = os.pipe()
    outside = Child(lambda: len(os.read(reader, 1)))

    def reach_out() -> int:
        return outcome(lambda: os.kill(outside.pid, 0) or 0)

    def reach_in() -> int:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.kill(child, signal.SIGKILL)
        return -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    scoped = Ruleset(scopes=("signal",))
    assert in_child(reach_out) == 0
    assert under(scoped, reach_out) == errno.EPERM
    assert under(scoped, reach_in) == signal.SIGKILL
    os.write(writer, b"x")
    assert outside.result() == 1


def test_what_an_older_kernel_can_not_keep_is_named() -> None:
    everything = Ruleset(files=tuple(FILE_RIGHTS), ports=tuple(PORT_RIGHTS), scopes=tuple(SCOPES))
    assert landlock.missing(everything, NEWEST_ABI) == ()
    assert landlock.missing(everything, 4) == (
        *("ioctl_dev", "resolve_unix", "bind_udp", "connect_send_udp"),
        *("abstract_unix_socket", "signal"),
    )
    assert len(landlock.missing(everything, 0)) == len(FILE_RIGHTS) + len(PORT_RIGHTS) + len(SCOPES)
    for version in range(NEWEST_ABI + 1):
        assert landlock.missing(Ruleset(files=known(FILE_RIGHTS, version)), version) == ()


@pytest.mark.skipif(NEWEST_ABI <= ABI, reason="this kernel knows every right")
def test_a_right_that_the_kernel_does_not_know_is_refused_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: NEWEST_ABI)
    with pytest.raises(SetupError, match="Invalid argument"):
        landlock.restrict(Ruleset(files=tuple(FILE_RIGHTS), ports=tuple(PORT_RIGHTS)))


@pytest.mark.parametrize("version", range(1, min(ABI, NEWEST_ABI - 1) + 1))
def test_every_older_version_gives_what_it_has_and_says_the_rest(
    tree: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: version)
    everything = Ruleset(files=tuple(FILE_RIGHTS), ports=tuple(PORT_RIGHTS), scopes=tuple(SCOPES))
    with pytest.raises(UnavailableError) as caught:
        landlock.restrict(everything)
    assert "Landlock bind_udp" in caught.value.missing

    def partly() -> list[object]:
        lacking = landlock.restrict(everything, allow_partial=True)
        return [list(lacking), outcome(lambda: len(os.listdir(tree)))]

    assert in_child(partly, measured=True) == [list(landlock.missing(everything, version)), errno.EACCES]


def test_no_landlock_is_never_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(UnavailableError):
        landlock.restrict(Ruleset(files=("read_file",)), allow_partial=True)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("files", lambda: Ruleset(files=("reed_file",))),
        ("ports", lambda: Ruleset(ports=("bind_sctp",))),
        ("scopes", lambda: Ruleset(scopes=("everything",))),
        ("beneath", lambda: Ruleset(beneath=(("/", ("all",)),))),
        ("beneath", lambda: Ruleset(beneath=(("/tmp\0/x", READ),))),
        ("open_ports", lambda: Ruleset(open_ports=((65536, ("bind_tcp",)),))),
        ("open_ports", lambda: Ruleset(open_ports=((-1, ("bind_tcp",)),))),
    ],
)
def test_a_malformed_ruleset_is_refused_by_name(field: str, make: Callable[[], Ruleset]) -> None:
    with pytest.raises(PolicyError) as caught:
        make()
    assert caught.value.field == field
