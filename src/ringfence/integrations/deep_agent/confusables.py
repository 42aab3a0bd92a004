"""How a name or a text looks to a reader: look-alike letters, invisible characters and spelling tricks undone.

Owns folding a text to the plain letters that it resembles, and saying whether that was necessary. It knows the
alphabets that are used for this, not every look-alike in Unicode; it judges nothing.
"""

from __future__ import annotations

import re
import unicodedata

# Letter by letter what they look like: Cyrillic, Greek, Armenian, small capitals and other Latin letters that no
# normalisation form maps.
_PAIRS = (
    ("аеорсухіјѕһԁԛԝкмтвнєгпԍҽ", "aeopcyxijshdqwkmtbhergge"),
    ("АЕОРСУХІЈЅКМТВНЅԌ", "AEOPCYXIJSKMTBHSG"),
    ("αονρτυικεχηω", "aovptuikexnw"),
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX"),
    ("օսհոյց", "oshnjg"),
    ("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", "abcdefghijklmnoprstuvwyz"),
    ("ıȷɑɡøđłħŧℓ⁄∕⧸․。", "ijagodlhtl///.."),
)
_LOOKALIKES = {ord(odd): plain for odds, plains in _PAIRS for odd, plain in zip(odds, plains, strict=True)}
_LEET = str.maketrans("013457@$!", "oieastasi")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_LETTERS = re.compile(r"[^a-z0-9@$!]+")
_WORD = re.compile(r"[^\W\d_]+")


def fold(text: str) -> str:
    """Plain lower-case letters where there are any; ASCII text only loses its capitals."""
    return text.lower() if text.isascii() else _plain(text).lower()


def _plain(text: str) -> str:
    """Capitals stay: they tell where a word begins."""
    seen = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not _is_invisible(letter))
    return seen.translate(_LOOKALIKES)


def name_words(name: str) -> frozenset[str]:
    """The words of a name: ``deleteFile``, ``delete_file`` and ``DELETE-FILE`` have the same two."""
    plain = name if name.isascii() else _plain(name)
    return frozenset(_NOT_LETTERS.sub(" ", _HUMP.sub(" ", plain).lower()).split())


def squeezed(name: str) -> tuple[str, str]:
    """The letters of a name without separators, and the same with digits replaced by the letters they resemble."""
    together = _NOT_LETTERS.sub("", fold(name))
    return re.sub(r"[^a-z]", "", together), re.sub(r"[^a-z]", "", together.translate(_LEET))


def is_disguised(text: str) -> bool:
    """Whether a text hides characters, or mixes alphabets inside one word."""
    if text.isascii():
        return False
    return any(map(_is_hiding, text)) or any(len(_alphabets(word)) > 1 for word in _WORD.findall(text))


def _is_invisible(letter: str) -> bool:
    return unicodedata.category(letter) in ("Mn", "Me", "Cf") or letter in "\u115f\u1160\u3164\uffa0"


def _is_hiding(letter: str) -> bool:
    """Marks are part of many languages; format characters and empty letters only hide."""
    return unicodedata.category(letter) == "Cf" or letter in "\u034f\u115f\u1160\u3164\uffa0"


def _alphabets(word: str) -> set[str]:
    """By the first word of each letter's name: LATIN, CYRILLIC, GREEK, MATHEMATICAL …"""
    names = (unicodedata.name(letter, "") for letter in word)
    found = {name.partition(" ")[0] for name in names if name}
    japanese = {"CJK", "HIRAGANA", "KATAKANA"}
    return found - japanese if found & japanese else found
