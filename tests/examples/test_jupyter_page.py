"""The example of docs/how-to/jupyter.md: after each command that installs the kernel, a notebook uses it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples import program, shell, written
from tests.framework_environment import framework_environment

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.long]


def _cells(folder: Path, *cells: str) -> list[dict[str, Any]]:
    """What a notebook of this user shows."""
    command = [sys.executable, "-m", "tests.examples.jupyter_application", *cells]
    said = json.loads(shell(shlex.join(command), folder, _variables(folder)).splitlines()[-1])
    assert said["name"] == "Python (ringfence)"
    shown: list[dict[str, Any]] = said["cells"]
    return shown


def _variables(folder: Path) -> dict[str, str]:
    """Those of a user who has Jupyter, and no other place for its files than the home."""
    path = framework_environment("jupyter")["PYTHONPATH"]
    return {"HOME": str(folder), "PYTHONPATH": path, "JUPYTER_PATH": "", "JUPYTER_DATA_DIR": "", "XDG_DATA_HOME": ""}


def test_a_notebook_has_the_kernel_and_with_a_file_its_policy(tmp_path: Path) -> None:
    # tests/release/test_extras.py installs the extra.
    program(tmp_path, "pip", 'echo "$@" > pip.txt')
    pip, install, with_a_file = written("docs/how-to/jupyter.md", "pip install").splitlines()
    data, limit = f"open({str(tmp_path / 'data' / 'a.txt')!r}).read()", "resource.getrlimit(resource.RLIMIT_CPU)[0]"
    cells = ("import resource", "6 * 7", limit, data)
    shell(f"{pip}\n{install}", tmp_path, _variables(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("one")
    (tmp_path / "work" / "policy.yaml").write_text(f"readable_paths: [{tmp_path}/data]\ncpu_time_s: 600\n")
    _, answer, a_day, closed = _cells(tmp_path, *cells)
    shell(with_a_file, tmp_path, _variables(tmp_path))
    _, again, ten_minutes, open_ = _cells(tmp_path, *cells)
    assert (tmp_path / "work" / "pip.txt").read_text() == "install .[jupyter]\n"
    assert (answer["value"], again["value"]) == ("42", "42")
    assert (a_day["value"], ten_minutes["value"]) == (str(24 * 3600), "600")
    assert (closed["error"], open_["value"]) == ("FileNotFoundError", "'one'")
