"""What action.yml runs: proctor with arguments from a workflow, and its verdict as outputs of the step.

    python -m ringfence.cli.github_action

Inputs come as variables and are never part of a shell's text. The verdict is read from the bundle, which is verified
first. What is printed meanwhile can't command the runner, which obeys lines that begin with ``::``.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ringfence.cli import PROCTOR_COMMANDS, dispatch
from ringfence.errors import SandboxError, UsageError
from ringfence.evidence.keys import SEED_VARIABLE, SigningKey
from ringfence.evidence.trust import Trust
from ringfence.model.files import read_file
from ringfence.model.ways.walk import absolute

_RUNS = ("run", "run-tb", "run-swebench", "bench")
_MOST_BYTES = 64 << 20
_OWN = ("--out", "--signing-seed", "--key")
"""Options for which the action has inputs of its own."""


def main() -> int:
    """The exit code is proctor's; 2 where the inputs or the evidence are not valid."""
    seed = os.environ.pop("INPUT_SIGNING_SEED", "").strip()
    pubkey = os.environ.get("INPUT_PUBKEY", "").strip()
    if seed:
        os.environ[SEED_VARIABLE] = seed
    try:
        out = _new("out", _plain("out", os.environ.get("INPUT_OUT", "")))
        words = words_of(os.environ.get("INPUT_RUN_ARGS", ""), out)
        trust = Trust.pinned(pubkey or SigningKey.from_seed_hex(seed).public_hex) if pubkey or seed else None
        with _no_commands():
            code = dispatch("proctor", PROCTOR_COMMANDS, words)
        _write({"artifact-path": absolute(out)})
        told = outputs(out, trust) if _has_verdict(out) else {}
        _write(told)
    except SandboxError as error:
        print(f"proctor: {error}\n  {error.hint}", file=sys.stderr)
        return 2
    if not told and not code:
        print(f"proctor: {out} has no verdict", file=sys.stderr)
        return 1
    return code


def words_of(text: str, out: str) -> list[str]:
    """Proctor's arguments: split as a shell does, but nothing in them is expanded or run."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"run-args: {error}", hint="quote them as for a shell") from error
    words = ["run", *words] if words and words[0].startswith("-") else words
    if not words or words[0] not in _RUNS:
        raise UsageError("run-args: names no command that runs a task", hint=f"begin with one of {', '.join(_RUNS)}")
    own = next((word for word in words if word.partition("=")[0] in _OWN), None)
    if own is not None:
        raise UsageError(f"run-args: {own.partition('=')[0]} can't be given here, because the action sets it",
                         hint="use the inputs out and signing-seed")  # fmt: skip
    return [*words, "--out", out]


def outputs(out: str, trust: Trust | None) -> dict[str, str]:
    """The outputs of a run or a suite; EvidenceError if its evidence does not verify. ``trust`` absent: any signer."""
    if os.path.exists(os.path.join(out, "manifest.json")):
        return _of_suite(out, trust)
    from ringfence.evidence.verify import verify_bundle

    path = os.path.join(out, "bundle.json")
    found = verify_bundle(read_file(path, _MOST_BYTES), trust=trust or Trust.unsafe_any_signer(), artifacts_folder=out)
    return _named(found.verdict["pass"], found.verdict["status"], found.verdict["violations_count"], path,
                  found.verdict.get("reward"))  # fmt: skip


def _of_suite(out: str, trust: Trust | None) -> dict[str, str]:
    """A suite passes if all its tasks do; the reward is the mean score. Without a key, the suite's own is used."""
    import json

    from ringfence.proctor.suite.manifest import NAME, checked

    path = os.path.join(out, NAME)
    own = json.loads(read_file(os.path.join(out, "results.json"), _MOST_BYTES))["public_key"]
    found = checked(read_file(path, _MOST_BYTES), out, trust or Trust.pinned(own))
    total = found.summary
    status = "compromised" if total["compromised"] else "clean"
    violations = sum(int(task["violations_count"]) for task in found.tasks)
    return _named(total["passed"] == total["tasks"], status, violations, path, total["mean_score"])


def _named(passed: bool, status: str, violations: int, path: str, reward: float | None) -> dict[str, str]:
    return {
        "pass": str(passed).lower(), "verdict-status": status, "violations": str(violations),
        "bundle-path": absolute(path), "reward": "" if reward is None else f"{reward:g}",
    }  # fmt: skip


def _has_verdict(out: str) -> bool:
    return any(os.path.exists(os.path.join(out, name)) for name in ("verdict.json", "manifest.json"))


def _plain(name: str, text: str) -> str:
    """A path in one line: the runner reads outputs and artifacts by lines."""
    if not text or not text.isprintable() or text.startswith("-"):
        raise UsageError(f"{name}: {text!r} is not a path", hint="name a directory in one line of printable characters")
    return text


def _new(name: str, path: str) -> str:
    """A path where nothing exists: a checkout may contain a directory that this key has signed before."""
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path) or os.listdir(path)):
        raise UsageError(f"{name}: {path!r} already exists; its content would be taken for this run's result",
                         hint="name a new directory")  # fmt: skip
    return path


def _write(told: Mapping[str, str]) -> None:
    """Append to the file that the runner reads; no value can become another output."""
    path = os.environ.get("GITHUB_OUTPUT")
    if path is None:
        raise UsageError("GITHUB_OUTPUT is not set", hint="this is for a step of a workflow")
    with open(path, "a", encoding="utf-8") as file:
        for name, value in told.items():
            mark = secrets.token_hex(16)
            file.write(f"{name}<<{mark}\n{value}\n{mark}\n")


@contextmanager
def _no_commands() -> Iterator[None]:
    """Foreign names are printed: meanwhile the runner takes no line for a command."""
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", flush=True)
    try:
        yield
    finally:
        print(f"::{token}::", flush=True)


if __name__ == "__main__":
    sys.exit(main())
