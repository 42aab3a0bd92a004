"""Which key signs, and what is said about it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ringfence.attest.signing import chosen_key
from ringfence.errors import UsageError
from ringfence.evidence.keyfile import write_key
from ringfence.evidence.keys import SEED_VARIABLE, SigningKey

pytestmark = pytest.mark.privileges
SEED, OTHER = "0b" * 32, "0c" * 32


@pytest.fixture(autouse=True)
def _no_seed_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)


def _public(seed: str) -> str:
    return SigningKey.from_seed_hex(seed).public_hex


def test_the_seed_comes_before_the_environment_and_that_before_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SEED_VARIABLE, OTHER)
    assert chosen_key(SEED, None, str(tmp_path)).key.public_hex == _public(SEED)
    found = chosen_key(None, None, str(tmp_path))
    assert (found.key.public_hex, found.path, found.word) == (_public(OTHER), "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_key_file_is_used_whatever_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED_VARIABLE, OTHER)
    write_key(str(tmp_path / "ops.key"), SigningKey.from_seed_hex(SEED))
    found = chosen_key(None, str(tmp_path / "ops.key"), str(tmp_path))
    assert (found.key.public_hex, found.path) == (_public(SEED), str(tmp_path / "ops.key"))


def test_a_new_key_is_kept_for_us_alone_and_told(tmp_path: Path) -> None:
    made = chosen_key(folder=str(tmp_path))
    kept = tmp_path / "signing-seed.hex"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "a new signing key was made" in made.word and made.key.public_hex in made.word
    assert kept.read_text().strip() not in made.word + repr(made)
    again = chosen_key(folder=str(tmp_path))
    assert again.key.public_hex == made.key.public_hex and "was made" not in again.word


@pytest.mark.parametrize("seed", ["", "xyz", "0B" * 32, "0b" * 31])
def test_a_seed_that_is_none_is_refused_without_being_told(tmp_path: Path, seed: str) -> None:
    with pytest.raises(UsageError, match="64 lower-case hex") as caught:
        chosen_key(seed, None, str(tmp_path))
    assert not seed or seed not in str(caught.value)


def test_keys_that_others_can_read_or_that_are_links_are_refused(tmp_path: Path) -> None:
    write_key(str(tmp_path / "open"), SigningKey.generate())
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    for name in ("open", "link", "absent"):
        with pytest.raises(UsageError):
            chosen_key(None, str(tmp_path / name), str(tmp_path))
    (tmp_path / "signing-seed.hex").symlink_to(tmp_path / "open")
    with pytest.raises(UsageError):
        chosen_key(folder=str(tmp_path))


def test_two_keys_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="both --signing-seed and --key"):
        chosen_key(SEED, str(tmp_path / "k"), str(tmp_path))
