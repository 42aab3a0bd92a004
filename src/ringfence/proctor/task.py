"""``Task``: what an agent has to do, in which workspace, and what grades it. Knows how a task's directory is laid out.

A directory may come from anybody: what it names lies in it, and no link leads out of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ringfence.errors import PolicyError, UsageError
from ringfence.model.files import read_file
from ringfence.model.paths import within
from ringfence.model.policy_keys import Problem, in_order, unknown
from ringfence.model.record import record
from ringfence.model.system_text import is_system_text
from ringfence.model.ways.walk import absolute, real
from ringfence.proctor.task_policy import TaskPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.proctor.foreign.instance import Instance

INSTRUCTION_BYTES = 120_000
"""The instruction reaches the agent in a variable too, and Linux takes no variable of 128 KiB."""
ID_CHARS = 200
MAX_STEPS = 100
KINDS = ("generic", "harbor", "terminal-bench", "swebench")
_NOTHING: Mapping[str, str] = MappingProxyType({})


@record
class Root:
    """The file system of an image, which agent and grader use instead of the host's."""

    folder: str
    """Path of the host: extracted, ours, never written."""
    environment: Mapping[str, str] = _NOTHING
    """ENV."""
    workdir: str = "/"
    """WORKDIR: where agent and grader begin, as they see it."""
    user: str = ""
    """USER, ``name`` or ``uid[:gid]``; absent: uid 0 inside, without a capability, and nobody outside."""
    image_ref: str = ""
    image_digest: str = ""

    def __post_init__(self) -> None:
        _freeze(self, "environment", "the image's environment")
        if not os.path.isabs(self.folder) or not os.path.isdir(self.folder) or real(self.folder) == "/":
            raise UsageError(f"{self.folder!r} is not a directory that can be a root", hint="give its absolute path")
        if not _is_place(self.workdir):
            raise UsageError(f"the image's workdir, {self.workdir!r}, is not an absolute, normalized path")


@record
class Step:
    """One agent after the other, in the same workspace."""

    name: str
    command: str = ""
    """Absent: the caller's."""
    instruction: str = ""
    """Its text; absent: the task's."""


@record
class Grader:
    """What decides. ``script`` and ``reference`` are paths of the host, the others are as the grader sees them."""

    argv: tuple[str, ...] = ("/bin/sh", "/grader/grade.sh")
    script: str = ""
    pytest: tuple[str, ...] = ()
    """Test files, relative to the oracle; with them pytest grades instead of the script."""
    reference: str = ""
    """A directory with a solution's files, which are laid over the workspace."""
    oracle_at: str = "/oracle"
    """Where the grader has the task's oracle."""
    reward_file: str = ""
    """Absent: the exit status alone decides."""
    preferred_reward_file: str = ""
    """Counts instead of the other file if it is written; in the same directory. Absent: there is none."""
    results: str = ""
    """``pytest``: besides the exit status, a pass needs pytest's own summary with tests that all passed."""
    wall_time_s: float = 1800
    environment: Mapping[str, str] = _NOTHING
    """Said by the task, over the image's."""
    instance: Instance | None = None
    """Of SWE-bench: its own tests grade, run by the interpreter of ``argv``."""
    system_as_left: bool = False
    """With a root: programs that scripts rely on are as the agent left them (docs/reference/proctor/roots.md)."""

    def __post_init__(self) -> None:
        _freeze(self, "environment", "the grader's environment")


@record
class Task:
    """A task. ``workspace``, ``oracle``, ``setup``, ``solution`` and ``folder`` are paths of the host."""

    id: str
    workspace: str = ""
    """Absent: there is a root, and the agent may change all of it."""
    grader: Grader | None
    instruction: str = ""
    """Its text; an agent that is not a language model may need none."""
    oracle: str = ""
    folder: str = ""
    policy: TaskPolicy = TaskPolicy()
    steps: tuple[Step, ...] = ()
    setup: str = ""
    """A script that runs before the agent; absent: none."""
    root: Root | None = None
    """Absent: the host's."""
    environment: Mapping[str, str] = _NOTHING
    """Said by the task, for agent and set-up, over the image's."""
    kind: str = KINDS[0]
    solution: str = ""
    """A script that solves the task, which ``--agent oracle`` runs and no other agent sees; absent: there is none."""
    sources: tuple[str, ...] = ()
    """What else of the host the task was made from, and no agent may read: a clone, a data set."""
    solution_environment: Mapping[str, str] = _NOTHING
    """Over the task's, for ``--agent oracle`` alone."""
    private_variables: tuple[str, ...] = ()
    """Names of the variables, also of the grader's, with values of the operator's: the evidence has neither the values
    nor their digests."""
    notes: tuple[str, ...] = ()
    """Where we differ from what a foreign task says: for people, and bound by the evidence."""

    def __post_init__(self) -> None:
        for name in ("workspace", "oracle", "folder", "setup", "solution"):
            object.__setattr__(self, name, _absolute(getattr(self, name)))
        _freeze(self, "environment", "the task's environment")
        _freeze(self, "solution_environment", "the solution's environment")
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is not a kind of task", hint=f"there are {', '.join(KINDS)}")
        if not self.id or len(self.id) > ID_CHARS or not self.id.isprintable():
            raise UsageError(f"{self.id[:ID_CHARS]!r} is not a task id", hint=f"write up to {ID_CHARS} characters")
        if not os.path.isdir(self.workspace) and (self.workspace or self.root is None):
            raise UsageError(f"{self.workspace or self.id}: the workspace is not a directory")
        seen = {"workspace": self.workspace, "root": self.root.folder if self.root else ""}
        for what, path in self.own_paths():
            for other in (name for name, folder in seen.items() if folder and _overlap(path, folder)):
                raise UsageError(f"the {what}, {path}, and the {other} are nested: the agent would see it",
                                 hint="keep them side by side")  # fmt: skip
        for text in (self.instruction, *(step.instruction for step in self.steps)):
            _check_instruction(text, self.folder or self.id)

    def own_paths(self) -> Iterator[tuple[str, str]]:
        """What the agent must not see, each with what it is."""
        grader = self.grader or Grader()
        named = {"oracle": self.oracle, "grader": grader.script, "reference solution": grader.reference,
                 "solution": self.solution}  # fmt: skip
        return ((what, absolute(path)) for what, path in named.items() if path)

    @classmethod
    def from_folder(cls, path: str | os.PathLike[str], policy: str | None = None) -> Task:
        """Read a task's directory. ``policy``: a policy file in place of the directory's own ``policy.yaml``."""
        folder = _Folder(os.fspath(path))
        own_policy = folder.file("policy.yaml") if policy is None else policy
        rules = TaskPolicy.from_yaml(own_policy) if own_policy else TaskPolicy()
        settings = _settings(folder)
        oracle = folder.directory("oracle")
        return cls(
            id=str(settings.get("id", os.path.basename(folder.path))),
            workspace=folder.needed(folder.directory("workspace"), "workspace/ directory for the agent"),
            grader=_grader(folder, settings, oracle, rules),
            instruction=folder.text("instruction.md"),
            oracle=oracle,
            folder=folder.path,
            policy=rules,
            steps=tuple(_steps(folder, settings)),
            setup=folder.file(str(settings.get("setup", "setup.sh")), must="setup" in settings),
            solution=folder.file("solution.sh") or folder.file("solution/solve.sh"),
        )


class _Folder:
    """A task's directory, and what is in it. Nothing that it names may lead out of it."""

    def __init__(self, path: str) -> None:
        self.path = real(path)
        if not os.path.isdir(self.path):
            raise UsageError(f"{path} is not a directory", hint="a task is a directory; proctor init makes one")

    def _inside(self, name: str) -> str:
        """The place of a name, or nothing where there is none."""
        if not is_system_text(name) or os.path.isabs(name) or ".." in name.split("/") or not name:
            raise UsageError(f"{self.path}: {name!r} is not a name in the task's directory")
        path = os.path.join(self.path, name)
        place = real(path)
        if not within(place, self.path) or place == self.path:
            raise UsageError(f"{path} is a link that points outside the task",
                             hint="put the file or directory itself there")  # fmt: skip
        return place if os.path.lexists(path) else ""

    def file(self, name: str, *, must: bool = False) -> str:
        place = self._inside(name)
        if (place or must) and not os.path.isfile(place):
            raise UsageError(f"{os.path.join(self.path, name)} is not a file")
        return place

    def directory(self, name: str, *, must: bool = False) -> str:
        place = self._inside(name)
        if (place or must) and not os.path.isdir(place):
            raise UsageError(f"{os.path.join(self.path, name)} is not a directory")
        return place

    def text(self, name: str, *, must: bool = False) -> str:
        place = self.file(name, must=must)
        try:
            return read_file(place, INSTRUCTION_BYTES).decode("utf-8") if place else ""
        except UnicodeDecodeError as error:
            raise UsageError(f"{place}: not UTF-8 at byte {error.start}") from error

    def needed(self, found: str, what: str) -> str:
        if not found:
            raise UsageError(f"{self.path} has no {what}", hint="proctor init writes a task to start from")
        return found


TaskFolder = _Folder
"""For adapters of other formats."""


# ---- task.yaml


_KEYS = {
    "": ("version", "id", "setup", "grader", "steps"),
    "grader": ("command", "pytest", "reference", "reward_file"),
    "steps": ("name", "command", "instruction"),
}
_TEXTS = ("id", "setup", "grader.command", "grader.pytest", "grader.reference", "grader.reward_file",
          "[].name", "[].command", "[].instruction")  # fmt: skip


def _settings(folder: _Folder) -> Mapping[str, object]:
    """What ``task.yaml`` says; PolicyError names file, line and key."""
    from ringfence.model.policy_file import parse_policy, policy_bytes

    path = folder.file("task.yaml")
    return parse_policy(path, policy_bytes(path), _checked, texts=_TEXTS) if path else {}


def _checked(values: Mapping[str, object]) -> Mapping[str, object]:
    problems = [*_problems(values)]
    if problems:
        first, *others = in_order(problems, values)
        raise PolicyError(*first, more=tuple(PolicyError(*other) for other in others))
    return values


def _problems(values: Mapping[str, object]) -> Iterator[Problem]:
    if not isinstance(values, Mapping):
        yield "", f"task.yaml must be a mapping, not {type(values).__name__}"
        return
    yield from _unknown(values, "")
    if values.get("version", 1) != 1 or values.get("version") is True:
        yield "version", f"{values['version']!r} is not 1, the only version"
    yield from ((key, "must be a string") for key in ("id", "setup") if not isinstance(values.get(key, ""), str))
    yield from _grader_problems(values.get("grader", {}))
    yield from _step_problems(values.get("steps", []))


def _unknown(values: Mapping[str, object], section: str) -> Iterator[Problem]:
    known, start = _KEYS[section], f"{section}." if section else ""
    wrong = (key for key in values if key not in known)
    yield from ((f"{start}{key}", unknown(key, known, f"there are {', '.join(known)}")[1]) for key in wrong)


def _grader_problems(grader: object) -> Iterator[Problem]:
    if not isinstance(grader, Mapping):
        yield "grader", f"must be a section with {', '.join(_KEYS['grader'])}"
        return
    yield from _unknown(grader, "grader")
    for key in ("command", "pytest"):
        if key in grader and not _is_list_of_texts(grader[key]):
            yield f"grader.{key}", f"{grader[key]!r} is not a list of strings"
    for key in ("reference", "reward_file"):
        if not isinstance(grader.get(key, ""), str):
            yield f"grader.{key}", "must be a string"
    reward = grader.get("reward_file", "")
    if isinstance(reward, str) and reward and (not reward.startswith("/") or os.path.normpath(reward) != reward):
        yield "grader.reward_file", f"{reward!r} is not an absolute, normalized path"


def _step_problems(steps: object) -> Iterator[Problem]:
    if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps) or len(steps) > MAX_STEPS:
        yield "steps", f"must be a list of up to {MAX_STEPS} sections with {', '.join(_KEYS['steps'])}"
        return
    for number, step in enumerate(steps, 1):
        for key, problem in _unknown(step, "steps"):
            yield "steps", f"entry {number}, {key.partition('.')[2]}: {problem}"
        if not all(isinstance(value, str) for value in step.values()) or not step.get("name"):
            yield "steps", f"entry {number} must have a name, and strings only"
    names = [step.get("name") for step in steps]
    if len({str(name) for name in names}) != len(names):
        yield "steps", "two steps have the same name"


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) and item for item in value)


def _grader(folder: _Folder, settings: Mapping[str, object], oracle: str, rules: TaskPolicy) -> Grader:
    given = settings.get("grader", {})
    assert isinstance(given, Mapping)
    script, tests = folder.file("grade.sh"), tuple(given.get("pytest", ()))
    if not tests and "command" not in given:
        folder.needed(script, "grade.sh, which grades what the agent left")
    for name in tests:
        folder.file(f"oracle/{name}", must=True)
    reference = given.get("reference", "")
    return Grader(
        argv=tuple(given.get("command", Grader().argv)),
        script=script,
        pytest=tests,
        reference=folder.directory(reference, must=True) if reference else "",
        reward_file=given.get("reward_file", ""),
        wall_time_s=rules.grader_wall_time_s,
    )


def _steps(folder: _Folder, settings: Mapping[str, object]) -> Iterator[Step]:
    given = settings.get("steps", [])
    assert isinstance(given, list)
    for step in given:
        name = step.get("instruction", "")
        text = folder.text(name, must=True) if name else ""
        yield Step(name=step["name"], command=step.get("command", ""), instruction=text)


# ---- checks


def _freeze(made: object, name: str, what: str) -> None:
    """A mapping of variables that nobody can change any more; UsageError if it is not a mapping."""
    given = getattr(made, name)
    if not isinstance(given, Mapping) or not all(map(_is_variable, given.items())):
        raise UsageError(f"{what} is not a mapping of names to strings without NUL")
    object.__setattr__(made, name, MappingProxyType(dict(given)))


def _is_variable(pair: tuple[object, object]) -> bool:
    name, value = pair
    texts = isinstance(name, str) and isinstance(value, str) and is_system_text(name + value)
    return texts and bool(name) and "=" not in str(name)


def _is_place(path: str) -> bool:
    return is_system_text(path) and path.startswith("/") and os.path.normpath(path) == path


def _absolute(path: str) -> str:
    return absolute(path) if path else ""


def _overlap(one: str, other: str) -> bool:
    first, second = real(one), real(other)
    return within(first, second) or within(second, first)


def _check_instruction(text: str, where: str) -> None:
    if not is_system_text(text) or len(os.fsencode(text)) > INSTRUCTION_BYTES:
        raise UsageError(f"{where}: an instruction must be text without NUL, of up to {INSTRUCTION_BYTES:,} bytes")
