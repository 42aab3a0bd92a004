"""Tasks of Harbor and Terminal-Bench 1 are read whole: what is honoured, noted, and refused by file and key."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.proctor.test_rootfs import Host

from ringfence.container.engine import Engine, Image
from ringfence.errors import SandboxError, SetupError, UsageError
from ringfence.model.limits import MIB
from ringfence.proctor.agent_run import policy_of
from ringfence.proctor.foreign import compose, harbor, summary, terminal_bench, terminal_tasks
from ringfence.proctor.signed.inputs import inputs_of
from ringfence.proctor.suite import agents
from ringfence.proctor.task import Task

MATERIAL = Path(__file__).resolve().parents[2] / "material" / "terminal_tasks"
HARBOR, TB1 = MATERIAL / "harbor", MATERIAL / "terminal-bench"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def task(tmp_path: Path) -> Callable[[Path], Path]:
    """A copy to spoil."""
    return lambda source: Path(shutil.copytree(source, tmp_path / source.name, symlinks=True))


def load_harbor(folder: Path, **also: object) -> Task:
    return harbor.load(str(folder), rootfs="host", host=Host(), **also)  # type: ignore[arg-type]


def load_tb1(folder: Path, **also: object) -> Task:
    return terminal_bench.load(str(folder), rootfs="host", host=Host(), **also)  # type: ignore[arg-type]


# ---- what is honoured


def test_a_task_of_harbor_is_read_whole() -> None:
    found = load_harbor(HARBOR / "sum-sales")
    assert (found.id, found.kind, found.policy.mount_at) == ("sum-sales", "harbor", "/srv/sales")
    assert dict(found.environment) == {"LANG": "C.UTF-8", "TARGET": "total.txt", "SALES": "data/sales.csv"}
    grader = found.grader
    assert grader is not None
    assert grader.environment["TOLERANCE"] == "0" and grader.environment["TARGET"] == "total.txt"
    assert "TOLERANCE" not in found.environment, "of the verifier alone"
    assert grader.argv == ("/bin/bash", "/tests/test.sh") and grader.oracle_at == "/tests"
    assert (grader.reward_file, grader.preferred_reward_file) == (harbor.REWARD, harbor.PREFERRED)
    assert (found.policy.memory_bytes, found.policy.disk_bytes) == (1024 * MIB, 1024 * MIB)
    assert (found.policy.wall_time_s, grader.wall_time_s) == (120, 120)
    assert found.policy.network == found.policy.grader_network == ()
    assert found.instruction.startswith("The variable") and found.oracle.endswith("sum-sales/tests")
    assert (Path(found.workspace) / "data" / "sales.csv").read_text().startswith("north,12")
    assert found.policy.text == (HARBOR / "sum-sales" / "task.toml").read_bytes()
    assert {"/tests", "/solution"} <= set(found.policy.forbidden_reads)
    assert agents.words_of("oracle", found) == ("/bin/sh", "/solution/solve.sh")


def test_a_task_of_terminal_bench_is_read_whole() -> None:
    found = load_tb1(TB1 / "count-words")
    assert (found.id, found.kind, found.policy.mount_at) == ("count-words", "terminal-bench", "/app")
    grader = found.grader
    assert grader is not None
    assert grader.results == "pytest" and grader.environment["TEST_DIR"] == "/tests" == grader.oracle_at
    assert (found.policy.wall_time_s, grader.wall_time_s) == (120, 120)
    assert os.listdir(found.workspace) == ["text.txt"], "neither the tests nor the solution"
    assert dict(load_tb1(TB1 / "reverse-lines").environment) == {"TOOL": "tac or not"}
    assert load_tb1(TB1 / "reverse-lines").policy.mount_at == "/srv/lines"
    assert load_tb1(TB1 / "hello-world").policy.mount_at == "/app", "as the benchmark's images have it"


def test_texts_for_people_may_be_missing_or_empty(task: Callable[[Path], Path]) -> None:
    folder = task(TB1 / "hello-world")
    (folder / "task.yaml").write_text("# a canary\ninstruction: x\nauthor_name:\ntags:\nestimated_duration_sec:\n")
    assert load_tb1(folder).instruction == "x"


def _toml(folder: Path, text: str) -> Path:
    (folder / "task.toml").write_text(text)
    return folder


@pytest.mark.parametrize(("text", "agent", "verifier"), [
    ("", (), ()),
    ("[environment]\nallow_internet = false", (), ()),
    ("[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.example']", ("a.example",), ("a.example",)),
    ("[environment]\nallowed_hosts = ['a.example']", ("a.example",), ("a.example",)),
    ("[environment]\nnetwork_mode = 'public'\n[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['*.b.example']\n"
     "[verifier]\nnetwork_mode = 'no-network'", ("*.b.example",), ()),
    ("[environment]\nallowed_hosts = ['a.example']\n[agent]\nnetwork_mode = 'no-network'", (), ("a.example",)),
    ("[agent]\nnetwork_mode = 'allowlist'", (), ()),
])  # fmt: skip
def test_the_network_is_that_of_the_phase(
    text: str, agent: tuple[str, ...], verifier: tuple[str, ...], task: Callable[[Path], Path]
) -> None:
    found = load_harbor(_toml(task(HARBOR / "hello-file"), text))
    assert tuple(map(str, found.policy.network)) == agent
    assert tuple(map(str, found.policy.grader_network)) == verifier


def test_the_whole_network_is_given_to_nobody_and_that_is_said(task: Callable[[Path], Path]) -> None:
    folder = _toml(task(HARBOR / "hello-file"), "[verifier]\nnetwork_mode = 'no-network'")
    assert any("network_mode is public; here the agent may reach no host" in note for note in load_harbor(folder).notes)
    named = load_harbor(folder, allow=["pypi.org"])
    assert tuple(map(str, named.policy.network)) == ("pypi.org",) and named.policy.grader_network == ()
    assert any("the whole network" in note for note in load_tb1(TB1 / "hello-world").notes)
    closed = load_harbor(HARBOR / "mend-script", allow=["pypi.org"])
    assert closed.policy.network == () and not any("public" in note for note in closed.notes)


@pytest.mark.parametrize("allow", [(), ("pypi.org",), ("pypi.org", "answers.example")])
def test_whom_a_task_may_reach_is_bound(allow: tuple[str, ...]) -> None:
    """Else a suite would go on with what was done under another list, and no bundle would tell them apart."""
    one = load_tb1(TB1 / "hello-world", allow=["pypi.org:443"])
    other = load_tb1(TB1 / "hello-world", allow=list(allow))
    assert inputs_of(one, "a", ()) != inputs_of(other, "a", ())
    assert inputs_of(other, "a", ()) == inputs_of(load_tb1(TB1 / "hello-world", allow=list(allow)), "a", ())


def test_a_task_gets_a_variable_of_the_operators_only_if_that_was_said(task: Callable[[Path], Path]) -> None:
    folder = _toml(task(HARBOR / "hello-file"), '[environment]\nenv = { A = "x${OWN_KEY}", B = "${OWN_B:-b}" }')
    os.environ["OWN_KEY"] = "secret"
    try:
        with pytest.raises(UsageError, match=r"task\.toml: environment\.env\.A: asks for your variable OWN_KEY"):
            load_harbor(folder)
    finally:
        del os.environ["OWN_KEY"]
    assert load_harbor(folder, environment={"OWN_KEY": "given"}).environment == {"A": "xgiven", "B": "b"}


def test_the_oracle_alone_has_the_solutions_variables(task: Callable[[Path], Path]) -> None:
    text = '[environment]\nenv = { A = "a" }\n[solution]\nenv = { A = "b", K = "${K}" }'
    folder = _toml(task(HARBOR / "hello-file"), text)
    made = load_harbor(folder, environment={"K": "key"})
    found = {agent: policy_of(made, "", "/i", str(folder.parent / "out"), agent=agent).environment
             for agent in ("oracle", "nop", "my-agent")}  # fmt: skip
    assert {**found["oracle"]}.items() >= {"A": "b", "K": "key"}.items()
    assert found["nop"]["A"] == found["my-agent"]["A"] == "a" and "K" not in {**found["nop"], **found["my-agent"]}
    assert load_harbor(folder).solution_environment["K"] == "", "only the oracle needs it"
    assert inputs_of(made, "a", ()) == inputs_of(load_harbor(folder, environment={"K": "other"}), "a", ())


def test_the_evidence_has_no_digest_of_an_operators_value(task: Callable[[Path], Path]) -> None:
    """Of a PIN there are ten thousand: whoever has its digest has it."""
    text = '[environment]\nenv = { A = "x${PIN}", B = "b" }\n[verifier]\nenv = { C = "${PIN:-none}" }'
    folder = _toml(task(HARBOR / "hello-file"), text)
    one, other = (load_harbor(folder, environment={"PIN": value}) for value in ("1234", "5678"))
    assert one.private_variables == ("A", "C") and one.environment["A"] == "x1234"
    assert one.grader is not None and one.grader.environment["C"] == "1234"
    assert inputs_of(one, "a", ()) == inputs_of(other, "a", ())
    changed = _toml(folder, text.replace('B = "b"', 'B = "c"'))
    assert inputs_of(load_harbor(changed, environment={"PIN": "1234"}), "a", ()) != inputs_of(one, "a", ())


@pytest.mark.parametrize(("text", "word"), [
    ("artifacts = ['/app/x']", "artifacts are not collected"), ("[environment]\ncpus = 2", "environment.cpus"),
    ("[environment]\nskills_dir = '/skills'", "skills stay"),
])  # fmt: skip
def test_what_is_not_done_is_said(text: str, word: str, task: Callable[[Path], Path]) -> None:
    assert any(word in note for note in load_harbor(_toml(task(HARBOR / "hello-file"), text)).notes)


def test_the_format_is_told_by_the_files(tmp_path: Path) -> None:
    assert terminal_tasks.kind_of(str(HARBOR / "hello-file")) == "harbor"
    assert terminal_tasks.kind_of(str(TB1 / "hello-world")) == "terminal-bench"
    assert terminal_tasks.kind_of(str(tmp_path)) == ""
    with pytest.raises(UsageError, match=r"neither task\.toml nor"):
        terminal_tasks.load(str(tmp_path), rootfs="host")


# ---- what is malformed, or not honoured: by file and key


def said(error: SandboxError) -> str:
    """All of it."""
    return "\n".join(map(str, (error, *getattr(error, "more", ()))))


WRONG_TOML = [
    ("version = ", "not TOML"), ("a = 1\na = 2", "not TOML"), ("\xff", "not TOML"),
    ("agent = 5", "agent: must be a section"),
    ("version = 1", "version: 1 is not a string"), ("colour = 'red'", "colour: unknown key"),
    ("[agent]\ntimout_sec = 5", 'agent.timout_sec: unknown key; did you mean "timeout_sec"'),
    ("[agent]\ntimeout_sec = 0", "agent.timeout_sec: 0 is not"), ("[agent]\ntimeout_sec = 'x'", "agent.timeout_sec"),
    ("[agent]\ntimeout_sec = inf", "agent.timeout_sec"), ("[agent]\ntimeout_sec = true", "agent.timeout_sec"),
    ("[agent]\ntimeout_sec = 1e300", "limits.wall_time_secs"), ("[agent]\nuser = -1", "agent.user"),
    ("[agent]\nuser = ''", "agent.user"), ("[agent]\nuser = 'bob'", "there is no user 'bob'"),
    ("[verifier]\nuser = 'bob'", "verifier.user: 'bob' is not the agent's user"),
    ("[agent]\nnetwork_mode = 'open'", "agent.network_mode: 'open' is not one of"),
    ("[agent]\nallowed_hosts = 'a'", "agent.allowed_hosts: 'a' is not a list"),
    ("[agent]\nallowed_hosts = ['a b']", "agent.allowed_hosts"),
    ("[agent]\nallowed_hosts = ['http://a/b']", "agent.allowed_hosts"),
    ("[agent]\nnetwork_mode = 'public'\nallowed_hosts = ['a.example']", "agent.allowed_hosts: names hosts"),
    ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec"), ("[verifier]\nenv = { A = 1 }", "verifier.env: 'A'"),
    ("[verifier]\nenv = { 'A=B' = 'c' }", "verifier.env"), ("[verifier]\nenv = 'A=b'", "env: must be a section"),
    ("[verifier]\nenvironment_mode = 'separate'", "verifier.environment_mode: a verifier with artifacts alone"),
    ("[verifier]\nenvironment_mode = 'both'", "verifier.environment_mode: 'both' is not one of"),
    ("[verifier.environment]\ncpus = 1", "verifier.environment: a verifier with an image of its own"),
    ("[[verifier.collect]]\ncommand = 'x'", "verifier.collect"), ("[environment]\ngpus = 1", "environment.gpus"),
    ("[environment.tpu]\ntype = 'v4'", "environment.tpu"), ("[environment]\nos = 'windows'", "environment.os"),
    ("[environment]\nmemory_mb = 0", "environment.memory_mb"),
    ("[environment]\nmemory_mb = 1.5", "environment.memory_mb"),
    ("[environment]\nmemory = '2 bananas'", "environment.memory: '2 bananas'"),
    ("[environment]\nmemory = '1G'\nmemory_mb = 1024", "environment.memory: is given as well as memory_mb"),
    ("[environment]\nstorage = 5", "environment.storage"), ("[environment]\ncpus = 'many'", "environment.cpus"),
    ("[environment]\nallow_internet = 'yes'", "environment.allow_internet"),
    ("[environment]\nbuild_timeout_sec = 0", "environment.build_timeout_sec"),
    ("[environment]\nworkdir = 'app'", "environment.workdir"),
    ("[environment]\nworkdir = '/a/../b'", "environment.workdir"),
    ("[environment]\nworkdir = '/usr/x'", "workspace.mount_at"),
    ("[environment]\ndocker_image = ''", "environment.docker_image"),
    ("[[environment.mcp_servers]]\nname = 'x'", "environment.mcp_servers"),
    ("[environment.healthcheck]\ncommand = 'x'", "environment.healthcheck"),
    ("[[steps]]\nname = 'a'", "steps: tasks of several steps"),
    ("multi_step_reward_strategy = 'final'", "multi_step_reward_strategy"), ("artifacts = 5", "artifacts: 5"),
    ("[task]\nname = ''", "task.name"), ("[task]\nkeywords = 'x'", "task.keywords"),
    ("[solution]\nenv = 5", "solution.env"),
    ('[environment]\nenv = { A = "\\u0000" }', "environment.env"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), WRONG_TOML, ids=[text[:40] for text, _ in WRONG_TOML])
def test_a_malformed_task_toml_is_refused_by_key(text: str, word: str, task: Callable[[Path], Path]) -> None:
    folder = task(HARBOR / "hello-file")
    (folder / "task.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(SandboxError) as told:
        load_harbor(folder)
    assert word in str(told.value)
    assert "task.toml" in str(told.value) or word.startswith(("limits.", "workspace.")), "and by file"


def test_all_that_is_wrong_is_said_at_once(task: Callable[[Path], Path]) -> None:
    folder = _toml(task(HARBOR / "hello-file"), "[agent]\ntimeout_sec = 0\n[environment]\ngpus = 2")
    with pytest.raises(SandboxError) as told:
        load_harbor(folder)
    assert len(getattr(told.value, "more", ())) == 1


BASE = "instruction: do it\ndifficulty: easy\n"
WRONG_YAML = [
    ("", "instruction: is missing"), ("difficulty: easy", "instruction: is missing"), ("[]", "task.yaml"),
    ("instruction: ''", "instruction: is empty"), ("instruction: [a]", "instruction"), ("a: b: c", "task.yaml"),
    (BASE + "difficulty: hard", "difficulty"), (BASE + "colour: red", "colour: unknown key"),
    ("instruction: x\ndifficulty: epic", "difficulty: 'epic'"), (BASE + "parser_name: swebench", "parser_name"),
    (BASE + "max_agent_timeout_sec: 0", "max_agent_timeout_sec"),
    (BASE + "max_test_timeout_sec: soon", "max_test_timeout"),
    (BASE + "run_tests_in_same_shell: true", "run_tests_in_same_shell: tests in the agent's own shell"),
    (BASE + "run_tests_in_same_shell: 5", "run_tests_in_same_shell: 5"),
    (BASE + "disable_asciinema: 1", "disable_asciinema"), ("instruction: !!python/name:os.system x", "task.yaml"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), WRONG_YAML, ids=[repr(text[:50]) for text, _ in WRONG_YAML])
def test_a_malformed_task_yaml_is_refused_by_key(text: str, word: str, task: Callable[[Path], Path]) -> None:
    folder = task(TB1 / "hello-world")
    (folder / "task.yaml").write_text(text)
    with pytest.raises(SandboxError) as told:
        load_tb1(folder)
    assert word in said(told.value) and "task.yaml" in said(told.value)


CLIENT = "services:\n  client:\n    "
WRONG_COMPOSE = [
    ("", "services: has no client"), ("services:\n  main:\n    image: a", "services.main: unknown key"),
    (CLIENT + "image: a\n  db:\n    image: b", "services.db: unknown key"),
    (CLIENT + "privileged: true", "services.client.privileged"),
    (CLIENT + "cap_add: [SYS_ADMIN]", "services.client.cap_add"),
    (CLIENT + "devices: [/dev/kvm]", "services.client.devices"), (CLIENT + "ports: ['80:80']", "services.client.ports"),
    (CLIENT + "volumes: ['/etc:/etc']", "services.client.volumes"),
    (CLIENT + "volumes: ['/:/host:ro']", "services.client.volumes"),
    (CLIENT + "volumes: [data]", "services.client.volumes"),
    (CLIENT + "network_mode: host", "services.client.network_mode"),
    (CLIENT + "environment: [HOME]", "services.client.environment"),
    (CLIENT + "environment: ['A=${SECRET}']", "services.client.environment"),
    (CLIENT + "build: ../other", "services.client.build"), (CLIENT + "build: {context: /}", "services.client.build"),
    (CLIENT + "build: {args: {A: b}}", "services.client.build"),
    (CLIENT + "mem_limit: lots", "services.client.mem_limit"),
    (CLIENT + "user: bob", "services.client.user"), (CLIENT + "image: a\nvolumes: {a: {}}", "volumes: unknown key"),
    (CLIENT + "image: a\nnetworks: {a: {}}", "networks: unknown key"), ("services: 5", "services"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), WRONG_COMPOSE, ids=[repr(text[-40:]) for text, _ in WRONG_COMPOSE])
def test_a_compose_file_beyond_the_template_is_refused_by_key(
    text: str, word: str, task: Callable[[Path], Path]
) -> None:
    folder = task(TB1 / "hello-world")
    (folder / "docker-compose.yaml").write_text(text)
    with pytest.raises(SandboxError) as told:
        load_tb1(folder)
    assert word in said(told.value) and "docker-compose.yaml" in said(told.value)


def test_what_a_compose_file_may_say_is_honoured(tmp_path: Path) -> None:
    file = tmp_path / "docker-compose.yaml"
    file.write_text(CLIENT + "build: .\n    environment: {A: '1', B: '${T_BENCH_TEST_DIR}'}\n    network_mode: none\n"
                             "    deploy: {resources: {limits: {memory: 512M, cpus: '2'}}}\n    working_dir: /w\n")
    found = compose.read(str(file))
    assert (dict(found.environment), found.memory_bytes, found.network) == ({"A": "1"}, 512 * MIB, False)
    assert found.workdir == "/w" and found.dockerfile == "Dockerfile"


SPOILED: list[tuple[str, Path, Callable[[Path], object], str]] = [
    ("no task.toml", HARBOR / "hello-file", lambda f: (f / "task.toml").unlink(), "has no task.toml"),
    ("no instruction", HARBOR / "hello-file", lambda f: (f / "instruction.md").unlink(), "instruction.md is not"),
    ("no tests", HARBOR / "hello-file", lambda f: shutil.rmtree(f / "tests"), "has no tests/"),
    ("no test.sh", HARBOR / "hello-file", lambda f: (f / "tests" / "test.sh").unlink(), "tests/test.sh"),
    ("a compose file", HARBOR / "hello-file", lambda f: (f / "environment" / "docker-compose.yaml").touch(),
     "services beside"),
    ("an image alone", HARBOR / "hello-file", lambda f: (f / "environment" / "Dockerfile").unlink(), "no Dockerfile"),
    ("neither", HARBOR / "mend-script", lambda f: (f / "environment" / "Dockerfile").unlink(),
     "environment.docker_image"),
    ("a Dockerfile that is none", HARBOR / "hello-file", lambda f: (f / "environment" / "Dockerfile").write_text("hi"),
     "environment/Dockerfile:1"),
    ("a Dockerfile of bytes", HARBOR / "hello-file", lambda f: (f / "environment" / "Dockerfile").write_bytes(b"\xff"),
     "not UTF-8"),
    ("no task.yaml", TB1 / "hello-world", lambda f: (f / "task.yaml").unlink(), "has no task.yaml"),
    ("no script", TB1 / "hello-world", lambda f: (f / "run-tests.sh").unlink(), "run-tests.sh"),
    ("no tests of TB1", TB1 / "hello-world", lambda f: shutil.rmtree(f / "tests"), "has no tests/"),
    ("no Dockerfile", TB1 / "hello-world", lambda f: (f / "Dockerfile").unlink(), "has no Dockerfile"),
    ("its own solution copied", TB1 / "hello-world",
     lambda f: (f / "Dockerfile").write_text("FROM debian\nWORKDIR /app\nCOPY . /app"), "task's own files"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "spoil", "word"), [row[1:] for row in SPOILED], ids=[row[0] for row in SPOILED])
def test_a_task_without_its_files_is_refused_by_name(
    source: Path, spoil: Callable[[Path], object], word: str, task: Callable[[Path], Path]
) -> None:
    folder = task(source)
    spoil(folder)
    with pytest.raises(SandboxError) as told:
        (load_harbor if source.parent == HARBOR else load_tb1)(folder)
    assert word in str(told.value) and str(folder) in str(told.value)


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "environment/Dockerfile", "tests", "tests/test.sh"])
def test_no_link_of_a_task_leads_out_of_it(name: str, task: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = task(HARBOR / "hello-file")
    place = folder / name
    os.rename(place, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", place)
    with pytest.raises(UsageError, match="points outside the task"):
        load_harbor(folder)


def test_without_a_word_for_the_root_a_task_is_refused_with_both_ways() -> None:
    for load, folder in ((harbor.load, HARBOR / "hello-file"), (terminal_bench.load, TB1 / "hello-world")):
        with pytest.raises(UsageError, match="was not chosen") as told:
            load(str(folder), rootfs="", host=Host())
        assert "--image" in told.value.hint and "--rootfs host" in told.value.hint


@pytest.mark.system
@pytest.mark.parametrize("line", [
    "RUN --network=host true", "RUN --network=default true", "RUN --mount=type=tmpfs,target=/x --security=insecure x",
    "RUN --netw\\ork=host true", "ONBUILD RUN --network=host true", "RUN cat <<X\nRUN --network=host true\nX",
])  # fmt: skip
def test_no_step_of_a_build_takes_more_than_the_build_is_given(line: str, task: Callable[[Path], Path]) -> None:
    folder = task(HARBOR / "mend-script")
    file = folder / "environment" / "Dockerfile"
    file.write_text(f"FROM debian\n{line}\n")
    with pytest.raises(UsageError, match="asks for more than the build is given"):
        harbor.load(str(folder), rootfs="image", engine=Engine("/nothing/docker"))
    file.write_text("FROM debian\nRUN --network=none --mount=type=cache,target=/x echo --network=host\n")
    with pytest.raises(SandboxError, match="start /nothing/docker"):
        harbor.load(str(folder), rootfs="image", engine=Engine("/nothing/docker"))


@pytest.mark.parametrize(("text", "word"), [
    ("# syntax=evil/reader:1\nFROM debian\n", "Dockerfile:1: syntax: 'evil/reader:1' would read it in"),
    ("#!/bin/x\n\n#  SYNTAX = docker.io/evil/dockerfile\nFROM debian\n", "Dockerfile:3: syntax"),
    ("FROM debian AS a\nONBUILD COPY . /\nFROM a\n", "Dockerfile:2: ONBUILD: steps of later builds"),
])  # fmt: skip
def test_what_a_reader_of_the_dockerfile_would_not_see_is_refused(
    text: str, word: str, task: Callable[[Path], Path]
) -> None:
    folder = task(HARBOR / "mend-script")
    (folder / "environment" / "Dockerfile").write_text(text)
    with pytest.raises(UsageError) as told:
        harbor.load(str(folder), rootfs="image", engine=Engine("/nothing/docker"))
    assert word in str(told.value)


class Built(Engine):
    """An engine that keeps what it was to build."""

    def __init__(self, triggers: tuple[str, ...] = ()) -> None:
        super().__init__("docker")
        self.triggers, self.text = triggers, ""
        self.original: object = ""

    def has_network(self) -> bool:
        return True

    def has_image(self, ref: str) -> bool:
        return True

    def image(self, ref: str) -> Image:
        return Image(id="sha256:" + "a" * 64, ref=ref, triggers=self.triggers)

    def build(self, folder: str, dockerfile: str, **given: object) -> Image:  # type: ignore[override]
        self.text, self.original = Path(dockerfile).read_text(), given["original"]
        raise SetupError("build the image", "no further")


def test_what_is_built_is_what_was_read_by_the_engine_s_own_reader(task: Callable[[Path], Path]) -> None:
    folder, engine = task(HARBOR / "mend-script"), Built()
    file = folder / "environment" / "Dockerfile"
    file.write_text("# syntax=docker/dockerfile:1.7\n# escape=`\nFROM debian\n")
    with pytest.raises(SetupError, match="no further"):
        harbor.load(str(folder), rootfs="image", engine=engine)
    assert engine.text == "# escape=`\nFROM debian\n"
    assert engine.original == str(file), "what is built is a copy, and errors name the task's own file"


def test_an_image_with_steps_for_later_builds_is_no_base(task: Callable[[Path], Path]) -> None:
    folder = task(HARBOR / "mend-script")
    (folder / "environment" / "Dockerfile").write_text("FROM scratch AS a\nFROM debian\nFROM a\n")
    with pytest.raises(UsageError, match="FROM debian: it has ONBUILD steps"):
        harbor.load(str(folder), rootfs="image", engine=Built(("COPY . /app",)))


# ---- pytest's summary


@pytest.mark.parametrize(("text", "wanted"), [
    ("", {}), ("PASSED a", {}),
    ("=== short test summary info ===\nPASSED t.py::a\nSKIPPED [1] t.py:3: why\n=== 1 passed ===",
     {"a": True, "[1] t.py:3: why": True}),
    ("== Short Test Summary Info ==\nFAILED t.py::a - x - y\nERROR t.py::b\nXPASS t.py::c\nXFAIL t.py::d",
     {"a": False, "b": False, "c": False, "d": True}),
    ("== short test summary info ==\nFAILED t.py::a\nPASSED t.py::a", {"a": False}),
])  # fmt: skip
def test_a_summary_is_read_as_the_benchmark_reads_it(text: str, wanted: dict[str, bool]) -> None:
    assert summary.results(text) == wanted
    assert bool(summary.problem(text.encode())) is not (bool(wanted) and all(wanted.values()))


@pytest.mark.parametrize("flood", ["=" * (4 << 20), "= " * (2 << 20), "=" + " " * (4 << 20),
                                   "short test summary info" * 9999], ids=str.__len__)  # fmt: skip
def test_no_flood_of_code_under_test_keeps_us_from_a_verdict(flood: str) -> None:
    """As much as a grader may print. A pattern that looks for the heading would go on for days."""
    assert summary.results(flood) == {}
    assert summary.results(f"{flood}\n== short test summary info ==\nPASSED t.py::a\n") == {"a": True}
