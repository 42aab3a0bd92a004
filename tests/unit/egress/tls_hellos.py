"""ClientHellos for tests: of the real client of ``ssl``, and put together by hand."""

from __future__ import annotations

import ssl


def real_hello(name: str | None, alpn: tuple[str, ...] = ()) -> bytes:
    """Return what an ordinary client sends first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    if alpn:
        context.set_alpn_protocols(list(alpn))
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return sent.read()


def vector(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width, "big") + data


def extension(number: int, data: bytes) -> bytes:
    return number.to_bytes(2, "big") + vector(2, data)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    return extension(0, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


def message(extensions: bytes | None) -> bytes:
    """Return the handshake message of a hello; None: without the field of extensions."""
    fields = b"\x03\x03" + bytes(32) + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\0")
    body = fields + (b"" if extensions is None else vector(2, extensions))
    return b"\x01" + vector(3, body)


def records(data: bytes, *, size: int = 16384) -> bytes:
    """Return a message cut into records of at most that size."""
    cuts = range(0, len(data), size)
    return b"".join(b"\x16\x03\x01" + vector(2, data[cut : cut + size]) for cut in cuts)


def made_hello(*extensions: bytes, size: int = 16384) -> bytes:
    return records(message(b"".join(extensions)), size=size)
