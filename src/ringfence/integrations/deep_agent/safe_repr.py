"""The name of an object or an exception, obtained so that its own code can't interfere.

A tool chooses its value and its exception: their own name, length or text may raise.
"""

from __future__ import annotations


def type_name(value: object) -> str:
    """The name of its class, whatever that class claims."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name


def described(error: BaseException) -> str:
    """The class and, if there is one, the text, in one line or more."""
    try:
        return f"{type_name(error)}: {error}"
    except (Exception, SystemExit):
        return f"{type_name(error)}: (it has no text)"
