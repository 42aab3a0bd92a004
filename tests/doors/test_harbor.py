"""A task of Harbor runs in our environment, by Harbor's own command, with the network that it declares."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.framework_environment import framework_environment, newer_python
from tests.image_folder import make_root
from tests.testable import not_testable_here

from ringfence.attest.run_bundle import artifacts_folder
from ringfence.evidence.keyfile import write_key
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle
from ringfence.integrations.harbor_bundle import NAME

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.unmeasured, pytest.mark.long]

# Scores what it finds: 1 where the answer is there and the host is not reached, 0.5 where it is.
VERIFIER = """\
#!/bin/bash
grep -qx 42 /app/answer.txt || {{ echo 0 > /logs/verifier/reward.txt; exit; }}
if (exec 3<>/dev/tcp/{host}/{port}) 2> /dev/null; then echo 0.5; else echo 1; fi > /logs/verifier/reward.txt
"""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def _task(folder: Path, port: int, network: str, host: str = "127.0.0.1", listed: str = "") -> Path:
    allowed = f"allowed_hosts = {json.dumps([listed])}\n" if listed else ""
    files = {
        "task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 600.0\n[agent]\ntimeout_sec = 600.0\n'
                     f'[environment]\nnetwork_mode = "{network}"\n{allowed}memory_mb = 512\n',
        "instruction.md": "Copy the number.\n",
        "environment/Dockerfile": "FROM debian:stable\nWORKDIR /app\nCOPY given.txt /app/given.txt\n",
        "environment/given.txt": "42\n",
        "solution/solve.sh": "#!/bin/bash\ncp /app/given.txt /app/answer.txt\n",
        "tests/test.sh": VERIFIER.format(host=host, port=port),
    }  # fmt: skip
    for name, text in files.items():
        (folder / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "task" / name).write_text(text)
    return folder / "task"


def _ended(tmp_path: Path, task: Path, *words: str) -> subprocess.CompletedProcess[str]:
    tmp_path.mkdir(exist_ok=True)
    python = newer_python((3, 12))
    environment = framework_environment("harbor", python=python)
    environment |= {"XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "500"}
    door = "ringfence.integrations.harbor:RingfenceEnvironment"
    command = [python, "-c", "from harbor.cli.main import app; app()", "run", "-p", str(task), "-a", "oracle",
               "--env", door, "-o", str(tmp_path / "jobs"), *words]  # fmt: skip
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900,
                          check=False)  # fmt: skip


def _run(tmp_path: Path, task: Path, *words: str) -> dict[str, Any]:
    """The result of the one trial."""
    done = _ended(tmp_path, task, *words)
    results = list((tmp_path / "jobs").glob("*/*/result.json"))
    assert len(results) == 1, done.stdout[-2000:] + done.stderr[-3000:]
    told: dict[str, Any] = json.loads(results[0].read_text())
    return told


def _reward(told: dict[str, Any]) -> float | None:
    rewards = (told.get("verifier_result") or {}).get("rewards") or {}
    return rewards.get("reward")


def test_a_task_without_a_network_scores_and_reaches_nobody(tmp_path: Path, port: int) -> None:
    key = SigningKey.generate()
    write_key(str(tmp_path / "key"), key)
    plugin = ("--plugin", "ringfence.integrations.harbor_bundle:SignedBundle", "--plugin-kwarg", f"key={tmp_path}/key")
    told = _run(tmp_path, _task(tmp_path, port, "no-network"), *plugin)
    assert _reward(told) == 1.0, told
    (signed,) = (tmp_path / "jobs").glob(f"*/{NAME}")
    found = verify_bundle(signed.read_bytes(), trust=Trust.pinned(key.public_hex),
                          artifacts_folder=artifacts_folder(str(signed)))  # fmt: skip
    assert found.run is not None and len(found.run["phases"]) > 2 and found.verdict["pass"] is False
    assert f"harbor/{told['trial_name']}/result.json" in found.run["artifact_bytes"], "Harbor's own word is bound"
    network = next(row for row in found.run["enforcement"] if row["protection"] == "network")
    assert network["applied"], network


def test_a_public_network_is_refused_unless_the_operator_gives_the_hosts(tmp_path: Path, port: int) -> None:
    task = _task(tmp_path, port, "public")
    refused = _run(tmp_path / "refused", task)
    assert _reward(refused) is None and "is not enforced" in json.dumps(refused["exception_info"])
    given = _run(tmp_path / "given", task, "--ek", "public_network=host")
    assert _reward(given) == 0.5, "the control: with the host's network the host is reached"


def _own_address() -> str:
    """Of this host, as others see it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        try:
            link.connect(("192.0.2.1", 9))
        except OSError:
            return not_testable_here("this host has no address but loopback")
        return str(link.getsockname()[0])


def test_an_allowlist_is_what_is_reached_and_nobody_else(tmp_path: Path) -> None:
    own = _own_address()
    with socket.create_server((own, 0)) as listening:
        port = listening.getsockname()[1]
        ports = ("--ek", f"allowed_ports=443,{port}")
        listed = _task(tmp_path / "listed", port, "allowlist", own, own)
        assert _reward(_run(tmp_path / "a", listed, *ports)) == 0.5, "the control: who is listed is reached"
        assert _reward(_run(tmp_path / "b", listed)) == 1.0, "on the ports that are meant"
        other = _task(tmp_path / "other", port, "allowlist", own, "192.0.2.7")
        assert _reward(_run(tmp_path / "c", other, *ports)) == 1.0


def test_the_files_of_an_image_are_the_root(tmp_path: Path, port: int) -> None:
    """The Dockerfile's base is not looked at: what it describes is the directory."""
    programs = ("bash", "cat", "chmod", "cp", "dirname", "find", "grep", "ls", "mkdir", "rm", "tar", "touch")
    root = make_root(tmp_path / "image", programs)
    task = _task(tmp_path, port, "no-network")
    (task / "environment" / "Dockerfile").write_text("FROM somebody/image\nRUN build-it\n")
    solution = "#!/bin/bash\ngrep -q 'an image' /etc/made-by && echo 42 > answer.txt\n"
    (task / "solution" / "solve.sh").write_text(solution)
    told = _run(tmp_path / "rooted", task, "--ek", f"root={root}")
    assert _reward(told) == 1.0, told
    assert not (root / "app" / "answer.txt").exists(), "a trial works on a layer over it"
    done = _ended(tmp_path / "missing", task, "--ek", f"root={tmp_path / 'nowhere'}")
    assert "is not a directory" in done.stdout + done.stderr


def test_what_the_host_lacks_is_refused_by_file_and_line(tmp_path: Path, port: int) -> None:
    task = _task(tmp_path, port, "no-network")
    (task / "environment" / "Dockerfile").write_text("FROM debian:stable\nRUN curl https://example.com/x | sh\n")
    done = _ended(tmp_path, task)
    assert done.returncode != 0 and "environment/Dockerfile:2: RUN" in done.stdout + done.stderr


def test_a_working_directory_leads_nowhere_outside(tmp_path: Path, port: int) -> None:
    """A task names it, and what its Dockerfile lays is copied there before there is a sandbox."""
    task = _task(tmp_path, port, "no-network")
    said = (task / "task.toml").read_text()
    outside = tmp_path / "outside"
    (task / "task.toml").write_text(f'{said}workdir = "{"../" * 40}{str(outside)[1:]}"\n')
    told = _run(tmp_path / "relative", task)
    assert not outside.exists() and _reward(told) is None and "workdir" in json.dumps(told["exception_info"])
    (task / "task.toml").write_text(f'{said}workdir = "/app/../app"\n')
    assert _reward(_run(tmp_path / "absolute", task)) == 1.0, "the control"
