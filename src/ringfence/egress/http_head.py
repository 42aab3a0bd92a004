"""Reads a guest's HTTP/1.1 requests more strictly than h11: what two servers could read differently is refused.

Pure: bytes in, events out. A head is held back until it is complete and clean, and only then given to h11; each request
has an h11 connection of its own, so nothing behind a body is read as a head without these checks. Upstream gets what
was read here, written anew by h11, never the guest's own bytes.
"""

from __future__ import annotations

import re

import h11

from ringfence.egress.host_port import BadHost, HostPort, host_port
from ringfence.model.record import record, replace

MAX_HEAD_BYTES = 65536
MAX_HEADERS = 256
_MOST_DIGITS = 18
"""Digits of a length: with more, some servers overflow, and take a part of the body for another request."""
_MAX_PHRASE = 400
_BAD_BYTES = re.compile(rb"[^\t\r\n\x20-\x7e\x80-\xff]|(?<!\r)\n|\r(?=[^\n])|\n[ \t]")
_AGREES_WITH_ONE_CONNECTION = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"proxy-authorization",
     b"proxy-authenticate", b"http2-settings"}
)  # fmt: skip
Headers = list[tuple[bytes, bytes]]


class BadRequest(Exception):
    """A request that goes nowhere. The text may be shown to the guest; ``status`` is that of the response."""

    def __init__(self, problem: str, status: int = 400) -> None:
        super().__init__(problem)
        self.status = status


@record
class RequestHead:
    """One request without its body."""

    method: str
    host: HostPort
    """Where it wants to go, by its target and its Host header, which agree."""
    path: str
    """The target in origin form, or ``*``; empty for CONNECT."""
    is_absolute: bool
    """Whether the target had a scheme and a host, as for a proxy."""
    headers: tuple[tuple[bytes, bytes], ...]
    """As the guest wrote them, without Host."""
    version: str
    """Of HTTP: 1.0 or 1.1."""
    upgrade: bool
    has_body: bool

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all headers of that name, which is in lower case."""
        return [value for each, value in self.headers if each.lower() == name]


class RequestReader:
    """The requests of one connection from the guest, and the answers to them."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._seen = 0
        self._closed = False
        self._cycle = h11.Connection(h11.SERVER)
        self._reads_body = False
        self._method = ""

    def receive(self, data: bytes | memoryview) -> None:
        """Take what was read from the guest; empty: it will send no more."""
        if self._reads_body:
            self._cycle.receive_data(data)  # type: ignore[arg-type]  # it takes any bytes
        self._closed = self._closed or not data
        if not self._reads_body:
            self._raw += data

    def next_event(self) -> RequestHead | h11.Data | h11.EndOfMessage | h11.ConnectionClosed | type[h11.NEED_DATA]:
        """Return a head, then what its body consists of, then its end; raise BadRequest and nothing else."""
        if not self._reads_body:
            return self._head()
        event = _next_event(self._cycle)
        if isinstance(event, h11.EndOfMessage):
            self._raw, self._seen, self._reads_body = bytearray(self._cycle.trailing_data[0]), 0, False
        if isinstance(event, (h11.Data, h11.EndOfMessage)) or event is h11.NEED_DATA:
            return event
        raise BadRequest("the request ended before its body did")

    def answer(self, event: h11.Event) -> bytes:
        """Return the bytes of a part of the response, framed as this guest understands it."""
        return _framed(self._cycle, event)

    @property
    def goes_on(self) -> bool:
        """Whether another request can follow: request and response are over, and neither side said «close»."""
        return self._cycle.our_state is h11.DONE and self._cycle.their_state is h11.DONE

    def refuse(self, status: int, text: str) -> bytes:
        """Return a complete response of ours, after which the connection closes; empty where another was begun."""
        if self._cycle.our_state is h11.SEND_BODY:
            return b""
        if self._cycle.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._cycle, self._method = h11.Connection(h11.SERVER), ""  # the request before this one is over
        body = (text + "\n").encode("utf-8", "replace")
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))),
                   ("Connection", "close"), ("X-Ringfence", "refused")]  # fmt: skip
        parts: list[h11.Event] = [h11.Response(status_code=status, headers=headers, reason=_phrase(text))]
        parts += [] if self._method == "HEAD" else [h11.Data(data=body)]
        return b"".join(self.answer(part) for part in [*parts, h11.EndOfMessage()])

    @property
    def waiting(self) -> bytes:
        """What was received and not read yet: what follows a CONNECT, or a request before its turn."""
        return bytes(self._raw)

    def _head(self) -> RequestHead | h11.ConnectionClosed | type[h11.NEED_DATA]:
        end = self._raw.find(b"\r\n\r\n", max(0, self._seen - 3))
        upto = end + 4 if end >= 0 else len(self._raw)
        if upto > MAX_HEAD_BYTES:
            raise BadRequest(f"the head of the request is longer than {MAX_HEAD_BYTES} bytes", 431)
        if (self._raw and self._raw[0] <= 0x20) or _BAD_BYTES.search(self._raw, max(0, self._seen - 3), upto):
            raise BadRequest("the head of the request has a control character, a folded line or a line without CR LF")
        self._seen = upto
        if end < 0:
            return self._nothing_yet()
        head, rest = bytes(self._raw[:upto]), bytes(self._raw[upto:])
        return self._begin(head, rest)

    def _nothing_yet(self) -> h11.ConnectionClosed | type[h11.NEED_DATA]:
        if not self._closed:
            return h11.NEED_DATA
        if self._raw:
            raise BadRequest("the request ended within its head")
        return h11.ConnectionClosed()

    def _begin(self, head: bytes, rest: bytes) -> RequestHead:
        """Read a complete, clean head; what follows it belongs to its body first."""
        self._cycle, self._method = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES), ""
        self._cycle.receive_data(head)
        event = _next_event(self._cycle)
        if not isinstance(event, h11.Request):
            raise BadRequest("the head of the request is not complete")
        self._method = event.method.decode("ascii")
        found = _checked(event, head.split(b"\r\n")[1:-2])
        if found.method == "CONNECT":
            self._raw, self._seen = bytearray(rest), 0
            return found
        if rest:
            self._cycle.receive_data(rest)
        if self._closed:
            self._cycle.receive_data(b"")
        self._raw, self._reads_body = bytearray(), True
        return found


def _phrase(text: str) -> bytes:
    """Return the text as the reason phrase of a response: a client whose CONNECT is refused shows that, and no body."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text[:_MAX_PHRASE]).encode("ascii")


def _next_event(cycle: h11.Connection) -> object:
    try:
        return cycle.next_event()
    except h11.RemoteProtocolError as error:
        # What h11 says may quote the guest, but never anything else: it has seen nothing else.
        raise BadRequest(f"not valid HTTP/1.1: {str(error)[:200]}", error.error_status_hint) from None


def _checked(request: h11.Request, lines: list[bytes]) -> RequestHead:
    method, target = request.method.decode("ascii"), request.target.decode("ascii")
    names = [line.partition(b":")[0].lower() for line in lines]
    _check_framing(request, lines, names)
    if names.count(b"host") > 1 or (not names.count(b"host") and method != "CONNECT"):
        raise BadRequest("a request needs exactly one Host header")
    hosts = [_host(value, "the Host header") for name, value in request.headers if name == b"host"]
    host, path = _where(method, target, hosts)
    if hosts and (hosts[0].host != host.host or (hosts[0].port or host.port) != (host.port or hosts[0].port)):
        raise BadRequest(f"the target says {host}, the Host header says {hosts[0]}")
    return RequestHead(
        method=method,
        host=host,
        path=path,
        is_absolute=method != "CONNECT" and not target.startswith(("/", "*")),
        headers=tuple((name, value) for name, value in request.headers.raw_items() if name.lower() != b"host"),
        version=request.http_version.decode("ascii"),
        upgrade=b"upgrade" in names,
        has_body=b"transfer-encoding" in names or _length(request) > 0,
    )


def _check_framing(request: h11.Request, lines: list[bytes], names: list[bytes]) -> None:
    """Refuse every way to mark a body's end that some server reads differently."""
    if request.http_version not in (b"1.0", b"1.1"):
        raise BadRequest("only HTTP/1.1 is supported", 505)
    if len(lines) > MAX_HEADERS:
        raise BadRequest(f"a request must have at most {MAX_HEADERS} headers", 431)
    lengths, codings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if lengths + codings > 1:
        raise BadRequest("a request must have one Content-Length or one Transfer-Encoding, not both or several")
    if codings and request.http_version == b"1.0":
        raise BadRequest("HTTP/1.0 must not have a Transfer-Encoding")
    if (lengths or codings) and request.method == b"CONNECT":
        raise BadRequest("CONNECT must not have a body")
    length = lines[names.index(b"content-length")].partition(b":")[2].strip(b" \t") if lengths else b"0"
    if not length.isdigit() or len(length) > _MOST_DIGITS:
        raise BadRequest(f"Content-Length must be a number of at most {_MOST_DIGITS} digits")
    if any(value.lower() != b"100-continue" for name, value in request.headers if name == b"expect"):
        raise BadRequest("the only expectation that is supported is 100-continue", 417)


def _length(request: h11.Request) -> int:
    return next((int(value) for name, value in request.headers if name == b"content-length"), 0)


def _where(method: str, target: str, hosts: list[HostPort]) -> tuple[HostPort, str]:
    """Return where a request goes, and its target in origin form."""
    if method == "CONNECT":
        host = _host(target.encode("ascii"), "the target of CONNECT")
        if host.port is None:
            raise BadRequest("the target of CONNECT must be host:port")
        return host, ""
    if "#" in target:
        raise BadRequest("a target must not have a fragment")
    if target.startswith("/") or (target == "*" and method == "OPTIONS"):
        return hosts[0], target
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() != "http":
        raise BadRequest("the target is neither a path nor http://host/path; for https use CONNECT")
    cut = next((at for at, letter in enumerate(rest) if letter in "/?"), len(rest))
    path = rest[cut:] if rest[cut:].startswith("/") else f"/{rest[cut:]}"
    host = _host(rest[:cut].encode("ascii"), "the target")
    return (replace(host, port=80) if host.port is None else host), path


def _host(value: bytes, where: str) -> HostPort:
    try:
        return host_port(value.decode("ascii"))
    except (BadHost, UnicodeDecodeError) as error:
        raise BadRequest(f"{where} names no host: {error if isinstance(error, BadHost) else 'not ASCII'}") from None


def for_wanted(head: RequestHead, name: str, port: int) -> None:
    """Raise BadRequest unless a request is for the host that its connection was made to."""
    if head.host.host != name or head.host.port not in (None, port):
        raise BadRequest(f"this connection is to {name}:{port}, and the request is for {head.host}", 421)


def end_to_end(headers: tuple[tuple[bytes, bytes], ...] | Headers) -> Headers:
    """Return the headers without the hop-by-hop ones, and without those that these name."""
    named = {
        word.strip().lower() for name, value in headers if name.lower() == b"connection" for word in value.split(b",")
    }
    dropped = _AGREES_WITH_ONE_CONNECTION | named - {b"content-length", b"transfer-encoding", b"host"}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _framed(cycle: h11.Connection, event: h11.Event) -> bytes:
    """Return the bytes of an event. A part of a body with a length is passed as it is, without a copy."""
    parts = cycle.send_with_data_passthrough(event) or []
    return parts[0] if len(parts) == 1 else b"".join(parts)


class UpstreamSide:
    """Requests to one server, written anew, and its responses."""

    def __init__(self) -> None:
        self._cycle = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    def request(self, head: RequestHead, authority: str, headers: Headers) -> bytes:
        """Return the bytes of a head for ``authority`` with these headers, which have no Host."""
        lines = [(b"Host", authority.encode("ascii")), *headers]
        event = h11.Request(method=head.method, target=head.path, headers=lines)
        return self._cycle.send(event) or b""

    def send(self, event: h11.Data | h11.EndOfMessage) -> bytes:
        """Return the bytes of a part of the body; trailers are dropped, as nobody checked them."""
        return _framed(self._cycle, event if isinstance(event, h11.Data) else h11.EndOfMessage())

    def receive(self, data: bytes | memoryview) -> None:
        self._cycle.receive_data(data)  # type: ignore[arg-type]  # it takes any bytes

    def next_event(self) -> object:
        """Return the next part of a response; raise BadResponse where it is no HTTP/1.1."""
        try:
            return self._cycle.next_event()
        except h11.RemoteProtocolError as error:
            raise BadResponse(f"the server's response is not valid HTTP/1.1 ({error.error_status_hint})") from None

    def next_cycle(self) -> bool:
        """Get ready for another request; return whether this connection can take one."""
        if self._cycle.our_state is not h11.DONE or self._cycle.their_state is not h11.DONE:
            return False
        if self._cycle.trailing_data[0]:
            return False  # a response that nobody asked for
        self._cycle.start_next_cycle()
        return True


class BadResponse(Exception):
    """The server's answer can't be passed on; the text holds nothing that the server or the guest sent."""


def response_of(event: h11.Response | h11.InformationalResponse) -> h11.Response | h11.InformationalResponse:
    """Return a response for the guest, without its hop-by-hop headers."""
    headers = end_to_end([*event.headers.raw_items()])
    return type(event)(status_code=event.status_code, headers=headers, reason=event.reason)

