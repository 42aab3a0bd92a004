"""``ringfence verify-release``: a release holds as it was signed, and nothing else passes for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.cli import main
from ringfence.evidence.dsse import seal
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.release import NAME, made

KEY = SigningKey.from_seed_hex("11" * 32)
OTHER = SigningKey.from_seed_hex("22" * 32)
ABOUT = {"version": "1.0", "commit": "c0ffee", "source_date_epoch": "0", "python": "3.13.0", "tools": ["build==1"]}
WHEEL = "ringfence-1.0-py3-none-any.whl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A release of two files."""
    (tmp_path / WHEEL).write_bytes(b"a wheel")
    (tmp_path / "ringfence-1.0.tar.gz").write_bytes(b"an sdist")
    (tmp_path / NAME).write_text(json.dumps(made(str(tmp_path), ABOUT, KEY)))
    return tmp_path


def _verify(*words: str, key: SigningKey = KEY) -> int:
    return main(["verify-release", *words, "--pubkey", key.public_hex])


def test_a_release_holds_as_a_folder_and_by_its_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _verify(str(folder)) == 0
    told = capsys.readouterr().out
    assert "release OK: ringfence 1.0, commit c0ffee · 2 files" in told and KEY.public_hex in told
    assert _verify(str(folder / WHEEL), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "state": "ok", "version": "1.0", "commit": "c0ffee", "files": [WHEEL], "signers": [KEY.public_hex],
    }  # fmt: skip


def _altered(folder: Path) -> None:
    (folder / WHEEL).write_bytes(b"a Wheel")


def _missing(folder: Path) -> None:
    (folder / WHEEL).unlink()


def _extra(folder: Path) -> None:
    (folder / "ringfence-1.0-py3-none-linux_x86_64.whl").write_bytes(b"one that pip would prefer")


def _exchanged(folder: Path) -> None:
    wheel, sdist = (folder / WHEEL).read_bytes(), (folder / "ringfence-1.0.tar.gz").read_bytes()
    (folder / WHEEL).write_bytes(sdist)
    (folder / "ringfence-1.0.tar.gz").write_bytes(wheel)


def _a_link(folder: Path) -> None:
    (folder / WHEEL).rename(folder.parent / "elsewhere.whl")
    (folder / WHEEL).symlink_to(folder.parent / "elsewhere.whl")


def _a_fifo(folder: Path) -> None:
    (folder / WHEEL).unlink()
    os.mkfifo(folder / WHEEL)


def _signature_of_another(folder: Path) -> None:
    (folder / NAME).write_text(json.dumps(made(str(folder), ABOUT, OTHER)))


def _changed_statement(folder: Path) -> None:
    document = json.loads((folder / NAME).read_text())
    signed = json.loads((folder / NAME).read_text())["payload"]
    document["payload"] = signed[:-8] + ("AAAA" if signed[-8:-4] != "AAAA" else "BBBB") + signed[-4:]
    (folder / NAME).write_text(json.dumps(document))



def _no_json(folder: Path) -> None:
    (folder / NAME).write_text("{")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
@pytest.mark.parametrize(("change", "told"), [
    (_altered, "is not the file that was signed"),
    (_missing, "is missing"),
    (_extra, "linux_x86_64.whl' is not part of the release"),
    (_exchanged, "is not the file that was signed"),
    (_a_link, WHEEL),
    (_a_fifo, "is not a regular file"),
    (_signature_of_another, "no trusted key has signed"),
    (_changed_statement, "no trusted key has signed"),

    (_no_json, "JSON"),
])  # fmt: skip
def test_what_was_not_signed_does_not_hold(
    folder: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], told: str
) -> None:
    change(folder)
    assert _verify(str(folder)) == 2
    found = capsys.readouterr()
    assert found.out == "" and "release NOT OK" in found.err and told in found.err


def test_what_can_not_be_read_is_named_and_not_called_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (folder / "absent", folder / "absent.whl"):
        assert _verify(str(path)) == 2
        assert capsys.readouterr().err.startswith(f"ringfence: can't read {path}: No such file or directory\n")
    (folder / NAME).unlink()
    for path in (folder, folder / WHEEL):
        assert _verify(str(path)) == 2
        assert capsys.readouterr().err.startswith(f"ringfence: can't read {folder / NAME}: No such file")


def test_another_key_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _verify(str(folder), key=OTHER) == 2
    assert "no trusted key has signed" in capsys.readouterr().err
    assert main(["verify-release", str(folder), "--pubkey", "no key"]) == 2
    assert "not a public key" in capsys.readouterr().err


def test_a_file_is_known_by_its_name_and_content(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "other.whl").write_bytes(b"a wheel")
    assert _verify(str(folder / "other.whl")) == 2
    assert "'other.whl' is not part of the release" in capsys.readouterr().err
    assert _verify(str(folder / "absent.whl")) == 2
    assert _verify(str(folder), str(folder / WHEEL)) == 2
    assert "give one directory, or only files" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../up", "a/b", "", "..", NAME, "back\\slash"])
def test_a_signed_name_is_never_a_path(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Whoever signs is trusted with content, not with the verifier's disk."""
    content = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:ringfence:release:1",
               "predicate": ABOUT, "subject": [{"name": name, "digest": {"sha256": "0" * 64}}]}  # fmt: skip
    (folder / NAME).write_text(json.dumps(seal(content, KEY)))
    for path in (folder, folder / WHEEL):
        assert _verify(str(path)) == 2
        assert "release NOT OK: the attestation names" in capsys.readouterr().err


def test_a_statement_about_something_else_is_no_release(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:ringfence:suite:1", "predicate": ABOUT,
               "subject": []}  # fmt: skip
    (folder / NAME).write_text(json.dumps(seal(content, KEY)))
    assert _verify(str(folder)) == 2
    assert "release:" in capsys.readouterr().err
