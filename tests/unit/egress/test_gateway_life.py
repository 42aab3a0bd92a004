"""The gateway's life: one per caller, no more than nobody, gone with its caller, replaced when it dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.unit.egress.world import GATEWAY, PRIVATE, PUBLIC, World, echo, in_world, needs_ip

from ringfence.egress import client
from ringfence.egress.upstream import RESOLVERS
from ringfence.errors import SetupError
from ringfence.model.network_rule import NetworkRule

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]
RULES = [NetworkRule.of("api.example.com")]
SRC = Path(client.__file__).parents[2]


@pytest.fixture
def fresh():
    client.shutdown()
    yield
    client.shutdown()


def status(pid: int) -> dict[str, str]:
    rows = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.strip() for name, _, value in rows}


def is_gone(pid: int) -> bool:
    try:
        return status(pid)["State"][0] in "ZX"
    except FileNotFoundError:
        return True


def test_one_gateway_serves_all_sandboxes_of_a_process(fresh) -> None:
    first, second = client.register(RULES), client.register(RULES)
    assert first.pid == second.pid == client.pid()
    assert first.close() == [] and first.totals is not None and first.totals["connections"] == 0
    second.close()
    pid = client.pid()
    client.shutdown()
    assert is_gone(pid)


def test_it_has_nothing_that_is_worth_taking(fresh) -> None:
    registration = client.register(RULES)
    found = status(registration.pid)
    assert found["NoNewPrivs"] == "1" and int(found["CapEff"], 16) == int(found["CapPrm"], 16) == 0
    assert int(found["CapAmb"], 16) == int(found["CapInh"], 16) == 0
    if os.geteuid() == 0:
        assert set(found["Uid"].split()) == set(found["Gid"].split()) == {"65534"} and not found["Groups"]
        assert int(found["CapBnd"], 16) == 0
        links = [
            os.readlink(f"/proc/{registration.pid}/fd/{name}") for name in os.listdir(f"/proc/{registration.pid}/fd")
        ]
        named = [link for link in links if not link.startswith(("socket:", "anon_inode:", "pipe:"))]
        assert set(named) == {"/dev/null"}
        limits = Path(f"/proc/{registration.pid}/limits").read_text()
        assert "Max processes             0                    0" in limits
        assert "Max core file size        0                    0" in limits
        assert Path(f"/proc/{registration.pid}/environ").read_bytes() == b"LD_BIND_NOW=1\0"
    else:
        with pytest.raises(PermissionError):  # its memory is hidden
            os.listdir(f"/proc/{registration.pid}/fd")
    assert int(found["Threads"]) <= 1 + RESOLVERS
    registration.close()


def test_signals_for_the_caller_do_not_end_it(fresh) -> None:
    registration = client.register(RULES)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if os.geteuid() == 0:
            os.kill(registration.pid, number)
    registration.change(RULES)
    assert not registration.lost
    registration.close()


def test_without_the_library_that_it_needs_the_error_names_that_and_what_to_do() -> None:
    """An interpreter of its own, which has our package and the standard library alone."""
    code = f"import sys; sys.path[:0] = [{str(SRC)!r}]; from ringfence.cli import main; sys.exit(main())"
    run = [sys.executable, "-I", "-S", "-c", code, "run"]
    done = subprocess.run([*run, "--network", "api.example.com", "--", "true"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (f"ringfence: {sys.executable} has no Python package h11, which a network list needs\n"
                           f"  {sys.executable} -I -m pip install h11\n")  # fmt: skip
    assert subprocess.run([*run, "--", "true"]).returncode == 0, "nothing else needs it"


def test_one_that_was_killed_is_noticed_and_replaced(fresh) -> None:
    registration = client.register(RULES)
    os.kill(registration.pid, signal.SIGKILL)
    assert eventually(lambda: registration.receive() == [] and registration.lost)
    with pytest.raises(SetupError, match="gateway"):
        registration.change(RULES)
    assert registration.close() == [] and registration.totals is None
    again = client.register(RULES)
    assert again.pid != registration.pid and not again.lost
    again.close()


def test_one_that_was_stopped_is_ended_and_replaced(fresh) -> None:
    first = client.register(RULES)
    os.kill(first.pid, signal.SIGSTOP)
    again = client.register(RULES)
    assert again.pid != first.pid
    assert is_gone(first.pid)
    assert first.receive() == [] and first.lost
    first.close()
    os.kill(again.pid, signal.SIGSTOP)
    assert again.close() == [] and "stopped" in again.lost
    client.shutdown()
    assert is_gone(again.pid)


@pytest.mark.parametrize("number", (signal.SIGKILL, signal.SIGSTOP))
def test_one_that_ends_while_a_sandbox_is_being_registered_is_replaced(fresh, number: int) -> None:
    first = client.register(RULES)
    os.kill(first.pid, number)
    under_way = client.Registering(RULES)
    again = under_way.finish()
    assert again.pid != first.pid and not again.lost
    again.close()
    first.close()


def test_what_is_given_up_while_it_is_registered_leaves_nothing(fresh) -> None:
    kept = client.register(RULES)
    before = len(os.listdir(f"/proc/{kept.pid}/fd")) if os.access(f"/proc/{kept.pid}/fd", os.R_OK) else None
    for _ in range(20):
        client.Registering(RULES).abandon()
    if before is not None:
        assert eventually(lambda: len(os.listdir(f"/proc/{kept.pid}/fd")) == before)
    kept.change(RULES)
    assert not kept.lost
    kept.close()


def test_a_sandbox_that_was_left_open_does_not_hold_up_the_end(fresh) -> None:
    registration = client.register(RULES)
    client.shutdown()
    assert is_gone(registration.pid) and registration.receive() == [] and registration.lost
    registration.close()


def test_bad_limits_are_refused_by_name(fresh) -> None:
    with pytest.raises(SetupError, match="bytes_sideways"):
        client.register(RULES, limits={"bytes_sideways": 3})
    client.register(RULES).close()


def test_fifty_threads_register_at_once(fresh) -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(4):
                registration = client.register(RULES)
                registration.handed_over()
                registration.change(RULES, limits={"connections": 5})
                registration.receive()
                registration.close()
                assert registration.totals is not None
        except BaseException as error:
            problems.append(error)

    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=work) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_the_end_of_the_thread_that_started_it_does_not_end_it(fresh) -> None:
    made: list[client.Registration] = []
    thread = threading.Thread(target=lambda: made.append(client.register(RULES)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    made[0].change(RULES)
    made[0].close()


def test_a_forked_copy_of_the_caller_has_a_gateway_of_its_own(fresh) -> None:
    registration = client.register(RULES)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = client.register(RULES)
            code = 0 if own.pid != registration.pid and registration.lost and not own.lost else 2
            own.close()
            client.shutdown()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    registration.change(RULES)
    registration.close()


CALLER = """
import ctypes, sys, os, threading, time
sys.path.insert(0, {src!r})
from ringfence.egress import client
from ringfence.egress.upstream import RESOLVERS
from ringfence.model.network_rule import NetworkRule
def start():
    global kept
    kept = client.register([NetworkRule.of("api.example.com")])
{how}
if ctypes.CDLL(None).fork() == 0:
    time.sleep(600)  # a copy of the caller, made without Python knowing: it holds the door and the dialogue
print(kept.pid, flush=True)
time.sleep(600)
"""


BY_A_WORKER = "t = threading.Thread(target=start); t.start(); t.join()"


@pytest.mark.parametrize(("how", "stopped"), [("start()", False), (BY_A_WORKER, False), ("start()", True)])
def test_it_dies_with_its_caller(how: str, stopped: bool) -> None:
    caller = subprocess.Popen([sys.executable, "-c", CALLER.format(src=str(SRC), how=how)], stdout=subprocess.PIPE,
                              start_new_session=True)  # fmt: skip
    assert caller.stdout is not None
    pid = int(caller.stdout.readline())
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    caller.kill()
    caller.wait()
    try:
        assert eventually(lambda: is_gone(pid))
    finally:
        os.killpg(caller.pid, signal.SIGKILL)  # the copy


@needs_ip
@in_world
def test_connections_end_when_the_gateway_is_killed(world: World) -> None:
    accepted = world.server(9000, echo, PRIVATE)
    guest = world.guest(f"{PRIVATE}:9000")
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(b"x")
        assert link.recv(1) == b"x"
        os.kill(guest.registration.pid, signal.SIGKILL)
        link.settimeout(30)
        try:
            assert link.recv(1) == b""
        except ConnectionResetError:
            pass
    with pytest.raises(OSError):
        guest.connect(PRIVATE, 9000, timeout=5).recv(1)
    assert eventually(lambda: guest.registration.receive() == [] and guest.registration.lost)
    assert len(accepted) == 1


@needs_ip
@in_world
def test_connections_end_when_the_sandbox_is_closed(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest, other = world.guest(f"{PRIVATE}:9000"), world.guest(f"{PRIVATE}:9000")
    with guest.connect(PRIVATE, 9000) as link, other.connect(PRIVATE, 9000) as kept:
        link.sendall(b"x")
        assert link.recv(1) == b"x"
        (event,) = guest.registration.close()
        assert event["bytes_out"] == event["bytes_in"] == 1 and "closed" in event["reason"]
        try:
            assert link.recv(1) == b""
        except ConnectionResetError:
            pass
        kept.sendall(b"y")
        assert kept.recv(1) == b"y"
    with pytest.raises(ConnectionRefusedError):
        guest.connect(PRIVATE, 9000)


@needs_ip
@in_world
def test_a_refusal_counts_though_its_sandbox_ends_before_it_is_told(world: World) -> None:
    """A refused client is given a moment to show its protocol. A job that ends in it must not have been «allowed»."""
    world.server(9000, echo, PRIVATE)
    guest = world.guest(f"{PRIVATE}:9000", f"{PUBLIC}:9000")
    guest.registration.change(guest.rules[:1])
    with guest.connect(PUBLIC, 9000), guest.connect(PRIVATE, 9000) as allowed:
        allowed.sendall(b"x")
        assert allowed.recv(1) == b"x"  # one loop serves both, the refused one first
        events = [dict(event) for event in guest.registration.close()]
    decisions = {event["address"]: event["decision"] for event in events}
    assert decisions == {PUBLIC: "refused", PRIVATE: "allowed"}, events


@needs_ip
@in_world
def test_rules_change_while_it_runs(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest = world.guest(f"{PRIVATE}:9000")
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(b"x")
        assert link.recv(1) == b"x"
        guest.registration.change([NetworkRule.of("api.example.com")])
        assert link.recv(1) == b""
    with guest.connect(PRIVATE, 9000) as link:
        assert link.recv(1) == b""
    guest.registration.change(guest.rules)
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(b"x")
        assert link.recv(1) == b"x"
        link.shutdown(socket.SHUT_WR)
        assert link.recv(1) == b""
    events = guest.events(3)
    assert [event["decision"] for event in events] == ["ended", "refused", "allowed"]
    assert "taken away" in events[0]["reason"]


@needs_ip
@in_world
def test_a_connection_ends_when_its_rule_comes_to_ask_for_more(world: World) -> None:
    """Nobody has looked into it so far, and nobody can begin to in the middle."""
    world.answers["api.example.com"] = [PUBLIC]
    world.server(9000, echo, PUBLIC)
    guest = world.guest("api.example.com:9000")
    with guest.to("api.example.com", 9000) as link:
        link.sendall(b"\0x")
        assert link.recv(2) == b"\0x"
        guest.registration.change([NetworkRule.of({"host": "api.example.com", "ports": [9000], "methods": ["GET"]})])
        assert link.recv(1) == b""


@needs_ip
@in_world
def test_a_name_loses_the_private_address_that_a_rule_opened_for_it(world: World) -> None:
    world.answers["inside.example.com"] = [PRIVATE]
    world.server(9000, echo, PRIVATE)
    named, opened = NetworkRule.of("inside.example.com:9000"), NetworkRule.of(f"{PRIVATE}:9000")
    guest = world.guest("inside.example.com:9000", f"{PRIVATE}:9000")
    with guest.to("inside.example.com", 9000) as link:
        link.sendall(b"\0x")
        assert link.recv(2) == b"\0x"
        guest.registration.change([named, opened])
        link.sendall(b"\0y")
        assert link.recv(2) == b"\0y"
        guest.registration.change([named])
        assert link.recv(1) == b""


@needs_ip
@in_world
def test_the_hosts_own_address_is_closed_again_below_a_wide_network(world: World) -> None:
    own = socket.create_server((GATEWAY, 9000))
    guest = world.guest(f"{GATEWAY}:9000", "0.0.0.0/0:9000")
    with guest.connect(GATEWAY, 9000) as link, own.accept()[0] as served:
        served.sendall(b"x")
        assert link.recv(1) == b"x"
        guest.registration.change([NetworkRule.of("0.0.0.0/0:9000")])
        assert link.recv(1) == b""
