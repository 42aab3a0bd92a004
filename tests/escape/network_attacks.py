"""Attacks on the network: the host's loopback, its sockets by name, and everything that makes packets.

All traffic of the controls stays on this machine: on loopback, or in a network namespace made for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

from tests.escape.attack import Attack, Stage, in_workspace
from tests.escape.bait import mount_at
from tests.escape.raw_calls import calling
from tests.testable import needs_of_the_host

Prepare = Callable[[Stage], Mapping[str, object]]
_STREAM, _DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM


def _hear(stage: Stage, listener: socket.socket) -> None:
    """Note whether anybody reaches the listener while the attack runs."""
    heard: list[bool] = []
    stage.callback(listener.close)
    listener.settimeout(0)

    def asked() -> bool:
        try:
            listener.accept() if listener.type == _STREAM else listener.recv(100)
            heard.append(True)
        except OSError:
            pass
        return bool(heard)

    stage.escaped = asked


def _listening(family: int, kind: int, address: object) -> tuple[socket.socket, object]:
    made = socket.socket(family, kind)
    made.bind(address)  # type: ignore[arg-type]
    if kind == _STREAM:
        made.listen()
    return made, made.getsockname()


def _service(family: int, kind: int, host: str) -> Prepare:
    def prepare(stage: Stage) -> Mapping[str, object]:
        with needs_of_the_host(f"a service at {host}", (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)):
            listener, address = _listening(family, kind, (host, 0))
        _hear(stage, listener)
        return {"port": address[1]}  # type: ignore[index]

    return prepare


TCP = _service(socket.AF_INET, _STREAM, "127.0.0.1")
UDP = _service(socket.AF_INET, _DATAGRAM, "127.0.0.1")
TCP6 = _service(socket.AF_INET6, _STREAM, "::1")
UDP6 = _service(socket.AF_INET6, _DATAGRAM, "::1")


def _connect(family: str, host: str) -> str:
    return (f"link = socket.socket(socket.{family}); link.settimeout(2)\n"
            f"try: link.connect(({host!r}, GIVEN['port']))\nexcept OSError as e: print(e)\n"
            "else: print('ESCAPED')\n")  # fmt: skip


def _send(family: str, host: str) -> str:
    return (f"link = socket.socket(socket.{family}, socket.SOCK_DGRAM)\n"
            f"try: link.sendto(b'hello', ({host!r}, GIVEN['port']))\nexcept OSError as e: print(e)\n"
            "time.sleep(0.05)\n")  # fmt: skip


_SENDMSG = (
    "link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "try: link.sendmsg([b'hello'], [], 0, ('127.0.0.1', GIVEN['port']))\nexcept OSError as e: print(e)\n"
    "time.sleep(0.05)\n"
)
_FASTOPEN = (
    "link = socket.socket()\n"
    "try: link.sendto(b'hello', 0x20000000, ('127.0.0.1', GIVEN['port']))\nexcept OSError as e: print(e)\n"
    "time.sleep(0.05)\n"
)
_DNS = (  # a question for an address, as a resolver sends it
    "question = b'\\x12\\x34\\x01\\0\\0\\x01' + bytes(6) + b'\\x06secret\\x07invalid\\0\\0\\x01\\0\\x01'\n"
    "link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "try: link.connect(('127.0.0.1', GIVEN['port'])); link.send(question)\nexcept OSError as e: print(e)\n"
    "time.sleep(0.05)\n"
)


def _dns(stage: Stage) -> Mapping[str, object]:
    """A name server on loopback; on the real port where this user may have it and nobody else does."""
    for port in (53, 0):
        try:
            listener, address = _listening(socket.AF_INET, _DATAGRAM, ("127.0.0.1", port))
        except OSError:
            continue
        _hear(stage, listener)
        return {"port": address[1]}  # type: ignore[index]
    raise AssertionError("no port for a name server")


# The metadata service of clouds. The control plays both sides in an empty network namespace of its own.
_METADATA = (
    "link = socket.socket(); link.settimeout(1)\n"
    "try: link.connect(('169.254.169.254', 80))\nexcept OSError as e: print(e)\nelse: print('ESCAPED')\n"
)
_METADATA_CONTROL = calling("unshare") + (
    "import subprocess\n"
    "assert call('unshare', 0x40000000)[0] == 0\n"
    "for words in ('link set lo up', 'addr add 169.254.169.254/32 dev lo'):\n"
    "  subprocess.run(['ip', *words.split()], check=True)\n"
    "server = socket.socket(); server.bind(('169.254.169.254', 80)); server.listen()\n"
) + _METADATA  # fmt: skip


def _open(arguments: str) -> str:
    return f"try: socket.socket({arguments})\nexcept OSError as e: print(e)\nelse: print('ESCAPED')\n"


# Adds an address to the loopback. The control does it in a network namespace of its own.
_ROUTE = calling("unshare") + (
    "import struct\n"
    "call('unshare', 0x40000000)\n"
    "link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
    "body = struct.pack('BBBBI', 2, 32, 0, 0, 1) + struct.pack('HH4s', 8, 2, bytes([127, 9, 9, 9]))\n"
    "link.send(struct.pack('IHHII', 16 + len(body), 20, 0x405, 1, 0) + body)\n"
    "error = struct.unpack_from('i', link.recv(4096), 16)[0]\n"
    "print(error)\n"
    "if error == 0: print('ESCAPED')\n"
)


def _abstract(stage: Stage) -> Mapping[str, object]:
    name = f"\0ringfence-corpus-{os.urandom(6).hex()}"
    listener, _ = _listening(socket.AF_UNIX, _STREAM, name)
    _hear(stage, listener)
    return {"path": name}


def _abstract_datagram(stage: Stage) -> Mapping[str, object]:
    name = f"\0ringfence-corpus-{os.urandom(6).hex()}"
    listener, _ = _listening(socket.AF_UNIX, _DATAGRAM, name)
    _hear(stage, listener)
    return {"path": name}


def _unix_path(kind: int, shown: str, mounted: str = "", name: str = "socket") -> Prepare:
    """A socket of the host in a directory that the sandbox shows, open to everybody, as docker.sock may be.
    ``mounted``: where in the directory something else is mounted."""

    def prepare(stage: Stage) -> Mapping[str, object]:
        folder = stage.folder / "shown"
        folder.mkdir()
        if mounted:
            mount_at(stage, folder / mounted)
        path = str(folder / name)
        listener, _ = _listening(socket.AF_UNIX, kind, path)
        os.chmod(path, 0o777)
        _hear(stage, listener)
        if shown == "workspace":
            stage.cwd = folder
        else:
            stage.policy[shown] = [str(folder)]
        return {"path": path}

    return in_workspace(prepare) if shown == "workspace" else prepare


_UNIX = "link = socket.socket(socket.AF_UNIX)\ntry: link.connect(GIVEN['path'])\nexcept OSError as e: print(e)\n"
_UNIX_DATAGRAM = (
    "link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "try: link.sendto(b'hello', GIVEN['path'])\nexcept OSError as e: print(e)\n"
)
_UNIX_BY_PAIR = (
    "try: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'hello', GIVEN['path'])\n"
    "except OSError as e: print(e)\n"
)
_UNIX_BY_DIRECTORY = (
    "try: os.chdir(os.path.dirname(GIVEN['path']))\nexcept OSError as e: print(e)\n"
    "link = socket.socket(socket.AF_UNIX)\n"
    "try: link.connect('/proc/self/cwd/socket')\nexcept OSError as e: print(e)\n"
)
_SEND_DESCRIPTOR = (
    "link = socket.socket(socket.AF_UNIX)\n"
    "try: link.connect(GIVEN['path']); socket.send_fds(link, [b'x'], [0])\nexcept OSError as e: print(e)\n"
)


def _client(stage: Stage) -> Mapping[str, object]:
    """The host asks a port again and again; the job must not be the one who answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answered, stop = threading.Event(), threading.Event()

    def ask() -> None:
        while not stop.is_set() and not answered.is_set():
            with socket.socket() as link:
                if link.connect_ex(("127.0.0.1", port)) == 0:
                    answered.set()
            time.sleep(0.02)

    thread = threading.Thread(target=ask)
    thread.start()
    stage.callback(thread.join)
    stage.callback(stop.set)
    stage.escaped = answered.is_set
    return {"port": port}


def _cluster(stage: Stage) -> Mapping[str, object]:
    """What a node of a cluster listens on: the scheduler, the dashboard and the object manager, on all addresses."""
    listeners = [_listening(socket.AF_INET, _STREAM, ("0.0.0.0", 0)) for _ in range(3)]
    heard: list[Callable[[], bool]] = []
    for listener, _ in listeners:
        _hear(stage, listener)
        heard.append(stage.escaped)
    stage.escaped = lambda: any(each() for each in heard)
    hosts = ["127.0.0.1"]
    with socket.socket(socket.AF_INET, _DATAGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # which address would be used; nothing is sent
        hosts.append(probe.getsockname()[0])
    return {"hosts": hosts, "ports": [address[1] for _, address in listeners]}  # type: ignore[index]


_CLUSTER = (
    "for host in GIVEN['hosts']:\n"
    "  for port in GIVEN['ports']:\n"
    "    link = socket.socket(); link.settimeout(2)\n"
    "    try: link.connect((host, port)); link.send(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n')\n"
    "    except OSError as e: print(e)\n"
    "    else: print('ESCAPED')\n"
)
_BIND = "server = socket.socket(); server.bind(('127.0.0.1', GIVEN['port'])); server.listen(); time.sleep(0.3)\n"
_SEE_SERVICE = (
    "if f':{GIVEN[\"port\"]:04X} ' in open('/proc/net/tcp').read(): print('ESCAPED')\n"
)

# (name, what must not happen, probe, the control needs root, what the stage prepares)
_ROWS = (
    ("TCP to the host's loopback", "a service of the host is reached", _connect("AF_INET", "127.0.0.1"), False, TCP),
    ("TCP to 0.0.0.0", "a service is reached by the address that means any", _connect("AF_INET", "0.0.0.0"), False,
     TCP),
    ("TCP over IPv6", "a service is reached over IPv6", _connect("AF_INET6", "::1"), False, TCP6),
    ("TCP to a mapped address", "a service is reached by an IPv4 address in IPv6",
     _connect("AF_INET6", "::ffff:127.0.0.1"), False, TCP),
    ("TCP Fast Open", "a connection is made without connect", _FASTOPEN, False, TCP),
    ("UDP to the host's loopback", "a datagram reaches the host", _send("AF_INET", "127.0.0.1"), False, UDP),
    ("UDP by sendmsg", "a datagram reaches the host", _SENDMSG, False, UDP),
    ("UDP over IPv6", "a datagram reaches the host over IPv6", _send("AF_INET6", "::1"), False, UDP6),
    ("UDP to a mapped address", "a datagram reaches the host by an IPv4 address in IPv6",
     _send("AF_INET6", "::ffff:127.0.0.1"), False, UDP),
    ("ports of a cluster", "a job speaks to the cluster whose node it runs on", _CLUSTER, False, _cluster),
    ("DNS", "a question leaves, and data with it", _DNS, False, _dns),
    ("raw socket", "packets are forged", _open("socket.AF_INET, socket.SOCK_RAW, 1"), True, None),
    ("raw IPv6 socket", "packets are forged", _open("socket.AF_INET6, socket.SOCK_RAW, 58"), True, None),
    ("packet socket", "frames are read and forged", _open("17, socket.SOCK_RAW, 0x300"), True, None),
    ("packet socket without frames", "packets are read", _open("17, socket.SOCK_DGRAM, 0x300"), True, None),
    ("vsock", "the hypervisor or a neighbour is reached", _open("40, socket.SOCK_STREAM"), False, None),
    ("MPTCP", "TCP by another name", _open("socket.AF_INET, socket.SOCK_STREAM, 262"), False, None),
    ("netlink of the kernel's events", "device events are read", _open("16, socket.SOCK_RAW, 15"), False, None),
    ("netlink of sockets", "the host's sockets are listed", _open("16, socket.SOCK_RAW, 4"), False, None),
    ("netlink audit", "the audit log is reached", _open("16, socket.SOCK_RAW, 9"), False, None),
    ("netlink route", "addresses and routes are changed", _ROUTE, True, None),
    ("abstract socket of the host", "a service is reached by its abstract name", _UNIX, False, _abstract),
    ("abstract datagram", "a datagram reaches an abstract name", _UNIX_DATAGRAM, False, _abstract_datagram),
    ("descriptor to the host", "a descriptor is handed out", _SEND_DESCRIPTOR, False, _abstract),
    ("socket in a readable directory", "a service is reached by its path", _UNIX, False,
     _unix_path(_STREAM, "readable_paths")),
    ("datagram socket in a readable directory", "a datagram reaches a path", _UNIX_DATAGRAM, False,
     _unix_path(_DATAGRAM, "readable_paths")),
    ("socket through /proc/self/cwd", "a service is reached by another path", _UNIX_BY_DIRECTORY, False,
     _unix_path(_STREAM, "readable_paths")),
    ("socket in the workspace", "a service is reached by its path", _UNIX, False, _unix_path(_STREAM, "workspace")),
    ("socket beside a mount in a readable directory", "a service is reached by its path", _UNIX, False,
     _unix_path(_STREAM, "readable_paths", "sub")),
    ("datagram socket beside a mount in a readable directory", "a datagram reaches a path", _UNIX_DATAGRAM, False,
     _unix_path(_DATAGRAM, "readable_paths", "sub")),
    ("socket in a mount in a readable directory", "a service is reached by its path", _UNIX, False,
     _unix_path(_STREAM, "readable_paths", "sub", "sub/socket")),
    ("socket in a writable directory", "a service is reached by its path", _UNIX, False,
     _unix_path(_STREAM, "writable_paths")),
    ("datagram socket in a writable directory", "a datagram reaches a path", _UNIX_DATAGRAM, False,
     _unix_path(_DATAGRAM, "writable_paths")),
    ("datagram pair to a writable directory", "a datagram reaches a path", _UNIX_BY_PAIR, False,
     _unix_path(_DATAGRAM, "writable_paths")),
    ("answer on a port of the host", "the job plays a service to the host", _BIND, False, _client),
    ("see the host's services", "open ports of the host are listed", _SEE_SERVICE, False, TCP),
)  # fmt: skip

ATTACKS = [
    *(Attack(name=name, family="network", what=what, probe=probe, needs_root=root, prepare=prepare or (lambda _: {}))
      for name, what, probe, root, prepare in _ROWS),
    Attack(name="metadata address", family="network", what="the cloud's credentials are read", probe=_METADATA,
           control=_METADATA_CONTROL, needs_root=True),
]  # fmt: skip
