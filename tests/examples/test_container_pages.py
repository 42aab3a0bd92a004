"""The examples of docs/how-to/containers, on a real Docker engine with an image that has a Python."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import container_image, deployed_image, docker_daemon, packages
from tests.examples import ROOT, environment_of, filled, output_of, program, shell, written
from tests.examples.own_network import OwnNetwork, own_network

if sys.platform != "linux":
    pytest.skip("containers of Linux", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]
MIB = 1 << 20
PRICES = {"prices": [100.0, 90.0, 120.0]}
RUN = ("docker", "run", "--rm", "--network=none")
GAINED = {"total_return": 120.0 / 100.0 - 1}


@pytest.fixture
def work(tmp_path: Path, python_image: str) -> Path:
    """A directory with the strategy of the quick start, and an engine that has the image which is the default."""
    folder = tmp_path / "work"
    folder.mkdir()
    assert python_image == "python:3.10-slim"
    (folder / "strategy.py").write_text(written("docs/how-to/containers/quick-start.md", "def run(data)"))
    (folder / "prices.json").write_text(json.dumps(PRICES))
    return folder


def _asked(work: Path, command: str) -> dict[str, Any]:
    """All fields of the result of a strategy, of whatever status."""
    said = output_of(["bash", "-c", f"{command.rstrip()} --json"], work, environment_of(work.parent))
    found: dict[str, Any] = json.loads(said)
    return found


def _memory(result: dict[str, Any]) -> list[object]:
    """[what was asked for, whether the engine applied it]."""
    row = result["enforced"]["memory"]
    return [row["requested"], row["applied"]]


# ---- coming-from-docker-or-e2b.md


@pytest.mark.root
def test_the_files_of_an_image_are_the_root_of_a_strict_sandbox(tmp_path: Path, python_image: str) -> None:
    text = written("docs/how-to/coming-from-docker-or-e2b.md", "docker export")
    assert python_image in text
    said = shell(text, tmp_path).splitlines()
    assert said[said.index("files") + 1] == "2"


# ---- quick-start.md


@pytest.mark.root
def test_a_strategy_that_was_just_written_runs(work: Path) -> None:
    # tests/release/test_extras.py installs the extras; here it is what the tests run with.
    program(work.parent, "pip", 'echo "$@" > pip.txt')
    printed = shell(written("docs/how-to/containers/quick-start.md", "pip install"), work.parent)
    assert json.loads(printed) == GAINED
    installed = (work / "pip.txt").read_text()
    assert installed == "install .[docker,metrics]\n"
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"docker", "metrics"} <= known.keys()


@pytest.mark.root
def test_a_variable_sets_the_memory_of_one_run(work: Path) -> None:
    small = _asked(work, written("docs/how-to/containers/quick-start.md", "RINGFENCE_DOCKER"))
    usual = _asked(work, "ringfence strategy run strategy.py --data prices.json")
    assert small["metrics"] == usual["metrics"] == GAINED
    assert (_memory(small), _memory(usual)) == ([512 * MIB, True], [2048 * MIB, True])


@pytest.mark.root
def test_a_program_runs_a_strategy_with_the_configuration_of_the_repository(work: Path) -> None:
    shutil.copytree(ROOT / "config", work / "config")
    config = work / "config" / "docker_config.yaml"
    # Another value than the default, which a file that is not found would give too.
    config.write_text(filled(config.read_text(), **{'memory_limit: "2g"': 'memory_limit: "128m"'}))
    text = written("docs/how-to/containers/quick-start.md", "from ringfence")
    (work / "example.py").write_text(f'code = open("strategy.py").read()\n{text}print(result.enforced["memory"])\n')
    first, memory = shell("python example.py", work.parent).splitlines()
    assert first == f"True {{'total_return': {120.0 / 100.0 - 1}}} None"
    assert f"'requested': {128 * MIB}," in memory


SUMS = """
import os
import unittest

class Sums(unittest.TestCase):
    def test_sum(self):
        self.assertEqual((os.environ["SEED"], 1 + 1), ("1", 2))
"""


@pytest.mark.root
def test_one_test_command_runs_in_several_images(work: Path) -> None:
    (work / "test_sums.py").write_text(SUMS)
    text = written("docs/how-to/containers/quick-start.md", "for image in")
    output_of(["docker", "tag", container_image.NAME, "strategies:1"], work)
    assert shell(text, work.parent).count("Ran 1 test") == 2
    wrong = shell(filled(text, **{"done": "done || echo $?", "SEED=1": "SEED=2"}), work.parent)
    assert "FAILED (failures=1)" in wrong, "the test is really run"
    missing = shell("ringfence run --isolation container --image no-such:1 -- true || echo $?", work.parent)
    assert "No such image: no-such:1" in missing and missing.endswith("\n1\n")


@pytest.mark.root
def test_a_test_command_runs_in_warm_containers_of_several_images(work: Path) -> None:
    (work / "test_sums.py").write_text(SUMS)
    text = written("docs/how-to/containers/quick-start.md", "from pathlib import Path")
    output_of(["docker", "tag", container_image.NAME, "strategies:1"], work)
    of_each = [f"{image} {[0, 0, 0]}" for image in ("python:3.10-slim", "strategies:1") for _ in ("box", "pool")]
    (work / "example.py").write_text(text)
    assert shell("python example.py", work.parent).splitlines() == of_each


@pytest.mark.root
def test_a_strategy_has_the_variables_of_its_image_and_none_of_the_callers(work: Path) -> None:
    (work / "strategy.py").write_text("import os\n\ndef run(data):\n    return dict(os.environ)\n")
    (work / "Dockerfile").write_text(f"FROM {container_image.NAME}\nENV WORDS=its\n")
    shell("docker build -q -t with-words:1 .", work.parent, {"DOCKER_BUILDKIT": "0"})
    shown = _asked(work, "MINE=1 ringfence strategy run strategy.py --no-validate --image with-words:1")["metrics"]
    assert shown["WORDS"] == "its" and shown.keys() == {"WORDS", "PATH", "HOME", "TMPDIR", "HOSTNAME"}


@pytest.mark.root
def test_without_a_pull_a_missing_image_is_no_container(work: Path) -> None:
    pull = "RINGFENCE_DOCKER__PULL=false ringfence strategy run strategy.py --image no-such:1"
    assert _asked(work, pull)["status"] == "creation_failed"


# ---- configuration.md


@pytest.mark.root
def test_a_file_names_what_differs_from_the_defaults(work: Path) -> None:
    text = written("docs/how-to/containers/configuration.md", "docker:")
    (work / "docker_config.yaml").write_text(text)
    shown = json.loads(shell("ringfence config show --file docker_config.yaml --json", work.parent))
    given = _flat(yaml.safe_load(text))
    assert {path: shown[path]["value"] for path in given} == given
    assert {path for path, row in shown.items() if "docker_config.yaml" in row["origin"]} == given.keys()
    output_of(["docker", "tag", container_image.NAME, given["docker.image"]], work)
    ran = _asked(work, "ringfence strategy run strategy.py --data prices.json --file docker_config.yaml")
    assert (ran["metrics"], _memory(ran)) == (GAINED, [512 * MIB, True])
    assert ran["enforced"]["cpu_share"]["requested"] == given["docker.cpu_limit"]


def _flat(settings: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Every value by its whole key."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
    return found


# ---- emergency.md


@pytest.mark.root
def test_with_the_switch_no_strategy_has_a_container(work: Path) -> None:
    switch = written("docs/how-to/containers/emergency.md", "export RINGFENCE")
    ended = _asked(work, f"{switch} ringfence strategy run strategy.py --data prices.json")
    assert (ended["status"], ended["container_id"]) == ("disabled", "")
    shown = shell(f"{switch} ringfence config show", work.parent)
    assert ["docker.enabled", "false", "RINGFENCE_DOCKER__ENABLED"] in map(str.split, shown.splitlines())
    assert shell(f"{switch} ringfence strategy run strategy.py || echo $?", work.parent).endswith("\n2\n")
    assert _asked(work, "ringfence strategy run strategy.py --data prices.json")["metrics"] == GAINED


# ---- monitoring.md


@pytest.fixture
def network(tmp_path: Path) -> Iterator[OwnNetwork]:
    """One in which nobody else has the port 8000, on a machine whose /run is empty."""
    (tmp_path / "run").mkdir()
    with own_network(tmp_path, {"/run": tmp_path / "run"}) as made:
        yield made


def test_prometheus_finds_what_every_process_has_counted(network: OwnNetwork) -> None:
    text = written("docs/how-to/containers/monitoring.md", "export RINGFENCE")
    export, _ = text.splitlines()
    (job,) = yaml.safe_load(written("docs/how-to/containers/monitoring.md", "scrape_configs"))["scrape_configs"]
    ((target,),) = (each["targets"] for each in job["static_configs"])
    with network.serving(text, f"http://{target}/metrics", ends_with=130):
        before = network.shell(f"curl -sf http://{target}/metrics")
        network.shell(f"{export}\nringfence run --strict -- true\nringfence run --strict -- true")
        network.shell("ringfence run --strict -- true")
        after = network.shell(f"curl -sf http://{target}/metrics")
    counted = 'executions_total{isolation="strict",status="OK"}'
    assert f"\n{counted} 0.0\n" in before, "a counter is shown before its first event"
    assert f"\n{counted} 2.0\n" in after, "the third run has no variable"


LOGGED = """
from ringfence import DockerConfig, DockerExecutor

with DockerExecutor(DockerConfig(warm_containers=0)) as executor:
    executor.execute(open("strategy.py").read(), {"prices": [1.0, 2.0]}, trace_id="mine-1")
"""


@pytest.mark.root
def test_every_event_of_a_container_is_a_line_of_json(work: Path) -> None:
    text = written("docs/how-to/containers/monitoring.md", "from ringfence")
    (work / "example.py").write_text(f"{text}{LOGGED}")
    told = [json.loads(line) for line in shell("python example.py", work.parent).splitlines()]
    of_the_strategy = [line for line in told if line.get("trace_id") == "mine-1"]
    events = [line["event"] for line in of_the_strategy]
    assert {"execution_started", "container_created", "container_started", "execution_ended"} <= {*events}
    assert {line["logger"] for line in told} == {"ringfence.docker"}
    assert len({line["container_id"] for line in of_the_strategy if line["event"].startswith("container_")}) == 1


# ---- base-image.md

NUMBERS = """
import numpy
import pandas

def run(data):
    frame = pandas.DataFrame({"price": [1.0, 2.0, 6.0]})
    return {"mean": frame["price"].mean(), "rank": numpy.linalg.matrix_rank(numpy.eye(3)),
            "versions": f"numpy=={numpy.__version__} pandas=={pandas.__version__}"}
"""


@pytest.mark.long
@pytest.mark.root
def test_an_image_with_libraries_is_built_and_a_strategy_uses_them(tmp_path: Path) -> None:
    file = written("docs/how-to/containers/base-image.md", "FROM python:")
    text = written("docs/how-to/containers/base-image.md", "docker build")
    (install,) = re.findall(r"pip install --no-cache-dir (.*) ", file)
    work = tmp_path / "work"
    work.mkdir()
    (work / "Dockerfile").write_text(file)
    (work / "strategy.py").write_text(NUMBERS)
    # An engine of its own: in that of all tests the base has no pip, and no wheels instead of an index.
    packages.program("dockerd")
    with docker_daemon.daemon():
        deployed_image.import_base(tmp_path / "base", container_image.NAME, wheels=install.split())
        printed = shell(text, tmp_path, {"DOCKER_BUILDKIT": "0"})
        left, before = (_setuid_files(image, work) for image in ("strategies:1", container_image.NAME))
        user = output_of([*RUN, "strategies:1", "id", "-u"], work)
    result = json.loads(printed[printed.index("\n{") :])
    assert result == {"mean": 3.0, "rank": 3, "versions": install}
    assert re.search(r"^sha256:[0-9a-f]{64}$", printed, re.MULTILINE)
    assert (left, user) == ("", "65534\n") and "/usr/bin/setuid-id\n" in before


def _setuid_files(image: str, work: Path) -> str:
    return output_of([*RUN, "--user=0", image, "find", "/", "-xdev", "-perm", "/6000", "-type", "f"], work)
