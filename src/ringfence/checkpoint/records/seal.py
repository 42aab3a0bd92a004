"""Which documents of a transaction we wrote ourselves, at this very place: each carries a MAC with a key of ours.

The key lies in the state directory, which no guest sees. A seal is for one name in one directory: a document anywhere
else, or in another sandbox, is not ours. A journal is also for one holder of the lock: an old journal that somebody
puts back is not carried out again. Says nothing about what a document means. """

from __future__ import annotations

import os

from ringfence.errors import ForeignError, SandboxError, UsageError
from ringfence.model import own_files, state_folder

JOURNAL_FILE = "journal.json"
_START, _HEX = '{"seal":"', 64
_TURNS = "turns"
_TURN_BYTES = _KEY_BYTES = 32


class Seal:
    """Seals the documents of one directory: ``place``, whose inode is ``inode``.

    ``passing``: the directory is removed with this process, and so is the key, which exists only in here.
    """

    def __init__(self, place: str, inode: int, *, passing: bool = False) -> None:
        above, self.place = os.path.dirname(place), place
        # Not the last part of the path: a sandbox is made under another name than it gets.
        self._context = b"%s\0%d\0" % (os.fsencode(above), inode)
        self._turn = b""
        self._own_key = os.urandom(_KEY_BYTES) if passing else b""

    def sealed(self, name: str, text: str) -> str:
        """The text of a JSON object, with a seal as its first entry."""
        rest = text[1:]
        return f'{_START}{self._mac(name, text)}"{"" if rest.strip() == "}" else ","}{rest}'

    def opened(self, name: str, text: str) -> str:
        """The text without its seal; ForeignError where that is missing or wrong."""
        import hmac

        seal, rest = text[len(_START) : len(_START) + _HEX], text[len(_START) + _HEX :]
        plain = "{" + rest.removeprefix('"').removeprefix(",")
        if not text.startswith(_START) or not hmac.compare_digest(self._mac(name, plain).encode(), seal.encode()):
            raise ForeignError(f"{self.place}/{name} has no valid seal of ringfence's own",
                               hint="if you know that it is yours: ringfence sandboxes --trust ID, or "
                               "attach(id, trust=True)")  # fmt: skip
        return plain

    def _mac(self, name: str, text: str) -> str:
        import hmac

        turn = self._current() if name.endswith(JOURNAL_FILE) and not self._own_key else b""
        return hmac.digest(self._own_key or state_folder.key(), b"%s%s\0%s\0%s" % (
            self._context, name.encode(), turn, text.encode("utf-8", "surrogatepass")), "sha256").hex()  # fmt: skip

    # ---- turns: what a holder of the lock writes into journals, and nobody after it

    def _current(self) -> bytes:
        """This holder's turn; the turn of an interrupted holder is taken over, with its journal."""
        self._turn = self._turn or self._left() or self.begin()
        return self._turn

    def begin(self) -> bytes:
        """A new turn: no earlier journal counts any more."""
        turn = os.urandom(_TURN_BYTES)
        own_files.write_whole(os.path.join(state_folder.made(_TURNS), self._name()), turn)
        self._turn = turn
        return turn

    def end(self) -> None:
        """No journal is left."""
        try:
            os.unlink(os.path.join(state_folder.state_folder(), _TURNS, self._name()))
        except (OSError, SandboxError):
            pass  # no turn was begun, or the next holder replaces it
        self._turn = b""

    def _left(self) -> bytes:
        try:
            found, _ = own_files.read_regular(os.path.join(state_folder.made(_TURNS), self._name()), _TURN_BYTES)
        except (OSError, UsageError):
            return b""
        return found if len(found) == _TURN_BYTES else b""

    def _name(self) -> str:
        import hashlib

        return hashlib.sha256(self._context).hexdigest()[:32]
