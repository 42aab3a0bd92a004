"""What a system call can take as text. Nothing here knows what the text is for."""

from __future__ import annotations

import os


def is_system_text(text: object) -> bool:
    """Whether it has bytes at all (a lone surrogate has none) and no NUL among them."""
    try:
        return isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
