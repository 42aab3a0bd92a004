"""A maker: its native loop makes the sandboxes that Python makes, hands back what it can't do, and keeps nothing."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.unit.engine.pooled import policy_of

from ringfence import Pool
from ringfence.backends import drafts
from ringfence.errors import SetupError

if sys.platform != "linux":
    pytest.skip("a maker needs Linux", allow_module_level=True)

import resource

from ringfence.kernel import syscalls
from ringfence.kernel.calls import native, orders
from ringfence.kernel.calls.table import Table
from ringfence.kernel.mount import namespaces
from ringfence.kernel.proc import processes, procfs
from ringfence.roles import zygote_client
from ringfence.roles.warden import order
from ringfence.roles.warden.order import SandboxOrder
from ringfence.sandbox import host
from ringfence.steps import maker_calls

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
PROBE = r"""
import os, re, resource, signal, sys
def lines(path): return open(path).read().splitlines()
def kept(line): return line.split(":")[0] not in ("Pid", "Tgid", "NStgid", "NSpid", "NSpgid", "NSsid") and not re.match(
    r"(Vm|Rss|Hugetlb|\w*voluntary|Cpus|Mems|Seccomp_filters|Threads|TracerPid|Speculation|SigQ|FDSize)", line)
print(*filter(kept, lines("/proc/self/status")), sep="\n")
print(sorted(re.sub(r"^\d+ \d+ \d+:\d+ |\d{3,}", "", line) for line in lines("/proc/self/mountinfo")))
print(lines("/proc/self/cgroup"), os.getpid(), os.getppid(), os.getsid(0), os.getpgid(0), os.getcwd(), os.umask(0o22))
opened = [name for name in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + name)]
print(sorted((int(name), re.sub(r"\d+", "", os.readlink("/proc/self/fd/" + name))) for name in opened))
print([resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")])
print([signal.getsignal(number) for number in sorted(signal.valid_signals())])
print(sorted(os.listdir("/dev")), [(name, os.stat("/dev/" + name).st_mode, os.stat("/dev/" + name).st_rdev)
                                    for name in ("null", "zero", "full", "random", "urandom", "tty")])
print(sorted(os.environ.items()), os.access("/usr", os.W_OK), os.path.exists("/root/.ssh"))
"""


@pytest.fixture(autouse=True)
def own_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New makers, which are not replaced because of what other tests mount meanwhile."""
    zygote_client.close_all()
    table = host.mount_table()
    monkeypatch.setattr(host, "mount_table", lambda: table)
    yield
    zygote_client.close_all()


def _probed(**fields: object) -> list[str]:
    with Pool(policy_of("strict", **fields), warm=2) as pool:
        outcomes = [pool.run_source(PROBE) for _ in range(4)]
    assert all(outcome.ok for outcome in outcomes), outcomes[0].stderr
    return [outcome.stdout.decode() for outcome in outcomes]


def _is_native() -> bool:
    return native._opened() is not None and processes.can_close_ranges()


@pytest.mark.parametrize(
    "fields", [{}, {"readable_paths": (sys.prefix,)}, {"network": "none"}, {"syscall_profile": "tight"}], ids=str
)
def test_the_loop_and_python_make_the_same_sandbox(fields: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    by_loop = _probed(**fields)
    monkeypatch.setenv("RINGFENCE_PURE", "1")
    zygote_client.close_all()
    assert {*by_loop} == {*_probed(**fields)} and len({*by_loop}) == 1


def _makers() -> list[int]:
    """The first children of the warden: sandboxes come later, by whatever pid."""
    (warden,) = [zygote.pid for zygote in list(zygote_client._standing.values())]
    rows = [row for child in procfs.children(warden) if (row := procfs.stat(child)) is not None]
    return [row.pid for row in sorted(rows, key=lambda row: row.start)[:2]]


def _open(maker: int) -> list[str]:
    """Without what belongs to places, once for each that was ever used: standard streams, door, program of pid 1, a
    /proc."""
    return sorted(link for link in _links(maker) if not link.startswith(("user:", "net:")))


def _links(maker: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{maker}/fd").iterdir():
        with suppress(FileNotFoundError):  # it works for another sandbox meanwhile
            found.append(os.readlink(entry))
    return found


def test_a_maker_keeps_nothing_of_the_sandboxes_that_it_has_made() -> None:
    with Pool(policy_of("strict"), warm=1) as pool:
        assert all(pool.run_source("pass").ok for _ in range(10))
        if os.geteuid() != 0:  # they are hidden from its own user
            with pytest.raises(PermissionError):
                _open(_makers()[0])
            return
        eventually(lambda: all(len(_open(maker)) == 5 + _is_native() for maker in _makers()))
        assert all(pool.run_source("pass").ok for _ in range(60))
        eventually(lambda: all(len(_open(maker)) == 5 + _is_native() for maker in _makers()))


def test_the_loop_makes_the_sandboxes_and_its_memory_stays_as_it_is() -> None:
    """Otherwise each page that a maker writes is copied, sandbox for sandbox."""
    if not _is_native():
        pytest.skip("there is no native part")

    def faults() -> int:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in _makers()]
        return sum(int(fields[7]) for fields in stats)

    with Pool(policy_of("strict"), warm=1) as pool:
        assert all(pool.run_source("pass").ok for _ in range(20))
        before = faults()
        assert all(pool.run_source("pass").ok for _ in range(40))
        assert faults() - before < 40 * 60, "Python takes some 300 for each"


def test_a_source_that_has_gone_is_named_as_before(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    with Pool(policy_of("strict", readable_paths=(str(shown),)), warm=0) as pool:
        assert pool.run_source(f"import os; print(os.listdir({str(shown)!r}))").stdout == b"[]\n"
        shown.rmdir()
        with pytest.raises((SetupError, Exception), match="shown"):
            pool.run_source("print(1)")
        shown.mkdir()
        assert pool.run_source("print(1)").ok


@pytest.mark.parametrize("becomes", ["nothing", "a file"])
@pytest.mark.parametrize("pure", ["", "1"], ids=["loop", "Python"])
@pytest.mark.root
def test_a_maker_keeps_nothing_of_what_it_could_not_make(
    pure: str, becomes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it kept it would keep for good, and as much again of each sandbox that Python makes after that.

    Where something else on the host has changed, it is looked up again, and what has gone is not shown: that is tried
    again.
    """
    monkeypatch.setenv("RINGFENCE_PURE", pure)
    for fixed in ("showing.refuse_absent", "showing.refuse_places"):  # it goes after they have looked
        monkeypatch.setattr(f"ringfence.sandbox.{fixed}", lambda policy: None)
    table = host.mount_table()
    monkeypatch.setattr(host, "mount_table", lambda: table)  # what other tests mount meanwhile is another look
    monkeypatch.setattr(drafts, "GOOD_FOR_S", 1e6)
    shown = tmp_path / "shown"
    shown.mkdir()
    with Pool(policy_of("strict", readable_paths=(sys.prefix, str(shown))), warm=0) as pool:
        assert pool.run_source("pass").ok
        makers, failed = _makers(), []
        for _ in range(80):
            if len(failed) == 4:
                break
            shown.rmdir()
            if becomes == "a file":
                shown.write_text("")
            try:
                pool.run_source("pass")
            except SetupError as error:
                failed.append(error.step)
            if becomes == "a file":
                shown.unlink()
            shown.mkdir()
            assert pool.run_source("pass").ok
        assert failed == ["clone sources"] * 4
        eventually(lambda: all(len(_open(maker)) <= 6 for maker in makers))
        kept = [link.partition(":")[0] for maker in makers for link in _links(maker)]
        assert kept.count("net") <= (0 if pure else kept.count("user")), "one for each place, as of mapped ids"


@pytest.mark.root
def test_a_maker_without_descriptors_for_a_mapping_says_so_and_lives_on() -> None:
    """The mapping of a place is made once, before the loop can use it."""
    with Pool(policy_of("strict"), warm=0, at_once=4) as pool:
        assert pool.run_source("pass").ok
        makers, begun, (reader, writer) = _makers(), threading.Event(), os.pipe()
        source = "import sys; print(1, flush=True); sys.stdin.read()"
        first = threading.Thread(
            target=pool.run_source, args=(source,), kwargs={"stdin": reader, "on_output": lambda *_: begun.set()}
        )
        first.start()
        assert begun.wait(60), "control: it has the first place"
        allowed = [resource.prlimit(maker, resource.RLIMIT_NOFILE) for maker in makers]
        for maker in makers:
            resource.prlimit(maker, resource.RLIMIT_NOFILE, (12, allowed[0][1]))
        with pytest.raises(SetupError):
            pool.run_source("pass")
        for maker, limits in zip(makers, allowed, strict=True):
            resource.prlimit(maker, resource.RLIMIT_NOFILE, limits)
        assert pool.run_source("pass").ok and _makers() == makers
        os.close(writer)
        first.join()
    os.close(reader)


OBJECTS = """
import gc, sys
frames, frame = [], sys._getframe()
while frame is not None:
    frames.append(frame)
    frame = frame.f_back
word = '/fs/'.join(('/sys', 'cgroup'))
todo = [*gc.get_objects(), *frames[1:], *(frame.f_locals for frame in frames[1:])]
seen, found = {id(todo), id(frames)}, []
while todo:
    thing = todo.pop()
    if id(thing) not in seen:
        seen.add(id(thing))
        text = bytes(thing).decode('latin-1') if isinstance(thing, (bytes, bytearray)) else thing
        found += [text] if isinstance(text, str) and word + '/' in text and '/ringfence-' in text else []
        todo.extend(gc.get_referents(thing))
print(len(seen) > 10000, found)
"""


@pytest.mark.parametrize("pure", ["", "1"], ids=["loop", "Python"])
def test_where_its_group_lies_is_in_no_object_of_a_job(pure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a group namespace of its own so that it does not learn that."""
    monkeypatch.setenv("RINGFENCE_PURE", pure)
    with Pool(policy_of("strict"), warm=2) as pool:
        assert {pool.run_source(OBJECTS).stdout for _ in range(4)} == {b"True []\n"}


# ---- the loop alone


@pytest.fixture(autouse=True)
def visible_again() -> Iterator[None]:
    """The loop hides the process that it runs in, in some tests their own. Then that may not enter namespaces."""
    yield
    processes.show_memory()


def _order(**changes: object) -> bytes:
    fields: dict[str, object] = {"ticket": 1, "draft": 1, "place": 0, "group": "", "maps": ("0 0 1", "0 0 1"),
                                 "entrances": []}  # fmt: skip
    return order.packed(SandboxOrder(**{**fields, **changes}))  # type: ignore[arg-type]


def test_an_order_is_read_as_it_was_written() -> None:
    given = SandboxOrder(
        ticket=2**40, draft=7, place=511, group="/a\udcff/b", maps=("1 2 3", "4 5 6"), entrances=["/x", "/y z"]
    )
    assert order.read(order.packed(given)) == given
    assert order.read(_order(new_network=True)).new_network and not given.new_network
    assert order.read(_order()).entrances == [] and order.read_made(order.made(3, 2**22)) == (3, 2**22)
    assert order.read_failed(order.failed(5, "step", 13, "why" * 9000))[:3] == (5, "step", 13)


@pytest.mark.parametrize(("message", "state"), [
    (b"d\0", orders.OTHER), (b"", orders.OTHER), (b"o", orders.BACK), (b"o\0" + b"\xff" * 30, orders.BACK),
    (b"o\0" + _order(), orders.BACK), (b"o\6" + _order(draft=2**63), orders.BACK),
    (b"o\6" + struct.pack("=6xQQII", 1, 1, 2**32 - 1, 2**32 - 1), orders.BACK), (b"o" * 20000, orders.BACK),
], ids=repr)  # fmt: skip
def test_what_is_no_order_of_a_known_draft_comes_back(message: bytes, state: int) -> None:
    if not _is_native():
        pytest.skip("there is no native part")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        loop = orders.Orders(theirs.fileno())
        if message:
            ours.send(message)
        else:
            ours.close()
        served = loop.serve()
        assert served.state == state and served.rights == ()
        if state == orders.BACK:
            assert loop.order() == message[: orders.MESSAGE_BYTES - 1]
            loop.clear()
            assert loop.order() == b""
        elif message:
            assert theirs.recv(100) == message, "it is left for whoever it is for"


def test_nothing_of_a_longer_order_is_left_behind_a_shorter_one() -> None:
    """A child forgets its own order; the other one was for another sandbox."""
    if not _is_native():
        pytest.skip("there is no native part")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        loop = orders.Orders(theirs.fileno())
        for message in (b"o\0" + _order(entrances=["/groups/of-another"] * 3), b"o\0" + _order(draft=2), b"o"):
            ours.send(message)
            assert loop.serve().state == orders.BACK
            assert bytes(loop._served[64:]).rstrip(b"\0") == message.rstrip(b"\0")


def test_descriptors_of_what_comes_back_come_too_and_are_closed_on_exec() -> None:
    if not _is_native():
        pytest.skip("there is no native part")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, open(os.devnull, "rb") as file:
        socket.send_fds(ours, [b"o\6" + _order()], [file.fileno()] * 6)
        served = orders.Orders(theirs.fileno()).serve()
        assert served.state == orders.BACK and len(served.rights) == 6
        for descriptor in served.rights:
            assert os.path.samestat(os.fstat(descriptor), os.fstat(file.fileno())) and not os.get_inheritable(
                descriptor
            )
            os.close(descriptor)


def test_a_maker_whose_clone_fails_is_hidden_again() -> None:
    """What prepares a sandbox lets others look into the maker, for the child to inherit that."""
    if not _is_native():
        pytest.skip("there is no native part")
    prepare, nothing = Table(), Table()
    prepare.call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
    tables = orders.Tables(
        flags=1, tables=((prepare.compiled(), {}), *[(nothing.compiled(), {})] * 7), descriptors=[-1] * 6, links=[],
        passing=[], texts=[(orders.PREPARE, -1)] * 3, child=-1, idmap=-1,
    )  # fmt: skip
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(ours, [b"o\6" + _order()], [0] * 6)
        loop = orders.Orders(theirs.fileno())
        loop.add(1, tables)
        child = os.fork()
        if child == 0:
            served = loop.serve()
            os._exit(10 * served.state + syscalls.prctl(PR_GET_DUMPABLE))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10 * orders.BACK


def test_there_is_room_for_what_belongs_to_every_place() -> None:
    assert orders.PLACES == namespaces.IDS_PER_PROCESS
    ids = (namespaces.host_id(1), namespaces.host_id((1 << 22) - 1))
    assert [len(str(each)) for each in ids] == [maker_calls._ID_DIGITS] * 2, "a table has room for so many digits"


@pytest.mark.root
def test_the_id_of_each_place_is_mapped_to_the_owner_of_the_files() -> None:
    """As Python maps it; once for a place, by a child that is gone afterwards."""
    if not _is_native():
        pytest.skip("there is no native part")
    owner, first = (1234, 56), namespaces.host_id(os.getpid())
    table, nothing = maker_calls._idmap(owner), (Table().compiled(), {})
    slots = tuple(int(table.slots[name]) for name in ("carrier", "id", "mapped"))
    tables = orders.Tables(
        flags=1, tables=(*[nothing] * 7, (table.compiled(), {})), descriptors=[-1] * 6, links=[], passing=[],
        texts=[(orders.PREPARE, -1)] * 3, child=-1, idmap=0, mapping=slots, first_id=first,
    )  # fmt: skip
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        loop = orders.Orders(theirs.fileno())
        loop.add(1, tables)
        before, children = {*os.listdir("/proc/self/fd")}, procfs.children(os.getpid())
        for place in (0, 511, 511):
            socket.send_fds(ours, [b"o\6" + _order(place=place)], [0] * 6)
            for descriptor in loop.serve().rights:
                os.close(descriptor)
        made = sorted(int(name) for name in {*os.listdir("/proc/self/fd")} - before)[:2]
    wanted = [((1234, each), (56, each)) for each in (first, first + 511)]
    assert [_mapped_in(each) for each in made] == wanted
    other = namespaces.mapping_namespace(*owner, first)
    assert _mapped_in(other) == wanted[0] and procfs.children(os.getpid()) == children
    for descriptor in (*made, other):
        os.close(descriptor)


def test_a_table_that_fails_again_closes_nothing_that_has_another_number_by_now(tmp_path: Path) -> None:
    """It closes what it held when it failed. That number may be the network of another place afterwards."""
    if not _is_native():
        pytest.skip("there is no native part")
    wanted, table, nothing = tmp_path / "wanted", Table(), (Table().compiled(), {})
    table.call("openat", -100, str(wanted), os.O_RDONLY | os.O_CLOEXEC, 0, store=table.slot("file"))
    table.call("fchmod", -1, 0)
    tables = orders.Tables(
        flags=1, tables=(*[nothing] * 7, (table.compiled(), {})), descriptors=[-1] * 6, links=[],
        passing=maker_calls._slots(orders.IDMAP, table, "file"), texts=[(orders.PREPARE, -1)] * 3, child=-1, idmap=0,
    )  # fmt: skip
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wanted.touch()
    with ours, theirs:
        loop, opened = orders.Orders(theirs.fileno()), []
        loop.add(1, tables)
        for call in (1, 0):
            socket.send_fds(ours, [b"o\6" + _order()], [0] * 6)
            served = loop.serve()
            assert (served.state, served.table, served.call) == (orders.BACK, orders.IDMAP, call)
            opened += [os.open(os.devnull, os.O_RDONLY), *served.rights]  # the first has the number that was closed
            wanted.unlink(missing_ok=True)
        for descriptor in opened:
            os.close(descriptor)  # an error, if somebody else has closed it


def _mapped_in(namespace: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(inside, on the host) of the one user and the one group that it maps."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        syscalls.call("setns", namespace, 0x10000000)
        with open("/proc/self/uid_map", "rb") as users, open("/proc/self/gid_map", "rb") as groups:
            os.write(writer, users.read() + groups.read())
        os._exit(0)
    os.waitpid(child, 0)
    rows = [tuple(map(int, line.split())) for line in os.read(reader, 4096).splitlines()]
    os.close(reader)
    os.close(writer)
    assert [row[2] for row in rows] == [1, 1]
    return (rows[0][0], rows[0][1]), (rows[1][0], rows[1][1])


# By its cookie (SO_NETNS_COOKIE), which no other namespace ever has.
NETWORK_OF = "import socket, time; print(socket.socketpair()[0].getsockopt(1, 71, 8)); time.sleep({})"


@pytest.mark.parametrize("profile", ["tight", "default"])
def test_networks_are_used_again_and_never_by_two_at_once(profile: str) -> None:
    if not _is_native():
        pytest.skip("there is no native part")
    with Pool(policy_of("strict", syscall_profile=profile, wall_time_s=60), warm=3) as pool:
        after = [pool.run_source(NETWORK_OF.format(0)).stdout for _ in range(24)]
        assert len({*after}) < 24, after
        for _ in range(3):
            at_once = pool.submit_many([NETWORK_OF.format(0.3)] * 3)
            assert len({future.result().stdout for future in at_once}) == 3


# The most sockets that it saw in its network until it was told to end.
WATCH = """
import os, select
most, file = 0, open("/proc/net/unix")
print(1, flush=True)
while not select.select([0], [], [], 0)[0]:
    file.seek(0)
    most = max(most, len(file.readlines()) - 1)
print(most)
"""


@pytest.mark.parametrize("pure", ["", "1"], ids=["loop", "Python"])
def test_a_job_sees_nothing_of_the_making_of_other_sandboxes(pure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A maker is still in the network of one while it makes the next."""
    if pure:
        monkeypatch.setenv("RINGFENCE_PURE", pure)
    begun, (reader, writer) = threading.Semaphore(0), os.pipe()
    sources = (WATCH, WATCH, "import socket; kept = socket.socketpair()\n" + WATCH)
    with Pool(policy_of("strict"), warm=1, at_once=4) as pool, ThreadPoolExecutor(len(sources)) as beside:
        watch = partial(pool.run_source, stdin=reader, on_output=lambda *_: begun.release())
        watching = [beside.submit(watch, source) for source in sources]
        for _ in sources:
            assert begun.acquire(timeout=60)
        assert all(pool.run_source("pass").ok for _ in range(12))
        os.close(writer)
        seen = [future.result().stdout for future in watching]
    os.close(reader)
    assert seen == [b"1\n0\n", b"1\n0\n", b"1\n2\n"], "the last is the control: it has a pair"


# A pair can have a name too, by which others in the namespace could send to it.
NAMED = "import socket; a, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.bind(chr(0) + 'x'); "
# A process that is ended while it waits for the answer to a call, or goes on from one.
ENDED = """
import os, signal, socket
ready, told = os.pipe()
child = os.fork()
while not child:
    socket.socket().close()
    os.write(told, b"x")
os.read(ready, 1)
os.kill(child, signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "using", ["import socket; kept = socket.socket(); ", NAMED, ENDED], ids=["socket", "named pair", "ended meanwhile"]
)
@pytest.mark.parametrize("pure", ["", "1"], ids=["native", "pure"])
def test_a_network_in_which_a_job_has_made_a_socket_is_nobody_elses(
    using: str, pure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pure:
        monkeypatch.setenv("RINGFENCE_PURE", pure)
    with Pool(policy_of("strict"), warm=2) as pool:
        used = [pool.run_source(using + NETWORK_OF.format(0)).stdout for _ in range(8)]
        others = [pool.run_source(NETWORK_OF.format(0)).stdout for _ in range(8)]
    assert len({*used}) == 8 and not {*used} & {*others}, (used, others)


# All that can be read of a network and its settings, but the numbers of the kernel's own sockets, and counts that are
# the whole host's.
READABLE = """
import os, socket
others = {"netlink", "protocols", "rt_cache", "sockstat", "softnet_stat"}
print(socket.socketpair()[0].getsockopt(1, 71, 8))
for top in ("/proc/sys/net/", "/proc/net/"):
    for folder, folders, files in os.walk(top):
        folders.sort()
        for path in (os.path.join(folder, name) for name in sorted({*files} - others)):
            try: print(path, os.stat(path).st_mode, repr(open(path).read()))
            except OSError as error: print(path, error.errno)
"""


def test_what_a_job_reads_of_a_network_that_was_used_before_is_what_it_reads_of_a_new_one() -> None:
    if not _is_native():
        pytest.skip("there is no native part")
    with Pool(policy_of("strict"), warm=0) as pool:
        read = [pool.run_source(READABLE).stdout.partition(b"\n") for _ in range(9)]
    networks, texts = {cookie for cookie, _, _ in read}, {text for _, _, text in read}
    assert len(networks) < 9 and len(texts) == 1 and b"/proc/sys/net/ipv4/tcp_rmem" in texts.pop()


@pytest.mark.parametrize("fields", [
    {"network": ("example.org",)}, {"network": "host", "allow_partial": True},
], ids=["list", "host"])  # fmt: skip
def test_a_network_that_leads_somewhere_is_never_used_again(fields: dict[str, object]) -> None:
    """The host's is the same for all; behind a gateway each sandbox has its own."""
    with Pool(policy_of("strict", **fields), warm=2) as pool:
        found = [pool.run_source(NETWORK_OF.format(0)).stdout for _ in range(8)]
    assert len({*found}) == (1 if fields["network"] == "host" else 8), found


# Place, draft, whether the network is used, and how many are open afterwards. The loop knows draft 1.
FEW_HAVE = ((64, 1, False, 0), (63, 1, False, 1), (64, 1, True, 1), (63, 1, True, 1), (0, 1, False, 2))
COMES_BACK = ((3, 1, False, 1), (3, 2, False, 1), (3, 2, True, 0))


@pytest.mark.parametrize(
    "rows", [FEW_HAVE, COMES_BACK], ids=["of a place that few have", "used, and the order comes back"]
)
def test_some_networks_are_not_kept(rows: tuple[tuple[int, int, bool, int], ...]) -> None:
    """Each takes the kernel's memory as long as its maker lives; and the warden says once that one is used."""
    if not _is_native():
        pytest.skip("there is no native part")
    network, nothing = Table(), Table()
    network.call("openat", -100, "/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC, 0, store=network.slot("network"))
    no, yes = (nothing.compiled(), {}), (network.compiled(), {})
    tables = orders.Tables(
        flags=1, tables=(no, no, no, no, no, no, yes, no), descriptors=[-1] * 6, links=[], passing=[],
        texts=[(orders.PREPARE, -1)] * 3, child=-1, idmap=-1, network=0,
    )  # fmt: skip
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        loop = orders.Orders(theirs.fileno())
        loop.add(1, tables)
        child = os.fork()  # the loop hides the process that it runs in
        if child == 0:
            opened, seen = len(os.listdir("/proc/self/fd")), bytearray()
            for place, draft, is_used, _ in rows:
                socket.send_fds(ours, [b"o\6" + _order(place=place, draft=draft, new_network=is_used)], [0] * 6)
                served = loop.serve()
                seen += b"%d" % (len(os.listdir("/proc/self/fd")) - opened - len(served.rights))
                for descriptor in served.rights:
                    os.close(descriptor)
            ours.send(seen if served.state == orders.BACK else b"these flags make a child")
            os._exit(0)
        os.waitpid(child, 0)
        assert theirs.recv(100) == b"".join(b"%d" % kept for *_, kept in rows)


@pytest.mark.root
def test_a_used_network_is_given_up_also_when_its_order_is_not_carried_out() -> None:
    """The warden says once that it was used: what comes next in that place must not find it."""
    used = "import socket; kept = socket.socket(); " + NETWORK_OF.format(0)
    with Pool(policy_of("strict"), warm=0) as pool:
        before = [pool.run_source(used).stdout for _ in range(4)]
        makers = _makers()
        allowed = [resource.prlimit(maker, resource.RLIMIT_NOFILE) for maker in makers]
        for maker, (_, hard) in zip(makers, allowed, strict=True):
            taken = {int(name) for name in os.listdir(f"/proc/{maker}/fd")}
            room = [number for number in range(len(taken) + 4) if number not in taken][3]  # for three descriptors
            resource.prlimit(maker, resource.RLIMIT_NOFILE, (room, hard))
        for _ in makers:
            with pytest.raises(SetupError):
                pool.run_source("pass")
        for maker, limits in zip(makers, allowed, strict=True):
            resource.prlimit(maker, resource.RLIMIT_NOFILE, limits)
        after = [pool.run_source(NETWORK_OF.format(0)).stdout for _ in range(6)]
        assert not {*before} & {*after} and _makers() == makers, (before, after)
