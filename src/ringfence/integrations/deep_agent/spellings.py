"""The paths that a text may mean to a program that opens it: stripped, unquoted, expanded, with any kind of slash.

A heuristic over cheap ways to spell a path. Other encodings (base64, a cipher, a name that the tool looks up in a table
of its own) are not seen; ``signs`` decodes some of it for secret files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import unquote

from ringfence.integrations.deep_agent.confusables import fold

_UNQUOTINGS = 3
# A colon only before an absolute path, as in host:/path, but not in an address.
_BETWEEN = re.compile(r"""[\s\0"'`=(),;|&\[\]{}@!]+|:(?=/(?!/))""")
_FILE_ADDRESS = re.compile(r"file:/*", re.IGNORECASE)


# Each alternative ends at the next sign that could begin one, so no part of a text is gone through twice.
_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^{}\ud800-\udfff]*)\})" + (r"|%([^%$]+)%" if os.name == "nt" else ""), re.ASCII)
_MOST_EXPANDED = 1 << 16
"""Characters that variables may bring into one text; no system opens a path of that length."""


def paths_in(text: str) -> Iterator[str]:
    """What a text may mean as a whole, line by line and word by word, in each spelling."""
    for line in dict.fromkeys((text, *text.splitlines())):
        whole = line.strip()
        yield from _spelled(whole)
        for word in _BETWEEN.split(whole):
            if word.strip("/\\") and word != whole:
                yield from _spelled(word)


def _spelled(text: str) -> Iterator[str]:
    """Each spelling once; most texts have only one."""
    yield text
    if text.isascii() and text.isalnum():
        return
    seen = {text}
    for form in _forms(text):
        if form not in seen:
            seen.add(form)
            yield form


def _forms(text: str) -> Iterator[str]:
    for decoded in _unquoted(text):
        for form in (decoded, _expanded(decoded)):
            yield form
            yield _with_slashes(form)
            if not form.isascii():
                yield _with_slashes(fold(form))


def _expanded(text: str) -> str:
    """As ``os.path.expandvars``, whose time grows with the square of the text."""
    room = _MOST_EXPANDED

    def value(found: re.Match[str]) -> str:
        nonlocal room
        known = os.environ.get(next(filter(None, found.groups()), ""), "")
        room -= len(known)
        return known if known and room >= 0 else found[0]

    return _VARIABLE.sub(value, text) if "$" in text or os.name == "nt" else text


def _with_slashes(text: str) -> str:
    plain = text.strip().replace("\\", "/")
    return _FILE_ADDRESS.sub("/", plain, count=1) if _FILE_ADDRESS.match(plain) else plain


def _unquoted(text: str) -> Iterator[str]:
    """With its percent signs, and without: some decode twice."""
    for _ in range(_UNQUOTINGS):
        yield text
        if "%" not in text:
            return
        text = unquote(text)
    yield text
