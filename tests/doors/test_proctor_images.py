"""Tasks of Harbor and Terminal-Bench 1 on the root of their image: oracle 1, nothing 0, cheats of a whole root 0."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.doors.test_proctor_terminal_tasks import MATERIAL, STEAL, TASKS

from ringfence.proctor import proctor
from ringfence.proctor.foreign import terminal_tasks
from ringfence.proctor.run import Verdict

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root, pytest.mark.usefixtures("docker_address")]

PREWRITE = "mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt && echo 1 > /logs/verifier/reward.json"
REPLACE = "for name in cmp cat tr grep; do cp /bin/true /bin/$name; done"
SHELL = "printf '#!/bin/cat\\nPASSED' > /bin/bash.new; cp /bin/true /bin/sh.new; ls /bin | grep -c . ; for n in sh bash; do rm /bin/$n; ln /bin/true /bin/$n; done"  # noqa: E501
EXPECTED = "mkdir -p /tests /solution; echo none > /tests/expected.txt; echo none > hello.txt; printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt' > /tests/test.sh"  # noqa: E501


def run(task: str, agent: str, out: Path) -> Verdict:
    return proctor(terminal_tasks.load(str(MATERIAL / task), rootfs="image"), agent, out)


SOME = ("harbor/sum-sales", "terminal-bench/reverse-lines")


@pytest.mark.parametrize("task", [pytest.param(task, marks=[] if task in SOME else pytest.mark.soak) for task in TASKS])
def test_the_oracle_scores_one_and_nothing_scores_none(task: str, tmp_path: Path) -> None:
    solved = run(task, "oracle", tmp_path / "oracle")
    assert (solved.score, solved.passed, solved.status) == (1.0, True, "clean"), solved.grading.plain()
    left = run(task, "nop", tmp_path / "nop")
    assert (left.score, left.passed, left.status) == (0.0, False, "clean"), left.grading.plain()


CHEATS = {"prewrite": PREWRITE, "replace": REPLACE, "steal": STEAL, "shell": SHELL, "expected": EXPECTED}


@pytest.mark.parametrize("cheat", [
    pytest.param(cheat, id=name, marks=[] if cheat in (PREWRITE, REPLACE) else pytest.mark.soak)
    for name, cheat in CHEATS.items()
])  # fmt: skip
def test_who_may_write_the_whole_root_gains_nothing_by_it(cheat: str, tmp_path: Path) -> None:
    found = run("harbor/hello-file", cheat, tmp_path / "out")
    assert (found.score, found.passed) == (0.0, False), found.grading.plain()


def test_the_command_line_binds_the_image(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from ringfence.cli import proctor_main; proctor_main()", "run-tb", "--image"]
    given = ["--task", str(MATERIAL / "harbor" / "sum-sales"), "--agent", "oracle", "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    environment = json.loads((tmp_path / "out" / "bundle.json").read_text())["environment"]
    assert environment["rootfs_kind"] == "image" and environment["image_digest"].startswith("sha256:")
