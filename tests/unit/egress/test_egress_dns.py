"""DNS by hand: the answers that programs need, errors for the rest, and nothing that any bytes could do."""

from __future__ import annotations

import random
import struct

import pytest

from ringfence.egress import dns
from ringfence.egress.addresses import AddressPlan
from ringfence.egress.rules import RuleSet
from ringfence.model.network_list import read_rules

RULES = read_rules(["api.example.com:443", "*.pypi.example.org", "10.1.2.0/24:5432", "db"])
A, NS, PTR, TXT, AAAA, SRV, AXFR, SVCB, HTTPS, ANY = 1, 2, 12, 16, 28, 33, 252, 64, 65, 255
OK, FORMERR, NXDOMAIN, NOTIMP, REFUSED = 0, 1, 3, 4, 5
OPT = b"\0" + struct.pack("!HHBBHH", 41, 4096, 0, 0, 0x8000, 0)


def wire(name: bytes) -> bytes:
    return b"".join(bytes([len(label)]) + label for label in name.split(b".") if label) + b"\0"


def query(
    name: bytes = b"api.example.com", kind: int = A, *, raw: bytes | None = None, flags: int = 0x0100, family: int = 1,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0), more: bytes = b"",
) -> bytes:  # fmt: skip
    question = (wire(name) if raw is None else raw) + struct.pack("!HH", kind, family)
    return struct.pack("!HH4H", 0xBEEF, flags, *counts) + question + more


class Server:
    """A plan and its rules, and what a resolver would read of a reply."""

    def __init__(self) -> None:
        self.plan, self.rules = AddressPlan.of(RULES), RuleSet.of(RULES)

    def reply(self, data: bytes) -> bytes | None:
        return dns.answer(data, self.plan, self.rules)

    def read(self, data: bytes) -> tuple[int, list[str]]:
        reply = self.reply(data)
        assert reply is not None
        return read(reply)


def read(reply: bytes) -> tuple[int, list[str]]:
    """The code and the addresses of a reply, taken apart without a byte left over."""
    _, flags, questions, answers, authorities, additional = struct.unpack("!6H", reply[:12])
    assert flags & 0x8000 and not authorities and questions <= 1 and answers <= 1 and additional <= 1
    place = 12
    if questions:
        while reply[place]:
            place += reply[place] + 1
        place += 5
    addresses = []
    for _ in range(answers):
        pointer, kind, family, _, length = struct.unpack("!HHHIH", reply[place : place + 12])
        assert (pointer, kind, family, length) == (0xC00C, A, 1, 4)
        addresses.append(".".join(map(str, reply[place + 12 : place + 16])))
        place += 16
    if additional:
        assert reply[place : place + 3] == b"\0\0\x29" and reply[place + 9 : place + 11] == b"\0\0"
        place += 11
    assert place == len(reply)
    return flags & 15, addresses


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_listed_name_has_the_address_of_the_plan(server: Server) -> None:
    assert server.read(query()) == (OK, ["127.64.1.0"])
    assert server.read(query(b"db")) == (OK, ["127.64.1.9"])
    assert server.read(query(b"files.pypi.example.org")) == (OK, ["127.64.1.1"])
    assert server.read(query(b"a.b.pypi.example.org")) == (OK, ["127.64.1.2"])
    assert server.plan.target("127.64.1.2", 443).host == "a.b.pypi.example.org"


def test_letters_are_compared_without_case_and_repeated_with_it(server: Server) -> None:
    asked = query(b"aPi.EXAMPLE.cOm")
    reply = server.reply(asked)
    assert reply is not None and read(reply) == (OK, ["127.64.1.0"])
    assert asked[12:] in reply and reply[:2] == asked[:2]


@pytest.mark.parametrize("kind", [AAAA, HTTPS, SVCB])
def test_other_records_of_a_listed_name_are_empty_and_take_no_address(server: Server, kind: int) -> None:
    assert server.read(query(kind=kind)) == server.read(query(b"x.pypi.example.org", kind)) == (OK, [])
    assert server.plan.address_of("y.pypi.example.org") == "127.64.1.1"
    assert server.read(query(b"evil.test", kind)) == (NXDOMAIN, [])


@pytest.mark.parametrize("kind", [ANY, TXT, PTR, NS, SRV, AXFR, 0, 5, 41, 65535])
@pytest.mark.parametrize("name", [b"api.example.com", b"secret.evil.test"])
def test_there_is_no_tunnel_by_other_records(server: Server, name: bytes, kind: int) -> None:
    assert server.read(query(name, kind)) == (REFUSED, [])


@pytest.mark.parametrize(
    "name",
    [b"evil.test", b"example.com", b"x.api.example.com", b"pypi.example.org", b"apixexample.com", b"1.2.1.10",
     b"api.example.com.evil.test", b"api.example.com\0", b"api\0.example.com", b"\xff\xfe.test", b"xapi.example.com",
     b"*.pypi.example.org"],
)  # fmt: skip
def test_what_is_not_listed_does_not_exist(server: Server, name: bytes) -> None:
    assert server.read(query(name)) == (NXDOMAIN, [])
    told = dns.ask(query(name), server.plan, server.rules)
    assert told.name.isprintable() and f"{told.name} is not in the policy's network list; " in told.reason


def test_a_dot_within_a_label_does_not_make_a_listed_name_of_it(server: Server) -> None:
    for raw in (b"\x0fapi.example.com\0", b"\x03api\x0bexample.com\0", b"\x01x\x10pypi.example.org\0"):
        assert server.read(query(raw=raw)) == (NXDOMAIN, [])


def test_what_is_told_of_a_query(server: Server) -> None:
    told = dns.ask(query(b"API.example.com"), server.plan, server.rules)
    assert (told.name, told.reason) == ("api.example.com", "")
    told = dns.ask(query(b"Evil.test"), server.plan, server.rules)
    assert told.reason == 'evil.test is not in the policy\'s network list; add "evil.test" to network'
    assert "can't be; ask for a name that is" in dns.ask(query(b"a b.test"), server.plan, server.rules).reason
    assert "no records of type 16 for evil.test" in dns.ask(query(b"evil.test", TXT), server.plan, server.rules).reason


LONGEST = b".".join([b"a" * 63] * 3 + [b"a" * 61])  # 255 bytes as it is sent


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (query(raw=b"\0"), REFUSED), (query(LONGEST), NXDOMAIN), (query(b"a" + LONGEST), FORMERR),
        (query(LONGEST + b"a"), FORMERR),
        (query(raw=b"\xc0\x0c"), FORMERR), (query(raw=b"\x03api\xc0\x0c"), FORMERR),
        (query(raw=b"\x40" + b"a" * 64 + b"\0"), FORMERR),
        (query(raw=b"\x80\0"), FORMERR), (query(raw=b"\x3fabc"), FORMERR), (query(raw=b""), FORMERR),
        (query()[:-1], FORMERR), (query()[:-4], FORMERR), (query()[:12], FORMERR), (query() + b"x", FORMERR),
        (query(counts=(0, 0, 0, 0)), FORMERR), (query(counts=(2, 0, 0, 0), more=query()[12:]), FORMERR),
        (query(counts=(1, 1, 0, 0)), FORMERR), (query(counts=(1, 0, 1, 0)), FORMERR),
        (query(counts=(1, 0, 0, 1)), FORMERR),
        (query(counts=(65535, 65535, 65535, 65535)), FORMERR), (query(counts=(1, 0, 0, 2), more=OPT * 2), FORMERR),
        (query(counts=(1, 0, 0, 2), more=OPT), FORMERR), (query(counts=(1, 0, 0, 1), more=OPT * 2), FORMERR),
        (query(family=3), REFUSED), (query(family=255), REFUSED), (query(family=0), REFUSED),
        (query(flags=0x0900), NOTIMP), (query(flags=0x2800), NOTIMP), (query(flags=0x7800), NOTIMP),
        (query(counts=(1, 0, 0, 1), more=OPT[:-1]), FORMERR),
        (query(counts=(1, 0, 0, 1), more=b"\x01a" + OPT), FORMERR),
        (query(counts=(1, 0, 0, 1), more=OPT[:-2] + b"\0\x05abcd"), FORMERR), (query(more=OPT), FORMERR),
        (query(counts=(1, 0, 0, 1), more=b"\0\0\x01" + OPT[3:]), FORMERR),
    ],
)  # fmt: skip
def test_what_is_malformed_gets_an_error_and_no_address(server: Server, data: bytes, code: int) -> None:
    assert server.read(data) == (code, [])


@pytest.mark.parametrize("data", [b"", b"\0", query()[:11], query(flags=0x8100), query(flags=0x8583), b"\xff" * 12,
                                  query(more=b"\0" * 5000)])  # fmt: skip
def test_what_is_no_query_gets_no_reply(server: Server, data: bytes) -> None:
    assert server.reply(data) is None


def test_edns_is_answered_where_it_is_asked_for(server: Server) -> None:
    for more in (OPT, OPT[:-2] + b"\0\x0c\0\x0a\0\x08cookies!"):
        reply = server.reply(query(counts=(1, 0, 0, 1), more=more))
        assert reply is not None and read(reply) == (OK, ["127.64.1.0"]) and reply[-11:-8] == b"\0\0\x29"
    newer = server.reply(query(counts=(1, 0, 0, 1), more=b"\0\0\x29\x10\0\0\x01\0\0\0\0"))
    assert newer is not None and read(newer) == (0, []) and newer[-6] == 1  # BADVERS
    assert server.reply(query()) is not None and b"\0\0\x29" not in server.reply(query())  # type: ignore[operator]


def test_the_flags_of_a_reply(server: Server) -> None:
    for flags, expected in ((0x0100, 0x8180), (0x0000, 0x8080), (0x0130, 0x8180), (0x0900, 0x8984)):
        reply = server.reply(query(flags=flags))
        assert reply is not None and struct.unpack("!H", reply[2:4])[0] == expected


def test_queries_by_tcp_are_split_and_bounded() -> None:
    one, other = query(), query(b"db")
    stream = dns.framed(one) + dns.framed(other)
    assert dns.split_stream(stream + b"\0") == ([one, other], b"\0")
    assert dns.split_stream(stream[:-1]) == ([one], dns.framed(other)[:-1])
    assert dns.split_stream(b"") == ([], b"")
    for length in (b"\0\0", b"\0\x0b", b"\x10\x01", b"\xff\xff"):
        with pytest.raises(ValueError, match="a query of"):
            dns.split_stream(length)


# ---- any bytes


def _mutated(dice: random.Random) -> bytes:
    """Bytes of chance, or a query in which some things were changed."""
    if dice.random() < 0.2:
        return dice.randbytes(dice.randrange(0, 80))
    name = dice.choice([b"api.example.com", b"x.pypi.example.org", b"evil.test", b"", LONGEST, b"db", b"a.b.c.d"])
    kind = dice.choice([A, AAAA, HTTPS, SVCB, TXT, ANY, PTR, dice.randrange(65536)])
    more, counts = (OPT, (1, 0, 0, 1)) if dice.random() < 0.3 else (b"", (1, 0, 0, 0))
    data = bytearray(query(name, kind, more=more, counts=counts))
    for _ in range(dice.choice([0, 0, 1, 1, 2, 5])):
        place = dice.randrange(len(data))
        pieces = [dice.randbytes(1), bytes([data[place] ^ 1 << dice.randrange(8)]), b"\xc0\x0c", b"\0\0", b"\x3f"]
        match dice.randrange(4):
            case 0:
                del data[place:]
            case 1:
                data[place:place] = dice.randbytes(dice.randrange(1, 70))
            case _:
                piece = dice.choice(pieces)
                data[place : place + len(piece)] = piece
        data = data or bytearray(b"\0")
    return bytes(data)


def _attack(seed: int, count: int) -> None:
    dice = random.Random(seed)
    server = Server()
    planned = {f"127.64.1.{number}" for number in range(10)}
    for number in range(count):
        data = _mutated(dice)
        told = dns.ask(data, server.plan, server.rules)
        if told.reply is None:
            continue
        code, addresses = read(told.reply)
        assert len(told.reply) <= dns.MAX_ANSWER and told.reply[:2] == data[:2], (seed, number)
        assert set(addresses) <= planned and (not addresses or server.rules.lists(told.name)), (seed, number)
        assert told.name.isprintable() and told.reason.isprintable() and bool(told.reason) == (code in (3, 5))
    assert len(server.plan._address) <= 9


@pytest.mark.slow
def test_no_bytes_make_it_fail_or_give_an_address_that_is_not_in_the_plan() -> None:
    _attack(1, 5_000)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_queries_make_it_neither_fail_nor_give_another_address(seed: int) -> None:
    _attack(1000 + seed, 25_000)
