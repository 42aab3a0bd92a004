"""The bundle that anybody may verify in a minute: it is intact, it tells of a cheat, and its script works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import example_bundle

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]


def verified(folder: Path, key: str = "") -> subprocess.CompletedProcess[str]:
    pinned = key or (folder / "signer.pub").read_text().strip()
    command = [sys.executable, "-P", "-m", "ringfence", "verify-bundle", "--bundle", str(folder / "bundle.json"),
               "--artifacts", str(folder), "--pubkey", pinned]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_bundle_of_the_repository_verifies_and_tells_of_the_cheat() -> None:
    done = verified(example_bundle.FOLDER)
    assert done.returncode == 0 and done.stdout.startswith("bundle OK"), done.stderr
    assert "pass=false status=compromised violations=1" in done.stdout


@pytest.mark.parametrize("name", ["bundle.json", "agent.stderr", "grading.json"])
def test_a_changed_byte_is_noticed(name: str, tmp_path: Path) -> None:
    copy = shutil.copytree(example_bundle.FOLDER, tmp_path / "bundle")
    content = (copy / name).read_bytes()
    place = content.index(b"a", len(content) // 2) if b"a" in content[len(content) // 2 :] else len(content) // 2
    (copy / name).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    done = verified(copy)
    assert done.returncode == 2 and "NOT OK" in done.stdout + done.stderr


def test_the_script_makes_such_a_bundle(tmp_path: Path) -> None:
    example_bundle.make(tmp_path / "new")
    assert verified(tmp_path / "new").returncode == 0
    other = (example_bundle.FOLDER / "signer.pub").read_text().strip()
    assert verified(tmp_path / "new", other).returncode == 2
    made, kept = ({each.name for each in folder.iterdir()} for folder in (tmp_path / "new", example_bundle.FOLDER))
    assert made == kept
