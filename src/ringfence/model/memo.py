"""``lru_cache`` for the main path, without loading ``functools`` and all that it loads: ADR 0003.

Type checkers see the real one. Arguments are given by position. When the cache is full it is emptied all at once: the
few arguments that come again are soon known again.
"""

from __future__ import annotations

__all__ = ["lru_cache"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from functools import lru_cache
else:

    def lru_cache(*, maxsize):
        """Call the function once for each of the latest arguments."""

        def remembering(function):
            known = {}

            def ask(*key):
                try:
                    return known[key]
                except KeyError:
                    pass
                if len(known) >= maxsize:
                    known.clear()
                known[key] = answer = function(*key)
                return answer

            ask.__doc__, ask.__name__, ask.__wrapped__ = function.__doc__, function.__name__, function
            return ask

        return remembering
