"""Addresses that belong to no host of the public internet, each with the range that makes it special."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from ringfence.model.record import record

Address = IPv4Address | IPv6Address

_RANGES = {
    "is unspecified": "0.0.0.0/8 ::/128",
    "is a loopback address": "127.0.0.0/8 ::1/128",
    "is private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10",
    "is link-local": "169.254.0.0/16 fe80::/10",
    "is multicast": "224.0.0.0/4 ff00::/8",
    # Whoever reaches one has the credentials of the machine. Some of them lie among public or private addresses.
    "belongs to a metadata service": "169.254.169.254/32 169.254.170.2/32 169.254.170.23/32 100.100.100.200/32 "
    "168.63.129.16/32 192.0.0.192/32 fd00:ec2::254/128 fd00:ec2::23/128 fd20:ce::254/128",
    "is IPv4 in the form of IPv6": "::ffff:0:0/96 ::/96",
    "is an IPv4 address behind NAT64": "64:ff9b::/96 64:ff9b:1::/48",
    "is an IPv4 address behind 6to4": "2002::/16 192.88.99.0/24",
    "is an IPv4 address behind Teredo": "2001::/32",
    "is reserved": "192.0.0.0/24 192.0.2.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 2001::/23 "
    "2001:db8::/32 3fff::/20 ::/3 4000::/2 8000::/1",  # global unicast is 2000::/3
}


@record
class Special:
    """A range of addresses, and what is said of one in it."""

    version: int
    first: int
    last: int
    what: str

    @property
    def is_one(self) -> bool:
        return self.first == self.last


def _special(text: str, what: str) -> Special:
    network = ip_network(text)
    first, last = int(network.network_address), int(network.broadcast_address)
    return Special(version=network.version, first=first, last=last, what=what)


def _width(special: Special) -> int:
    return special.last - special.first


_ALL = tuple(sorted((_special(text, what) for what, texts in _RANGES.items() for text in texts.split()), key=_width))


def special_of(address: Address, own: frozenset[Address] = frozenset()) -> Special | None:
    """Return the narrowest special range of an address; None: it is public. ``own``: addresses of this host."""
    number = int(address)
    found = (each for each in _ALL if each.version == address.version and each.first <= number <= each.last)
    special = next(found, None)
    if address in own and not address.is_loopback and not (special and special.is_one):
        return Special(version=address.version, first=number, last=number, what="belongs to this host")
    return special


def own_addresses(texts: frozenset[str] | tuple[str, ...]) -> frozenset[Address]:
    """Return the addresses of this host, which may be told with their interfaces."""
    return frozenset(ip_address(text.partition("%")[0]) for text in texts)
