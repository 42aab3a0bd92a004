"""A local transparency log: an append-only Merkle log in one chain file, with signed heads.

Owns: entries, heads, and the anchors that go into bundles. A holder of an older head can ask for a consistency proof: a
deleted, changed or back-dated entry then shows. Does not: hand anything to others; give the heads away, a log that only
its owner sees proves nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Self, cast

from ringfence.errors import EvidenceError
from ringfence.evidence import chain, merkle
from ringfence.evidence.canonical import canonical
from ringfence.evidence.chainfile import ChainWriter
from ringfence.evidence.digest import sha256_hex
from ringfence.evidence.keys import SigningKey, signature_holds
from ringfence.evidence.schema import HEX64, LOG_ENTRY, LOG_ENTRY_FORMAT, format_time, parse_time
from ringfence.evidence.shape import problems
from ringfence.evidence.strictjson import decode
from ringfence.model.record import record

HEAD_FORMAT = "ringfence-log-head/1"


@record
class Head:
    """A signed statement: so many entries, with this root."""

    tree_size: int
    root: str
    signed_at: str
    public_key: str
    signature: str

    def holds(self) -> bool:
        message = head_message(self.tree_size, self.root, self.signed_at)
        return signature_holds(self.public_key, self.signature, message)


class TransparencyLog:
    """Opens or continues a log; use it as a context manager (one writer at a time)."""

    def __init__(self, path: str, key: SigningKey) -> None:
        self._key = key
        self._chain = ChainWriter(path)
        self._leaves: list[bytes] = []
        self._times: list[str] = []
        try:
            self._load(path)
        except BaseException:
            self._chain.close()
            raise

    @property
    def size(self) -> int:
        return len(self._leaves)

    def append(self, anchored: bytes, *, now: datetime | None = None) -> int:
        """Log the bytes a bundle anchors (anchors.anchored_bytes) and return their index."""
        moment = now or datetime.now(UTC)
        self._require_later(moment)
        entry = log_entry(sha256_hex(anchored), format_time(moment))
        self._chain.append(entry)
        self._remember(entry)
        return self.size - 1

    def head(self, *, now: datetime | None = None) -> Head:
        signed_at = format_time(now or datetime.now(UTC))
        top = merkle.root(self._leaves).hex()
        signature = self._key.sign(head_message(self.size, top, signed_at))
        return Head(
            tree_size=self.size,
            root=top,
            signed_at=signed_at,
            public_key=self._key.public_hex,
            signature=signature,
        )

    def anchor(self, index: int, *, now: datetime | None = None) -> dict[str, Any]:
        """The member of ``anchors`` that proves entry ``index`` is in the log."""
        if not 0 <= index < self.size:
            raise EvidenceError(f"the log has no entry {index}")
        head = self.head(now=now)
        return {
            "type": "merkle-log",
            "log_public_key": head.public_key,
            "logged_at": self._times[index],
            "leaf_index": index,
            "tree_size": head.tree_size,
            "root": head.root,
            "signed_at": head.signed_at,
            "signature": head.signature,
            "proof": [node.hex() for node in merkle.inclusion_proof(self._leaves, index)],
        }

    def consistency_proof(self, old_size: int) -> list[str]:
        """The proof that nothing was removed, for somebody who kept the head of ``old_size``."""
        return [node.hex() for node in merkle.consistency_proof(self._leaves, old_size)]

    def close(self) -> None:
        self._chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, path: str) -> None:
        head = chain.GENESIS
        for number, line in enumerate(self._chain.lines(), start=1):
            entry = cast(dict[str, Any], decode(line))
            if next(problems(entry, LOG_ENTRY), None):
                raise EvidenceError(f"line {number} of {path!r} is not a log entry")
            self._require_later(parse_time(entry["logged_at"]))
            head = chain.follow(head, entry, number)
            del entry["chain"]
            self._remember(entry)
        if head != self._chain.head:
            raise EvidenceError(f"the log {path!r} was changed while it was opened")

    def _require_later(self, moment: datetime) -> None:
        if self._times and moment < parse_time(self._times[-1]):
            raise EvidenceError("a log entry is never earlier than the one before it: did the clock go back?")

    def _remember(self, entry: dict[str, Any]) -> None:
        self._leaves.append(merkle.leaf_hash(canonical(entry)))
        self._times.append(entry["logged_at"])


def grew_from(old: Head, new: Head, proof: list[str]) -> bool:
    """True when both heads are signed by one log and the newer tree begins with the older one."""
    return (
        old.public_key == new.public_key
        and all(map(HEX64.accepts, (old.root, new.root, *proof)))
        and old.holds()
        and new.holds()
        and merkle.consistency_holds(
            old.tree_size,
            new.tree_size,
            bytes.fromhex(old.root),
            bytes.fromhex(new.root),
            [bytes.fromhex(node) for node in proof],
        )
    )


def log_entry(digest: str, logged_at: str) -> dict[str, Any]:
    return {"format": LOG_ENTRY_FORMAT, "digest": digest, "logged_at": logged_at}


def head_message(tree_size: int, root: str, signed_at: str) -> bytes:
    return canonical({"format": HEAD_FORMAT, "root": root, "signed_at": signed_at, "tree_size": tree_size})
