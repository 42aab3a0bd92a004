"""The examples of docs/how-to/integrations.md for Harbor: its own command, with a task, an agent, an image's files."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import filled, program, written
from tests.examples.own_network import OwnNetwork, own_network
from tests.framework_environment import SILENT, entry_points, environment_with, newer_python, packages_of
from tests.image_folder import make_root

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.long]
PROGRAMS = ("bash", "cat", "chmod", "cp", "dirname", "find", "grep", "ls", "mkdir", "rm", "tar", "touch")
"""Of the image: what Harbor, the task and the agent call."""
TASK = {
    "task.toml": 'version = "1.0"\n[environment]\nnetwork_mode = "no-network"\n',
    "instruction.md": "Copy the number.\n",
    "environment/Dockerfile": "FROM debian:stable\nWORKDIR /app\nCOPY given.txt /app/given.txt\n",
    "environment/given.txt": "42\n",
    "solution/solve.sh": "#!/bin/bash\ncp /app/given.txt /app/answer.txt\n",
    "tests/test.sh": "#!/bin/bash\nreward=0\ngrep -qx 42 /app/answer.txt && reward=1\n"
                     "echo $reward > /logs/verifier/reward.txt\n",
}  # fmt: skip
AGENT = """
from harbor.agents.base import BaseAgent

class MyAgent(BaseAgent):
    \"\"\"Reads the task outside, and has the work done inside.\"\"\"

    @staticmethod
    def name():
        return "mine"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        assert instruction == "Copy the number.\\n"
        found = await environment.exec("cp given.txt answer.txt && cat /etc/made-by")
        (self.logs_dir / "found.txt").write_text(found.stdout)
"""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[OwnNetwork]:
    """Where there is Harbor, and /srv has the files of an image."""
    for name, text in TASK.items():
        file = tmp_path / "work" / "my-task" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "my_agent.py").write_text(AGENT)
    root = make_root(tmp_path / "srv" / "rootfs", PROGRAMS)
    (root / "app" / "given.txt").write_text("42\n")  # as whoever built the image has copied it
    _install_harbor(tmp_path)
    with own_network(tmp_path, {"/srv": tmp_path / "srv"}) as made:
        yield made


def _install_harbor(folder: Path) -> None:
    """Its command, for which another Python than that of the tests may be needed. The agent is installed beside it."""
    python = newer_python((3, 12))
    installed = (folder / "agent", entry_points(folder, "harbor.plugins"), packages_of("harbor", python))
    path = environment_with(*map(str, installed))["PYTHONPATH"]
    start = [python, "-P", "-c", "from harbor.cli.main import app; app()"]
    program(folder, "harbor", f'PYTHONPATH={shlex.quote(path)} exec {shlex.join(start)} "$@"')
    # tests/release/test_extras.py installs the extra.
    program(folder, "pip", 'echo "$@" > pip.txt')


def _rewards(network: OwnNetwork) -> list[float]:
    """Of all trials, in the order of their jobs."""
    results = sorted((network.folder / "work" / "jobs").glob("*/*/result.json"))
    return [json.loads(result.read_text())["verifier_result"]["rewards"]["reward"] for result in results]


@pytest.mark.timeout(600)
def test_harbor_runs_a_task_on_this_hosts_programs_and_on_an_images_files(network: OwnNetwork) -> None:
    network.shell(written("docs/how-to/integrations.md", "pip install"), SILENT)
    assert _rewards(network) == [1, 1]
    assert (network.folder / "work" / "pip.txt").read_text() == "install .[harbor]\n"
    (found,) = (network.folder / "work" / "jobs").rglob("found.txt")
    assert found.read_text() == "an image\n"


@pytest.mark.timeout(600)
def test_harbor_leaves_a_signed_bundle_that_verifies(network: OwnNetwork) -> None:
    run, verify = written("docs/how-to/integrations.md", "harbor run …").splitlines()
    key = json.loads(network.shell("ringfence keygen --out ops.key --json"))["pubkey"]
    network.shell(filled(run, **{"…": "-p my-task -a oracle"}), SILENT)
    (job,) = (each.name for each in (network.folder / "work" / "jobs").iterdir() if each.is_dir())
    printed = network.shell(filled(verify, **{"NAME": job, "3f1c…": key}))
    assert _rewards(network) == [1]
    assert f"bundle OK: signed by {key} " in printed and "not graded status=clean violations=0" in printed
