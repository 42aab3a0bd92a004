"""What an object or an exception is called, asked so that nothing of it can get in the way.

A tool's value and its exception are whatever the tool made: a name, a length or a text of their own may raise.
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
