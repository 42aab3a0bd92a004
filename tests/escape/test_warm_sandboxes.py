"""One guest of a pool finds nothing of another: not in memory, files, environment, descriptors or random numbers.

Every probe is also run where it must find something, as a control.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import Pool, SandboxPolicy, run
from tests.patience import eventually

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

LEVELS = ("process", "strict")
MARKER = "dfb41c0a9e77"
HALVES = f"MARKER = {MARKER[:6]!r} + {MARKER[6:]!r}  # never whole in this source\n"

# Everything that is mapped and readable, the interpreter's own objects and garbage included.
MEMORY = """
import ctypes, re
needle = re.compile((HALF_1 + '[' + HALF_2[0] + ']' + HALF_2[1:]).encode())  # not what it looks for itself
areas = []
with open('/proc/self/maps') as maps:
    for line in maps:
        area, rights, _, _, file = line.split()[:5]
        # Private and not of a file, or changed: the rest is what lies on disk.
        if rights[:2] == 'rw' and '[v' not in line: areas.append([int(part, 16) for part in area.split('-')])
looked, found = 0, False
for start, end in areas:
    data = (ctypes.c_char * (end - start)).from_address(start)
    looked += end - start
    found = found or needle.search(data) is not None
print('looked', looked > 1 << 20, 'found', found)
"""
MEMORY = f"HALF_1, HALF_2 = {MARKER[:6]!r}, {MARKER[6:]!r}\n" + MEMORY

# What can be reached from any object, frame or module, as texts or bytes.
OBJECTS = HALVES + """
import gc, sys
MARKER_BYTES = MARKER.encode()
mine = {id(MARKER), id(MARKER_BYTES), id(globals())}
frames, frame = [], sys._getframe().f_back
while frame is not None:
    frames.append(frame)
    frame = frame.f_back
# Frozen objects are not listed by gc; modules and frames lead to them.
todo = [*gc.get_objects(), *frames, *sys.modules.values(), *(frame.f_locals for frame in frames)]
seen, found = set(mine), []
while todo:
    thing = todo.pop()
    if id(thing) in seen: continue
    seen.add(id(thing))
    if isinstance(thing, str) and MARKER in thing: found.append(thing)
    if isinstance(thing, (bytes, bytearray)) and MARKER_BYTES in thing: found.append(thing)
    todo.extend(gc.get_referents(thing))
print('looked', len(seen) > 10000, 'found', bool(found))
"""
KEPT = f"kept-by-a-job-of-{os.getpid()}"
"""At the process level all share /tmp: somebody else may run this very test."""
LEFT = f"KEPT = {KEPT!r}" + """
import os
from pathlib import Path
names = [name for name in os.listdir('.')]
for top in ('/tmp', '/dev/shm', os.environ.get('TMPDIR', '/tmp'), os.environ['HOME']):
    for folder, folders, files in os.walk(top):
        names += [os.path.join(folder, name) for name in files]
print('found', any(KEPT in name for name in names))
"""
DESCRIPTORS = "import os\nprint(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])"
NUMBERS = """
import random, secrets, uuid, os, tempfile
print(random.random(), random.getrandbits(64), uuid.uuid4(), secrets.token_hex(8), os.urandom(8).hex(),
      next(tempfile._get_candidate_names()))
"""


def _policy(level: str, **fields: object) -> SandboxPolicy:
    return SandboxPolicy.from_dict({"isolation": level, "wall_time_s": 60, "mem_bytes": 1 << 30, **fields})


@pytest.fixture(scope="module", params=LEVELS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(_policy(request.param), warm=3, preload=["random", "uuid", "tempfile"]) as made:
        yield made


def _leave_marks(pool: Pool) -> None:
    """Jobs that are given the marker in every way there is."""
    source = "import sys, os; kept = sys.stdin.read(), open('given').read(), sys.argv, dict(os.environ)\nkept *= 9"
    for _ in range(4):
        outcome = pool.run_source(
            f"mark = {MARKER!r}\n{source}", arguments=[MARKER], stdin=MARKER.encode(), name=f"{MARKER}.py",
            environment={"MARK": MARKER}, files={"given": MARKER.encode() * 9000},
        )  # fmt: skip
        assert outcome.ok, outcome.stderr
        pool.call(lambda text: text * 2, MARKER)


@pytest.mark.parametrize("probe", [MEMORY, OBJECTS], ids=["memory", "objects"])
def test_nothing_that_earlier_jobs_were_given_is_in_the_memory_of_a_later_one(pool: Pool, probe: str) -> None:
    _leave_marks(pool)
    for _ in range(5):  # those that stood by meanwhile, and those that were made since
        outcome = pool.run_source(probe)
        assert outcome.stdout == b"looked True found False\n", outcome


@pytest.mark.parametrize("probe", [MEMORY, OBJECTS], ids=["memory", "objects"])
def test_the_same_probe_finds_what_its_own_job_was_given(pool: Pool, probe: str) -> None:
    outcome = pool.run_source(probe, environment={"MARK": MARKER})
    assert outcome.stdout == b"looked True found True\n", outcome


def test_the_callers_memory_is_not_in_a_guest(pool: Pool) -> None:
    """The marker is in this process' memory all the time; a fork of it would have it."""
    assert pool.run_source(MEMORY).stdout == b"looked True found False\n"
    fork = "import os, sys\nkept = sys.argv[1]\nif os.fork() == 0: exec(sys.argv[2])\nelse: os.wait()"
    plain = subprocess.run([sys.executable, "-c", fork, MARKER, MEMORY], capture_output=True, check=False)
    assert plain.stdout == b"looked True found True\n", plain.stderr


def test_files_of_an_earlier_job_are_gone(pool: Pool) -> None:
    make = "import os\nfor top in ('.', os.environ['TMPDIR'], os.environ['HOME']):\n"
    make += f" open(os.path.join(top, {KEPT!r}), 'w').close()\n"
    for _ in range(4):
        assert pool.run_source(make).ok
    eventually(lambda: pool.run_source(LEFT).stdout == b"found False\n")  # directories are removed while others run
    assert [pool.run_source(LEFT).stdout for _ in range(3)] == [b"found False\n"] * 3
    assert pool.run_source(make + LEFT).stdout == b"found True\n"


# A label that stays leased for a while after its socket, and the counters of the namespace.
LEAVE_IN_NETWORK = """
import socket, struct
here = socket.inet_pton(socket.AF_INET6, "::1")
lease = struct.pack("=16sIBBHHHI", here, socket.htonl(0x12345), 1, 255, 1, 60, 60, 0)
try: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).setsockopt(socket.IPPROTO_IPV6, 32, lease)
except OSError: pass  # a host without IPv6
for _ in range(50): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))
"""
FIND_IN_NETWORK = """
import os
label = "/proc/net/ip6_flowlabel"
labels = open(label).read().count(chr(10)) > 1 if os.path.exists(label) else False
sent = [line.split()[4] for line in open("/proc/net/snmp") if line.startswith("Udp:")][1]
print("found", labels or sent != "0")
"""


def test_nothing_that_an_earlier_job_left_in_its_network_is_in_that_of_a_later_one() -> None:
    """Networks are used again, but none in which a socket was made."""
    with Pool(_policy("strict"), warm=2) as pool:
        assert pool.run_source(LEAVE_IN_NETWORK + FIND_IN_NETWORK).stdout == b"found True\n"
        for _ in range(3):
            assert all(pool.run_source(LEAVE_IN_NETWORK).ok for _ in range(4))
            assert [pool.run_source(FIND_IN_NETWORK).stdout for _ in range(8)] == [b"found False\n"] * 8


# Each of them is held by what waits at the next one, and the last by what waits at itself: the kernel has to find out
# that nobody can reach them any more, and then takes apart one after the other.
LINGER = """
import socket
last = None
for _ in range({}):
    ours, theirs = socket.socketpair()
    if last: socket.send_fds(ours, [b"x"], [last.fileno()])
    last = theirs
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [theirs.fileno(), last.fileno()])
"""
FIND_SOCKETS = "print('found', len(open('/proc/net/unix').readlines()) > 1)"


@pytest.mark.parametrize("profile", ["default", "tight"])
def test_sockets_that_outlive_a_job_are_in_the_network_of_no_later_one(profile: str) -> None:
    """An ordinary user's jobs have one count of what is on its way, so others may leave no room for a while."""
    with Pool(_policy("strict", syscall_profile=profile), warm=0) as pool:
        eventually(lambda: pool.run_source(LINGER.format(60) + FIND_SOCKETS).stdout == b"found True\n")
        eventually(lambda: pool.run_source(LINGER.format(60)).ok)
        assert [pool.run_source(FIND_SOCKETS).stdout for _ in range(6)] == [b"found False\n"] * 6


def test_sockets_that_outlive_a_run_under_the_tight_profile_are_in_the_network_of_no_later_one() -> None:
    """The first one has a network of its own."""
    policy = _policy("strict", syscall_profile="tight")

    def shown(code: str) -> bytes:
        return run(["/usr/bin/python3", "-c", code], policy=policy).stdout

    assert shown(FIND_SOCKETS) == b"found False\n"
    eventually(lambda: shown(LINGER.format(60) + FIND_SOCKETS) == b"found True\n")
    assert [shown(FIND_SOCKETS) for _ in range(3)] == [b"found False\n"] * 3


@pytest.mark.root
def test_descriptors_that_outlive_a_job_on_their_way_are_not_counted_for_a_later_one() -> None:
    """The kernel lets a user have no more of them at a time than one process may have open."""
    send = "import socket; pair = socket.socketpair()\nfor _ in range(30): socket.send_fds(pair[0], [b'x'], [0] * 10)"
    with Pool(_policy("strict", nofile=512), warm=0) as pool:
        assert b"Too many references" in pool.run_source(LINGER.format(400) + send).stderr
        assert pool.run_source(LINGER.format(400)).ok
        assert [pool.run_source(send).stderr for _ in range(6)] == [b""] * 6


@pytest.mark.parametrize("channel", [False, True], ids=["source", "call"])
def test_a_job_has_the_descriptors_that_are_its_own_and_no_others(pool: Pool, channel: bool) -> None:
    shown = [pool.run_source(DESCRIPTORS).stdout for _ in range(3)]
    assert shown == [b"[0, 1, 2, 3]\n"] * 3  # 3: where it says farewell
    listed = "ls /proc/self/fd | tr '\\n' ' '"
    assert pool.run(["sh", "-c", listed]).stdout == b"0 1 2 3 "  # 3: the directory that ls reads
    if channel:
        assert pool.call(_descriptors) == [0, 1, 2, 3, 4]


def _descriptors() -> list[int]:
    import os

    return sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]


def test_no_two_jobs_draw_the_same_random_numbers(pool: Pool) -> None:
    drawn = [pool.run_source(NUMBERS).stdout.split() for _ in range(6)]
    assert all(len(numbers) == 6 for numbers in drawn)
    assert len({number for numbers in drawn for number in numbers}) == 36


def test_the_hash_seed_is_one_for_all_jobs_of_a_pool_and_not_the_callers(pool: Pool) -> None:
    """Documented (ADR 0014); here it also shows that the jobs are forks of one process, as the other tests assume."""
    seen = {pool.run_source("print(hash('seed'))").stdout for _ in range(4)}
    assert len(seen) == 1 and seen != {b"%d\n" % hash("seed")}


def test_a_job_does_not_see_what_an_earlier_one_changed_in_the_interpreter(pool: Pool) -> None:
    change = "import json, builtins, sys; json.loads = None; builtins.len = None; sys.path.clear(); sys.modules.clear()"
    assert pool.run_source(change).status is not None
    for _ in range(4):
        assert pool.run_source("import json; print(len(json.loads('[1]')))").stdout == b"1\n"


@pytest.fixture
def hidden() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stage-", dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        path = Path(name) / f"hidden-{MARKER}"
        path.write_text("contents of the hidden file " + MARKER[::-1])
        path.chmod(0o644)
        yield path


def test_the_names_of_hidden_paths_are_in_no_object_of_a_python_job(hidden: Path) -> None:
    policy = _policy("strict", hidden_paths=(str(hidden),), readable_paths=(str(hidden.parent),))
    with Pool(policy, warm=2) as pool:
        for _ in range(3):
            outcome = pool.run_source(OBJECTS)
            assert outcome.stdout == b"looked True found False\n", outcome
        assert b"No such file" in pool.run_source(f"open({str(hidden)!r})").stderr
    with Pool(_policy("strict", readable_paths=(str(hidden.parent),)), warm=1) as pool:
        assert pool.run_source(f"print(open({str(hidden)!r}).read())").stdout.startswith(b"contents")


def test_the_contents_of_hidden_paths_are_nowhere_in_the_memory_of_a_python_job(hidden: Path) -> None:
    policy = _policy("strict", hidden_paths=(str(hidden),), readable_paths=(str(hidden.parent),))
    reverse = MARKER[::-1]
    probe = MEMORY.replace(repr(MARKER[:6]), repr(reverse[:6])).replace(repr(MARKER[6:]), repr(reverse[6:]))
    with Pool(policy, warm=2) as pool:
        assert pool.run_source(probe).stdout == b"looked True found False\n"
        assert pool.run_source(probe, environment={"MARK": reverse}).stdout == b"looked True found True\n"
