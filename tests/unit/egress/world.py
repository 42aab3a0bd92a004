"""A little world for the gateway: network namespaces of a test's own, in which public addresses are on interfaces.

``@in_world`` runs a test in a forked process. That process and the gateway it starts live in one network namespace,
the servers in another one behind a veth pair, the guest in a third that has nothing but its loopback. Sockets belong to
the namespace that they were made in, so one process plays all three. No packet leaves the machine.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.patience import eventually

from ringfence.egress import client
from ringfence.egress.addresses import SPARES, AddressPlan
from ringfence.model.network_rule import NetworkRule
from ringfence.transport import passing

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, NEWNET = 0x20000, 0x10000000, 0x40000000
IP = "/usr/sbin/ip"
PUBLIC, OTHER, METADATA, PRIVATE, PUBLIC6 = (
    "93.184.216.34",
    "93.184.216.35",
    "169.254.169.254",
    "10.1.2.3",
    "2606:2800::1",
)
ALL = (PUBLIC, OTHER, METADATA, PRIVATE)
GATEWAY = "93.184.216.1"
RESOLVER = "127.64.0.1"
"""The same address as inside a sandbox, so that one resolv.conf does for both."""

SILENCE = "silence"
"""For the addresses of a name whose server never answers."""

needs_ip = pytest.mark.skipif(not os.path.exists(IP), reason="needs ip of iproute2")


def check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def ip(*words: str) -> None:
    subprocess.run([IP, *words], check=True, capture_output=True)


def in_world(test: Callable[..., None]) -> Callable[..., None]:
    """Run the test in a world of its own; it is given the world."""

    @functools.wraps(test)
    def run() -> None:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            problem = ""
            try:
                test(World())
            except BaseException:
                problem = traceback.format_exc()
            finally:
                os.write(write, problem.encode()[-60000:])
                os._exit(0)
        os.close(write)
        with open(read, "rb") as report:
            problem = report.read().decode()
        os.waitpid(child, 0)
        if problem:
            pytest.fail(problem, pytrace=False)

    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would look for a fixture
    return run


class World:
    def __init__(self) -> None:
        self._enter()
        self.here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.there = self._new_namespace()
        self.answers: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self._connect_them()
        self._serve_names()

    def _enter(self) -> None:
        uid, gid = os.getuid(), os.getgid()
        if uid == 0:
            check(libc.unshare(NEWNET | NEWNS))
        else:
            check(libc.unshare(NEWUSER | NEWNET | NEWNS))
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        check(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))  # private, all below
        for path, text in (("/etc/resolv.conf", f"nameserver {RESOLVER}\n"), ("/etc/hosts", "127.0.0.1 localhost\n"),
                           ("/etc/nsswitch.conf", "hosts: files dns\n")):  # fmt: skip
            with tempfile.NamedTemporaryFile("w", delete=False) as file:
                file.write(text)
            os.chmod(file.name, 0o644)
            if os.path.exists(path):
                check(libc.mount(file.name.encode(), os.path.realpath(path).encode(), None, 0x1000, None))
            os.unlink(file.name)
        ip("link", "set", "lo", "up")

    def _new_namespace(self) -> int:
        check(libc.unshare(NEWNET))
        made = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        ip("link", "set", "lo", "up")
        check(libc.setns(self.here, NEWNET))
        return made

    def _connect_them(self) -> None:
        with self.at(self.there):
            anchor = subprocess.Popen(["sleep", "60"])  # ip names a namespace by a process
        ip("link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(anchor.pid))
        ip("addr", "add", f"{GATEWAY}/24", "dev", "near")
        ip("link", "set", "near", "up")
        with self.at(self.there):
            for address in ALL:
                ip("addr", "add", f"{address}/24", "dev", "far")
            ip("link", "set", "far", "up")
            ip("route", "replace", "default", "dev", "far")
        ip("route", "add", "default", "dev", "near")
        anchor.kill()
        anchor.wait()

    @contextmanager
    def at(self, namespace: int) -> Iterator[None]:
        """This thread, and what it starts, is there for a while."""
        check(libc.setns(namespace, NEWNET))
        try:
            yield
        finally:
            check(libc.setns(self.here, NEWNET))

    def _serve_names(self) -> None:
        link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        link.bind((RESOLVER, 53))

        def serve() -> None:
            while True:
                query, asker = link.recvfrom(4096)
                answer = self._answered(query)
                if answer:
                    link.sendto(answer, asker)

        threading.Thread(target=serve, daemon=True).start()

    def _answered(self, query: bytes) -> bytes:
        """An answer of the test's: of a list with several entries each query takes the next."""
        at, labels = 12, []
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += query[at] + 1
        name, kind = ".".join(labels), int.from_bytes(query[at + 1 : at + 3], "big")
        question = query[12 : at + 5]
        family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
        listed = self.answers.get(name)
        if listed == [SILENCE]:
            return b""
        rows: list[bytes] = []
        if listed is not None and family is not None:
            usable = [text for text in listed[0].split(",") if (":" in text) == (family == socket.AF_INET6)]
            rows = [socket.inet_pton(family, text) for text in usable]
            if kind == 1:
                self.asked.append(name)
                if len(listed) > 1:
                    listed.pop(0)
        code = 0x8180 if listed is not None else 0x8183
        answer = query[:2] + struct.pack("!5H", code, 1, len(rows), 0, 0) + question
        return answer + b"".join(b"\xc0\x0c" + struct.pack("!2HIH", kind, 1, 0, len(row)) + row for row in rows)

    # ---- servers

    def server(
        self, port: int, serve: Callable[[socket.socket], None], address: str = "0.0.0.0"
    ) -> list[socket.socket]:
        """Serve connections in the world; what they came to is in the list."""
        with self.at(self.there):
            listening = socket.create_server((address, port), backlog=2048)
        accepted: list[socket.socket] = []

        def loop() -> None:
            while True:
                link, _ = listening.accept()
                accepted.append(link)
                threading.Thread(target=_quietly, args=(serve, link), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()
        return accepted

    # ---- the guest

    def guest(self, *rules: str | dict[str, object], **more: Any) -> Guest:
        return Guest(self, [NetworkRule.of(rule) for rule in rules], **more)


def _quietly(serve: Callable[[socket.socket], None], link: socket.socket) -> None:
    try:
        with link:
            serve(link)
    except OSError:
        pass


class Guest:
    """A sandbox as the gateway sees it: a namespace with sockets that it accepts on."""

    def __init__(self, world: World, rules: list[NetworkRule], **more: Any) -> None:
        self.world, self.rules = world, rules
        self.registration = client.register(rules, **more)
        self.plan = AddressPlan.of(rules)
        self.namespace = world._new_namespace()
        with world.at(self.namespace):
            ip("route", "add", "local", "default", "dev", "lo")
            ip("-6", "route", "add", "local", "default", "dev", "lo")
            Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")  # the gateway is nobody
            made = [_bound(*row) for row in (*self.plan.rows, *SPARES)]
        for start in range(0, len(made), passing.MAX_DESCRIPTORS):
            group = made[start : start + passing.MAX_DESCRIPTORS]
            passing.send(self.registration.listeners, passing.SOCKETS, [each.fileno() for each in group])
        passing.send(self.registration.listeners, passing.LAST_SOCKET, [])
        self.registration.handed_over()
        for each in made:
            each.close()

    def connect(self, address: str, port: int, timeout: float = 30) -> socket.socket:
        with self.world.at(self.namespace):
            return socket.create_connection((address, port), timeout)

    def resolve(self, name: str) -> str | None:
        """What the resolver of the sandbox answers; None: there is no such name."""
        labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
        query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)
        with self.world.at(self.namespace):
            link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with link:
            link.settimeout(30)
            link.sendto(query, (RESOLVER, 53))
            answer = link.recv(4096)
        return None if answer[3] & 15 else socket.inet_ntoa(answer[-4:])

    def to(self, name: str, port: int) -> socket.socket:
        """Connect as a program does that knows no proxy."""
        address = self.resolve(name)
        assert address is not None, name
        return self.connect(address, port)

    def proxy(self) -> socket.socket:
        return self.connect("127.64.0.2", 3128)

    def run(self, *command: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        with self.world.at(self.namespace):
            return subprocess.run(command, capture_output=True, timeout=120, check=False, **more)

    def events(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait for so many, close the sandbox and return all that is told of it, in the order of the decisions."""
        found: list[Any] = []

        def enough() -> bool:
            found.extend(self.registration.receive())
            return len(found) >= count or bool(self.registration.lost)

        eventually(enough, told=lambda: found)
        told = [dict(event) for event in (*found, *self.registration.close())]
        return sorted(told, key=lambda event: float(event["time_s"]))


def _bound(family: int, address: str, port: int, protocol: str) -> socket.socket:
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    made = socket.socket(family, kind)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND: local routes alone do not do, unlike for IPv4
    if kind == socket.SOCK_STREAM:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if protocol == "spare":
        return made
    made.bind((address, port))
    if kind == socket.SOCK_STREAM:
        made.listen(2048)
    return made


# ---- what servers do


def echo(link: socket.socket) -> None:
    while data := link.recv(65536):
        link.sendall(data)


def http(link: socket.socket) -> None:
    """Answer each request with its own head."""
    waiting = b""
    while True:
        while b"\r\n\r\n" not in waiting:
            data = link.recv(65536)
            if not data:
                return
            waiting += data
        head, _, waiting = waiting.partition(b"\r\n\r\n")
        more = b"Connection: close\r\n" if b"Connection: close" in head else b""
        link.sendall(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (more, len(head), head))
        if more:
            return


def read_all(link: socket.socket) -> bytes:
    """Everything until the end; what was reset is at its end too."""
    found = b""
    try:
        while data := link.recv(65536):
            found += data
    except ConnectionError:
        pass
    return found


def response(link: socket.socket) -> bytes:
    """One HTTP response with a length."""
    found = b""
    while b"\r\n\r\n" not in found:
        data = link.recv(65536)
        if not data:
            return found
        found += data
    head, _, body = found.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        data = link.recv(65536)
        if not data:
            break
        body += data
    return head + b"\r\n\r\n" + body


if __name__ == "__main__":
    sys.exit(__doc__)
