"""Proctor's policy file, and what ours adds to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.errors import PolicyError, UsageError
from ringfence.proctor.task_policy import PHASES, TaskPolicy

COMMIT = "0a" * 20
PROCTORS = f"""\
version: 1
workspace:
  mount_at: /testbed
forbidden:
  reads: [/oracle, /tests/]
  writes:
    - /logs/verifier
network:
  mode: allowlist
  allow: ["Api.Example.com:443"]
git:
  base_commit: {COMMIT}
env:
  allow: [MODEL_NAME, n]
limits:
  wall_time_secs: 60
  pids: 32
  memory_bytes: 268435456
"""
Read = Callable[[str], TaskPolicy]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reader(text: str) -> TaskPolicy:
        file = tmp_path / "policy.yaml"
        file.write_text(text)
        return TaskPolicy.from_yaml(file)

    return reader


@pytest.fixture
def refused(read: Read, tmp_path: Path) -> Callable[[str], list[str]]:
    def reader(text: str) -> list[str]:
        with pytest.raises(PolicyError) as caught:
            read(text)
        return [str(each).removeprefix(f"{tmp_path}/") for each in (caught.value, *caught.value.more)]

    return reader


def test_proctors_own_file_is_read(read: Read) -> None:
    policy = read(PROCTORS)
    assert (policy.mount_at, policy.base_commit, policy.env_allow) == ("/testbed", COMMIT, ("MODEL_NAME", "n"))
    assert (policy.forbidden_reads, policy.forbidden_writes) == (("/oracle", "/tests"), ("/logs/verifier",))
    assert [*map(str, policy.network)] == ["api.example.com:443"]
    assert (policy.wall_time_s, policy.pids, policy.memory_bytes) == (60, 32, 256 << 20)
    assert policy.text == PROCTORS.encode()


def test_what_the_file_does_not_say_is_as_in_proctor(read: Read) -> None:
    policy = read("version: 1\n")
    assert (policy.mount_at, policy.network, policy.base_commit) == ("/workspace", (), "")
    assert (policy.wall_time_s, policy.pids, policy.memory_bytes) == (1800, 512, 2147483648)
    assert policy == TaskPolicy(text=b"version: 1\n")


def test_an_empty_file_says_nothing(read: Read) -> None:
    assert read("# nothing\n") == TaskPolicy(text=b"# nothing\n")


@pytest.mark.parametrize("commit", ["0123456789" * 4, "1234567890" * 4, "1" * 37 + "e10", "00" * 20])
def test_a_commit_of_digits_is_no_number(read: Read, commit: str) -> None:
    assert read(f"git:\n  base_commit: {commit}\n").base_commit == commit


def test_our_fields(read: Read) -> None:
    policy = read(
        "limits: {cpu_time_secs: 5m, disk_bytes: 1G, file_bytes: 100M, output_bytes: 2M, open_files: 64}\n"
        "network: {mode: allowlist, allow: [a.example], limits: {bytes_out: 10M}}\n"
        "phases:\n  setup:\n    wall_time_secs: 10\n    network: {mode: allowlist, allow: [pypi.example:443]}\n"
        "  grader:\n    wall_time_secs: 2m\n    network: {mode: deny}\n"
    )
    setup, agent, grader = (policy.sandbox_policy(phase) for phase in PHASES)
    assert {each.isolation for each in (setup, agent, grader)} == {"strict"}
    assert [each.wall_time_s for each in (setup, agent, grader)] == [10, 1800, 120]
    assert [str(rule) for rule in setup.network_rule] == ["pypi.example:443"] and grader.network == "none"
    assert agent.network_limits["bytes_out"] == 10 << 20 and not grader.network_limits
    assert (agent.cpu_time_s, agent.disk_bytes, agent.file_bytes) == (300, 1 << 30, 100 << 20)
    assert (agent.output_bytes, agent.nofile, agent.pids_max) == (2 << 20, 64, 512)


def test_only_the_agent_gets_variables_of_the_caller() -> None:
    policy = TaskPolicy(env_allow=("MODEL_NAME",))
    assert [policy.sandbox_policy(phase).pass_environment for phase in PHASES] == [(), ("MODEL_NAME",), ()]


def test_processor_time_follows_the_wall_time() -> None:
    assert TaskPolicy(wall_time_s=100).sandbox_policy("agent").cpu_time_s == 800
    assert TaskPolicy(wall_time_s=300_000_000).sandbox_policy("agent").cpu_time_s < 400_000_000


def test_changes_are_laid_over_it() -> None:
    changed = TaskPolicy().sandbox_policy("grader", wall_time_s=7, hidden_paths=("/root",))
    assert (changed.wall_time_s, changed.hidden_paths) == (7, ("/root",))


def test_there_are_three_phases() -> None:
    with pytest.raises(UsageError, match="not a task phase"):
        TaskPolicy().sandbox_policy("judge")


@pytest.mark.parametrize(("text", "told"), [
    ("verison: 1\n", 'policy.yaml:1:1: verison: unknown key; did you mean "version"?'),
    ("version: 1\nlimits:\n  pids: 3\n  wall_time: 5\n",
     'policy.yaml:4:3: limits.wall_time: unknown key; did you mean "wall_time_secs"?'),
    ("phases:\n  agent:\n    network: {mode: deny}\n",
     "policy.yaml:2:3: phases.agent: unknown key; there are setup, grader"),
    ("phases:\n  setup:\n    netwrk: {mode: deny}\n",
     'policy.yaml:3:5: phases.setup.netwrk: unknown key; did you mean "network"?'),
    ("version: 2\n", "policy.yaml:1:1: version: 2 is not 1, the only version"),
    ("limits: 5\n", "policy.yaml:1:1: limits: must be a section with wall_time_secs, pids, memory_bytes, "
     "cpu_time_secs, disk_bytes, file_bytes, output_bytes, open_files"),
    ("forbidden:\n  reads:\n", "policy.yaml:2:3: forbidden.reads: has no value; omit the key"),
    ("git:\n  base_commit:\n", "policy.yaml:2:3: git.base_commit: has no value; omit the key"),
    ("git:\n  base_commit: ''\n", "policy.yaml:2:3: git.base_commit: has no value; omit the key"),
    ("git:\n  base_commit: abc\n",
     "policy.yaml:2:3: git.base_commit: 'abc' is not the id of a commit: 40 digits of 0-9 and a-f"),
    (f"git:\n  base_commit: {COMMIT}\n  keep: true\n",
     "policy.yaml:3:3: git.keep: contradicts git.base_commit, which omits all later history"),
    ("forbidden:\n  reads: /oracle\n", "policy.yaml:2:3: forbidden.reads: '/oracle' is not a list of absolute paths"),
    ("forbidden:\n  writes: [logs]\n", "policy.yaml:2:3: forbidden.writes: 'logs' is not absolute"),
    ("forbidden:\n  reads: [/a/../oracle]\n",
     "policy.yaml:2:3: forbidden.reads: '/a/../oracle' is not a normalized path; write '/oracle'"),
    ("forbidden:\n  reads: [/]\n",
     "policy.yaml:2:3: forbidden.reads: '/' contains the workspace, which the agent must read"),
    ("workspace:\n  mount_at: /oracle/x\n", "policy.yaml:2:3: workspace.mount_at: /oracle/x is reserved for the "
     "task's own files; name another, such as /workspace"),
    ("workspace:\n  mount_at: /usr/src/\n",
     "policy.yaml:2:3: workspace.mount_at: /usr/src can't be used as a mount point: the sandbox has its own /usr"),
    ("workspace:\n  mount_at: /\n",
     "policy.yaml:2:3: workspace.mount_at: / is the whole system; name the part that you mean"),
    ("network:\n  mode: open\n", "policy.yaml:2:3: network.mode: 'open' is not deny or allowlist"),
    ("network:\n  allow: ['a.example:1']\n",
     "policy.yaml:2:3: network.allow: names hosts, but the mode is deny; write mode: allowlist"),
    ("network:\n  mode: allowlist\n",
     "policy.yaml:2:3: network.mode: the allowlist is empty; write mode: deny, or name the hosts that may be reached"),
    ("phases:\n  grader:\n    network: {mode: allowlist, allow: []}\n", "policy.yaml:3:32: "
     "phases.grader.network.allow: the allowlist is empty; write mode: deny, or name the hosts that may be reached"),
    ("limits:\n  pids: 0\n", "policy.yaml:2:3: limits.pids: 0 must be greater than 0"),
    ("limits:\n  wall_time_secs: soon\n",
     'policy.yaml:2:3: limits.wall_time_secs: "soon" is not a time; write 30, 1.5s, 10m or 2h'),
    ("env:\n  allow: ['A=B']\n", "policy.yaml:2:3: env.allow: 'A=B' is not the name of a variable"),
])  # fmt: skip
def test_a_wrong_file_is_refused_by_file_line_and_key(
    refused: Callable[[str], list[str]], text: str, told: str
) -> None:
    assert refused(text) == [told]


def test_all_that_is_wrong_is_told_at_once_in_the_order_of_the_file(refused: Callable[[str], list[str]]) -> None:
    told = refused("limits:\n  pids: 0\n  memory: 1\nversion: 1.5\nnetwork:\n  mode: allowlist\n  allow: ['a b', 7]\n")
    assert [each.split(": ")[0] for each in told] == ["policy.yaml:2:3", "policy.yaml:3:3", "policy.yaml:4:1",
                                                       "policy.yaml:7:3", "policy.yaml:7:3"]  # fmt: skip


@pytest.mark.parametrize("text", [
    "env: {allow: [PROCTOR_SIGNING_SEED]}\n",
    "network:\n  mode: allowlist\n  allow: [{host: a.example, inject: {header: x, from_env: PROCTOR_SIGNING_SEED}}]\n",
])  # fmt: skip
def test_nobody_gets_what_signs_verdicts(refused: Callable[[str], list[str]], text: str) -> None:
    (told,) = refused(text)
    assert "signs verdicts" in told


def test_a_policy_made_in_python_is_checked_the_same_way() -> None:
    with pytest.raises(PolicyError, match=r"limits\.memory_bytes"):
        TaskPolicy(memory_bytes=-1)
    with pytest.raises(PolicyError, match=r"network\.allow: .* is not a list of hosts"):
        TaskPolicy(network="a.example")  # type: ignore[arg-type]
