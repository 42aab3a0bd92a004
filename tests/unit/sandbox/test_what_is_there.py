"""docs/reference/programs.md says what of /proc, /sys and /dev a job finds: what the tables say, and what one finds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ringfence import SandboxPolicy, run
from ringfence.sandbox import root
from ringfence.sandbox.host_names import PROC_FILES, PROC_FOLDERS

PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/programs.md").read_text("utf-8")
_LOOK = """\
import os
def files(top, left_out=()):
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if f"{folder}/{name}" not in left_out]
        yield from (f"{folder}/{name}" for name in names)
processes = [f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit() or name.endswith("self")]
print(sorted(path for path in files("/proc", processes) if os.access(path, os.W_OK)))
print([path for path in files("/sys") if not path.startswith("/sys/fs/cgroup/") or os.access(path, os.W_OK)])
print(sorted(os.listdir("/dev")))
"""


def _named(start: str) -> list[str]:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {start} |"))
    return re.findall("`([^`]+)`", row.split("|")[2])


def test_the_page_names_what_is_covered_and_each_device() -> None:
    assert _named("an empty file in place of the host's") == [*PROC_FILES]
    assert _named("an empty directory in place of the host's") == [*PROC_FOLDERS]
    links = [path.removeprefix("/dev/") for path in root.DEVICE_LINKS]
    assert _named("`/dev`") == [*root.DEVICES, "pts", "shm", *links]


@pytest.mark.system
@pytest.mark.privileges
def test_a_job_finds_no_more_than_the_page_says() -> None:
    outcome = run(["python3", "-c", _LOOK], SandboxPolicy(isolation="strict"))
    writable, elsewhere, devices = map(ast.literal_eval, outcome.stdout.decode().splitlines())
    assert (writable, elsewhere) == ([], []) and devices == sorted(_named("`/dev`"))
