"""The host's network under STRICT for those who say so: it is there, and nothing else of the host comes with it."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import Pool, SandboxPolicy, UnavailableError, run
from ringfence.backends import tables
from ringfence.engine.planned import planned
from ringfence.kernel import listening
from ringfence.model.outcome import Mechanism
from ringfence.sandbox import filters, networks
from ringfence.sandbox.root import NETWORK_SETTINGS

pytestmark = [pytest.mark.system, pytest.mark.privileges]

STRICT = SandboxPolicy(isolation="strict")
HOST = SandboxPolicy(isolation="strict", network="host")


def _answers(server: socket.socket) -> None:
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        peer.sendall(b"answer")
        peer.close()


@pytest.fixture(params=["TCP", "abstract"])
def address(request: pytest.FixtureRequest) -> Iterator[tuple[str, object]]:
    """A server on the host's loopback, and one with a name that only the network namespace keeps."""
    server = socket.socket(socket.AF_INET if request.param == "TCP" else socket.AF_UNIX)
    server.bind(("127.0.0.1", 0) if request.param == "TCP" else f"\0ringfence-test-{os.getpid()}")
    server.listen()
    threading.Thread(target=_answers, args=(server,), daemon=True).start()
    yield request.param, server.getsockname()
    server.close()


def _asking(name: object) -> list[str]:
    family = "AF_UNIX" if isinstance(name, bytes) else "AF_INET"
    return [sys.executable, "-c", f"import socket\ns = socket.socket(socket.{family})\ns.connect({name!r})\n"
            "print(s.recv(9).decode())"]  # fmt: skip


def test_it_reaches_the_hosts_servers_and_no_abstract_socket(address: tuple[str, object]) -> None:
    kind, name = address
    command = _asking(name)
    expected = b"answer\n" if kind == "TCP" else b""
    assert run(command, SandboxPolicy()).stdout == b"answer\n", "the control"
    assert run(command, STRICT).stdout == b""
    assert run(command, HOST).stdout == expected
    with ringfence.open(HOST) as box:
        assert box.run(command).stdout == expected


# The first is a number that the kernel gives no second time.
_LOOK = """
import socket
pair = socket.socketpair()
print(int.from_bytes(pair[0].getsockopt(socket.SOL_SOCKET, 71, 8), "little"))
print(len(open("/proc/net/unix").readlines()), open("/proc/net/dev").read().split("lo:")[1].split())
"""


def _found(policy: SandboxPolicy) -> tuple[bytes, bytes]:
    which, rest = run([sys.executable, "-I", "-S", "-c", _LOOK], policy).stdout.splitlines()
    return which, rest


def test_a_tight_job_comes_into_a_network_that_another_was_in_and_finds_a_new_one() -> None:
    tight = SandboxPolicy(isolation="strict", syscall_profile="tight")
    fresh = _found(STRICT)[1]
    seen: set[bytes] = set()
    for _ in range(30):  # who comes before the last one is collected gets another
        which, rest = _found(tight)
        assert rest == fresh and rest.startswith(b"3 ['0'"), "its own pair below the header, and no packet"
        if which in seen:
            break
        seen.add(which)
    else:
        pytest.fail("none was used again")


def test_a_default_job_never_does() -> None:
    assert len({_found(STRICT)[0] for _ in range(5)}) == 5


def test_the_result_says_whose_network_it_is() -> None:
    entry = run(["true"], HOST).enforced["network"]
    assert entry.applied and entry.requested == "host" and "the host's own" in entry.details


def test_names_are_looked_up_as_on_the_host() -> None:
    told = run(["cat", "/etc/resolv.conf", "/etc/hosts"], HOST).stdout.decode()
    assert told == Path("/etc/resolv.conf").read_text() + Path("/etc/hosts").read_text()
    assert run(["cat", "/etc/resolv.conf"], STRICT).stdout == b""


def test_the_hosts_settings_stay_as_they_are() -> None:
    before = Path("/proc/sys/net/ipv4/tcp_rmem").read_text()
    script = "cd /proc/sys/net/ipv4; cat tcp_rmem; for name in *; do echo 1 > $name && echo ESCAPED; done; true"
    outcome = run(["sh", "-c", script], HOST)
    assert outcome.stdout.decode() == before == Path("/proc/sys/net/ipv4/tcp_rmem").read_text()


@pytest.mark.parametrize("pure", ["", "1"], ids=["loop", "Python"])
def test_networks_of_pools_have_their_own_settings(pure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job makes a socket, so that the next one gets a network that is made for it."""
    monkeypatch.setenv("RINGFENCE_PURE", pure)
    read = "import socket; socket.socket(); print(open('/proc/sys/net/ipv4/tcp_rmem').read().split())"
    here = Path("/proc/sys/net/ipv4/tcp_rmem").read_text()
    with Pool(STRICT, warm=2) as pool:
        found = {pool.run_source(read).stdout.decode() for _ in range(6)}
    assert found == {f"{NETWORK_SETTINGS['net/ipv4/tcp_rmem'].split()}\n"}
    assert Path("/proc/sys/net/ipv4/tcp_rmem").read_text() == here != NETWORK_SETTINGS["net/ipv4/tcp_rmem"]


def test_processes_and_files_of_the_host_stay_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("PRIVATE")
    outcome = run(["sh", "-c", f"cat {tmp_path}/secret; kill -0 {os.getpid()} && echo ESCAPED"], HOST)
    assert outcome.stdout == b"", outcome.stdout


def test_it_goes_with_writable_paths(tmp_path: Path) -> None:
    policy = HOST.with_changes(writable_paths=(str(tmp_path),))
    assert run(["touch", f"{tmp_path}/new"], policy).ok and (tmp_path / "new").exists()


@pytest.mark.parametrize(("abi", "name", "mechanism"), [(5, "unix_pairs", "seccomp"), (6, "layered", "Landlock")])
def test_where_landlock_can_not_close_abstract_sockets_the_filter_does(
    abi: int, name: str, mechanism: str
) -> None:
    assert filters.profile_name(HOST, abi) == name
    assert networks.enforced(HOST, abi)["network"].mechanism == mechanism


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_list_is_refused_where_there_is_no_namespace(isolation: str) -> None:
    with pytest.raises(UnavailableError, match="network"):
        run(["true"], SandboxPolicy(isolation=isolation, network=("a.example",)))


def test_a_list_of_ipv6_takes_a_kernel_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "has_ipv6", lambda: False)
    listed = STRICT.with_changes(network=["a.example", "[2001:db8::1]:443"])
    (lack,) = networks.lacks(listed)
    assert lack.capability == "network" and "IPv6" in lack.missing
    assert networks.lacks(STRICT.with_changes(network=["a.example", "192.0.2.1"])) == []
    entry = tables.of_strict(listed, [lack])["network"]
    assert not entry.applied and not networks.by_gateway({"network": entry})


def test_a_list_is_held_by_a_gateway_and_the_plan_says_how() -> None:
    listed = STRICT.with_changes(network=["a.example:443", {"host": "b.example", "methods": ["GET"]}])
    entry = tables.of_strict(listed, ())["network"]
    assert entry.by == (Mechanism.NETWORK_NAMESPACE, Mechanism.GATEWAY) and "a.example:443, b.example" in entry.details
    assert networks.variables(listed) == dict.fromkeys(networks.TRUST_VARIABLES, networks.CERTIFICATES)
    assert networks.variables(STRICT.with_changes(network=["a.example"])) == {} == networks.variables(STRICT)
    rows = [row for row in planned(listed) if row.process == "pid 1"]
    steps = [row.step for row in rows]
    assert steps.index("loopback") < steps.index("listen") < steps.index("trust") < steps.index("drop capabilities")
    (listen,) = [row for row in rows if row.step == "listen"]
    assert ("127.64.0.1", 53, "udp") in listen.arguments[0] and not listen.calls  # type: ignore[operator]
    assert not [row for row in planned(STRICT) if row.step in ("listen", "trust")]


def test_more_rules_than_are_shown_are_counted() -> None:
    listed = STRICT.with_changes(network=[f"n{number}.example" for number in range(9)])
    assert networks.enforced(listed, 0)["network"].details.endswith("and 5 more")
