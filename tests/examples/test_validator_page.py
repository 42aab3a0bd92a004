"""The rules file of docs/reference/validator.md: what each of its lines changes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.examples import shell, written

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]

STRATEGY = """\
import os
import requests
import tensorflow
import yfinance
os.umask(0o22)
print(os.environ["HORIZON"])
open("/input/prices").close()
open("/output/orders").close()
open("here").close()
"""


def _found(folder: Path, code: str, *options: str) -> set[str]:
    """The lines that ``ringfence validate`` prints of one file, without the reasons."""
    (folder / "work").mkdir(exist_ok=True)
    (folder / "work/s.py").write_text(code)
    *lines, _ = shell(f"ringfence validate {shlex.join(options)} s.py || test $? = 1", folder).splitlines()
    return {f"{line.split(':')[1]} {line.split(':')[3].strip()} {line[line.rindex('[') :]}" for line in lines}


def test_what_a_projects_own_rules_change(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(written("docs/reference/validator.md", "add:"))
    own = _found(tmp_path, STRATEGY, "--rules", str(rules))
    assert own == {"3 warning [no-tensorflow]", "4 error [network-module]", "9 error [file-relative]"}
    usual = _found(tmp_path, STRATEGY)
    assert {"2 error [network-module]", "5 error [os-attribute]", "7 error [file-outside]"} <= usual
    assert any(line.endswith("[environment]") for line in usual) and not usual & own


@pytest.mark.parametrize("code", ["x = " + "[" * 51 + "]" * 51, "#" * 200_001], ids=["nesting", "code_bytes"])
def test_what_its_limits_refuse(tmp_path: Path, code: str) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(written("docs/reference/validator.md", "add:"))
    assert len(_found(tmp_path, code, "--rules", str(rules))) == 1
    assert _found(tmp_path, code) == set()
