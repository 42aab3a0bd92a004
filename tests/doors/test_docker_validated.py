"""Strategies with the validator before the container, on a real Docker engine: rejections, the command, the example."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doors.test_docker_sandbox import BUY_AND_HOLD, ROOT, SMALL, ours

from ringfence import DockerConfig, DockerExecutor
from ringfence.cli import main
from ringfence.container import orphans
from ringfence.docker_sandbox.config import EMERGENCY
from ringfence.docker_sandbox.result import StrategyStatus

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root]


@pytest.fixture
def image(python_image: str) -> Iterator[str]:
    yield python_image
    assert ours() == [], "containers were left"


def test_a_rejection_comes_before_any_container(image: str) -> None:
    began = time.time()
    config = DockerConfig(image, warm_containers=0, **{**SMALL, "validate": True})  # type: ignore[arg-type]
    with DockerExecutor(config) as executor:
        result = executor.execute("import os\ndef run(data):\n    os.system('rm -rf /')\n    return {}")
        assert result.status is StrategyStatus.REJECTED and result.security_rejections
        assert "os" in (result.error_message or "") and result.container_id == ""
        assert executor.execute(BUY_AND_HOLD, {"prices": [1.0, 2.0]}).success, "honest code is taken"
    told = subprocess.run(
        ["docker", "events", "--since", f"{began:.6f}", "--until", f"{time.time():.6f}", "--filter", "event=create",
         "--filter", f"label=ringfence.owner={orphans.owner()}", "--format", "{{.ID}}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert len(told.split()) == 1, "only the honest one had a container"


def test_the_command_line_runs_a_strategy(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strategy.py").write_text(BUY_AND_HOLD)
    (tmp_path / "data.json").write_text('{"prices": [1, 2]}')
    words = ["strategy", "run", "strategy.py", "--data", "data.json", "--image", image]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["total_return"] == 1.0
    (kept,) = (tmp_path / "sandbox_output").iterdir()
    assert json.loads(kept.read_text())["metrics"]["days"] == 1
    (tmp_path / "strategy.py").write_text("import os\ndef run(d): os.system('id')")
    assert main(words) == 1
    assert "rejected" in capsys.readouterr().err
    monkeypatch.setenv(EMERGENCY, "false")
    (tmp_path / "strategy.py").write_text(BUY_AND_HOLD)
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["status"] == "disabled"


def test_the_loop_of_the_example_goes_through_its_ten_iterations(image: str, tmp_path: Path) -> None:
    environment = {**os.environ, "RINGFENCE_DOCKER__OUTPUT_DIR": str(tmp_path / "out"),
                   "RINGFENCE_DOCKER__IMAGE": image, "RINGFENCE_METRICS": str(tmp_path / "figures")}  # fmt: skip
    command = [sys.executable, "examples/autonomous_loop.py", "--timeout", "2"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    printed = process.communicate()[0]
    told = json.loads(printed.splitlines()[-1])
    assert told["iterations"] == 10 and told["ended"]["ok"] == 7 and told["best"]["value"] > 0
    assert told["ended"]["timeout"] == 1 and ours(pid=process.pid) == []
    assert len([*(tmp_path / "out").iterdir()]) == 10
    words = ["metrics", "serve", "--folder", str(tmp_path / "figures"), "--port", "18431"]
    served = subprocess.Popen([sys.executable, "-m", "ringfence", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        with urllib.request.urlopen(served.stdout.readline().strip()) as answer:
            shown = answer.read().decode()
    finally:
        served.terminate()
        served.communicate()
    assert 'executions_total{isolation="container",status="ok"} 7.0' in shown
    assert 'execution_timeout_total{isolation="container"} 1.0' in shown
