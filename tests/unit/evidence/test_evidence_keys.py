"""Keys: every encoding gives the same key, and none of them leaks it."""

from __future__ import annotations

import copy
import os
import pickle
import stat
import subprocess
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringfence.errors import EvidenceError
from ringfence.evidence.keyfile import find_key, read_key, write_key
from ringfence.evidence.keys import KeyFormat, SigningKey, parse_public, signature_holds

SEED = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def test_rfc_8032_test_1_signs_as_published() -> None:
    key = SigningKey.from_seed_hex(SEED)
    signature = (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert key.public_hex == PUBLIC
    assert key.sign(b"") == signature
    assert signature_holds(PUBLIC, signature, b"")


@pytest.mark.parametrize("form", list(KeyFormat))
def test_a_key_file_is_private_and_reads_back(tmp_path: Path, form: KeyFormat) -> None:
    path = str(tmp_path / "key")
    previous = os.umask(0)
    try:
        write_key(path, SigningKey.from_seed_hex(SEED), form)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert read_key(path).public_hex == PUBLIC


@pytest.mark.system
def test_openssl_and_ssh_keygen_read_our_files(tmp_path: Path) -> None:
    key = SigningKey.from_seed_hex(SEED)
    write_key(str(tmp_path / "pem"), key, KeyFormat.PEM)
    out = subprocess.run(
        ["openssl", "pkey", "-in", str(tmp_path / "pem"), "-pubout"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert parse_public(out.stdout) == PUBLIC


def test_a_key_is_never_overwritten_nor_written_through_a_link(tmp_path: Path) -> None:
    key = SigningKey.generate()
    (tmp_path / "there").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("there", "link"):
        with pytest.raises(EvidenceError, match="exists"):
            write_key(str(tmp_path / name), key)
    assert (tmp_path / "there").read_bytes() == b"old"
    assert not (tmp_path / "elsewhere").exists()


def test_a_world_writable_folder_is_no_place_for_a_key(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    (open_folder / "inner").mkdir(parents=True)
    open_folder.chmod(0o777)
    (tmp_path / "link").symlink_to(open_folder / "inner")
    with pytest.raises(EvidenceError, match="writable by everybody"):
        write_key(f"{tmp_path}/link/../key", SigningKey.generate())  # it leads there, whatever the text says
    with pytest.raises(EvidenceError, match="writable by everybody"):
        write_key(str(open_folder / "key"), SigningKey.generate())
    open_folder.chmod(0o1777)
    write_key(str(open_folder / "key"), SigningKey.generate())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    write_key(str(path), SigningKey.generate())
    read_key(str(path))
    path.chmod(mode)
    with pytest.raises(EvidenceError, match="open to others"):
        read_key(str(path))


def test_a_linked_or_special_key_is_refused(tmp_path: Path) -> None:
    write_key(str(tmp_path / "key"), SigningKey.generate())
    (tmp_path / "link").symlink_to(tmp_path / "key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", "absent"):
        with pytest.raises(EvidenceError):
            read_key(str(tmp_path / name))


def test_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    write_key(str(path), SigningKey.generate())
    read_key(str(path))
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:  # nobody else can give a file away: be somebody else instead
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(EvidenceError, match="another user"):
        read_key(str(path))


def test_the_secret_shows_in_no_repr_traceback_pickle_or_copy() -> None:
    key = SigningKey.from_seed_hex(SEED)
    shown = [repr(key), str(key), f"{key!a}"]
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(EvidenceError) as caught:
            leak(key)
        shown.append("".join(traceback.format_exception(caught.value)))
    with pytest.raises(EvidenceError) as caught:
        SigningKey.from_seed_hex(SEED[:-1] + "X")
    shown.append("".join(traceback.format_exception(caught.value)))
    assert not any(SEED[:12] in text for text in shown)
    assert key.key_id in repr(key)


def test_the_environment_variable_is_read_and_its_absence_is_none() -> None:
    found = SigningKey.from_environment(environment={"PROCTOR_SIGNING_SEED": f"{SEED}\n"})
    assert found is not None and found.public_hex == PUBLIC
    assert SigningKey.from_environment(environment={}) is None
    with pytest.raises(EvidenceError) as caught:
        SigningKey.from_environment(environment={"PROCTOR_SIGNING_SEED": SEED.upper()})
    assert SEED.upper() not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"-----BEGIN PRIVATE KEY-----\nx", b"-----BEGIN OPENSSH PRIVATE KEY-----"]
)
def test_what_is_no_key_is_refused_with_an_evidence_error(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        SigningKey.from_bytes(data)


@pytest.mark.system
def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    made = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "X25519"], capture_output=True, check=True
    ).stdout
    with pytest.raises(EvidenceError, match="not an Ed25519"):
        SigningKey.from_bytes(made)
    (tmp_path / "x").write_bytes(made)
    public = subprocess.run(
        ["openssl", "pkey", "-in", str(tmp_path / "x"), "-pubout"], capture_output=True, text=True, check=True
    ).stdout
    with pytest.raises(EvidenceError, match="not an Ed25519"):
        parse_public(public)


def test_a_public_key_is_read_in_three_forms_and_no_other() -> None:
    from cryptography.hazmat.primitives import serialization as f
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(PUBLIC))
    line = public.public_bytes(f.Encoding.OpenSSH, f.PublicFormat.OpenSSH).decode()
    assert parse_public(line + " ops@host") == parse_public(PUBLIC) == PUBLIC
    for bad in (
        "",
        PUBLIC.upper(),
        PUBLIC[:-1],
        "ssh-ed25519 AAAA",
        "-----BEGIN PUBLIC KEY-----",
        "ssh-rsa AAAA",
    ):
        with pytest.raises(EvidenceError):
            parse_public(bad)


def test_a_malformed_signature_is_simply_false() -> None:
    key = SigningKey.from_seed_hex(SEED)
    good = key.sign(b"m")
    order = 2**252 + 27742317777372353535851937790883648493
    malleable = (
        good[:64] + (int.from_bytes(bytes.fromhex(good[64:]), "little") + order).to_bytes(32, "little").hex()
    )
    assert signature_holds(PUBLIC, good, b"m")
    for bad in (good.upper(), good[:-2], good + "00", "", malleable):
        assert not signature_holds(PUBLIC, bad, b"m")
    assert not signature_holds(PUBLIC, good, b"n")
    assert not signature_holds("f" * 64, good, b"m")


def test_the_signing_key_is_looked_up_in_proctors_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_SIGNING_SEED", SEED)
    other = "11" * 32
    assert find_key(other, str(tmp_path)).public_hex == SigningKey.from_seed_hex(other).public_hex
    assert find_key(None, str(tmp_path)).public_hex == PUBLIC
    assert os.listdir(tmp_path) == []
    monkeypatch.delenv("PROCTOR_SIGNING_SEED")
    fresh = find_key(None, str(tmp_path))
    kept = tmp_path / "signing-seed.hex"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert find_key(None, str(tmp_path)).public_hex == fresh.public_hex != PUBLIC
    kept.chmod(0o644)
    with pytest.raises(EvidenceError, match="open to others"):
        find_key(None, str(tmp_path))


def test_many_who_find_no_key_at_the_same_time_get_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROCTOR_SIGNING_SEED", raising=False)
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(find_key, [None] * 8, [str(folder)] * 8))
        assert len({key.public_hex for key in found}) == 1
        assert os.listdir(folder) == ["signing-seed.hex"]


def test_a_key_is_made_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.delenv("PROCTOR_SIGNING_SEED", raising=False)
    monkeypatch.setattr(os, "link", refused)
    made = find_key(None, str(tmp_path))
    assert find_key(None, str(tmp_path)).public_hex == made.public_hex
    assert os.listdir(tmp_path) == ["signing-seed.hex"]
