"""What a text or an argument looks like: packed data, a path, programs, an address, an encoding. Decides nothing."""

from __future__ import annotations

import ast

from ringfence.validation.values import Const, PathOf, Ref, Start, Value

PROGRAMS = (".py", ".pyw", ".pyc", ".sh", ".exe", ".so", ".dll", ".bat", ".pth")
_SHOWN = 200
_PATH_HINTS = ("/", "~", "../", "http:", "https:", "ftp:", "s3:", "file:", "\\\\", "C:")


def is_packed(text: str) -> bool:
    """Whether a long text is not prose: hardly any blanks, or unreadable bytes."""
    sample = text[:2000]
    if len(sample.split()) <= len(sample) // 60:
        return True
    return sum(not char.isprintable() and char not in "\n\t\r" for char in sample) > len(sample) // 10


def shown_path(path: Value | None) -> str:
    if isinstance(path, PathOf):
        return shown_path(path.at)
    if isinstance(path, Const):
        return ascii(path.value[:_SHOWN] if isinstance(path.value, str | bytes) else path.value)
    return f"{path.value[:_SHOWN]!a}…" if isinstance(path, Start) else path.name if isinstance(path, Ref) else "…"


def looks_like_a_path(text: object) -> bool:
    return isinstance(text, str) and (text.startswith(_PATH_HINTS) or "/../" in text)


def is_of_programs(pattern: str) -> bool:
    return "*" in pattern and pattern.rstrip("*").endswith(PROGRAMS)


def is_plain_encoding(node: ast.expr) -> bool:
    name = node.value if isinstance(node, ast.Constant) else ""
    return isinstance(name, str) and name.lower().replace("_", "-") in ("utf-8", "utf8", "ascii", "latin-1", "latin1")


def is_address(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple) and len(node.elts) == 2
