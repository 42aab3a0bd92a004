"""Which key signs: the one that the caller names, the environment's, or one that is kept beside the evidence.

Owns: the order, and the word that tells a person about it. Does not: read or write keys (evidence.keyfile).
"""

from __future__ import annotations

import os

from ringfence.errors import EvidenceError, UsageError
from ringfence.evidence.keyfile import SEED_FILE, find_key, read_key
from ringfence.evidence.keys import SEED_VARIABLE, SigningKey
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute


@record
class Signing:
    """A key, and where it came from."""

    key: SigningKey
    path: str = ""
    """The file that it is in; empty: in none that we know of."""
    word: str = ""
    """What the caller has to know about it; empty: the caller named it."""


def chosen_key(seed: str | None = None, key_file: str | None = None, folder: str = ".") -> Signing:
    """The seed, the file, ``PROCTOR_SIGNING_SEED``, else ``signing-seed.hex`` in the directory, made where it is
    missing.

    What can't be used is a UsageError: better before a run than after it.
    """
    if seed is not None and key_file is not None:
        raise UsageError("both --signing-seed and --key were given", hint="give one of them")
    try:
        if key_file is not None:
            return Signing(key=read_key(key_file), path=absolute(key_file))
        if seed is not None or SEED_VARIABLE in os.environ:
            return Signing(key=find_key(seed, folder))
        return _kept(folder)
    except EvidenceError as error:
        raise UsageError(str(error), hint=error.hint) from error


def _kept(folder: str) -> Signing:
    path = os.path.join(absolute(folder), SEED_FILE)
    fresh = not os.path.lexists(path)
    key = find_key(None, folder)
    made = f"a new signing key was made: {path}. Keep it secret" if fresh else f"signed with the key in {path}"
    return Signing(key=key, path=path, word=f"{made}; its public key is {key.public_hex}")
