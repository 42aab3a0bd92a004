"""Hidden means absent, whatever the route, and every route is recorded: in real sandboxes, root and user."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import pytest
from tripwire_cage import ARENA, Cage, Ran, as_caller, check, leave, libc, outcome, why_not
from tripwire_routes import CREATING, FOLDER, READING, ROUTES, SCRATCH, prepare, try_all

from ringfence.kernel.tripwire import mount as tripwire_mount
from ringfence.kernel.tripwire.layout import (
    FILE_MODE,
    FOLDER_MODE,
    LINK_MODE,
    Entry,
    Layout,
    Veil,
    lay_out,
)

pytestmark = pytest.mark.system

HIDDEN = frozenset((b"secret", b"vault", b"caf\xe9\xff"))
VISIBLE = (
    Entry(name=b"own", mode=FILE_MODE),
    Entry(name=b"open.txt", mode=FILE_MODE),
    Entry(name=b"sub", mode=FOLDER_MODE),
    Entry(name=b"ln", mode=LINK_MODE, target=b"open.txt"),
)
VEIL = lay_out(veils=[Veil(folder=FOLDER, hidden=HIDDEN, visible=VISIBLE)])
NOTHING = lay_out()
# Between two mounts rename ends with EXDEV before the kernel looks at the name: it tells and asks nothing.
NEVER_ASKED = {"rename away"}


@pytest.fixture(params=["root", "user"])
def caller(request: pytest.FixtureRequest) -> str:
    reason = why_not(request.param)
    if reason:
        pytest.skip(reason)
    return str(request.param)


def run(
    caller: str, layout: Layout, probe: Callable[[], Any], ready: Callable[[], None] = prepare, **options: Any
) -> tuple[Any, ...]:
    """Result, attempts, health and the guest's pid."""

    def scenario() -> tuple[Any, ...]:
        ran: Ran = Cage(layout, ready, probe, **options).serve()
        return ran.result, ran.attempts, ran.recorder.health, ran.guest

    return tuple(as_caller(caller, scenario))


@pytest.mark.parametrize("name", [b"secret", b"vault", b"vault/in/key"])
def test_a_veiled_path_answers_every_call_like_a_name_that_never_was(caller: str, name: bytes) -> None:
    path, never = FOLDER + b"/" + name, FOLDER + b"/never" + name.partition(b"/")[1] + name.partition(b"/")[2]
    without = run(caller, NOTHING, lambda: try_all(path, fresh=True))[0]
    hidden, _, health, _ = run(caller, VEIL, lambda: try_all(path))
    absent = run(caller, VEIL, lambda: try_all(never))[0]
    assert [route for route in ROUTES if without[route] == "ENOENT"] == []
    assert hidden == absent
    assert {hidden[route] for route in READING} <= {"ENOENT", "EXDEV", "EBUSY"}
    assert {hidden[route] for route in CREATING} <= {"ENOENT", "EROFS", "EXDEV"}
    assert health.complete


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_every_route_to_a_veiled_file_is_recorded(caller: str, route: str) -> None:
    path = FOLDER + b"/secret"
    result, attempts, _, _ = run(caller, VEIL, lambda: outcome(lambda: ROUTES[route](path)))
    assert result != "ok"
    recorded = {attempt.path for attempt in attempts}
    assert recorded == (set() if route in NEVER_ASKED else {os.fsdecode(path)})


def test_below_a_veiled_folder_every_route_is_absent_and_recorded(caller: str) -> None:
    def probe() -> dict[str, tuple[str, float]]:
        return {route: (outcome(lambda: call(path)), time.monotonic_ns()) for route, call in ROUTES.items()}  # noqa: B023

    path = FOLDER + b"/vault/in/key"
    result, attempts, _, _ = run(caller, VEIL, probe)
    assert {error for error, _ in result.values()} == {"ENOENT"}
    unrecorded, since = set(), 0
    for route, (_, until) in result.items():
        if not any(since < attempt.time_ns < until for attempt in attempts):
            unrecorded.add(route)
        since = until
    assert unrecorded == set()


def test_a_veiled_name_is_in_no_listing_and_no_mount_table(caller: str) -> None:
    def probe() -> tuple[list[bytes], bytes]:
        with open("/proc/self/mountinfo", "rb") as table:
            return sorted(os.listdir(FOLDER)), table.read()

    listing, table = run(caller, VEIL, probe)[0]
    control, _ = run(caller, NOTHING, probe)[0]
    assert listing == sorted(entry.name for entry in VISIBLE)
    ours = b"".join(line for line in table.splitlines() if ARENA + b"/" in line)  # others mount what they like
    assert not [word for word in (b"secret", b"vault", b"stage") if word in ours]
    assert b"secret" in control and FOLDER + b"/own" in table, "the controls"


def test_what_stays_visible_in_a_veiled_folder_works(caller: str) -> None:
    def probe() -> tuple[bytes, bytes, bytes, str, str, list[bytes]]:
        with open(FOLDER + b"/own", "wb") as file:
            file.write(b"mine")
        texts = [open(FOLDER + name, "rb").read() for name in (b"/own", b"/ln", b"/sub/y")]  # noqa: SIM115
        kinds = [entry.name for entry in os.scandir(FOLDER) if entry.is_dir(follow_symlinks=False)]
        removal = outcome(lambda: os.unlink(FOLDER + b"/own"))
        return *texts, os.readlink(os.fsdecode(FOLDER) + "/ln"), removal, kinds  # type: ignore[return-value]

    (own, link, below, target, removal, folders), attempts, _, _ = run(caller, VEIL, probe)
    assert (own, target, removal, folders) == (b"mine", "open.txt", "EBUSY", [b"sub"])
    assert link == below == b"#!/bin/sh\nexit 0\n"
    assert attempts == []


def test_a_record_tells_who_asked_for_what_by_which_call(caller: str) -> None:
    def probe() -> int:
        pid = os.fork()
        if pid == 0:
            os.chdir(FOLDER)
            os.execv("/bin/cat", ["cat", "caf\udce9\udcff", "sub/../vault/in/key"])
        os.waitpid(pid, 0)
        return pid

    inner, attempts, _, guest = run(caller, VEIL, probe)
    first, second = [attempt for attempt in attempts if attempt.syscall == "openat"]
    assert (first.comm, first.argv) == ("cat", ("cat", "caf\udce9\udcff", "sub/../vault/in/key"))
    assert (first.path, first.asked) == ("/mnt/f/caf\udce9\udcff", "caf\udce9\udcff")
    assert (second.path, second.asked) == ("/mnt/f/vault", "sub/../vault/in/key")
    assert first.pid == second.pid == inner != guest
    assert first.start_ticks == second.start_ticks > 0
    assert (first.errno, first.uid, first.writes) == (2, 0, False)
    assert 0 < first.time_ns < second.time_ns and abs(time.time_ns() - first.wall_ns) < 600e9
    assert first.as_record()["path"] == "/mnt/f/caf\\xe9\\xff"


def test_no_process_is_named_when_the_numbers_are_of_another_pid_namespace(caller: str) -> None:
    probe: Callable[[], Any] = lambda: (os.getpid(), outcome(lambda: os.stat(FOLDER + b"/secret")))  # noqa: E731
    (pid, error), attempts, _, _ = run(caller, VEIL, probe, inside=True)
    assert (pid, error) == (1, "ENOENT")
    assert [attempt.path for attempt in attempts] == ["/mnt/f/secret"]
    # Either the kernel translates for the reader, or we say nothing: never the host's process 1.
    assert all(attempt.pid != 1 and attempt.comm in ("", _own_comm()) for attempt in attempts)


def _own_comm() -> str:
    with open("/proc/self/comm") as file:
        return file.read().strip()


def test_each_attempt_is_recorded_however_often_it_is_repeated(caller: str) -> None:
    def probe() -> None:
        for _ in range(50):
            outcome(lambda: os.stat(FOLDER + b"/secret"))

    assert len(run(caller, VEIL, probe)[1]) == 50


def test_names_that_are_nobodys_secret_are_asked_once_and_never_recorded(caller: str) -> None:
    def answered(name: bytes, times: int) -> tuple[int, int]:
        def scenario() -> tuple[int, int]:
            calls = [lambda: os.stat(FOLDER + name)] * times
            ran = Cage(VEIL, prepare, lambda: [outcome(call) for call in calls]).serve()
            return ran.tripwire.answered, len(ran.attempts)

        found: tuple[int, int] = as_caller(caller, scenario)
        return found

    def more(name: bytes) -> int:
        """So many more answers for a hundred questions than for one; the kernel may forget one when memory is short."""
        return answered(name, 100)[0] - answered(name, 1)[0]

    assert answered(b"/plain", 100)[1] == answered(b"/own", 100)[1] == 0
    assert abs(more(b"/plain")) < 10 and abs(more(b"/own")) < 10
    assert abs(more(b"/secret") - 99) < 10


def test_the_root_folder_itself_can_be_veiled(caller: str) -> None:
    def ready() -> None:
        for name in (b"oracle", b"usr", b"old"):
            os.mkdir(ARENA + b"/" + name)
        with open(ARENA + b"/oracle/answer", "wb") as file:
            file.write(b"42")
        with open(ARENA + b"/usr/tool", "wb") as file:
            file.write(b"tool")

    def probe() -> tuple[str, bytes, list[str]]:
        os.chdir(ARENA)
        pivot = 41 if platform.machine() in ("aarch64", "arm64") else 155
        check(libc().syscall(pivot, b".", b"old"), "pivot_root")
        os.chdir("/")
        check(libc().umount2(b"/old", 2), "umount old root")
        with open("/usr/tool", "rb") as tool:
            return outcome(lambda: os.stat("/oracle/answer")), tool.read(), sorted(os.listdir("/"))

    visible = (Entry(name=b"usr", mode=FOLDER_MODE), Entry(name=b"old", mode=FOLDER_MODE))
    layout = lay_out(veils=[Veil(folder=b"/", hidden=frozenset((b"oracle",)), visible=visible)])
    places: Callable[[bytes], int] = lambda path: os.open(ARENA + path, os.O_PATH)  # noqa: E731
    (error, tool, listing), attempts, _, _ = run(caller, layout, probe, ready, open_place=places)
    assert (error, tool, listing) == ("ENOENT", b"tool", ["old", "usr"])
    assert [attempt.path for attempt in attempts] == ["/oracle"]


def test_veils_nest(caller: str) -> None:
    inner = Veil(folder=FOLDER + b"/sub", hidden=frozenset((b"y",)))
    outer = Veil(folder=FOLDER, hidden=frozenset((b"secret",)), visible=VISIBLE)
    layout = lay_out(veils=[inner, outer])
    paths = [FOLDER + name for name in (b"/secret", b"/sub/y")]
    result, attempts, _, _ = run(caller, layout, lambda: [outcome(lambda: os.stat(path)) for path in paths])  # noqa: B023
    assert result == ["ENOENT"] * 2
    assert [attempt.path for attempt in attempts] == [os.fsdecode(path) for path in paths]


def test_two_sandboxes_at_once_record_apart(caller: str) -> None:
    def scenario() -> list[tuple[str, set[str]]]:
        paths = (FOLDER + b"/secret", FOLDER + b"/vault")
        cages = [Cage(VEIL, prepare, lambda path=path: outcome(lambda: os.stat(path))) for path in paths]
        ran = [cage.serve() for cage in cages]
        return [(one.result, {attempt.path for attempt in one.attempts}) for one in ran]

    assert as_caller(caller, scenario) == [("ENOENT", {"/mnt/f/secret"}), ("ENOENT", {"/mnt/f/vault"})]


def test_reading_a_large_tree_beside_a_tripwire_asks_nothing(caller: str) -> None:
    def probe() -> int:
        return sum(len(files) for _, _, files in os.walk(SCRATCH))

    def ready() -> None:
        prepare()
        for number in range(2000):
            with open(SCRATCH + b"/%d" % number, "wb"):
                pass

    count, attempts, health, _ = run(caller, VEIL, probe, ready)
    assert (count, attempts, health.clean) == (2000, [], True)


def test_a_job_that_runs_as_another_id_than_the_mounter_meets_the_same_wire() -> None:
    if why_not("root"):
        pytest.skip(why_not("root"))

    def probe() -> tuple[str, str]:
        os.setresgid(1, 1, 1)
        os.setresuid(1, 1, 1)
        return outcome(lambda: os.stat(FOLDER + b"/secret")), outcome(lambda: os.stat(FOLDER + b"/open.txt"))

    result, attempts, _, _ = run("root", VEIL, probe, other_ids=True)
    assert result == ("ENOENT", "ok")
    assert [(attempt.path, attempt.uid) for attempt in attempts] == [("/mnt/f/secret", 1)]
    assert attempts[0].syscall == "newfstatat" and attempts[0].argv != ()


def test_a_sandbox_without_an_id_0_meets_the_same_wire(caller: str) -> None:
    def probe() -> tuple[int, int, str, str]:
        found = os.stat(FOLDER)
        path = FOLDER + b"/secret"
        return found.st_uid, found.st_gid, outcome(lambda: os.stat(path)), outcome(lambda: os.mkdir(path))

    result, attempts, _, _ = run(caller, VEIL, probe, inner_id=1234)
    assert result == (1234, 1234, "ENOENT", "EROFS")
    assert {attempt.uid for attempt in attempts} == {1234}


def test_a_process_outside_the_sandbox_that_walks_in_is_turned_away(caller: str) -> None:
    """Through /proc/<pid>/root the host can reach the wire: it must neither hang there nor be recorded."""

    def scenario() -> Any:
        asked, ask = os.pipe()
        told, tell = os.pipe()
        cage = Cage(VEIL, prepare, lambda: (os.write(tell, b"x"), os.read(asked, 1)))
        watcher = os.fork()
        if watcher == 0:
            os.read(told, 1)
            code = outcome(lambda: os.stat(b"/proc/%d/root" % cage.guest + FOLDER + b"/secret"))
            os.write(ask, b"x")
            leave(0 if code == "EACCES" else 1)
        ran = cage.serve()
        return os.waitstatus_to_exitcode(os.waitpid(watcher, 0)[1]), ran.recorder.health.total

    assert as_caller(caller, scenario) == (0, 0)


def test_the_guest_keeps_no_descriptor_of_the_device(caller: str) -> None:
    def probe() -> list[str]:
        paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return [os.readlink(path) for path in paths if os.path.lexists(path)]

    targets = run(caller, VEIL, probe)[0]
    assert len(targets) >= 3
    assert [target for target in targets if "fuse" in target] == []


def test_a_missing_device_is_named_with_the_way_to_get_it() -> None:
    with pytest.raises(tripwire_mount.UnavailableError) as caught:
        tripwire_mount.open_device("/nonexistent/fuse")
    assert caught.value.missing == ("/nonexistent/fuse",)
    assert "modprobe fuse" in caught.value.hint


def test_the_buffers_of_the_test_are_not_the_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    """ctypes must not swallow errors, or every ENOENT above could be an accident."""
    monkeypatch.chdir("/")  # so that the directory is put back
    ctypes.set_errno(0)
    assert outcome(lambda: check(libc().chdir(b"/"), "chdir")) == "ok"
    assert outcome(lambda: check(libc().chdir(b"/nonexistent"), "chdir")) == "ENOENT"
