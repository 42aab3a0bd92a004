"""The examples of docs/how-to/mcp.md: an application starts or finds the server that a file of servers names."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.service.tokens import add_token
from tests.egress_world import World
from tests.examples import environment_of, filled, written
from tests.examples.own_network import OwnNetwork, own_network
from tests.framework_environment import framework_environment

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.long]
KEY = "s3cret-of-a-test"
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's: a project and a policy."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("one\n")
    (tmp_path / "work").mkdir()
    for folder in (tmp_path, tmp_path / "work"):
        (folder / "policy.yaml").write_text(written("docs/how-to/mcp.md", "# policy.yaml"))
    return tmp_path


@pytest.fixture
def network(home: Path) -> Iterator[OwnNetwork]:
    with own_network(home) as made:
        yield made


def _variables(home: Path) -> dict[str, str]:
    """Those of an application, which has the protocol's own client."""
    own = environment_of(home)
    return {"HOME": str(home), "PATH": own["PATH"], "XDG_STATE_HOME": own["XDG_STATE_HOME"],
            "PYTHONPATH": framework_environment("mcp")["PYTHONPATH"]}  # fmt: skip


def _application(home: Path, servers: str, calls: Calls) -> list[str]:
    (home / "servers.json").write_text(servers)
    words = ["-m", "tests.examples.mcp_application", str(home / "servers.json"), json.dumps(calls)]
    return [sys.executable, *words]


def _said(network: OwnNetwork, servers: str, calls: Calls, **more: str) -> list[str]:
    """What the tools answered."""
    command = shlex.join(_application(network.folder, servers, calls))
    told = json.loads(network.shell(command, _variables(network.folder) | more).splitlines()[-1])
    assert "run_command" in told["tools"]
    answers: list[str] = told["answers"]
    return answers


def _kept(network: OwnNetwork) -> list[Any]:
    found: list[Any] = json.loads(network.shell("ringfence sandboxes --json", _variables(network.folder)))
    return found


def _by_a_shell(line: str) -> str:
    return json.dumps({"mcpServers": {"ringfence": {"command": "bash", "args": ["-c", line]}}})


def _command(number: int) -> str:
    return _by_a_shell(written("docs/how-to/mcp.md", "ringfence mcp").splitlines()[number])


WRITE = ("write_file", {"path": "a.txt", "content": "two\n"})


def test_a_server_without_flags_leaves_nothing(network: OwnNetwork) -> None:
    wrote, read = _said(network, _command(0), [WRITE, ("read_file", {"path": "a.txt"})])
    assert "a.txt" in wrote and read == "two\n"
    assert _kept(network) == []


def test_a_server_on_a_project_keeps_changes_aside(network: OwnNetwork) -> None:
    _, difference = _said(network, _command(1), [WRITE, ("diff", {})])
    assert "-one" in difference and "+two" in difference
    assert (network.folder / "project" / "a.txt").read_text() == "one\n"
    assert len(_kept(network)) == 1


def test_a_server_takes_its_limits_from_the_policy_file(network: OwnNetwork) -> None:
    limit = ("run_command", {"command": "ulimit -t"})
    assert _said(network, _command(2), [limit], MODEL_API_KEY=KEY) == ["exit code 0\n3600\n"]


def test_a_server_takes_limits_and_hosts_from_flags(network: OwnNetwork) -> None:
    more = ("run_python", {"code": "len(b'x' * (600 << 20))"})  # than the 512 MiB of a server without flags
    hosts = [("run_command", {"command": f"curl -sS http://{name}"}) for name in ("example.com", "pypi.org")]
    memory, other, listed = _said(network, _command(3), [more, *hosts])
    assert memory == str(600 << 20)
    assert "not in the policy's network list" in other and "network list" not in listed


def test_an_application_that_has_the_file_works_on_the_project(network: OwnNetwork) -> None:
    servers = filled(written("docs/how-to/mcp.md", '"ringfence": {"command'), **{"/home/me": str(network.folder)})
    assert _said(network, servers, [("run_command", {"command": "cat a.txt"})]) == ["exit code 0\none\n"]


def test_the_rest_of_a_project_is_shown_read_only(network: OwnNetwork) -> None:
    source = network.folder / "project" / "src"
    source.mkdir()
    servers = written("docs/how-to/mcp.md", '"--commit", "never"')
    tries = "cat ../a.txt; echo x > new; echo x > ../b.txt; echo x > ../a.txt"
    told, difference, refused = _said(
        network, filled(servers, **{"/home/me": str(network.folder)}),
        [("run_command", {"command": tries}), ("diff", {}), ("commit", {})],
    )  # fmt: skip
    assert "one" in told and told.count("Read-only file system") == 2 and "+x" in difference
    assert "ringfence commit" in refused and [*source.iterdir()] == [] and len(_kept(network)) == 1
    assert sorted(path.name for path in source.parent.iterdir()) == ["a.txt", "src"]


def test_nobody_expands_a_tilde_in_the_file(network: OwnNetwork) -> None:
    line = "ringfence mcp --workspace '~/project' < /dev/null 2>&1 || echo $?"
    said = network.shell(line, _variables(network.folder))
    assert "~/project" in said and said.endswith("\n2\n")


def test_an_application_finds_the_workspace_over_http(network: OwnNetwork) -> None:
    work = network.folder / "work"
    (work / "service.yaml").write_text(f"workspaces:\n  project: {{path: {network.folder}/project}}\n")
    token = add_token(str(work / "tokens.yaml"), "model", ("box",))
    servers = filled(written("docs/how-to/mcp.md", '"ringfence": {"type'), **{"rf_…": token})
    start = "ringfence serve --config service.yaml --tokens tokens.yaml"
    with network.serving(start, "http://127.0.0.1:8700/healthz", _variables(network.folder)):
        said = _said(network, servers, [("run_command", {"command": "cat a.txt"})])
    assert said == ["exit code 0\none\n"]


class _KeyWorld:
    """An application in a world that has api.example.com, and a server there that says what it was asked."""

    def __init__(self, home: Path) -> None:
        self._home, self._world = home, World(home)
        self.close = self._world.close

    def said(self, servers: dict[str, Any], calls: Calls) -> list[str]:
        printed, problem = self._told(servers, calls)
        assert printed, problem
        answers: list[str] = json.loads(printed)["answers"]
        return answers

    def refused(self, servers: dict[str, Any], calls: Calls) -> str:
        """Why the server did not start."""
        printed, problem = self._told(servers, calls)
        assert not printed
        return problem

    def _told(self, servers: dict[str, Any], calls: Calls) -> tuple[str, str]:
        command = _application(self._home, json.dumps(servers), calls)
        code = (
            "import os, subprocess\n"
            f"done = subprocess.run({command!r}, env=os.environ | {_variables(self._home)!r}, capture_output=True)\n"
            "found = [done.stdout.decode(), done.stderr.decode()]"
        )
        printed, problem = self._world.ask(op="execute", code=code)["found"]  # type: ignore[misc]
        return printed, problem


@pytest.fixture
def key_world(home: Path) -> Iterator[_KeyWorld]:
    made = _KeyWorld(home)
    yield made
    made.close()


def test_the_server_is_sent_a_key_that_the_sandbox_never_has(home: Path, key_world: _KeyWorld) -> None:
    page = written("docs/how-to/mcp.md", '"args": ["mcp", "--policy')
    servers = json.loads(filled(page, **{"/home/me": str(home), "…": KEY}))
    asks = ("run_command", {"command": "curl -sS https://api.example.com/v1"})
    searches = ("run_command", {"command": "env; cat /proc/self/environ; cat $SSL_CERT_FILE"})
    asked, found = key_world.said(servers, [asks, searches])
    assert f'"x-api-key": "{KEY}"' in asked
    assert "SSL_CERT_FILE=" in found and KEY not in found
    del servers["mcpServers"]["ringfence"]["env"]
    refused = key_world.refused(servers, [asks])
    assert "the rule injects MODEL_API_KEY, but this variable is unset or empty" in refused
