"""Parts of documents that a program writes: they stand between two marks, and a test holds them to what is written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class WrittenPart(NamedTuple):
    """One such part."""

    document: Path
    begin: str
    end: str

    def current(self) -> str:
        """What stands there now."""
        return self._text().split(self.begin, 1)[1].split(self.end, 1)[0].strip()

    def write(self, rendered: str) -> None:
        before, rest = self._text().split(self.begin, 1)
        text = f"{before}{self.begin}\n\n{rendered}\n\n{self.end}{rest.split(self.end, 1)[1]}"
        self.document.write_text(text, encoding="utf-8")

    def _text(self) -> str:
        return self.document.read_text(encoding="utf-8")
