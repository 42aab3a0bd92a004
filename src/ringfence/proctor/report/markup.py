"""HTML made of elements: every text is escaped unless it is markup already, so no escaping can be forgotten.

Texts come out of sandboxes. Characters that could reverse a line, hide in it or steer a terminal are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby

from ringfence.kernel.recorder import printable
from ringfence.model.system_text import escape_controls


class Markup(str):
    """Text that is HTML. Only this module makes it, and code that reads a file of ours."""

    __slots__ = ()


Child = str | Iterable[str]


def element(tag: str, *children: Child, **attributes: str) -> Markup:
    """Return an element; an attribute's name may end with ``_`` where it is a Python keyword.

    >>> element("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    named = "".join(f' {_attribute(name)}="{words(value)}"' for name, value in attributes.items() if value)
    return Markup(f"<{tag}{named}>{inside(*children)}</{tag}>")


def inside(*children: Child) -> Markup:
    """Return children one after the other; each is a text, markup, or several of them."""
    return Markup("".join(_child(child) for child in children))


def words(text: str) -> Markup:
    """Return a short text in one line, with what does not print as escapes."""
    return Markup(escape(escape_controls(printable(text)), quote=True))


def quoted(text: str) -> Markup:
    """Return a text of many lines, with escapes marked so that printed look-alikes differ.

    >>> quoted("a\\x1b[2J\\n")
    'a<span class="esc">\\\\x1b</span>[2J\\n'
    """
    runs = groupby(printable(text), key=lambda char: char.isprintable() or char in "\n\t")
    return Markup("".join(_run("".join(chars), plain) for plain, chars in runs))


def _run(text: str, plain: bool) -> str:
    return escape(text) if plain else f'<span class="esc">{escape(escape_controls(text))}</span>'


def _child(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    return words(child) if isinstance(child, str) else inside(*child)


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")
