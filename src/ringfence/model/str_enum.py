"""``StrEnum`` for the closed sets of the main path, without loading ``enum`` and all that it loads.

Type checkers see the real one. A member is its own text, is found by it, compares, hashes, copies and pickles
like it, and there is exactly one of each. The modules of the main path also take their abstract types from
``_collections_abc``, which every interpreter has loaded anyway: ADR 0003.
"""

from __future__ import annotations

__all__ = ["StrEnum"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import StrEnum
else:

    class _ClosedSet(type):
        """Makes every text in the body of a class a member of it; afterwards nothing can be added."""

        def __new__(mcs, name, bases, body):
            texts = {key: value for key, value in body.items() if isinstance(value, str) and key[0] != "_"}
            cls = type.__new__(mcs, name, bases, {key: body[key] for key in body if key not in texts})
            members = {}
            for key, text in texts.items():
                member = str.__new__(cls, text)
                member.__dict__.update(name=key, value=text)
                members[text] = member
                type.__setattr__(cls, key, member)
            type.__setattr__(cls, "__members__", {member.name: member for member in members.values()})
            type.__setattr__(cls, "_by_text", members)
            return cls

        def __call__(cls, text):
            try:
                return cls._by_text[text]
            except (KeyError, TypeError):
                raise ValueError(f"{text!r} is not a valid {cls.__name__}") from None

        def __iter__(cls):
            return iter(cls._by_text.values())

        def __len__(cls):
            return len(cls._by_text)

        def __contains__(cls, text):
            return isinstance(text, str) and text in cls._by_text

        def __getitem__(cls, key):
            return cls.__members__[key]

        def __setattr__(cls, key, value):
            raise AttributeError(f"{cls.__name__} can't be extended or changed")

    class StrEnum(str, metaclass=_ClosedSet):
        """A text of a closed set."""

        def __str__(self):
            return str.__str__(self)

        __format__ = str.__format__

        def __repr__(self):
            return f"<{type(self).__name__}.{self.name}: {self.value!r}>"

        def __setattr__(self, key, value):
            raise AttributeError(f"{type(self).__name__} can't be extended or changed")

        def __reduce__(self):
            return type(self), (self.value,)

        def __copy__(self):
            return self

        def __deepcopy__(self, _):
            return self
