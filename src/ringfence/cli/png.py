"""A small canvas that becomes a PNG file: rectangles, and text in letters of three by five dots. No package needed."""

from __future__ import annotations

import struct
import zlib

Colour = tuple[int, int, int]

# Each row of a letter as one digit, whose three bits are its dots from left to right.
_LETTERS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71122",
    "8": "75757", "9": "75717", "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644",
    "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555",
    "O": "25552", "P": "65644", "Q": "25563", "R": "65655", "S": "34216", "T": "72222", "U": "55557", "V": "55552",
    "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", " ": "00000", ".": "00002", ",": "00024", ":": "02020",
    "-": "00700", "_": "00007", "%": "51245", "/": "11244", "(": "12221", ")": "42224", "+": "02720", "=": "07070",
    "'": "22000", '"': "55000", "·": "00200", "*": "52500", "<": "12421", ">": "42124", "!": "22202", ";": "02024",
    "$": "36763", "#": "57575", "&": "25253", "@": "25743", "|": "22222", "[": "64446", "]": "31113", "~": "03600",
    "…": "00005",
}  # fmt: skip
_UNKNOWN = "71202"
DOT = 2


class Canvas:
    """Pixels in three colours each, white at first."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(b"\xff" * (3 * width)) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        """A rectangle; what lies outside is left out."""
        left, right = max(0, x), min(self.width, x + width)
        if right <= left:
            return
        stripe = bytes(colour) * (right - left)
        for row in self._rows[max(0, y) : max(0, y + height)]:
            row[3 * left : 3 * right] = stripe

    def text(self, x: int, y: int, text: str, colour: Colour) -> None:
        """The upper left corner is given; a letter is four dots wide with its gap, five high."""
        for place, letter in enumerate(text.upper()):
            for column, line in _dots(letter):
                self.fill(x + (4 * place + column) * DOT, y + line * DOT, DOT, DOT, colour)

    def png(self) -> bytes:
        head = struct.pack("!IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + row for row in self._rows), 9)
        chunks = ((b"IHDR", head), (b"IDAT", pixels), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _dots(letter: str) -> list[tuple[int, int]]:
    """The (column, line) of each."""
    rows = enumerate(_LETTERS.get(letter, _UNKNOWN))
    return [(column, line) for line, digit in rows for column in range(3) if int(digit) & (4 >> column)]


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + kind + body + struct.pack("!I", zlib.crc32(kind + body))
