"""A network list at the level container, on a real Docker engine: the same gateway, attacks and controls as at strict.

Callers and servers live in the namespaces of ``tests/egress_world``: nothing leaves this machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.egress_world import API6, World, WorldError, egress_of
from tests.escape.egress_attacks import ATTACKS, PRELUDE, EgressAttack, is_forbidden
from tests.patience import eventually

from ringfence.container import orphans
from ringfence.container.api import connect
from ringfence.model.outcome import Mechanism

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root]

LISTED = ["api.example.com"]
ALWAYS = frozenset({
    "unlisted-name", "unlisted-address", "address-of-a-listed-name", "metadata", "private-address", "other-port",
    "ipv6-address", "another-host", "connect-unlisted", "socks-address", "another-sni", "dns-to-the-hosts-resolver",
    "dns-tunnel", "ipv4-in-ipv6-of-a-network",
})  # fmt: skip
"""What is tried each time; the rest, which the gateway refuses in the same way at strict, by the soak."""


@pytest.fixture(scope="module")
def world(docker_address: str, python_image: str) -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _nothing_left(world: World, docker_address: str) -> Iterator[None]:
    yield
    client = connect(docker_address)
    owners = [each.labels[orphans.OWNER] for each in client.list(orphans.OWNER)]
    client.close()
    assert not [owner for owner in owners if owner.startswith(f"{world._process.pid}:")], "a container was left behind"


def run(world: World, source: str, network: object = LISTED, **policy: object) -> dict[str, object]:
    argv = ["python3", "-I", "-c", PRELUDE + source]
    return world.run(argv, network, isolation="container", wall_time_s=60, **policy)


def test_what_is_listed_is_reached_by_the_first_word_of_a_program(world: World) -> None:
    world.heard()
    outcome = run(world, "print(tcp('api.example.com', 80, get('api.example.com')))\n"
                         "print(resolvers(), sorted(n for _, n in socket.if_nameindex()))")  # fmt: skip
    told = str(outcome["stdout"])
    assert outcome["status"] == "OK" and "asked" in told and "['lo']" in told, outcome
    assert world.heard()
    assert next(event["decision"] for event in egress_of(outcome) if event["name"] == "api.example.com") == "allowed"
    network = outcome["enforced"]["network"]  # type: ignore[index]
    assert network["applied"] and network["mechanism"] == "network namespace and gateway"
    assert [*network["by"]] == [Mechanism.NETWORK_NAMESPACE, Mechanism.GATEWAY]
    assert outcome["usage"]["network_bytes"] > 0  # type: ignore[index]


def test_an_address_of_ipv6_in_the_list_is_reached(world: World) -> None:
    world.heard()
    outcome = run(world, "print(tcp(API6, 80, get('[' + API6 + ']')))", [f"[{API6}]:80"])
    assert "asked" in str(outcome["stdout"]) and world.heard(), outcome


def test_what_is_refused_is_told_and_limits_hold(world: World) -> None:
    outcome = run(world, "print(tcp('evil.example.net', 80, get('x')))\n"
                         "print(tcp('api.example.com', 80, get('api.example.com')))\n",
                  network_limits={"bytes_in": 10})  # fmt: skip
    told = egress_of(outcome)
    assert "asked" not in str(outcome["stdout"])
    assert [event for event in told if event["decision"] == "refused" and event["name"] == "evil.example.net"], told
    assert [event for event in told if "has received as many bytes" in str(event["reason"])], told


def _tried(attack: EgressAttack) -> object:
    return pytest.param(attack, id=attack.name, marks=[] if attack.name in ALWAYS else [pytest.mark.soak])


def test_those_that_are_tried_each_time_are_there() -> None:
    assert {attack.name for attack in ATTACKS} > ALWAYS


@pytest.mark.parametrize("attack", [_tried(attack) for attack in ATTACKS])
def test_an_attack_fails_and_succeeds_without_a_sandbox(attack: EgressAttack, world: World) -> None:
    world.heard()
    plain = world.control(["python3", "-I", "-c", PRELUDE + (attack.control or attack.probe)])
    assert "ESCAPED" in plain or any(map(is_forbidden, world.heard())), f"the attack proves nothing: {plain}"
    world.heard()
    outcome = run(world, attack.probe, list(attack.network))
    told = (outcome["stdout"], outcome["stderr"], outcome["reason"])
    assert "ESCAPED" not in str(outcome["stdout"]), told
    assert not [row for row in world.heard() if is_forbidden(row)], told
    assert outcome["status"] in ("OK", "FAILED"), told


BROKEN = """
import ringfence
from ringfence.container import network_holder
from ringfence.errors import SetupError
whole = network_holder.lead
network_holder.lead = {broken}
try:
    policy = ringfence.SandboxPolicy.from_dict({{"isolation": "container", "network": ["api.example.com"],
                                               "writable_paths": [{folder!r}]}})
    ringfence.run(["touch", {folder!r} + "/ran"], policy)
except SetupError as error:
    found = str(error)
finally:
    network_holder.lead = whole
"""


@pytest.mark.parametrize(("broken", "words"), [
    ("lambda holder, listeners, gateway: whole('0' * 64, listeners, gateway)", "can't be found"),
    ("lambda holder, listeners, gateway: whole(holder, 0, gateway)", "lead the container's network"),
])  # fmt: skip
def test_without_the_gateway_no_program_runs(world: World, tmp_path: Path, broken: str, words: str) -> None:
    folder = str(tmp_path)
    os.chmod(folder, 0o777)
    found = world.ask(op="execute", code=BROKEN.format(broken=broken, folder=folder))["found"]
    assert words in str(found) and os.listdir(folder) == []


LOST = """
import os, ringfence
from ringfence.egress import client
def kill(*told):
    os.kill(client.pid(), 9)
policy = ringfence.SandboxPolicy.from_dict({"isolation": "container", "network": ["api.example.com"]})
found = ringfence.run(["python3", "-c", '''
import socket, time
link = socket.create_connection(("api.example.com", 80), 20); print("connected", flush=True)
try: print("read" if link.recv(9) else "ended")
except OSError as error: print("reset")
time.sleep(0.2)
try: socket.create_connection(("api.example.com", 443), 10); print("CONNECTED AGAIN")
except OSError as error: print("refused")
'''], policy, on_output=kill).to_dict()
"""


def test_a_lost_gateway_opens_nothing_and_is_told(world: World) -> None:
    outcome = world.ask(op="execute", code=LOST)["found"]
    assert isinstance(outcome, dict)
    assert "gateway" in outcome["reason"] and "CONNECTED AGAIN" not in outcome["stdout"], outcome
    assert outcome["stdout"].split()[0] == "connected" and outcome["stdout"].split()[-1] == "refused", outcome
    assert egress_of(outcome)[-1]["missed"] == 1


def test_the_guest_takes_no_port_of_the_gateways(world: World) -> None:
    outcome = run(world, "own = socket.gethostbyname('api.example.com')\n"
                         "for address, port in (PROXY, (own, 80), (own, 443)):\n"
                         " for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):\n"
                         "  link = socket.socket(); link.setsockopt(socket.SOL_SOCKET, option, 1)\n"
                         "  try: link.bind((address, port)); link.listen(); print('ESCAPED', address)\n"
                         "  except OSError as error: print(error.errno)")  # fmt: skip
    assert outcome["status"] == "OK" and "ESCAPED" not in str(outcome["stdout"]), outcome


def test_a_rule_that_needs_inspection_gives_the_job_an_authority_of_its_own(world: World) -> None:
    rule = {"host": "api.example.com", "methods": ["GET"]}
    source = "import os; print(open(os.environ['SSL_CERT_FILE']).read()[-900:])"
    first, second = (str(run(world, source, [rule])["stdout"]) for _ in range(2))
    assert "END CERTIFICATE" in first and first != second


def test_what_can_not_be_entered_is_refused_by_name(world: World) -> None:
    code = "import os; os.environ['RINGFENCE_RUNTIME'] = {!r}"
    world.ask(op="execute", code=code.format("runsc"))
    try:
        with pytest.raises(WorldError, match="runsc is not known to have"):
            run(world, "pass")
    finally:
        world.ask(op="execute", code=code.format(""))


def test_both_containers_end_with_a_killed_caller(
    docker_address: str, ringfence_command: list[str], tmp_path: Path
) -> None:
    words = [*ringfence_command, "run", "--isolation", "container", "--network", "api.example.com", "--wall", "300",
             "--", "sleep", "250"]  # fmt: skip
    client = connect(docker_address)
    caller = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)  # fmt: skip

    def running() -> int:
        owned = (each for each in client.list(orphans.OWNER) if each.labels[orphans.OWNER].startswith(f"{caller.pid}:"))
        return sum(each.state == "running" for each in owned)

    try:
        eventually(lambda: running() == 2)
        caller.kill()
        caller.wait()
        eventually(lambda: not running())
    finally:
        caller.kill()
        caller.wait()
        client.close()


def test_a_box_has_its_list_and_the_list_may_grow(world: World) -> None:
    policy = {"isolation": "container", "network": LISTED, "wall_time_s": 60}
    reach = ["python3", "-I", "-c", PRELUDE + "print(tcp('api.example.com', 80, get('api.example.com')))"]
    other = ["python3", "-I", "-c", PRELUDE + "print(tcp('other.example.org', 80, get('other.example.org')))"]
    box = world.ask(op="open", policy=policy)["box"]
    try:
        first, refused = world.ask(op="visit", box=box, argv=reach), world.ask(op="visit", box=box, argv=other)
        assert "asked" in str(first["stdout"]) and "asked" not in str(refused["stdout"]), (first, refused)
        assert first["usage"]["network_bytes"] > 0  # type: ignore[index]
        assert [event["decision"] for event in egress_of(refused) if event["name"] == "other.example.org"], refused
        world.ask(op="network", box=box, change="deny", entries=LISTED)
        assert "asked" not in str(world.ask(op="visit", box=box, argv=reach)["stdout"])
        world.ask(op="network", box=box, change="allow", entries=LISTED)
        assert "asked" in str(world.ask(op="visit", box=box, argv=reach)["stdout"])
    finally:
        world.ask(op="shut", box=box)


POOLED = """
import ringfence
policy = ringfence.SandboxPolicy.from_dict({{"isolation": "container", "network": ["api.example.com"]}})
with ringfence.Pool(policy, warm=1) as pool:
    found = pool.run(["python3", "-I", "-c", {source!r}]).stdout.decode()
"""


def test_a_pool_has_its_list(world: World) -> None:
    source = "print(tcp('api.example.com', 80, get('api.example.com')))\nprint(tcp('evil.example.net', 80, get('x')))"
    found = world.ask(op="execute", code=POOLED.format(source=PRELUDE + source))["found"]
    assert str(found).count("asked") == 1, found
