"""What a guest makes where something of ours lies is never carried over, and changes nothing of it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import Job, SandboxPolicy, run
from tests.escape.attack import Stage
from tests.escape.records_attacks import OURS, as_workspace

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

_PLANT = (
    "import os, sys\n"
    "for top, _, names in os.walk('.'):\n"
    "  for name in (*names, 'planted'):\n"
    "    try: open(os.path.join(top, name), 'w').write('planted')\n"
    "    except OSError as e: print(e)\n"
    "for name in sys.argv[1:]:\n"
    "  try: os.makedirs(name, exist_ok=True); open(os.path.join(name, 'planted'), 'w').write('planted')\n"
    "  except OSError as e: print(e)\n"
)
_NOT_OURS = ("code", "state", "tmp")
"""Directories that hold something of ours, or are worked on."""


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="stage-", dir="/var/tmp") as name, Stage(Path(name)) as made:
        os.chmod(name, 0o755)
        yield made


def _planted(place: Path) -> set[str]:
    files = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)) for path in files if path.read_bytes() == b"planted"}


@pytest.mark.parametrize("name", OURS)
def test_nothing_that_a_guest_writes_reaches_what_is_ours(name: str, stage: Stage) -> None:
    place = Path(str(as_workspace(OURS[name])(stage)["place"]))
    folders = [str(path.relative_to(place)) for path in place.rglob("*") if path.is_dir() and path.name != "code"]
    job = Job(argv=(sys.executable, "-I", "-c", _PLANT, *folders), cwd=str(place))
    outcome = run(job, SandboxPolicy(isolation="strict", wall_time_s=20), commit=True)
    assert outcome.committed, outcome.commit_problem
    planted = _planted(place)
    assert {"planted", "beside.txt"} <= planted, "the control: what lies beside it is written"
    assert planted <= {"planted", "beside.txt", *(f"{name}/planted" for name in _NOT_OURS)}
    assert {change.path for change in outcome.changes} <= {*planted, *_NOT_OURS}
