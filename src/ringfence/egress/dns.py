"""DNS inside a sandbox: each listed name has the address that the plan gives it, and nothing else is known. No tunnel.

One question, at most one record in the answer, and no pointer is followed; what is malformed gets an error or nothing.
It asks nobody: names are resolved by the gateway, when a connection is made.
"""

from __future__ import annotations

from ringfence.egress.addresses import AddressPlan
from ringfence.egress.rules import RuleSet
from ringfence.model.record import record
from ringfence.model.system_text import escape_controls

MAX_QUERY, MAX_ANSWER = 4096, 512
TTL_S = 60

_HEADER, _LONGEST_NAME, _LONGEST_LABEL = 12, 255, 63
_A, _AAAA, _OPT, _SVCB, _HTTPS = 1, 28, 41, 64, 65
_IN = 1
_OK, _FORMERR, _NXDOMAIN, _NOTIMP, _REFUSED = 0, 1, 3, 4, 5
_BADVERS = 1  # in the upper bits, which stand in OPT
_UDP_SIZE = 1232
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_POINTER_TO_QUESTION = b"\xc0\x0c"


@record
class Answer:
    """What is sent back, and what there is to tell of it."""

    reply: bytes | None
    """None: nothing."""
    name: str = ""
    """Of the question: in its one spelling, or printable where it has none."""
    reason: str = ""
    """Why it was refused, with what to do; empty: it was not."""


@record
class _Question:
    labels: tuple[bytes, ...]
    kind: int
    family: int
    raw: bytes
    """As it was asked, which is repeated: resolvers compare it letter by letter."""
    edns: int | None
    """The version of EDNS that was asked for."""


def answer(query: bytes, plan: AddressPlan, rules: RuleSet) -> bytes | None:
    """Return the reply to a query, without the length prefix of TCP; None: there is none."""
    return ask(query, plan, rules).reply


def ask(query: bytes, plan: AddressPlan, rules: RuleSet) -> Answer:
    """Answer a query, and say what there is to tell of it."""
    if not _HEADER <= len(query) <= MAX_QUERY or query[2] & 0x80:
        return Answer(reply=None)  # also to a reply: else two servers could talk for ever
    if query[2] >> 3 & 15:
        return Answer(reply=_reply(query, _NOTIMP))
    question = _parsed(query)
    if question is None:
        return Answer(reply=_reply(query, _FORMERR))
    if question.edns:
        return Answer(reply=_reply(query, _OK, question, extended=_BADVERS))
    return _answered(query, question, plan, rules)


def _answered(query: bytes, question: _Question, plan: AddressPlan, rules: RuleSet) -> Answer:
    name = _name(question.labels)
    shown = name or escape_controls(b".".join(question.labels).decode("latin-1")) or "."
    if question.family != _IN or question.kind not in (_A, _AAAA, _SVCB, _HTTPS) or not question.labels:
        reason = f"DNS has no records of type {question.kind} for {shown} here; ask for its address"
        return Answer(reply=_reply(query, _REFUSED, question), name=shown, reason=reason)
    if not name or not rules.lists(name):
        advice = f'add "{name}" to network' if name else "and can't be; ask for a name that is"
        reason = f"{shown} is not in the policy's network list; {advice}"
        return Answer(reply=_reply(query, _NXDOMAIN, question), name=shown, reason=reason)
    address = plan.address_of(name) if question.kind == _A else None
    return Answer(reply=_reply(query, _OK, question, _record(address) if address else b""), name=name)


def _name(labels: tuple[bytes, ...]) -> str | None:
    """Return a name in its one spelling; a dot within a label would turn it into another name."""
    if not all(label and _LETTERS.issuperset(label) for label in labels):
        return None
    return b".".join(labels).decode("ascii").lower()


# ---- bytes in


def _parsed(query: bytes) -> _Question | None:
    """Return the one question of a query; None: it has not exactly one, or has more beside it than EDNS."""
    questions, answers, authorities, additional = (_number(query, place) for place in (4, 6, 8, 10))
    if questions != 1 or answers or authorities or additional > 1:
        return None
    found = _labels(query)
    if found is None:
        return None
    labels, end = found
    if len(query) < end + 4:
        return None
    rest = query[end + 4 :]
    edns = _edns(rest) if additional else None
    if (edns is None) if additional else rest:
        return None
    kind, family = _number(query, end), _number(query, end + 2)
    return _Question(labels=labels, kind=kind, family=family, raw=query[_HEADER : end + 4], edns=edns)


def _labels(query: bytes) -> tuple[tuple[bytes, ...], int] | None:
    """Return the labels of the name behind the header, and where it ends."""
    labels: list[bytes] = []
    place = _HEADER
    while place < len(query) and place - _HEADER < _LONGEST_NAME:
        length = query[place]
        place += 1
        if not length:
            return tuple(labels), place
        if length > _LONGEST_LABEL or place + length > len(query):
            return None
        labels.append(query[place : place + length])
        place += length
    return None


def _edns(rest: bytes) -> int | None:
    """Return the version of EDNS that the one additional record asks for; None: it is another record, or cut."""
    if len(rest) < 11 or rest[0] or _number(rest, 1) != _OPT or _number(rest, 9) != len(rest) - 11:
        return None
    return rest[6]


def _number(data: bytes, place: int) -> int:
    return int.from_bytes(data[place : place + 2], "big")


def split_stream(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the queries that have come whole by TCP, and what is left; ValueError: this is no DNS."""
    queries = []
    while len(data) >= 2:
        length = _number(data, 0)
        if not _HEADER <= length <= MAX_QUERY:
            raise ValueError(f"a query of {length} bytes")
        if len(data) < 2 + length:
            break
        queries.append(data[2 : 2 + length])
        data = data[2 + length :]
    return queries, data


# ---- bytes out


def _reply(
    query: bytes, code: int, question: _Question | None = None, found: bytes = b"", extended: int = 0
) -> bytes:
    flags = 0x8000 | (query[2] & 0x79) << 8 | 0x80 | code  # their opcode and «recursion desired», our «available»
    has_edns = question is not None and question.edns is not None
    counts = (question is not None, bool(found), False, has_edns)
    header = query[:2] + flags.to_bytes(2, "big") + b"".join(count.to_bytes(2, "big") for count in counts)
    size = _OPT.to_bytes(2, "big") + _UDP_SIZE.to_bytes(2, "big")
    edns = b"\0" + size + bytes([extended, 0, 0, 0, 0, 0]) if has_edns else b""
    return header + (question.raw if question else b"") + found + edns


def _record(address: str) -> bytes:
    head = _POINTER_TO_QUESTION + _A.to_bytes(2, "big") + _IN.to_bytes(2, "big") + TTL_S.to_bytes(4, "big")
    return head + b"\0\x04" + bytes(map(int, address.split(".")))


def framed(reply: bytes) -> bytes:
    """Return a reply as TCP carries it."""
    return len(reply).to_bytes(2, "big") + reply
