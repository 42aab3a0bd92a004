"""Merkle trees as in RFC 9162, section 2.1: root, inclusion and consistency proofs.

Owns: the arithmetic. Does not: store entries or sign heads (translog).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over leaf hashes; of no leaves, the hash of nothing."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    subtrees: list[tuple[int, bytes]] = []
    for leaf in leaves:
        size, top = 1, leaf
        while subtrees and subtrees[-1][0] == size:
            size, top = size * 2, node_hash(subtrees.pop()[1], top)
        subtrees.append((size, top))
    top = subtrees.pop()[1]
    while subtrees:
        top = node_hash(subtrees.pop()[1], top)
    return top


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """RFC 9162, 2.1.3.1: the siblings from leaf to root."""
    if len(leaves) == 1:
        return []
    split = _split(len(leaves))
    if index < split:
        return [*inclusion_proof(leaves[:split], index), root(leaves[split:])]
    return [*inclusion_proof(leaves[split:], index - split), root(leaves[:split])]


def inclusion_holds(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected_root: bytes) -> bool:
    """RFC 9162, 2.1.3.2."""
    if not 0 <= index < size:
        return False
    node, last, top = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            top = node_hash(sibling, top)
            node, last = _skip_to_odd(node, last)
        else:
            top = node_hash(top, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and top == expected_root


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """RFC 9162, 2.1.4.1: that the first ``old_size`` leaves are still the first ones."""
    if not 0 < old_size < len(leaves):
        return []
    return _subproof(leaves, old_size, True)


def consistency_holds(
    old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """RFC 9162, 2.1.4.2; a tree of nothing is consistent with every other."""
    if not 0 <= old_size <= new_size:
        return False
    if old_size in (0, new_size):
        return not proof and (old_root == new_root if old_size == new_size else old_root == root([]))
    path = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    return bool(path) and _roots_from(path, old_size, new_size) == (old_root, new_root)


def _roots_from(path: Sequence[bytes], old_size: int, new_size: int) -> tuple[bytes, bytes] | None:
    node, last = old_size - 1, new_size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old_top = new_top = path[0]
    for sibling in path[1:]:
        if last == 0:
            return None
        if node & 1 or node == last:
            old_top, new_top = node_hash(sibling, old_top), node_hash(sibling, new_top)
            node, last = _skip_to_odd(node, last)
        else:
            new_top = node_hash(new_top, sibling)
        node, last = node >> 1, last >> 1
    return (old_top, new_top) if last == 0 else None


def _skip_to_odd(node: int, last: int) -> tuple[int, int]:
    while not node & 1 and node:
        node, last = node >> 1, last >> 1
    return node, last


def _subproof(leaves: Sequence[bytes], old_size: int, whole: bool) -> list[bytes]:
    if old_size == len(leaves):
        return [] if whole else [root(leaves)]
    split = _split(len(leaves))
    if old_size <= split:
        return [*_subproof(leaves[:split], old_size, whole), root(leaves[split:])]
    return [*_subproof(leaves[split:], old_size - split, False), root(leaves[:split])]


def _split(size: int) -> int:
    """The largest power of two below ``size``."""
    return 1 << ((size - 1).bit_length() - 1)
