"""A whole suite from its tasks to the signed manifest. One function reads from top to bottom.

An interrupt ends all sandboxes first; the same call then continues where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module

from ringfence.attest.signing import Signing, chosen_key
from ringfence.errors import UnavailableError, UsageError, hint_for_extra
from ringfence.evidence.keys import SEED_VARIABLE
from ringfence.model.paths import within
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute, real
from ringfence.proctor.agent_run import files_of, words_of
from ringfence.proctor.place import key_place
from ringfence.proctor.suite import output, reports
from ringfence.proctor.suite.entry import Entry, Order, folder_name
from ringfence.proctor.suite.executor import Executor
from ringfence.proctor.suite.local_executor import LocalExecutor, preload
from ringfence.proctor.suite.progress import SuiteProgress
from ringfence.proctor.suite.results import Row
from ringfence.proctor.suite.running import run_all
from ringfence.proctor.suite.tasks import asked_for, tasks_of

_MOST_JOBS = 10_000


@record
class Benched:
    """The results of a suite, and where they lie."""

    rows: tuple[Row, ...]
    """One for each task, in the order of ids."""
    folder: str
    public_key: str
    word: str = ""
    """What the caller has to know about the key; empty: the caller named it."""

    @property
    def complete(self) -> bool:
        """Whether every task has a verdict."""
        return all(row.has_verdict for row in self.rows)


@record
class Plan:
    """What is to be run, and how; as the command line has it."""

    suite: str
    agent: str
    out: str
    jobs: int = 1
    on: str = "local"
    repos: str = ""
    rootfs: str = ""
    grade: bool = False
    policy: str = ""
    python: str = ""
    allow: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    build_network: str = ""
    no_env: bool = False
    scaffold: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    retries: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= _MOST_JOBS:
            raise UsageError(f"--jobs {self.jobs}: must be from 1 to {_MOST_JOBS:,}")
        if self.retries < 0:
            raise UsageError(f"--retries {self.retries}: must be 0 or more")
        if self.on != "local" and self.on.partition("://")[0] != "ray":
            raise UsageError(f"--on {self.on}: must be local, ray or ray://ADDRESS")
        if not self.agent.strip():
            raise UsageError("--agent is empty", hint="give a command, oracle or nop")
        if SEED_VARIABLE in self.env:
            raise UsageError(f"--env {SEED_VARIABLE}: it signs verdicts and can't be passed on", hint="name another")
        absent = [name for name in self.env if name not in os.environ]
        if absent:
            raise UsageError(f"--env {absent[0]}: the variable is not set", hint="export it first")

    @property
    def options(self) -> dict[str, str]:
        """The options of every entry; empty ones are left out."""
        paths = {name: absolute(path) if path else "" for name, path in
                 (("policy", self.policy), ("python", self.python))}  # fmt: skip
        yes = {name: "yes" if said else "" for name, said in (("grade", self.grade), ("no-env", self.no_env))}
        said = {"rootfs": self.rootfs, "allow": " ".join(self.allow), "env": " ".join(self.env)}
        return {**said, "build-network": self.build_network, **yes, **paths}


def bench(
    plan: Plan, *, seed: str | None = None, key_file: str | None = None, progress: SuiteProgress | None = None
) -> Benched:
    """Run every task of a suite, write the results, and return them.

    For a process with one thread. ``seed`` and ``key_file``: what signs; without either, and without the variable, a
    key is made in the output directory.
    """
    told = progress or SuiteProgress(live=False)
    entries = tasks_of(plan.suite, repos=plan.repos, options=plan.options, only=plan.only, skip=plan.skip)
    scaffold = tuple(map(absolute, plan.scaffold))
    if within(real(plan.out), real(plan.suite)):
        raise UsageError(f"{plan.out} is in the suite {plan.suite}", hint="name an output directory elsewhere")
    _refuse_shown(plan.out, (*scaffold, *files_of(plan.agent)))
    _refuse_place_of_key(key_file, plan)
    with output.held(plan.out) as folder:
        output.refuse_others(folder, {folder_name(entry.id) for entry in entries})
        signing = _key(seed, key_file, folder)
        key = signing.key
        order = Order(agent=plan.agent, seed=key.secret_bytes().decode().strip(), suite=output.suite_number(folder),
                      scaffold=scaffold)  # fmt: skip
        reports.withdraw(folder)
        told.asks(os.path.basename(absolute(plan.suite)), *asked_for(entries))
        rows = _run(plan, entries, order, os.path.join(folder, output.TASKS), key.public_hex, told)
        title = os.path.basename(absolute(plan.suite))
        reports.write_reports(folder, rows, entries, order, key, title)
    return Benched(rows=rows, folder=folder, public_key=key.public_hex, word=signing.word)


def _run(
    plan: Plan, entries: Sequence[Entry], order: Order, folder: str, public_key: str, progress: SuiteProgress
) -> tuple[Row, ...]:
    executor = _executor(plan, order, folder, progress.wait)
    try:
        return run_all(entries, order, executor, public_key=public_key, retries=plan.retries, progress=progress)
    finally:
        executor.close()
        progress.close()


def _executor(plan: Plan, order: Order, folder: str, on_wait: Callable[[], None]) -> Executor:
    if plan.on == "local":
        preload()
        return LocalExecutor(order, folder, plan.jobs, on_wait=on_wait)
    try:
        module = import_module("ringfence.proctor.suite.ray_executor")
    except ModuleNotFoundError as error:
        raise UnavailableError("--on ray needs Ray, which is not installed", missing=("ray",),
                               hint=hint_for_extra("ray")) from error  # fmt: skip
    made: Executor = module.RayExecutor(
        order, folder, plan.jobs, address=plan.on.partition("://")[2], on_wait=on_wait
    )
    return made


def _refuse_place_of_key(key_file: str | None, plan: Plan) -> None:
    if key_file:
        shown = (plan.suite, plan.repos, *plan.scaffold, *files_of(plan.agent))
        commands = (words_of(plan.agent), (plan.python,))
        key_place.refuse_in(key_file, filter(None, shown), filter(all, commands))


def _key(seed: str | None, key_file: str | None, folder: str) -> Signing:
    signing = chosen_key(seed, key_file, folder)
    os.environ.pop(SEED_VARIABLE, None)  # workers have it in memory, and need it nowhere else
    return signing


def _refuse_shown(out: str, shown: Sequence[str]) -> None:
    for each in shown:
        if within(real(out), real(each)):
            raise UsageError(f"the output directory, {out}, would be shown to the agent, in {each}",
                             hint="keep it elsewhere")  # fmt: skip
