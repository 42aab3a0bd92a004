"""The collector of the measured pass: what it watches ends by nothing that it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ROOT

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]
PROGRAM = """
import os, resource, sys
sys.path.insert(0, {tests!r})
import lines
lines.start({file!r}, {package!r})
sys.path.insert(0, {folder!r})
import watched
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))
watched.run()
os._exit(7)
"""


FREE = -1


@pytest.mark.parametrize("most", [0, 20, FREE])
def test_a_process_that_may_write_no_file_goes_on(tmp_path: Path, most: int) -> None:
    """The gateway is one."""
    file = tmp_path / "told"
    (tmp_path / "watched.py").write_text("def run():\n" + "    x = 1\n" * 60)
    program = PROGRAM.format(
        tests=str(ROOT / "tests"), file=str(file), package=f"{tmp_path}/", folder=str(tmp_path), most=most
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    told = file.read_text().splitlines()
    assert (f"{tmp_path}/watched.py\t61" in told) == (most == FREE)
