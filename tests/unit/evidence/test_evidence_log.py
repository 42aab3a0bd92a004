"""The Merkle log: RFC 9162's tree, and that a deleted or back-dated entry shows."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import evidence_samples as s
import pytest

from ringfence.errors import EvidenceError, UnavailableError, VerificationError
from ringfence.evidence import merkle, timestamp
from ringfence.evidence.anchors import anchored_bytes
from ringfence.evidence.bundle import add_anchor
from ringfence.evidence.chainfile import ChainWriter
from ringfence.evidence.timestamp import stamp, stamped_time
from ringfence.evidence.translog import TransparencyLog, grew_from
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def naive_root(leaves: list[bytes]) -> bytes:
    """RFC 9162, 2.1.1, written as the definition: split at the largest power of two below n."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return hashlib.sha256(b"\x01" + naive_root(leaves[:split]) + naive_root(leaves[split:])).digest()


LEAVES = [merkle.leaf_hash(b"%d" % n) for n in range(34)]


def test_the_empty_root_and_a_single_leaf_are_rfc_9162s() -> None:
    assert merkle.root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert merkle.leaf_hash(b"").hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"


def test_roots_and_inclusion_proofs_hold_for_every_leaf_of_every_size() -> None:
    for size in range(1, len(LEAVES)):
        leaves = LEAVES[:size]
        top = merkle.root(leaves)
        assert top == naive_root(leaves)
        for index in range(size):
            proof = merkle.inclusion_proof(leaves, index)
            assert merkle.inclusion_holds(leaves[index], index, size, proof, top)
            assert not merkle.inclusion_holds(LEAVES[-1], index, size, proof, top)
            assert not merkle.inclusion_holds(leaves[index], index + 1, size, proof, top)
            assert not merkle.inclusion_holds(leaves[index], index, size, [*proof, top], top)
            assert not proof or not merkle.inclusion_holds(leaves[index], index, size, proof[:-1], top)


def test_consistency_proofs_hold_for_every_pair_of_sizes_and_for_no_other_history() -> None:
    for new in range(1, len(LEAVES)):
        for old in range(new + 1):
            roots = merkle.root(LEAVES[:old]), merkle.root(LEAVES[:new])
            proof = merkle.consistency_proof(LEAVES[:new], old)
            assert merkle.consistency_holds(old, new, *roots, proof)
            if 0 < old < new:
                rewritten = [LEAVES[-1], *LEAVES[1:new]]
                forged = merkle.consistency_proof(rewritten, old)
                assert not merkle.consistency_holds(old, new, roots[0], merkle.root(rewritten), forged)
                assert not merkle.consistency_holds(old, new, roots[1], roots[0], proof)
                assert not merkle.consistency_holds(old, new, *roots, proof[:-1])


def test_a_log_goes_on_after_reopening_and_shows_that_it_grew(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with TransparencyLog(path, s.LOG_KEY) as log:
        log.append(b"one", now=NOW)
        log.append(b"two", now=NOW)
        old = log.head(now=NOW)
    with TransparencyLog(path, s.LOG_KEY) as log:
        assert log.append(b"three", now=NOW + timedelta(seconds=1)) == 2
        new = log.head(now=NOW)
        assert grew_from(old, new, log.consistency_proof(old.tree_size))
        assert not grew_from(new, old, log.consistency_proof(old.tree_size))
        assert not grew_from(dataclasses.replace(old, root="0" * 64), new, log.consistency_proof(2))


@pytest.mark.parametrize("kept", [[b"two", b"three"], [b"one", b"three"], [b"one", b"Two", b"three"]])
def test_a_rewritten_log_cannot_show_that_it_grew(tmp_path: Path, kept: list[bytes]) -> None:
    """The owner holds the key and may rewrite the file; whoever kept the old head sees it."""
    with TransparencyLog(str(tmp_path / "log"), s.LOG_KEY) as log:
        for entry in (b"one", b"two"):
            log.append(entry, now=NOW)
        old = log.head(now=NOW)
        log.append(b"three", now=NOW)
        assert grew_from(old, log.head(now=NOW), log.consistency_proof(2))
    with TransparencyLog(str(tmp_path / "again"), s.LOG_KEY) as log:
        for entry in kept:
            log.append(entry, now=NOW)
        assert not grew_from(old, log.head(now=NOW), log.consistency_proof(2))


def test_a_back_dated_entry_is_refused(tmp_path: Path) -> None:
    with TransparencyLog(str(tmp_path / "log"), s.LOG_KEY) as log:
        log.append(b"one", now=NOW)
        with pytest.raises(EvidenceError, match="never earlier"):
            log.append(b"two", now=NOW - timedelta(seconds=1))
        assert log.size == 1


def test_a_changed_log_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with TransparencyLog(str(path), s.LOG_KEY) as log:
        log.append(b"one", now=NOW)
        log.append(b"two", now=NOW)
    path.write_bytes(path.read_bytes().replace(b"2026-11-01", b"2026-10-01", 1))
    with pytest.raises(EvidenceError):
        TransparencyLog(str(path), s.LOG_KEY)


def swapped_on_opening(monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path], None]) -> None:
    """Have somebody change what is at the path as soon as the writer has checked its file."""
    original = ChainWriter.__init__

    def opened(self: ChainWriter, path: str, **options: Any) -> None:
        original(self, path, **options)
        swap(Path(path))

    monkeypatch.setattr(ChainWriter, "__init__", opened)


def test_a_log_stands_for_the_file_that_is_open_whatever_lies_at_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "log.jsonl", tmp_path / "other.jsonl"
    with TransparencyLog(str(path), s.LOG_KEY) as log, TransparencyLog(str(other), s.LOG_KEY) as another:
        for entry in (b"a", b"b"):
            log.append(entry, now=NOW)
        another.append(b"c", now=NOW)
        head = log.head(now=NOW)
    swapped_on_opening(monkeypatch, other.replace)
    with TransparencyLog(str(path), s.LOG_KEY) as log:
        assert log.head(now=NOW) == head


def test_a_log_that_is_changed_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    with TransparencyLog(str(path), s.LOG_KEY) as log:
        log.append(b"a", now=NOW)
        first = path.read_bytes()
        log.append(b"b", now=NOW)
    swapped_on_opening(monkeypatch, lambda place: os.truncate(place, len(first)))
    with pytest.raises(EvidenceError, match="changed while it was opened"):
        TransparencyLog(str(path), s.LOG_KEY)


@pytest.mark.parametrize("node", ["zz", "", "ab", "A" * 64, "0" * 63 + " "])
def test_a_proof_of_anything_but_digests_shows_nothing(tmp_path: Path, node: str) -> None:
    with TransparencyLog(str(tmp_path / "log.jsonl"), s.LOG_KEY) as log:
        log.append(b"a", now=NOW)
        old = log.head(now=NOW)
        log.append(b"b", now=NOW)
        assert grew_from(old, log.head(now=NOW), log.consistency_proof(1))
        assert not grew_from(old, log.head(now=NOW), [node])


def test_a_chain_of_something_else_is_no_log(tmp_path: Path) -> None:
    from ringfence.evidence.chainfile import ChainWriter

    with ChainWriter(str(tmp_path / "c")) as writer:
        writer.append({"kind": "start"})
    with pytest.raises(EvidenceError, match="not a log entry"):
        TransparencyLog(str(tmp_path / "c"), s.LOG_KEY)
    ChainWriter(str(tmp_path / "c")).close()  # the refused log let go of the lock


AUTHORITY_CONFIG = """
[tsa]
default_tsa = config
[config]
serial = {folder}/serial
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
ess_cert_id_alg = sha256
"""


class Authority:
    """A time-stamping authority of our own: openssl, a root and a signing certificate, no network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "serial").write_text("01\n")
        (folder / "config").write_text(AUTHORITY_CONFIG.format(folder=folder))
        (folder / "ext").write_text(
            "extendedKeyUsage=critical,timeStamping\nkeyUsage=critical,digitalSignature\n"
        )
        new = ["req", "-newkey", "rsa:2048", "-nodes", "-sha256"]
        self.openssl(
            *new, "-x509", "-subj", "/CN=root", "-keyout", "root.key", "-out", "root.pem", "-days", "30",
            "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip
        self.openssl(*new, "-subj", "/CN=tsa", "-keyout", "tsa.key", "-out", "tsa.csr")
        self.openssl(
            "x509", "-req", "-in", "tsa.csr", "-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial",
            "-extfile", "ext", "-out", "tsa.pem", "-days", "30",
        )  # fmt: skip
        self.root_pem = (folder / "root.pem").read_text()

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def __call__(self, request: bytes) -> bytes:
        (self.folder / "request").write_bytes(request)
        self.openssl(
            "ts", "-reply", "-config", "config", "-queryfile", "request",
            "-signer", "tsa.pem", "-inkey", "tsa.key", "-out", "reply",
        )  # fmt: skip
        return (self.folder / "reply").read_bytes()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tsa") / "a")


@pytest.mark.system
def test_a_time_stamped_bundle_verifies_under_that_authority_only(
    authority: Authority, tmp_path: Path
) -> None:
    bundle = s.ringfence_bundle()
    stamped = s.encoded(add_anchor(bundle, stamp(anchored_bytes(bundle["verdict"]), authority)))
    tsa = {"name": "tsa", "certificate_pem": authority.root_pem}
    wanted = {"required_anchors": ["rfc3161"], "required_roles": []}
    trust = Trust.parse(s.encoded(s.trust_document(timestamp_authorities=[tsa], **wanted)))
    found = verify_bundle(stamped, trust=trust)
    age = datetime.now(UTC) - found.anchors[0].at  # type: ignore[operator]
    assert found.anchors[0].known and timedelta(minutes=-1) < age < timedelta(minutes=10)
    other = {"name": "other", "certificate_pem": Authority(tmp_path / "other").root_pem}
    for authorities in ([], [other]):
        strict = Trust.parse(s.encoded(s.trust_document(timestamp_authorities=authorities, **wanted)))
        with pytest.raises(VerificationError) as caught:
            verify_bundle(stamped, trust=strict)
        assert caught.value.step == 20


@pytest.mark.system
def test_a_time_stamp_of_another_bundle_fails_at_step_19(authority: Authority) -> None:
    foreign = stamp(b"something else", authority)
    bundle = {**s.ringfence_bundle(), "anchors": [foreign]}
    for trust in (Trust.unsafe_any_signer(), Trust.pinned(s.OPERATOR.public_hex)):
        with pytest.raises(VerificationError) as caught:
            verify_bundle(s.encoded(bundle), trust=trust)
        assert caught.value.step == 19


@pytest.mark.system
def test_a_mangled_time_stamp_never_counts(authority: Authority) -> None:
    token = base64.b64decode(stamp(b"message", authority)["token"])
    assert stamped_time(token, b"message", [authority.root_pem]) is not None
    for position in range(0, len(token), 41):
        mangled = token[:position] + bytes([token[position] ^ 1]) + token[position + 1 :]
        try:
            at = stamped_time(mangled, b"message", [authority.root_pem])
        except EvidenceError:
            continue
        # What is left is in certificates that are not part of the signature's path.
        assert at is None or at == stamped_time(token, b"message", [authority.root_pem])


@pytest.mark.system
def test_without_the_package_a_time_stamp_is_not_counted_and_says_why(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = s.ringfence_bundle()
    stamped = s.encoded({**bundle, "anchors": [stamp(anchored_bytes(bundle["verdict"]), authority)]})

    def missing() -> None:
        raise UnavailableError("RFC 3161 time stamps need the package rfc3161-client", hint="pip install …")

    monkeypatch.setattr(timestamp, "_client", missing)
    found = verify_bundle(stamped, trust=Trust.pinned(s.OPERATOR.public_hex))
    assert not found.anchors[0].known
    assert any("not checked" in note for note in found.notes)


def test_an_anchor_of_a_log_is_found_by_an_independent_reading_of_the_document(tmp_path: Path) -> None:
    """Section 6, step by step, with hashlib and json only."""
    bundle = json.loads(s.encoded(s.full_bundle(str(tmp_path))))
    anchor, verdict = bundle["anchors"][0], bundle["verdict"]
    body = {name: value for name, value in verdict.items() if name not in ("public_key", "signature")}
    message = json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + bytes.fromhex(
        verdict["signature"]
    )
    digest = hashlib.sha256(message).hexdigest()
    entry = {"digest": digest, "format": "ringfence-log-entry/1", "logged_at": anchor["logged_at"]}
    top = hashlib.sha256(b"\x00" + json.dumps(entry, separators=(",", ":")).encode()).digest()
    assert (anchor["leaf_index"], anchor["tree_size"], len(anchor["proof"])) == (4, 5, 1)
    assert hashlib.sha256(b"\x01" + bytes.fromhex(anchor["proof"][0]) + top).hexdigest() == anchor["root"]
