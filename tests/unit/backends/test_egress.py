"""A sandbox with a network list: through the gateway it reaches what is listed, by every door, and all is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.egress_world import API, EVIL, World, WorldError, egress_of

from ringfence.backends import egress_link
from ringfence.errors import UnavailableError
from ringfence.model.network_rule import NetworkRule
from ringfence.sandbox.networks import CERTIFICATES, TRUST_VARIABLES

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

FETCH = ["curl", "-sS", "-m", "20"]
LISTED = ["api.example.com"]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def _policy(network: object = LISTED, **more: object) -> dict[str, object]:
    return {"isolation": "strict", "network": network, **more}


def _answer(outcome: dict[str, object]) -> dict[str, object]:
    assert outcome["status"] == "OK", (outcome["reason"], outcome["stderr"], outcome["events"])
    found: dict[str, object] = json.loads(str(outcome["stdout"]))
    return found


def test_a_listed_name_is_resolved_and_fetched_and_told(world: World) -> None:
    world.heard()
    outcome = world.run([*FETCH, "http://api.example.com/path"], LISTED)
    assert _answer(outcome)["asked"] == "GET /path HTTP/1.1"
    (told,) = egress_of(outcome)
    assert (told["decision"], told["name"], told["port"]) == ("allowed", "api.example.com", 80)
    assert told["address"] == API and told["rule"] == "api.example.com"
    assert str(told["process"]).startswith("curl (pid ")
    moved = told["bytes_in"] + told["bytes_out"]  # type: ignore[operator]
    assert outcome["usage"]["network_bytes"] >= moved > 200  # type: ignore[index]
    assert [row[:2] for row in world.heard()] == [[API, 80]]


def test_tls_goes_through_to_the_server(world: World) -> None:
    outcome = world.run([*FETCH, "-k", "https://api.example.com/"], LISTED)
    assert _answer(outcome)["headers"]["host"] == "api.example.com"  # type: ignore[index]
    assert [row["protocol"] for row in egress_of(outcome)] == ["tls"]


def test_a_name_that_is_not_listed_is_refused_with_what_to_do_and_nobody_hears_of_it(world: World) -> None:
    world.heard()
    outcome = world.run([*FETCH, "http://evil.example.net/"], LISTED)
    assert outcome["status"] == "FAILED" and outcome["stdout"] == ""
    (told,) = [row for row in egress_of(outcome) if row["decision"] == "refused"]
    assert told["name"] == "evil.example.net" and "evil.example.net" in str(told["reason"])
    assert world.heard() == []


def test_an_address_that_nobody_listens_for_is_in_the_same_stream(world: World) -> None:
    """The gateway never sees it; the recorder sees the call."""
    world.heard()
    code = (f"import socket\nfor port in (80, 81):\n try: socket.create_connection(('{EVIL}', port), 5)\n"
            " except OSError as e: print(e.errno)\nsocket.create_connection(('api.example.com', 443), 5)")  # fmt: skip
    outcome = world.python(code, LISTED)
    events = [event for event in outcome["events"] if event["kind"] == "egress"]  # type: ignore[attr-defined]
    paths = [event["details"].get("path") for event in events]
    assert f"{EVIL}:80" in paths and f"{EVIL}:81" in paths, events
    times = [event["time_s"] for event in outcome["events"]]  # type: ignore[attr-defined]
    assert times == sorted(times)
    assert [row[:2] for row in world.heard() if row[0] == EVIL] == []


def test_the_table_says_what_holds_it_and_the_rules(world: World) -> None:
    entry = world.run(["true"], ["api.example.com", "10.1.2.0/24:5432"])["enforced"]["network"]  # type: ignore[index]
    assert entry["applied"] and entry["by"][:2] == ["network_namespace", "gateway"]
    assert "api.example.com, 10.1.2.0/24:5432" in entry["details"]
    assert entry["requested"] == ["api.example.com", "10.1.2.0/24:5432"]


def test_the_job_has_no_socket_but_its_own_and_the_resolver_in_its_configuration(world: World) -> None:
    code = ("import os\nprint(open('/etc/resolv.conf').read().strip())\n"
            "print([n for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n) and "
            "os.readlink('/proc/self/fd/' + n).startswith('socket:')])")  # fmt: skip
    assert world.python(code, LISTED)["stdout"] == "nameserver 127.64.0.1\n[]\n"


def test_the_guests_own_servers_keep_their_ports(world: World) -> None:
    code = ("import socket\nfor host, port in (('127.0.0.1', 8080), ('127.0.0.1', 4430), ('0.0.0.0', 8000)):\n"
            " s = socket.create_server((host, port))\n"
            " socket.create_connection(('127.0.0.1', port), 5)\nprint('served')")  # fmt: skip
    assert world.python(code, LISTED)["stdout"] == "served\n"


def test_a_client_that_names_no_server_passes_only_where_the_rule_says_so(world: World) -> None:
    code = ("import socket, ssl\ncontext = ssl.create_default_context()\ncontext.check_hostname = False\n"
            "context.verify_mode = ssl.CERT_NONE\nlink = socket.create_connection(('api.example.com', 443), 20)\n"
            "print(context.wrap_socket(link).version())")  # fmt: skip
    assert "SNI" in str(egress_of(world.python(code, LISTED))[0]["reason"])
    outcome = world.python(code, [{"host": "api.example.com", "sni": "optional"}])
    assert str(outcome["stdout"]).startswith("TLS"), outcome["stderr"]


LIMITS = [
    ({"bytes_in": 10}, "has received as many bytes"),
    ({"bytes": 100}, "has moved as many bytes"),
    ({"connections": 1}, "as many as its policy allows"),
]


@pytest.mark.parametrize(("limits", "said"), LIMITS)
def test_the_limits_of_a_policy_are_held_by_the_gateway(world: World, limits: dict[str, int], said: str) -> None:
    code = ("import socket\nlinks = [socket.create_connection(('api.example.com', 80), 20) for _ in range(2)]\n"
            "for link in links:\n"
            " try: link.sendall(b'GET / HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n'); link.recv(99999)\n"
            " except OSError: pass")  # fmt: skip
    held, free = (world.python(code, LISTED, network_limits=given) for given in (limits, {}))
    assert any(said in str(row["reason"]) for row in egress_of(held)), egress_of(held)
    assert not any(said in str(row["reason"]) for row in egress_of(free))


# ---- boxes


def test_a_box_reaches_what_is_listed_in_every_visit_and_its_list_can_be_changed(world: World) -> None:
    world.heard()
    box = world.ask(op="open", policy=_policy(["api.example.com", "www.example.com"]))["box"]
    fetch = {"op": "visit", "box": box, "argv": [*FETCH, "http://api.example.com/"]}
    for _ in range(2):
        outcome = world.ask(**fetch)
        assert _answer(outcome)["asked"] == "GET / HTTP/1.1"
        (told,) = egress_of(outcome)
        assert told["decision"] == "allowed" and "curl" in str(told["process"]), "what ended with it is told with it"
        assert 200 < outcome["usage"]["network_bytes"] < 1000  # type: ignore[index]
    denied = world.ask(op="network", box=box, change="deny", entries=["api.example.com"])
    assert denied["rules"] == ["www.example.com"]
    world.heard()
    outcome = world.ask(**fetch)
    assert outcome["status"] == "FAILED" and world.heard() == []
    assert [row["operation"] for row in egress_of(outcome) if row["decision"] == "changed"] == ["deny"]
    world.ask(op="network", box=box, change="allow", entries=["api.example.com"])
    assert _answer(world.ask(**fetch))["asked"] == "GET / HTTP/1.1"
    world.ask(op="shut", box=box)


def test_what_comes_to_the_list_of_a_box_is_reached_without_a_proxy_until_it_is_taken_away(world: World) -> None:
    box = world.ask(op="open", policy=_policy())["box"]

    def fetch(host: str) -> dict[str, object]:
        return world.ask(op="visit", box=box, argv=[*FETCH, f"http://{host}/"])

    def change(which: str, *entries: str) -> None:
        world.ask(op="network", box=box, change=which, entries=[*entries])

    assert fetch("www.example.com")["status"] == "FAILED"
    for _ in range(2):
        change("allow", "www.example.com", "*.pypi.example.org", f"{EVIL}:80")
        for host in ("www.example.com", "files.pypi.example.org", "api.example.com", EVIL):
            outcome = fetch(host)
            assert _answer(outcome)["asked"] == "GET / HTTP/1.1"
            (told,) = [row for row in egress_of(outcome) if row["decision"] != "changed"]
            assert told["decision"] == "allowed" and "curl" in str(told["process"])
        change("deny", "www.example.com", "*.pypi.example.org", f"{EVIL}:80")
        world.heard()
        for host in ("www.example.com", "files.pypi.example.org", EVIL):
            assert fetch(host)["status"] == "FAILED"
        assert world.heard() == []
    assert _answer(fetch("api.example.com"))["asked"] == "GET / HTTP/1.1"
    world.ask(op="shut", box=box)


def test_a_port_that_a_program_of_the_box_has_taken_is_told(world: World) -> None:
    box = world.ask(op="open", policy=_policy())["box"]
    code = ("import os, socket, time\ns = socket.create_server(('0.0.0.0', 8080))\n"
            "if os.fork(): os._exit(0)\ntime.sleep(300)")  # fmt: skip
    world.ask(op="visit", box=box, argv=[sys.executable, "-I", "-c", code])
    world.ask(op="network", box=box, change="allow", entries=["www.example.com:80,8080"])
    outcome = world.ask(op="visit", box=box, argv=[*FETCH, "http://www.example.com/"])
    assert _answer(outcome)["asked"] == "GET / HTTP/1.1"
    (told,) = [row for row in egress_of(outcome) if row["decision"] == "refused"]
    assert (told["name"], told["port"]) == ("www.example.com", 8080) and "use the proxy" in str(told["reason"])
    world.ask(op="shut", box=box)


TAKING = """
import socket
def take(family, kind, address, port):
    link = socket.socket(family, kind)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT): link.setsockopt(socket.SOL_SOCKET, option, 1)
    if family == socket.AF_INET6: link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        link.bind((address, port))
        if kind == socket.SOCK_STREAM: link.listen()
        print('TOOK', address, port)
    except OSError: pass
    link.close()
UDP, TCP = socket.SOCK_DGRAM, socket.SOCK_STREAM
PLACES = ((UDP, '127.64.0.1', 53), (TCP, '127.64.0.1', 53), (TCP, '127.64.0.2', 3128), (TCP, '127.64.1.0', 443))
for kind, own, port in PLACES:
    for family, address in ((2, own), (2, '0.0.0.0'), (10, '::ffff:' + own), (10, '::')):
        take(family, kind, address, port)
take(2, TCP, '127.0.0.1', 53)
"""


def test_programs_of_a_box_may_have_low_ports_but_none_of_the_gateways(world: World) -> None:
    box = world.ask(op="open", policy=_policy())["box"]
    outcome = world.ask(op="visit", box=box, argv=[sys.executable, "-I", "-c", TAKING])
    world.ask(op="shut", box=box)
    assert outcome["stdout"] == "TOOK 127.0.0.1 53\n", outcome["stderr"]


def test_a_box_denies_only_what_is_in_its_list(world: World) -> None:
    box = world.ask(op="open", policy=_policy())["box"]
    with pytest.raises(WorldError, match="is not in the network list"):
        world.ask(op="network", box=box, change="deny", entries=["other.example.com"])
    world.ask(op="shut", box=box)
    bare = world.ask(op="open", policy=_policy("none"))["box"]
    with pytest.raises(WorldError, match="no network list"):
        world.ask(op="network", box=bare, change="allow", entries=["api.example.com"])
    world.ask(op="shut", box=bare)


# ---- pools


def test_sandboxes_that_stood_by_have_sockets_of_their_own(world: World) -> None:
    for path in ("one", "two", "three"):
        outcome = world.ask(op="pooled", argv=[*FETCH, f"http://api.example.com/{path}"], policy=_policy())
        assert _answer(outcome)["asked"] == f"GET /{path} HTTP/1.1"
        assert [row["decision"] for row in egress_of(outcome)] == ["allowed"]


# ---- a gateway that is gone


KILL = """
import os, signal, ringfence
from ringfence.egress import client
def kill(stream, data):
    if b"connected" in data: os.kill(client.pid(), signal.SIGKILL)
policy = ringfence.SandboxPolicy(isolation="strict", network=["api.example.com"])
outcome = ringfence.run([{python!r}, "-I", "-c", '''
import socket, time
link = socket.create_connection(("api.example.com", 443), 10)
print("connected", flush=True)
try: print(repr(link.recv(10)))
except OSError as error: print("reset")
time.sleep(0.2)
try: socket.create_connection(("api.example.com", 443), 10); print("CONNECTED AGAIN")
except OSError as error: print("refused")
'''], policy, on_output=kill)
again = ringfence.run(["curl", "-sS", "-m", "20", "http://api.example.com/"], policy)
found = [outcome.to_dict(), again.to_dict()]
"""


def test_a_lost_gateway_is_told_and_nothing_is_opened_instead(world: World) -> None:
    outcome, again = world.ask(op="execute", code=KILL.format(python=sys.executable))["found"]  # type: ignore[misc]
    assert "gateway" in outcome["reason"] and "CONNECTED AGAIN" not in outcome["stdout"], outcome
    last = egress_of(outcome)[-1]
    assert (last["decision"], last["missed"]) == ("ended", 1), "evidence counts it as not all told"
    assert outcome["stdout"].splitlines()[0] == "connected" and outcome["stdout"].splitlines()[-1] == "refused"
    assert again["status"] == "OK", "the next one has a new gateway"


BETWEEN = """
import os, signal, ringfence
from ringfence.egress import client
from tests.patience import eventually
from ringfence.kernel.proc import procfs
policy = ringfence.SandboxPolicy(isolation="strict", network=["api.example.com"])
def end():
    pid = client.pid()
    os.kill(pid, {signal})
    eventually(lambda: procfs.is_stopped(pid) or not client._current.usable())
with {opened} as place:
    outcomes = [place.run(["true"])]
    {ready}
    end()
    outcomes += [place.run(["true"]) for _ in range(3)]
found = [each.to_dict() for each in outcomes]
"""
SIGNALS = ("signal.SIGKILL", "signal.SIGSTOP")


@pytest.mark.parametrize("signal", SIGNALS)
def test_every_visit_without_a_gateway_says_so_in_its_record(world: World, signal: str) -> None:
    """Nobody decided what it asked for: evidence must not count any of them as all told."""
    code = BETWEEN.format(signal=signal, opened="ringfence.open(policy)", ready="")
    first, *others = world.ask(op="execute", code=code)["found"]  # type: ignore[misc]
    assert egress_of(first) == [] and first["status"] == "OK"
    for outcome in others:
        assert "the gateway" in outcome["reason"], outcome
        assert [row["missed"] for row in egress_of(outcome)] == [1]


@pytest.mark.parametrize("signal", SIGNALS)
def test_no_job_gets_a_sandbox_that_stood_by_while_its_gateway_went(world: World, signal: str) -> None:
    ready = "eventually(lambda: len(place._warm) == 2)"
    code = BETWEEN.format(signal=signal, opened="ringfence.Pool(policy, warm=2)", ready=ready)
    for outcome in world.ask(op="execute", code=code)["found"]:  # type: ignore[attr-defined]
        assert (outcome["status"], egress_of(outcome)) == ("OK", []) and "gateway" not in outcome["reason"], outcome


# ---- inspection


def test_a_rule_that_needs_inspection_gives_the_sandbox_an_authority_of_its_own(world: World) -> None:
    rule = {"host": "api.example.com", "methods": ["GET"]}
    script = f"cat {CERTIFICATES}; env"
    first, second = (str(world.run(["sh", "-c", script], [rule])["stdout"]) for _ in range(2))
    assert "BEGIN CERTIFICATE" in first and first.count("BEGIN CERTIFICATE") >= 1
    for name in TRUST_VARIABLES:
        assert f"{name}={CERTIFICATES}" in first
    assert first != second, "each has another"
    assert CERTIFICATES not in str(world.run(["env"], LISTED)["stdout"])


def test_the_callers_own_authorities_are_those_of_the_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_bytes(b"OWN")
    (tmp_path / "systems.pem").write_bytes(b"SYSTEM\n")
    monkeypatch.setattr(egress_link, "_BUNDLES", (str(tmp_path / "absent.pem"), str(tmp_path / "systems.pem")))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert egress_link._bundle() == b"SYSTEM\n"
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
    assert egress_link._bundle() == b"OWN\n"


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_variable_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY_KEY", value)
    rule = NetworkRule.of({"host": "api.example.com", "inject": {"header": "x-key", "from_env": "EMPTY_KEY"}})
    with pytest.raises(UnavailableError, match="EMPTY_KEY"):
        egress_link.secrets_of((rule,))


def test_what_is_to_be_injected_must_be_there(world: World) -> None:
    rule = {"host": "api.example.com", "inject": {"header": "x-key", "from_env": "NO_SUCH_VARIABLE"}}
    with pytest.raises(WorldError, match="NO_SUCH_VARIABLE"):
        world.run(["true"], [rule])


# ---- other doors


MANAGED = """
import tempfile, ringfence
from pathlib import Path
from ringfence import ResourceLimits, SandboxConfig, SandboxManager
with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
    (Path(folder) / "work").mkdir()
    config = SandboxConfig(allowed_paths=[Path(folder) / "work"], sandbox_root=Path(folder) / "root",
                           isolation_level="strict", allow_network=True, allowed_hosts=["api.example.com"],
                           resource_limits=ResourceLimits(max_network_kb=100))
    with SandboxManager(config) as manager:
        sandbox = manager.create_sandbox()
        found = []
        for size in (2000, 3000000):
            url = "http://api.example.com/?bytes=%d" % size
            result = manager.run(sandbox, ["curl", "-sS", "-o", "/dev/null", "-m", "20", url])
            usage = result.resource_usage.network_kb
            found.append([str(result.status), result.success, usage, result.reason])
"""


def test_a_manager_reaches_its_hosts_and_holds_its_bytes(world: World) -> None:
    small, large = world.ask(op="execute", code=MANAGED)["found"]  # type: ignore[misc]
    assert small[:2] == ["OK", True] and 1 < small[2] < 10, small
    assert large[:2] == ["NETWORK_LIMIT", False] and 90 < large[2] < 400, large


def test_the_command_line_says_what_to_add(world: World) -> None:
    flags = ["--discard", "--here-anyway", "--network", "api.example.com", "--"]
    command = [sys.executable, "-m", "ringfence", "run", *flags]
    told = world.control([*command, *FETCH, "http://evil.example.net/"])
    (line,) = [line for line in told.splitlines() if line.startswith("ringfence: refused")]
    assert "evil.example.net" in line and 'add "evil.example.net' in line
    told = world.control([*command[:4], "--json", *command[4:], *FETCH, "http://api.example.com/"])
    outcome = json.loads(told)
    assert [row["decision"] for row in egress_of(outcome)] == ["allowed"], outcome


KEPT = """
import tempfile, time, ringfence
from ringfence.backends import process_images
from ringfence.errors import CheckpointError
from ringfence.kernel.criu import processes as members
policy = ringfence.SandboxPolicy(isolation="strict", network=["api.example.com"])
with ringfence.open(policy) as box, tempfile.TemporaryDirectory() as folder:
    code = ("import socket, time; s = socket.create_connection(('api.example.com', 443), 10); "
            "print(1, flush=True); time.sleep(60)")
    handle = box.start([{python!r}, "-I", "-c", code])
    while b"1" not in handle.stdout and not handle.done:
        time.sleep(0.01)
    confinement = box.confinement()
    stopped = members.Stopped(confinement.first)
    try:
        process_images.dump(confinement, stopped, folder)
    except CheckpointError as error:
        found = str(error)
    finally:
        stopped.resume()
"""


@pytest.mark.root
def test_a_process_with_a_connection_through_the_gateway_is_not_kept(world: World) -> None:
    told = world.ask(op="execute", code=KEPT.format(python=sys.executable))["found"]
    assert "can't be checkpointed" in str(told) and "through the gateway" in str(told) and ":443" in str(told), told


MANY = """
import threading, ringfence
policy = ringfence.SandboxPolicy(isolation="strict", network=["api.example.com"], pids_max=64)
outcomes = []
with ringfence.open(policy) as box:
    def fetch(number):
        outcomes.append(box.run(["curl", "-sS", "-m", "20", "http://api.example.com/%d" % number]))
    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(6)]
    [each.start() for each in threads]
    [each.join() for each in threads]
found = [[each.to_dict() for each in outcomes], threading.active_count()]
"""


def test_visits_at_the_same_time_each_end_and_every_connection_is_told_once(world: World) -> None:
    outcomes, _ = world.ask(op="execute", code=MANY)["found"]  # type: ignore[misc]
    assert [each["status"] for each in outcomes] == ["OK"] * 6
    told = [row for each in outcomes for row in egress_of(each)]
    assert [row["decision"] for row in told] == ["allowed"] * 6


BESIDE = """
import ringfence
with ringfence.open(ringfence.SandboxPolicy(isolation="strict", network=["api.example.com"])) as box:
    box.start(["sleep", "1000"])
    ran = [box.run(["curl", "-sS", f"http://a{number}.example.org"]) for number in range(8)]
    found = [[event.details["name"] for event in each.events if "decision" in event.details] for each in ran]
"""


def test_a_program_in_the_background_takes_no_refusal_from_the_result_of_another(world: World) -> None:
    found = world.ask(op="execute", code=BESIDE)["found"]
    assert found == [[f"a{number}.example.org"] for number in range(8)]


MEASURED = """
import time, ringfence
from ringfence.kernel.proc.open_files import DescriptorBudget
from ringfence.model.record import replace
from ringfence.monitor.meter import Meter
policy = ringfence.SandboxPolicy(isolation="strict", network=["api.example.com"])
found = []
with ringfence.open(policy) as box:
    box.start(["sleep", "60"])
    fetch = ["curl", "-sS", "-o", "/dev/null", "-m", "20", "http://api.example.com/?bytes=300000"]
    for source in (box.watchable, replace(box.watchable, network=None)):
        meter = Meter(source, DescriptorBudget(100), time.monotonic, float("inf"))
        before = meter.measure(whole=True).network_bytes
        assert box.run(fetch).ok
        found.append(meter.measure(whole=True).network_bytes - before)
        meter.close()
"""


def test_its_bytes_are_measured_by_whom_the_gateway_tells_and_by_others(world: World) -> None:
    """``ringfence top`` looks at sandboxes of others, and sees what moved over their loopback."""
    told, seen = world.ask(op="execute", code=MEASURED)["found"]  # type: ignore[misc]
    assert 300_000 < told < 302_000 and 300_000 < seen < 400_000, (told, seen)


STOPPED = """
import os, signal, ringfence
from ringfence.egress import client
policy = ringfence.SandboxPolicy(isolation="strict", network=["api.example.com"])
assert ringfence.run(["true"], policy).ok
stopped = client.pid()
def stop(stream, data):
    if b"on" in data: os.kill(stopped, signal.SIGSTOP)
script = "echo on; sleep 1; curl -sS -m 2 http://api.example.com/"
outcome = ringfence.run(["sh", "-c", script], policy, on_output=stop)
again = ringfence.run(["curl", "-sS", "-m", "20", "http://api.example.com/"], policy)
found = [outcome.to_dict(), again.to_dict(), client.pid() != stopped]
"""


def test_a_stopped_gateway_is_told_and_the_next_run_has_another(world: World) -> None:
    outcome, again, is_another = world.ask(op="execute", code=STOPPED)["found"]  # type: ignore[misc]
    assert outcome["status"] == "FAILED" and "stopped the gateway" in outcome["reason"], outcome
    assert again["status"] == "OK" and is_another
