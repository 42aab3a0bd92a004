"""The name of an object or an exception, obtained so that its own code can't interfere.

A tool chooses its value and its exception: their own name, length or text may raise.
"""

from __future__ import annotations


def type_name(value: object) -> str:
    """Of its class, whatever that class says of its own name."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name


def described(error: BaseException) -> str:
    """In one line or more: the class and, where there is one, the text."""
    try:
        return f"{type_name(error)}: {error}"
    except (Exception, SystemExit):
        return f"{type_name(error)}: (it has no text)"
