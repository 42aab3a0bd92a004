"""Hosts and ports as texts, each in its one spelling: names, wildcards, addresses, networks.

A name is lower case, in A-labels and without its final dot; ValueError says what is wrong. ``ipaddress`` and the codec
of IDNA are loaded only when needed.
"""

from __future__ import annotations

from _collections_abc import Iterable

from ringfence.model.system_text import cut, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

LONGEST_NAME, LONGEST_LABEL = 253, 63
LAST_PORT = 65535
_LONGEST_TEXT = 1_000  # of one label before it is encoded: the codec's time grows with the square of it
_IN_LABELS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_HEX = frozenset("0123456789abcdef")
_OTHER_DOTS = frozenset("\u3002\uff0e\uff61")
# IDNA2003 maps or drops them, IDNA2008 keeps them: two programs would ask for two names.
_READ_TWO_WAYS = frozenset("\u00df\u03c2\u200c\u200d")

Ranges = tuple[tuple[int, int], ...]
"""Ports: first and last of each range, sorted, without overlaps and neighbours."""


def is_address(host: str) -> bool:
    """Whether a host in its one spelling is an address or a network: no name ends in a number."""
    return ":" in host or "/" in host or _is_number(host.rpartition(".")[2])


def is_wildcard(host: str) -> bool:
    return host.startswith("*.")


def with_port(host: str, port: int) -> str:
    """Return both as one text, with brackets where they are needed.

    >>> with_port("2001:db8::1", 443)
    '[2001:db8::1]:443'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parents(name: str) -> Iterable[str]:
    """Return the wildcards that cover a name, the nearest first.

    >>> list(parents("a.b.example"))
    ['*.b.example', '*.example']
    """
    rest = name.removeprefix("*.").partition(".")[2]
    while rest:
        yield f"*.{rest}"
        rest = rest.partition(".")[2]


# ---- hosts


def canonical_host(text: str) -> str:
    """Return the one spelling of a host of a policy.

    >>> canonical_host("*.B\u00fccher.Example.")
    '*.xn--bcher-kva.example'
    """
    _refuse_forms(text)
    if text[0] == "[" and text[-1] == "]":
        text = text[1:-1]
        if ":" not in text:
            raise ValueError(f"only an IPv6 address goes in brackets; write {cut(text)}")
    if ":" in text or ("/" in text and _looks_like_ipv4(text.partition("/")[0])):
        return _network(text) if "/" in text else str(_sole(_ip(text)))
    if "/" in text:
        raise ValueError(f"{quoted(text)} has a path; write the host alone, and the path under paths")
    name = _name(text.removeprefix("*."), text)
    if not _is_number(name.rpartition(".")[2]):
        return f"*.{name}" if is_wildcard(text) else name
    if is_wildcard(text):
        raise ValueError(f"{quoted(text)}: sub-domains belong to a name, and this ends in a number")
    return str(_sole(_ip(name if text.isascii() else text)))


def asked_host(text: str) -> str:
    """Return the one spelling of a name or an address that a client asks for; no wildcard, no network, no IDNA."""
    if not text or not text.isascii() or len(text) > LONGEST_NAME + 2:
        raise ValueError("this is neither a name nor an address")
    if text[0] == "[" and text[-1] == "]" and ":" in text:
        text = text[1:-1]
    if ":" in text:
        return str(_ip(text))
    name = _name(text, text)
    return str(_ip(name)) if _is_number(name.rpartition(".")[2]) else name


def _refuse_forms(text: str) -> None:
    """Refuse what people write in place of a host."""
    if not text:
        raise ValueError("the host is empty; write a name such as api.example.com")
    if "://" in text:
        alone = text.partition("://")[2].partition("/")[0]
        raise ValueError(f"a rule can't have a scheme or a path; write {cut(alone) or 'the host alone'}")
    if text == "*":
        raise ValueError("* allows every host; name the hosts, or write network: host")
    if "*" in text.removeprefix("*."):
        raise ValueError(f"{quoted(text)}: a * stands for whole sub-domains, at the start: *.example.com")
    if "@" in text:
        raise ValueError(f"{quoted(text)} has a user in it; write {cut(text.rpartition('@')[2])}")


def _name(text: str, whole: str) -> str:
    labels = [_encoded(label, whole) for label in text.removesuffix(".").split(".")]
    name = ".".join(labels)
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name of {len(name)} characters is too long; the maximum is {LONGEST_NAME}")
    return name


def _encoded(label: str, whole: str) -> str:
    if not label:
        raise ValueError(f"{quoted(whole)} has an empty label; write one dot between two words")
    plain = label.lower() if label.isascii() else _a_label(label)
    if len(plain) > LONGEST_LABEL:
        raise ValueError(f"a label of {len(plain)} characters is too long; the maximum is {LONGEST_LABEL}")
    wrong = sorted(set(plain) - _IN_LABELS)
    if wrong:
        raise ValueError(f"{quoted(whole)} is not a host name: {quoted(wrong[0])} can't be in one")
    if "-" in (plain[0], plain[-1]):
        raise ValueError(f"{quoted(whole)}: a label can't begin or end with a hyphen")
    return plain


def _a_label(label: str) -> str:
    if len(label) > _LONGEST_TEXT:
        raise ValueError(f"a label of {len(label)} characters is too long; the maximum is {LONGEST_LABEL}")
    for char in sorted((_OTHER_DOTS | _READ_TWO_WAYS) & set(label)):
        raise ValueError(f"{quoted(char)} is read in two ways; write the label in its xn-- form")
    from encodings.idna import ToASCII
    from stringprep import in_table_a1

    try:
        if any(map(in_table_a1, label)):  # newer than the tables of IDNA2003, which do not say how to read it
            raise UnicodeError
        return ToASCII(label).decode("ascii").lower()
    except UnicodeError:
        raise ValueError(f"{quoted(label)} can't be encoded by IDNA2003; write the label in its xn-- form") from None


# ---- addresses


def _is_number(label: str) -> bool:
    """Whether some program reads it as a part of an address: decimal, octal or hexadecimal."""
    if label[:2].lower() == "0x":
        return set(label[2:].lower()) <= _HEX
    return label.isascii() and label.isdigit()


def _looks_like_ipv4(text: str) -> bool:
    return _is_number(text.rpartition(".")[2])


def _ip(text: str) -> IPv4Address | IPv6Address:
    """Return the address of a text in its plain form; any other spelling is refused, and the error names that form."""
    from ipaddress import IPv4Address, IPv6Address

    if "%" in text:
        raise ValueError(f"{quoted(text)} has a zone, as in %eth0; only addresses without a zone can be reached")
    try:
        address = IPv6Address(text) if ":" in text else IPv4Address(text)
    except ValueError:
        raise ValueError(_not_an_address(text)) from None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if mapped is not None:
        raise ValueError(f"{quoted(text)} is an IPv4 address in the form of IPv6; write {mapped}")
    return address


def _not_an_address(text: str) -> str:
    if ":" in text:
        return f"{quoted(text)} is not an IPv6 address"
    from _socket import inet_aton, inet_ntoa

    try:
        meant = inet_ntoa(inet_aton(text))
    except OSError:
        return f"{quoted(text)} is neither a name nor an address: its last label is a number"
    alone = "; a port stands after a host, name:443" if text.isdigit() else ""
    return f"{quoted(text)} is another spelling of the address {meant}; write {meant} if you mean that{alone}"


def _sole(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Refuse an address that can't be connected to, or that the sandbox needs for itself."""
    if address.is_unspecified:
        raise ValueError(f"{address} is nobody's address; write the address that you mean")
    if address.is_multicast or str(address) == "255.255.255.255":
        raise ValueError(f"no connection can be made to {address}; write the address of one host")
    _refuse_own(int(address), int(address), address.version)
    return address


def _refuse_own(first: int, last: int, version: int) -> None:
    own = 127 << 24 | 64 << 16
    if version == 4 and own <= first and last <= own | 0xFFFF:
        raise ValueError("127.64.0.0/16 stands for listed names inside a sandbox; write another address")
    if version == 6 and first >> 118 == 0xFE80 >> 6 == last >> 118:
        raise ValueError("an address of fe80::/10 means nothing without an interface; write another address")


def _network(text: str) -> str:
    from ipaddress import ip_address, ip_network

    start, _, length = text.partition("/")
    if "%" in start:
        raise ValueError(f"{quoted(text)} has a zone, as in %eth0; only addresses without a zone can be reached")
    if not (length.isascii() and length.isdigit() and len(length) <= 3):
        raise ValueError(f"{quoted(text)}: the length of the prefix must be a number, as in 10.1.2.0/24")
    if ":" not in start:
        _ip(start)
    try:
        network = ip_network(f"{start}/{int(length)}", strict=False)
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a network; write it as 10.1.2.0/24 or 2001:db8::/32") from None
    if int(ip_address(start)) != int(network.network_address):
        raise ValueError(f"{quoted(text)} has bits set behind the first {network.prefixlen}; write {network}")
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:
        meant = f"{mapped}/{network.prefixlen - 96}"
        raise ValueError(f"{quoted(text)} is an IPv4 network in the form of IPv6; write {meant}")
    if network.num_addresses == 1:
        return str(_sole(network.network_address))
    if network.is_multicast:
        raise ValueError(f"no connection can be made to {network}; write a network of hosts")
    _refuse_own(int(network.network_address), int(network.broadcast_address), network.version)
    return str(network)


# ---- ports


def split_port(text: str) -> tuple[str, str | None]:
    """Return host and ports of ``name:443``, ``[2001:db8::1]:80,443`` or ``10.1.2.0/24:8000-8010``; None: no ports."""
    if "://" in text:
        return text, None  # refused as a host, with the reason
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket:
            raise ValueError(f"{quoted(text)}: the bracket is not closed")
        if rest and rest[0] != ":":
            raise ValueError(f"{quoted(text)}: only a port may follow the bracket, as in [2001:db8::/32]:443")
        return host + bracket, rest[1:] if rest else None
    if text.count(":") > 1:
        raise ValueError(f"{quoted(text)}: put an IPv6 address in brackets before its port: [2001:db8::1]:443")
    host, colon, ports = text.partition(":")
    return host, ports if colon else None


def read_ports(text: str) -> Ranges:
    """Return the ranges of ``443``, ``80,443`` or ``8000-8010``."""
    return merged(_range(piece.strip()) for piece in text.split(","))


def _range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if not (_is_port_text(first) and (_is_port_text(last) or not dash)):
        raise ValueError(f"{quoted(text)} is not a port or a range of ports; write 443 or 8000-8010")
    return port_range(int(first), int(last if dash else first))


def _is_port_text(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def port_range(first: int, last: int) -> tuple[int, int]:
    for port in (first, last):
        if not 1 <= port <= LAST_PORT:
            raise ValueError(f"port {port} is not between 1 and {LAST_PORT}")
    if last < first:
        raise ValueError(f"the range {first}-{last} is empty; write {last}-{first}")
    return first, last


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return them sorted; those that overlap or follow each other become one.

    >>> merged([(443, 443), (80, 81), (82, 90)])
    ((80, 90), (443, 443))
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


def count(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)


def ports_text(ranges: Ranges) -> str:
    """In the form that ``read_ports`` reads; two neighbours are written as two ports."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
