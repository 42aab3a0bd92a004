"""The process that enters a container's network and connects it to the gateway, as pid 1 of a strict sandbox does.

Runs as: network entry, one for each container with a network list, until the sockets of its network are made.
Parent: caller
Holds: the network namespace of the container and the way to the gateway, as descriptors.
Must not have: an environment; a path or a process of the container; a network that leads anywhere.

It does nothing else, and gets the namespace and the way to the gateway as descriptors: nothing is looked up here. It
refuses its own network, and one that leads anywhere.
"""

from __future__ import annotations

import marshal
import os
from struct import pack

from ringfence.kernel import listening
from ringfence.kernel.mount import namespaces
from ringfence.transport import passing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.kernel.listening import Row

DONE = "done"
MOST_SAID = 4000
_MOST_ASKED = 1 << 20
_GET_FLAGS, _UP = 0x8913, 0x1
_NO_IPV6 = ("all", "lo")


def main(door: int) -> None:
    """Do what is asked through the door, once, and say how it went."""
    _, descriptors, body = passing.receive_with_body(door, _MOST_ASKED)
    try:
        namespace, listeners = descriptors
        rows, settings = marshal.loads(body)
        lead(namespace, listeners, rows, settings)
        said = DONE
    except (OSError, ValueError, EOFError) as error:
        said = str(error) or type(error).__name__
    os.write(door, said.encode("utf-8", "replace")[:MOST_SAID])


def lead(namespace: int, listeners: int, rows: list[Row], settings: dict[str, str]) -> None:
    """Enter it for good; OSError if that is not allowed or fails."""
    if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/net")):
        raise OSError("the container has the network of this host")
    namespaces.enter_network(namespace)
    leads = devices_up()
    if leads:
        raise OSError(f"the container's network is not empty: it has {', '.join(leads)}")
    for name, value in settings.items():
        namespaces.write(f"/proc/sys/{name}", value)
    namespaces.loopback_up()
    have_ipv6()
    listening.lead_everywhere_here(ipv6=any(":" in address for address, _, kind in rows if kind != "spare"))
    for group in listening.sockets(rows):
        passing.send(listeners, passing.SOCKETS, group)
        for descriptor in group:
            os.close(descriptor)
    passing.send(listeners, passing.LAST_SOCKET, [])


def have_ipv6() -> None:
    """Engines switch IPv6 off in an empty network; without it an IPv6 address leads to no socket."""
    for name in _NO_IPV6:
        path = f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6"
        if os.path.exists(path):  # else the kernel has none
            namespaces.write(path, "0")


def devices_up() -> list[str]:
    """Return the active devices of this process's network, except its loopback."""
    import _socket
    import fcntl

    link = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, 0)
    try:
        found = []
        for _, name in _socket.if_nameindex():
            answer = fcntl.ioctl(link.fileno(), _GET_FLAGS, pack("16sh22x", name.encode(), 0))
            if name != "lo" and int.from_bytes(answer[16:18], "little") & _UP:
                found.append(name)
        return found
    finally:
        link.close()
