"""``ringfence run --bundle``: the key before the run, signed evidence after it.

The job must not reach the key, nor the place where the evidence goes. If a level can't prevent that, the run is
refused, or the user is told.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

from ringfence.attest.run_bundle import artifacts_folder, bundle, require_new
from ringfence.attest.signing import Signing, chosen_key
from ringfence.engine.run import traits_of
from ringfence.errors import EvidenceError, UsageError
from ringfence.evidence.keys import SEED_VARIABLE
from ringfence.model.job import Job
from ringfence.model.limits import UNLIMITED_OUTPUT
from ringfence.model.outcome import Outcome
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.system_text import escape_controls
from ringfence.model.ways.walk import absolute, real
from ringfence.sandbox.showing import by_itself

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


class Bundling:
    """What one run leaves as evidence. Made before the run, so that a wrong file or key is reported before anything
    runs."""

    def __init__(
        self, arguments: argparse.Namespace | SimpleNamespace, job: Job, policy: SandboxPolicy, *, commit: bool
    ) -> None:
        self.file = absolute(arguments.bundle)
        self._quiet = arguments.quiet
        self._job = job
        self._apart = traits_of(policy.isolation).files_apart
        _refuse_what_can_not_be_bound(policy)
        require_new(self.file)
        _refuse_place_of_the_job(self.file, job, policy, commit=commit)
        self._signing = chosen_key(arguments.signing_seed, arguments.key, os.path.dirname(self.file))
        self.policy = _hiding(self._signing, job, policy) if self._apart else policy

    def finish(self, outcome: Outcome) -> Outcome:
        """Add the bundle's file, or why there is none: the job has run, and its outcome must not be lost."""
        try:
            bundle(outcome, key=self._signing.key, policy=self.policy, job=self._job, out=self.file)
        except (EvidenceError, UsageError) as error:
            self._say(f"no bundle: {error}")
            return replace(outcome, bundle_problem=str(error))
        if not self._quiet:
            self._tell()
        return replace(outcome, bundle=self.file)

    def _tell(self) -> None:
        if self._signing.word:
            self._say(self._signing.word)
        if not self._apart:
            self._say("at this level the job could read what you can, your signing key too; isolation strict hides it")
        self._say(f"evidence in {self.file}; check it: ringfence verify-bundle --bundle {self.file} "
                  f"--artifacts {artifacts_folder(self.file)} --pubkey {self._signing.key.public_hex}")  # fmt: skip

    @staticmethod
    def _say(text: str) -> None:
        print(escape_controls(f"ringfence: {text}"), file=sys.stderr)


def _refuse_what_can_not_be_bound(policy: SandboxPolicy) -> None:
    if policy.output_bytes >= UNLIMITED_OUTPUT:
        raise UsageError("with --bundle all output is kept: it can't be unlimited", hint="give --output a size")
    if SEED_VARIABLE in (*policy.environment, *policy.pass_environment):
        raise UsageError(f"{SEED_VARIABLE} would be passed to the job, which could then sign anything",
                         hint="take it out of --env and of the policy")  # fmt: skip


def _refuse_place_of_the_job(file: str, job: Job, policy: SandboxPolicy, *, commit: bool) -> None:
    """Where the job can write, it could put a file of its own in place of the evidence."""
    written = [*policy.writable_paths, *((job.cwd,) if commit and job.cwd else ())]
    place = real(os.path.dirname(file))
    for path in map(real, written):
        if within(place, path):
            raise UsageError(f"--bundle: the job can write to {path}, so its evidence can't be there",
                             hint="name a file elsewhere: --bundle ../evidence.json")  # fmt: skip


def _hiding(signing: Signing, job: Job, policy: SandboxPolicy) -> SandboxPolicy:
    """The policy with the key hidden, where it lies in something that the job is shown."""
    if not signing.path:
        return policy
    path = real(signing.path)
    shown = [real(top) for top in (*policy.readable_paths, *((job.cwd,) if job.cwd else ()))]
    written = [real(top) for top in policy.writable_paths]
    if path in shown or any(within(path, top) for top in written):
        raise UsageError(f"the signing key {path} would be shown to the job", hint="keep it elsewhere, or name another")
    if not traits_of(policy.isolation).python:  # the programs inside are the host's
        shown += by_itself(policy, job)
    seen = any(within(path, top) for top in shown) and not any(within(path, top) for top in policy.hidden_paths)
    return replace(policy, hidden_paths=(*policy.hidden_paths, path)) if seen else policy
