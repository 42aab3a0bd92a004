"""Plain values as JSON, without loading ``json`` and the regular expressions that it loads: ADR 0003.

Only for writing by processes of ours; what they read is decoded by ``json`` itself.
"""

from __future__ import annotations

from _collections_abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from json.encoder import encode_basestring_ascii as quoted
else:
    try:
        from _json import encode_basestring_ascii as quoted
    except ImportError:  # another Python
        from json.encoder import encode_basestring_ascii as quoted

_WORDS = {None: "null", True: "true", False: "false"}


def dumps(value: object) -> str:
    """As ``json.dumps`` writes texts, numbers, truth values, None, and lists and mappings of these; TypeError."""
    if isinstance(value, str):
        return quoted(value)
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float) and value - value == 0:
        return float.__repr__(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(dumps, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join([f"{quoted(name)}: {dumps(each)}" for name, each in value.items()]) + "}"
    raise TypeError(f"{value!r} is not a plain value")
