"""Tasks of Harbor, which Terminal-Bench 2 is made of: a directory with ``task.toml``, read into our own ``Task``.

Every key of ``task.toml`` is honoured, told in a note, or refused with its name; none is passed over in silence
(docs/reference/proctor/terminal-bench.md). This is pure, except that other modules ask the engine and the host for it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from ringfence.container.engine import Engine
from ringfence.errors import PolicyError, UsageError
from ringfence.model.files import read_file
from ringfence.model.limits import MIB
from ringfence.model.network_list import read_rules
from ringfence.model.network_rule import NetworkRule
from ringfence.model.policy_keys import Problem
from ringfence.model.record import replace
from ringfence.proctor.foreign import checking, scripts
from ringfence.proctor.foreign.checking import at, mapping_at, refused
from ringfence.proctor.foreign.environment import Described, Prepared, prepare
from ringfence.proctor.foreign.host_facts import HostFacts
from ringfence.proctor.task import Grader, Task, TaskFolder
from ringfence.proctor.task_policy import TaskPolicy

FILE = "task.toml"
TESTS, SOLUTION = "/tests", "/solution"
REWARD, PREFERRED = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"
MAX_BYTES = 1 << 20
_AGENT_S, _VERIFIER_S, _BUILD_S = 1800.0, 600.0, 600.0
_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG])B?", re.IGNORECASE)
_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024}
_NOTHING: Mapping[str, str] = MappingProxyType({})


# ---- every key


def _size(value: object) -> str:
    return "" if isinstance(value, str) and _SIZE.fullmatch(value) else f"{value!r} is not a size such as 2G"


def _user(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    is_name = isinstance(value, str) and bool(value)
    return "" if is_number or is_name else f"{value!r} is neither a name nor a number of a user"


def _place(value: object) -> str:
    sound = isinstance(value, str) and value.startswith("/") and os.path.normpath(value) == value
    return "" if sound else f"{value!r} is not an absolute, normalized path"


_MODE = checking.one_of("public", "no-network", "allowlist")
_OS = "only Linux is supported"
_NETWORK: checking.Table = {"network_mode": _MODE, "allowed_hosts": checking.texts}
_ENVIRONMENT: checking.Table = {
    **_NETWORK,
    "build_timeout_sec": checking.seconds, "docker_image": checking.filled,
    "os": lambda value: "" if str(value).lower() == "linux" else f"{value!r}: {_OS}",
    "cpus": checking.number, "memory_mb": checking.count, "storage_mb": checking.count, "memory": _size,
    "storage": _size, "gpus": refused("a sandbox has no graphics processors"), "gpu_types": checking.texts,
    "tpu": refused("a sandbox has no tensor processors"), "env": checking.variables,
    "mcp_servers": refused("MCP servers are not started"), "skills_dir": checking.filled,
    "healthcheck": refused("no service is started that could be checked"), "workdir": _place,
    "allow_internet": checking.flag,
}  # fmt: skip
_KEYS: checking.Table = {
    "version": checking.filled, "schema_version": checking.filled, "source": checking.text,
    "task": {"name": checking.filled, "version": checking.text, "description": checking.text, "authors": None,
             "keywords": checking.texts},
    "metadata": None,
    "agent": {"timeout_sec": checking.seconds, "user": _user, **_NETWORK},
    "verifier": {
        "timeout_sec": checking.seconds, "env": checking.variables, "user": _user, **_NETWORK,
        "environment_mode": lambda value: checking.one_of("shared", "separate")(value) or (
            "a verifier with artifacts alone is not run; the grader always has a sandbox of its own, over what the "
            "agent left" if value == "separate" else ""),
        "environment": refused("a verifier with an image of its own is not run"),
        "collect": refused("commands between agent and verifier are not run"),
    },
    "environment": _ENVIRONMENT,
    "solution": {"env": checking.variables},
    "steps": refused("tasks of several steps, each with a verifier of its own, are not run"),
    "multi_step_reward_strategy": refused("tasks of several steps are not run"),
    "artifacts": lambda value: "" if isinstance(value, list) else f"{value!r} is not a list",
}  # fmt: skip


def read(path: str, data: bytes) -> Mapping[str, object]:
    """The file's values, checked key by key; PolicyError names the file and every wrong key."""
    try:
        values = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    found = [*checking.problems(values, _KEYS), *_contradictions(values)]
    if found:
        raise checking.error(path, found)
    return values


def _contradictions(values: Mapping[str, object]) -> Iterator[Problem]:
    for section in ("agent", "verifier", "environment"):
        mode, hosts = at(values, f"{section}.network_mode"), at(values, f"{section}.allowed_hosts")
        if hosts and mode not in (None, "allowlist"):
            yield f"{section}.allowed_hosts", f"names hosts, and network_mode is {mode!r}"
        if isinstance(hosts, list) and all(isinstance(host, str) for host in hosts):
            yield from ((f"{section}.allowed_hosts", problem) for problem in _host_problems(hosts))
    users = [at(values, f"{section}.user") for section in ("agent", "verifier")]
    if users[1] is not None and users[1] != users[0] and (users[0] is not None or users[1] not in ("root", 0)):
        yield "verifier.user", f"{users[1]!r} is not the agent's user; a task has one user for both"
    for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
        if at(values, f"environment.{old}") is not None and at(values, f"environment.{new}") is not None:
            yield f"environment.{old}", f"is given as well as {new}; omit it"


def _host_problems(hosts: Sequence[str]) -> list[str]:
    try:
        read_rules(hosts)
    except PolicyError as wrong:
        return [each.problem for each in (wrong, *wrong.more)]
    return []


# ---- to a task


def load(
    path: str, *, rootfs: str, allow: Sequence[str] = (), environment: Mapping[str, str] = _NOTHING,
    build_network: str = "", engine: Engine | None = None, host: HostFacts | None = None,
) -> Task:  # fmt: skip
    """The task of a directory. ``rootfs``: host or image. ``allow``: the hosts that agent and verifier may reach if the
    task asks for the whole network. ``environment``: variables that the task may ask for by name. ``build_network``:
    that of the image's build, in place of what the task says."""
    folder = TaskFolder(path)
    file = folder.needed(folder.file(FILE), FILE)
    data = read_file(file, MAX_BYTES)
    values = read(file, data)
    notes = [*_notes(file, values, allow)]
    described = replace(_described(folder, file, values), build_network=build_network)
    ready = prepare(described, rootfs, engine=engine, host=host)
    return Task(
        id=os.path.basename(folder.path), kind="harbor", workspace=ready.workspace, root=ready.root, folder=folder.path,
        instruction=folder.text("instruction.md", must=True),
        oracle=folder.needed(folder.directory("tests"), "tests/, which the verifier has"),
        solution=folder.file("solution/solve.sh"),
        grader=_grader(folder, file, values, environment, ready),
        policy=_policy(values, data, ready, allow),
        environment={**ready.environment, **_variables(file, values, "environment.env", environment)},
        solution_environment=_variables(file, values, "solution.env", environment, must=False),
        private_variables=_private(values, environment),
        notes=(*notes, *ready.notes),
    )  # fmt: skip


def _described(folder: TaskFolder, file: str, values: Mapping[str, object]) -> Described:
    dockerfile = folder.file("environment/Dockerfile")
    image = str(at(values, "environment.docker_image", ""))
    for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml"):
        if folder.file(f"environment/{name}"):
            raise UsageError(f"{folder.path}/environment/{name}: services beside the agent's are not run")
    if not dockerfile and not image:
        raise UsageError(f"{file}: environment.docker_image: there is neither an image nor an environment/Dockerfile")
    user = at(values, "agent.user")
    return Described(
        where=file, name=os.path.basename(folder.path), context=os.path.dirname(dockerfile), dockerfile=dockerfile,
        image=image, build_s=_seconds(values, "environment.build_timeout_sec", _BUILD_S),
        network=_mode(values, "environment") == "public", workdir=str(at(values, "environment.workdir", "")),
        user="" if user is None else str(user),
    )  # fmt: skip


def _grader(
    folder: TaskFolder, file: str, values: Mapping[str, object], given: Mapping[str, str], ready: Prepared
) -> Grader:
    script = folder.needed(folder.file("tests/test.sh"), "tests/test.sh, which decides")
    return Grader(
        argv=(*scripts.interpreter(script), f"{TESTS}/test.sh"), oracle_at=TESTS, reward_file=REWARD,
        preferred_reward_file=PREFERRED, wall_time_s=_seconds(values, "verifier.timeout_sec", _VERIFIER_S),
        environment={**ready.environment, **_variables(file, values, "environment.env", given),
                     **_variables(file, values, "verifier.env", given)},
    )  # fmt: skip


def _policy(values: Mapping[str, object], data: bytes, ready: Prepared, allow: Sequence[str]) -> TaskPolicy:
    limits: dict[str, object] = {}
    memory, storage = _megabytes(values, "memory"), _megabytes(values, "storage")
    limits |= {"memory_bytes": memory * MIB} if memory else {}
    limits |= {"disk_bytes": storage * MIB} if storage else {}
    return TaskPolicy(
        mount_at=ready.mount_at, keep_git=True, text=data, forbidden_reads=(TESTS, SOLUTION),
        wall_time_s=_seconds(values, "agent.timeout_sec", _AGENT_S),
        grader_wall_time_s=_seconds(values, "verifier.timeout_sec", _VERIFIER_S),
        network=_rules(values, "agent", allow), grader_network=_rules(values, "verifier", allow),
        **limits,  # type: ignore[arg-type]
    )  # fmt: skip


def _seconds(values: Mapping[str, object], key: str, default: float) -> float:
    return float(str(at(values, key, default)))


def _megabytes(values: Mapping[str, object], name: str) -> int:
    found = at(values, f"environment.{name}_mb")
    if found is not None:
        return int(str(found))
    size = _SIZE.fullmatch(str(at(values, f"environment.{name}", "")))
    return int(float(size[1]) * _SIZES[size[2].upper()]) if size else 0


# ---- the network


def _mode(values: Mapping[str, object], section: str) -> str:
    """The mode of a phase: its own, else the environment's, else what ``allow_internet`` says, else public."""
    for each in (section, "environment"):
        mode, hosts = at(values, f"{each}.network_mode"), at(values, f"{each}.allowed_hosts")
        if mode is not None or hosts:
            return str(mode or "allowlist")
    return "no-network" if at(values, "environment.allow_internet") is False else "public"


def _rules(values: Mapping[str, object], section: str, allow: Sequence[str]) -> tuple[NetworkRule, ...]:
    mode = _mode(values, section)
    own = at(values, f"{section}.network_mode") is not None or bool(at(values, f"{section}.allowed_hosts"))
    hosts = checking.texts_at(values, f"{section if own else 'environment'}.allowed_hosts")
    return read_rules({"public": tuple(allow), "allowlist": hosts}.get(mode, ()))


def _notes(file: str, values: Mapping[str, object], allow: Sequence[str]) -> Iterator[str]:
    """What is not as the task says, in words."""
    public = [section for section in ("agent", "verifier") if _mode(values, section) == "public"]
    if public:
        instead = f"may reach {', '.join(allow)}" if allow else "may reach no host; name hosts with --allow HOST"
        yield f"{file}: network_mode is public; here the {' and the '.join(public)} {instead}"
    if at(values, "environment.cpus") is not None:
        yield f"{file}: environment.cpus: a share of processors is not enforced, only processor time"
    for key, what in (("artifacts", "artifacts are not collected; final.diff has what changed"),
                      ("environment.skills_dir", "skills stay where the image has them")):  # fmt: skip
        if at(values, key):
            yield f"{file}: {key}: {what}"


def _variables(
    file: str, values: Mapping[str, object], key: str, given: Mapping[str, str], *, must: bool = True
) -> dict[str, str]:
    """Those of a section. ``${NAME}`` is a variable of the operator's, which a task gets only if the operator said so.
    Without that the task is refused, or (not ``must``) it is replaced by nothing."""
    found = {}
    for name, value in mapping_at(values, key).items():

        def one(template: re.Match[str], where: str = f"{key}.{name}") -> str:
            if template[1] in given:
                return given[template[1]]
            if template[2] is None and must:
                problem = f"asks for your variable {template[1]}; pass it with --env {template[1]}"
                raise checking.error(file, [(where, problem)])
            return template[2] or ""

        found[name] = _TEMPLATE.sub(one, str(value))
    return found


def _private(values: Mapping[str, object], given: Mapping[str, str]) -> tuple[str, ...]:
    """The names of variables whose values contain something of the operator's."""
    sections = (mapping_at(values, f"{section}.env") for section in ("environment", "verifier", "solution"))
    pairs = (pair for variables in sections for pair in variables.items())
    return tuple({str(name): None for name, value in pairs
                  if any(found[1] in given for found in _TEMPLATE.finditer(str(value)))})  # fmt: skip
