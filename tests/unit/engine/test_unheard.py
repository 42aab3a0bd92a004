"""What the sandbox's own kernel refuses is told in the gateway's words, and what the gateway tells is told once."""

from __future__ import annotations

import pytest

from ringfence.cli.unheard import datagrams, reasons
from ringfence.model.network_list import read_rules

LIST = ["api.example.com", "*.example.org", "10.1.0.0/16:5432"]
FIRST = "127.64.1.0"  # the address of api.example.com inside


@pytest.mark.parametrize(("asked", "told"), [
    (f"{FIRST}:8081", 'api.example.com is listed as api.example.com, without port 8081; add "api.example.com:8081"'),
    ("192.0.2.7:80", '192.0.2.7:80 is not in the policy\'s network list and is reserved'),
    ("93.184.216.34:80", 'add "93.184.216.34:80" to network'),
    ("[2606:2800::1]:443", 'add "[2606:2800::1]:443" to network'),
])  # fmt: skip
def test_what_to_add_is_said_of_ports_and_addresses_that_nobody_listens_on(asked: str, told: str) -> None:
    (reason,) = reasons(read_rules(LIST), [asked, asked]).values()
    assert told in reason


@pytest.mark.parametrize("asked", [
    f"{FIRST}:80", "127.64.0.1:53", "127.64.0.2:3128",  # somebody listens
    "8.8.8.8:5432",  # the gateway does, for the network
    "127.0.0.1:80", "[::1]:80", "93.184.216.34:0", "unix /run/x:1", "nothing", "",
])  # fmt: skip
def test_nothing_is_said_of_what_the_gateway_tells_or_stays_inside(asked: str) -> None:
    assert reasons(read_rules(LIST), [asked]) == {}


@pytest.mark.parametrize(("asked", "add"), [("127.0.0.1:8082", "127.0.0.1:8082"), ("[::1]:8082", "[::1]:8082")])
def test_who_lists_localhost_is_told_to_list_its_address(asked: str, add: str) -> None:
    (reason,) = reasons(read_rules(["localhost:8082"]), [asked]).values()
    assert f'is a loopback address; add "{add}" to network' in reason
    assert reasons(read_rules(["localhost:8083"]), [asked]) == {}, "another port is the sandbox' own business"
    assert reasons(read_rules(["localhost:8082", add]), [asked]) == {}


def test_a_datagram_is_told_once_though_the_job_sees_success() -> None:
    told = datagrams(["192.0.2.7:9", "192.0.2.7:9", "[2001:db8::1]:53", "unix /run/x:1"])
    assert list(told) == [("192.0.2.7", 9), ("2001:db8::1", 53)] and "by UDP" in told["192.0.2.7", 9]
