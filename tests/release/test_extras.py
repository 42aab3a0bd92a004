"""Extras resolve without conflict, each alone and all together, for the oldest and the newest Python."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from bench.harness import NotHere
from bench.installing import from_pypi
from tests.testable import not_testable_here

pytestmark = [pytest.mark.soak, pytest.mark.unmeasured]
ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.14"])
def test_an_extra_resolves(python: str, extra: str) -> None:
    found = _resolved(python, extra)
    wanted = {_name(each) for each in EXTRAS[extra] if "python_version" not in each} - {"ringfence"}
    assert wanted <= found
    assert ("harbor" in found) is (extra in ("harbor", "all") and python != "3.11")


def _resolved(python: str, extra: str) -> set[str]:
    try:
        uv = str(Path(from_pypi("uv")).parent / "uv")
    except NotHere as error:
        not_testable_here(str(error))
    index = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True,
                           text=True, check=False).stdout.strip()  # fmt: skip
    command = [uv, "pip", "compile", "--quiet", "--no-config", "--python-version", python, "--extra", extra,
               *(["--index-url", index] if index else []), "pyproject.toml"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {_name(line) for line in done.stdout.splitlines() if re.match(r"[a-z0-9]", line)}


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!;~ ]", requirement)[0].lower().replace("_", "-")
