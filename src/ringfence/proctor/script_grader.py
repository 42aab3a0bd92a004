"""Grades with a script: in a second strict sandbox, whose first process is ours and tells how the script ended.

The submission lies at the task's place, the oracle read-only at ``/oracle``, the script at ``/grader``. Nothing of the
agent's run is there but the imported files: no process, no variable, no home. docs/reference/proctor/grading.md lists
what a script grader can't keep the code under test from doing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.run import run, transaction_kind
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome, Status
from ringfence.model.own_files import new_folder
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.system_text import escape_controls
from ringfence.model.ways.walk import absolute, real
from ringfence.proctor import reward as rewards
from ringfence.proctor.foreign import summary
from ringfence.proctor.grading import Grading, described
from ringfence.proctor.reward import Reward, Written
from ringfence.proctor.rooted import phase
from ringfence.roles.removal import remove_tree
from ringfence.sandbox.root import PRIVATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.events import OnEvent
    from ringfence.proctor.rooted.private_python import PrivatePython
    from ringfence.proctor.submission import Submission
    from ringfence.proctor.task import Grader, Task

GUEST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest")
TOOLS, SCRIPTS = "/ringfence", "/grader"
_ROOTED_TOOLS = "/ringfence/tools"
"""Beside the interpreter that starts them, and what the sandbox has of its own."""
_LOADED = ("LD_PRELOAD", "LD_AUDIT")
"""An image may set these: files that they name, which an agent can replace, would be loaded into our process."""
_REWARD = "reward"
_TAIL_BYTES = 2000
_MESSAGE_BYTES = 1 << 20
_GIT = {
    "core.fsmonitor": "false", "core.hooksPath": "/dev/null", "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null", "core.pager": "cat", "core.editor": "false", "core.sshCommand": "false",
    "credential.helper": "", "diff.external": "", "gc.auto": "0", "protocol.ext.allow": "never",
    "safe.bareRepository": "explicit", "safe.directory": "*", "submodule.recurse": "false",
}  # fmt: skip
"""As variables, these override a repository's own configuration."""


def environment(
    mount_at: str, reward_file: str = "", *, rooted: bool = False, python_path: str = "", oracle_at: str = ""
) -> dict[str, str]:
    """All that a grader has beyond the small clean environment of every sandbox. Nothing in it is the agent's. In the
    root of an image (``rooted``) Python is the image's, and finds modules as its tasks expect it to (``python_path``:
    as the image says), but for those of ``python -m pytest``."""
    own = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "PYTHONPATH": f"{TOOLS}/site"}
    if rooted:
        own = {"PYTHONPATH": ":".join(filter(None, (f"{_ROOTED_TOOLS}/site", python_path)))}
    git = {f"GIT_CONFIG_{part}_{number}": word for number, row in enumerate(_GIT.items())
           for part, word in zip(("KEY", "VALUE"), row, strict=True)}  # fmt: skip
    return {
        **git,
        "GIT_CONFIG_COUNT": str(len(_GIT)),
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0",
        **own,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PROCTOR_WORKSPACE": mount_at,
        "PROCTOR_CONFINE": " ".join(_confine(rooted, oracle_at)),
        "PROCTOR_REWARD_FILE": reward_file,
    }  # fmt: skip


def _confine(rooted: bool, oracle_at: str) -> tuple[str, ...]:
    """A part of the command, so that no script loses it with a variable."""
    known = (f"--oracle={os.fsencode(oracle_at).hex()}",) if oracle_at else ()
    return (*_python(rooted), f"{_tools(rooted)}/grader_process.py", "confine", *known)


def _python(rooted: bool) -> tuple[str, ...]:
    """The interpreter of our own processes; in an image's root, without any file of the image."""
    return (*(_private_python().argv if rooted else (sys.executable,)), "-I", "-S")


def _private_python() -> PrivatePython:
    from ringfence.proctor.rooted.private_python import private_python

    return private_python()


def _tools(rooted: bool) -> str:
    return _ROOTED_TOOLS if rooted else TOOLS


def _first_process(rooted: bool) -> tuple[str, ...]:
    """Loaded as a module: Python takes its compiled file, while it compiles a script each time. The standard library
    comes first on the path, so that nothing beside the module can replace a part of it."""
    load = f"import sys; sys.path.append({_tools(rooted)!r}); import grader_process"
    code = f"{load}; sys.exit(grader_process.main(sys.argv[1:]))"
    return (*_python(rooted), "-c", code)


def grade(task: Task, submission: Submission, *, on_event: OnEvent | None = None) -> Grading:
    """Run the script over the submission. Its own end and its reward are the verdict."""
    grader = task.grader
    assert grader is not None
    reward_file = _checked(grader.reward_file, () if task.root is not None else (task.policy.mount_at,))
    _check_preferred(grader)
    folder = _private_folder(submission.folder)
    try:
        places = _places(task, submission, folder, reward_file)
        policy = _policy(task, places, reward_file)
        outcome = _run(task, submission, policy, folder, on_event)
    except SetupError as error:
        if task.root is None or error.step != "chdir":
            raise
        return Grading(passed=False, reward=0.0 if reward_file else None, details=described(submission),
                       reason="the directory that the grader starts in no longer exists")  # fmt: skip
    finally:
        _remove(folder)
    return verdict(outcome, reward_file, described(submission), grader)


def _checked(reward_file: str, written: tuple[str, ...]) -> str:
    """The directory must be a mount and nothing else: any other could be moved away and replaced by a decoy."""
    folder = os.path.dirname(reward_file)
    if reward_file and (folder in ("", "/") or any(within(reward_file, top) for top in (*written, *PRIVATE))):
        raise UsageError(f"the reward file {reward_file} is where the code under test writes, or has no "
                         "directory of its own",
                         hint="give it a directory of its own, such as /logs/verifier/reward.txt")  # fmt: skip
    return reward_file


def _check_preferred(grader: Grader) -> None:
    other = grader.preferred_reward_file
    if other and (other == grader.reward_file or os.path.dirname(other) != os.path.dirname(grader.reward_file)):
        raise UsageError(f"the reward file {other} is not in the same directory as "
                         f"{grader.reward_file or 'another one'}",
                         hint="name two files in one directory")  # fmt: skip


def _private_folder(submission: str) -> str:
    """Made beside the submission: on the same disk, and where nobody else writes. The reward's directory is in it."""
    try:
        made = new_folder(os.path.dirname(absolute(submission)), ".grading-")
        os.mkdir(os.path.join(made, _REWARD), 0o755)
        return made
    except OSError as error:
        raise SetupError("prepare the grader", f"{error.strerror}", errno=error.errno or 0,
                         hint="make room on the output directory's disk") from error  # fmt: skip


def _remove(folder: str) -> None:
    try:
        remove_tree(folder)
    except OSError:
        pass  # the verdict must not be lost over what code under test left there


def _places(task: Task, submission: Submission, folder: str, reward_file: str) -> dict[str, str]:
    """Path of the host: path inside."""
    grader = task.grader
    assert grader is not None
    places = {submission.folder: task.policy.mount_at} if task.workspace else {}
    places |= {GUEST: TOOLS} if task.root is None else {GUEST: _ROOTED_TOOLS, **dict(_private_python().places)}
    if grader.script:
        alone = not os.path.isdir(grader.script)
        places[grader.script] = f"{SCRIPTS}/{os.path.basename(grader.script)}" if alone else SCRIPTS
    if task.oracle:
        places[task.oracle] = grader.oracle_at
    if reward_file:
        places[os.path.join(folder, _REWARD)] = os.path.dirname(reward_file)
    return places


def _policy(task: Task, places: Mapping[str, str], reward_file: str) -> SandboxPolicy:
    grader = task.grader
    assert grader is not None
    rooted = task.root is not None
    begin = task.policy.mount_at if task.root is None or task.workspace else task.root.workdir
    said_before = phase.fields(task, grader.environment)["environment"]
    assert isinstance(said_before, dict)
    own = {**grader.environment, **environment(begin, reward_file, rooted=rooted,
                                               python_path=said_before.get("PYTHONPATH", ""),
                                               oracle_at=grader.oracle_at)}  # fmt: skip
    fields = phase.fields(task, own)
    said = fields["environment"]
    assert isinstance(said, dict)
    fields["environment"] = {name: value for name, value in said.items() if not (rooted and name in _LOADED)}
    return task.policy.sandbox_policy(
        "grader", wall_time_s=grader.wall_time_s, shown_at=dict(places), pass_environment=(), **fields
    )


def _job(task: Task, grader: Grader, folder: str) -> Job:
    first = (*_first_process(task.root is not None), "lead", grader.reward_file,
             *((grader.preferred_reward_file,) if grader.preferred_reward_file else ()), "--")  # fmt: skip
    return Job(argv=(*first, *grader.argv), cwd=phase.start(task) or folder, channel=True)


def _run(
    task: Task, submission: Submission, policy: SandboxPolicy, folder: str, on_event: OnEvent | None
) -> Outcome:
    """Run in layers that are thrown away: the submission itself stays unchanged, except a layer over a root."""
    assert task.grader is not None
    job = _job(task, task.grader, submission.folder)
    bases = [submission.folder] if task.workspace else []
    bases += [os.path.join(folder, _REWARD)] if task.grader.reward_file else []
    if task.root is None and not task.grader.reward_file:
        return run(job, policy, on_event=on_event)
    with _layers(task, submission, os.path.join(folder, "layers"), bases, policy) as transaction:
        return run(job, policy, transaction=transaction, on_event=on_event)


def _layers(task: Task, submission: Submission, folder: str, bases: list[str], policy: SandboxPolicy) -> Transaction:
    if task.root is None:
        return Transaction.create(folder, bases, kind=transaction_kind(policy))
    from ringfence.proctor.rooted.layer import grading_layers

    return grading_layers(folder, [real(task.root.folder), *bases], submission.layer)


# ---- what it came to


def verdict(
    outcome: Outcome, reward_file: str, details: Mapping[str, object], grader: Grader | None = None
) -> Grading:
    """``details``: what is known of the submission. ``grader``: given where it says more than the reward's file."""
    told = _told(outcome.message)
    if told.get("wall") == 0:
        raise UnavailableError("this kernel has no Landlock, which keeps code under test out of the grader's memory",
                               missing=("landlock",),
                               hint="use Linux 5.13 or newer, with landlock in the lsm= boot option")  # fmt: skip
    ended = outcome.status is Status.OK and told.get("code") == 0
    found = _reward(told) if reward_file else Written()
    judged = _judged(told, found, reward_file, grader) if reward_file else Reward(value=1.0)
    if grader is not None and grader.results and not judged.problem:
        judged = replace(judged, problem=summary.problem(outcome.stdout))
    details = {**details, "grader": "script", "exit": told.get("code"), "stderr_tail": _tail(outcome.stderr)}
    if reward_file:
        details |= {"reward_writers": found.writers, "reward_touched": list(found.touched)}
    if judged.forged:
        return Grading(passed=False, reward=0.0, forged=judged.forged, reason=judged.forged, outcome=outcome,
                       details=details)  # fmt: skip
    passed = ended and not judged.problem and judged.value > 0
    counted = judged.value if ended and not judged.problem else 0.0
    return Grading(passed=passed, reward=counted if reward_file else None, reason=_reason(outcome, told, judged, ended),
                   outcome=outcome, details=details)  # fmt: skip


def _judged(told: Mapping[str, object], found: Written, path: str, grader: Grader | None) -> Reward:
    if grader is None or not grader.preferred_reward_file:
        return rewards.judged(found, path)
    return rewards.preferred(_reward(told, "preferred"), grader.preferred_reward_file, found, path)


def _reason(outcome: Outcome, told: Mapping[str, object], judged: Reward, ended: bool) -> str:
    if not ended:
        code = told.get("code")
        how = f"exited with status {code}" if isinstance(code, int) and code > 0 else "did not end by itself"
        return escape_controls(f"the grader {how} ({outcome.status}: {outcome.reason})")
    if judged.problem:
        return escape_controls(judged.problem)
    return "the grader exited with status 0" + ("" if judged.value > 0 else " and gave no reward")


def _told(message: bytes | None) -> dict[str, object]:
    """What the first process reported; empty: nothing, or no valid report."""
    try:
        found = json.loads(message or b"") if len(message or b"") <= _MESSAGE_BYTES else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _reward(told: Mapping[str, object], name: str = "reward") -> Written:
    found = told.get(name)
    if not isinstance(found, dict):
        return Written()
    writers, touched = found.get("writers"), found.get("touched")
    try:
        data = bytes.fromhex(str(found.get("data", "")))
    except ValueError:
        data = b""
    return Written(data=data, writers=writers if isinstance(writers, int) else 0,
                   touched=tuple(map(str, touched)) if isinstance(touched, list) else ())  # fmt: skip


def _tail(data: bytes) -> str:
    return escape_controls(data[-_TAIL_BYTES:].decode("utf-8", "replace"), keep="\n\t")
