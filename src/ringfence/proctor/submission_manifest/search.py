"""Finds known answers in a stream of bytes: as they are, in other spaces and line ends, in hexadecimal, base64 and
UTF-16, backwards, and in what is compressed. It knows nothing of tasks.

It finds answers that were carried in carelessly or in simple disguise. It does not find an encrypted answer.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from ringfence.model.record import record

LONGEST = 8192
"""Of an answer; longer ones are looked for by their beginning."""
MAX_UNPACKED_BYTES = 256 << 20
"""Of one compressed file: a bomb is not unpacked beyond that."""
_LARGE = 256 << 10
_WORD = re.compile(rb"\w{5,}")
_BLANK = b"\0 \t\n\r\v\f"
_GAPS = ((re.compile(rb"\s{2,}"), b" "), (re.compile(rb"\0{2,}"), b"\0"), (re.compile(rb"(?:\s\0){2,}"), b" \0"))
"""White space, and that of UTF-16, with what means the same to the search."""
_UNPACKED_CHUNK = 1 << 20
_LEAST_HIDDEN = 8
_PLAIN = "as it is"
_ZIP = b"PK\x03\x04"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


@record
class Answer:
    """A text that gives something away; spaces and line ends in it are single spaces."""

    kind: str
    source: str
    """Where it is from, for people: never the text itself."""
    text: bytes


def squeezed(data: bytes) -> bytes:
    """With single spaces for all white space.

    >>> squeezed(b" a\\n\\tb ")
    b'a b'
    """
    return b" ".join(data.split())


class Search:
    """For all answers at once, in one stream after the other."""

    def __init__(self, answers: Iterable[Answer], *, plain_only: bool = False) -> None:
        """``plain_only``: without disguises."""
        self._rows = [(answer, answer.text[:LONGEST], _inner_words(answer.text[:LONGEST])) for answer in answers]
        self._plain_only = plain_only
        self._hidden = [] if plain_only else [*_disguises(answer for answer, _, _ in self._rows)]

    def of(self, chunks: Iterable[bytes]) -> list[tuple[Answer, str]]:
        """Return each answer that is in the content, with the form in which it was found first."""
        if not self._rows:
            return []
        found: dict[Answer, str] = {}
        for layer, content in _layers(chunks, deep=not self._plain_only):
            for window in _windows(content):
                self._look(window, layer, found)
        return [*found.items()]

    def _look(self, window: bytes, layer: str, found: dict[Answer, str]) -> None:
        self._plain(squeezed(window), layer or _PLAIN, found)
        if self._plain_only:
            return
        if b"\0" in window:
            self._plain(squeezed(window.replace(b"\0", b"")), layer or "UTF-16", found)
        dense = b"".join(window.split())
        views = {"hexadecimal": dense.lower(), "base64": dense.translate(_URL_SAFE), "backwards": dense}
        for answer, form, text in self._hidden:
            if answer not in found and text in views[form]:
                found[answer] = f"{form} {layer}".strip()

    def _plain(self, text: bytes, form: str, found: dict[Answer, str]) -> None:
        """In a large text, first check only whether an answer's words occur: that takes one pass for all answers."""
        words = frozenset(_WORD.findall(text)) if len(text) > _LARGE else None
        for answer, wanted, inner in self._rows:
            if answer not in found and (words is None or inner <= words) and wanted in text:
                found[answer] = form


def _inner_words(text: bytes) -> frozenset[bytes]:
    """Its words except the first and the last, which may be parts of longer ones in what is searched."""
    found = [(match.start(), match.end(), match.group()) for match in _WORD.finditer(text)]
    return frozenset(word for start, end, word in found if start > 0 and end < len(text))


def _disguises(answers: Iterable[Answer]) -> Iterator[tuple[Answer, str, bytes]]:
    """Ways to write a short answer so that nobody recognises it."""
    for answer in answers:
        text = answer.text
        if not _LEAST_HIDDEN <= len(text) <= LONGEST // 4:
            continue
        yield answer, "hexadecimal", text.hex().encode()
        yield answer, "backwards", b"".join(text[::-1].split())
        for before in range(3):
            # The characters that do not depend on neighbouring bytes.
            coded = b64encode(bytes(before) + text)[(8 * before + 5) // 6 : 8 * (before + len(text)) // 6]
            yield answer, "base64", coded


def _windows(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The content in pieces that overlap, so that no answer is cut in two. White space may make it longer."""
    tail = b""
    for chunk in chunks:
        window = tail + chunk
        yield window
        tail = _end(window)


def _end(window: bytes) -> bytes:
    """As much of its end as the longest answer may take up; if that is little but white space, without most of it."""
    end = window[-4 * LONGEST :]
    if len(end.translate(None, _BLANK)) >= LONGEST:
        return end
    for gap, short in _GAPS:
        window = gap.sub(short, window)
    return window[-4 * LONGEST :]


def _layers(chunks: Iterable[bytes], *, deep: bool) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The content, and its unpacked form. Both are read from the same bytes."""
    source = iter(chunks)
    head = next(source, b"")
    kind = _kind(head) if deep else None
    if kind is None:
        yield "", chain([head], source)
        return
    kept: list[bytes] = [head]
    room = MAX_UNPACKED_BYTES - len(head)
    while room > 0 and (chunk := next(source, b"")):
        kept.append(chunk)
        room -= len(chunk)
    yield "", chain(kept, source)
    name, unpack = kind
    yield f"in {name}", _bounded(unpack(b"".join(kept)))


def _kind(head: bytes) -> tuple[str, Callable[[bytes], Iterator[bytes]]] | None:
    """How something is packed. A zip may have anything before it, such as the line that names an interpreter."""
    begun = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), None)
    return begun or (_PACKED[_ZIP] if _ZIP in head else None)


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """As much as can be unpacked: rubbish is no error, since anybody may hand it in."""
    room = MAX_UNPACKED_BYTES
    try:
        for chunk in chunks:
            room -= len(chunk)
            yield chunk
            if room <= 0:
                return
    except Exception:  # whatever a broken archive makes a reader raise
        return


def _stream(opener: str, module: str) -> Callable[[bytes], Iterator[bytes]]:
    def unpack(data: bytes) -> Iterator[bytes]:
        from importlib import import_module
        from io import BytesIO

        with getattr(import_module(module), opener)(BytesIO(data)) as file:
            while chunk := file.read(_UNPACKED_CHUNK):
                yield chunk

    return unpack


def _zip(data: bytes) -> Iterator[bytes]:
    import zipfile
    from io import BytesIO

    with zipfile.ZipFile(BytesIO(data)) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                while chunk := file.read(_UNPACKED_CHUNK):
                    yield chunk
            yield b"\n"


_PACKED: dict[bytes, tuple[str, Callable[[bytes], Iterator[bytes]]]] = {
    b"\x1f\x8b": ("gzip", _stream("open", "gzip")),
    b"BZh": ("bzip2", _stream("open", "bz2")),
    b"\xfd7zXZ\0": ("xz", _stream("open", "lzma")),
    _ZIP: ("zip", _zip),
}
