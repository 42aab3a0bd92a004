"""A plug-in of Harbor that leaves a signed bundle of each job: ``--plugin ringfence --plugin-kwarg key=FILE``.

It is evidence of what was run in our environment, with which protections and attempts; Harbor's own results are bound
as they are. It does not grade: a reward is Harbor's claim. All it knows of Harbor is the two calls of its hook.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from ringfence.attest.job_bundle import job_bundle
from ringfence.attest.run_bundle import policy_text, require_new
from ringfence.errors import UsageError
from ringfence.evidence.canonical import canonical
from ringfence.evidence.digest import sha256_hex
from ringfence.evidence.keyfile import read_key
from ringfence.evidence.keys import SigningKey
from ringfence.model.outcome import Outcome
from ringfence.model.own_files import read_regular
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.ways.walk import absolute, real

NAME = "ringfence-bundle.json"
COMMANDS, UNBOUND = "commands.json", "unbound.json"
_BOUND = ("config.json", "lock.json", "result.json", "verifier/reward.txt", "verifier/reward.json")
"""Files of a trial, and of the job, that are bound where they are there."""
_MOST_BYTES = 64 << 20


class Ledger:
    """What was run in the environments of one job; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.policies: dict[str, SandboxPolicy] = {}
        """By their text, in the order of their first command: phases of a trial, and trials, may have others."""
        self._numbers: dict[str, int] = {}
        self.outcomes: list[Outcome] = []
        self.commands: list[dict[str, object]] = []

    def add(self, trial: str, policy: SandboxPolicy, outcome: Outcome) -> None:
        """Keeps only digests of outputs: a job prints more than a process should keep."""
        text = policy_text(outcome, policy)
        row: dict[str, object] = {"trial": trial, "status": str(outcome.status), "rc": outcome.rc}
        row |= {name: sha256_hex(data or b"") for name, data in
                (("stdout_sha256", outcome.stdout), ("stderr_sha256", outcome.stderr))}  # fmt: skip
        with self._lock:
            self.policies.setdefault(text, policy)
            number = self._numbers.setdefault(text, len(self.policies))
            self.commands.append({**row, "policy": number})
            self.outcomes.append(replace(outcome, stdout=b"", stderr=b"", message=None))


_LEDGERS: dict[str, Ledger] = {}


def ledger_of(trial_folder: str) -> Ledger | None:
    """That of the job of a trial; None: nobody asked for evidence of it."""
    return _LEDGERS.get(os.path.dirname(real(trial_folder)))


class SignedBundle:
    """The plug-in. ``key``: a private file with the key; absent: that of the environment variable."""

    def __init__(self, key: str = "", out: str = "") -> None:
        """``out``: absent: ``ringfence-bundle.json`` in the directory of the job."""
        found = read_key(key) if key else SigningKey.from_environment()
        if found is None:
            raise UsageError("there is no key to sign with", hint="--plugin-kwarg key=FILE; ringfence keygen makes one")
        self._key, self._out, self._folder = found, out, ""

    async def on_job_start(self, job: Any) -> None:
        """Fail now if the bundle could not be written at the end."""
        self._folder = real(job.job_dir)
        os.makedirs(self._folder, exist_ok=True)
        self._out = absolute(self._out or os.path.join(self._folder, NAME))
        require_new(self._out)
        _LEDGERS[self._folder] = Ledger()

    async def on_job_end(self, job_result: Any) -> None:
        ledger = _LEDGERS.pop(self._folder)
        if not ledger.policies:
            raise UsageError("no trial ran in an environment of ringfence, so there is nothing to sign")
        job_bundle(
            ledger.outcomes, key=self._key, policies=list(ledger.policies.values()), out=self._out,
            name=os.path.basename(self._folder), command=f"harbor job {job_result.id}",
            artifacts={COMMANDS: canonical(ledger.commands), **_files(self._folder, ledger)},
        )  # fmt: skip


def _files(folder: str, ledger: Ledger) -> dict[str, bytes]:
    """Harbor's own files, of the job and of each trial that ran here. We do not judge what the trial left in them: no
    link is followed. A file that could not be bound is named: a reward that Harbor read through a link must not look
    like no reward."""
    found: dict[str, bytes] = {}
    unbound: list[str] = []
    trials = dict.fromkeys(str(row["trial"]) for row in ledger.commands)
    for place in ("", *trials):
        for name in _BOUND:
            path = os.path.join(place, name)
            data: bytes | None
            try:
                data, _ = read_regular(os.path.join(folder, path), _MOST_BYTES)
            except FileNotFoundError:
                continue
            except (OSError, UsageError):
                data = None
            if data is None or len(data) > _MOST_BYTES:
                unbound.append(path)
            else:
                found[os.path.join("harbor", path)] = data
    return {**found, UNBOUND: canonical(unbound)} if unbound else found
