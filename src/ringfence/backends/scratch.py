"""The private folder of one box, and the small clean environment that points into it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from ringfence.errors import SetupError, UsageError
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy

_FALLBACK_PATH = "/usr/local/bin:/usr/bin:/bin"


class Scratch:
    """Made when it is first needed, mode 0700, removed with the box."""

    def __init__(self) -> None:
        self.path = ""

    def prepare(self, job: Job) -> str:
        """The job's working folder, with its files in it."""
        if not self.path:
            self._make()
        if job.cwd is not None and not os.path.isdir(job.cwd):
            raise UsageError(f"{job.cwd}: no such folder", hint="the working folder must exist")
        folder = job.cwd or os.path.join(self.path, "work")
        for name, content in job.files.items():
            _write_file(folder, name, content)
        return folder

    def _make(self) -> None:
        # Not by tempfile, whose imports take longer than the whole run of a small job.
        path = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"ringfence-{os.urandom(8).hex()}")
        try:
            os.mkdir(path, 0o700)
            self.path = path
            for name in ("work", "home", "tmp"):
                os.mkdir(os.path.join(self.path, name), 0o700)
        except OSError as error:
            raise SetupError("make the private folder", str(error)) from error

    def environment(
        self, policy: SandboxPolicy, job: Job, level: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, str]:
        """What the job finds: little and known, then what the isolation level sets, what is passed on, set
        by the policy, by the job.
        """
        clean = {
            "PATH": os.environ.get("PATH", _FALLBACK_PATH),
            "HOME": os.path.join(self.path, "home"),
            "TMPDIR": os.path.join(self.path, "tmp"),
            "LANG": "C.UTF-8",
        }
        if job.terminal:
            clean["TERM"] = os.environ.get("TERM", "dumb")
        passed = {name: os.environ[name] for name in policy.pass_environment if name in os.environ}
        return clean | dict(level) | passed | dict(policy.environment) | dict(job.environment)

    def remove(self) -> None:
        if not self.path:
            return
        from ringfence.posix.removal import remove_tree

        try:
            remove_tree(self.path)
        except OSError as error:
            raise SetupError("remove the private folder", str(error), hint=f"remove {self.path}") from error
        self.path = ""


def _write_file(folder: str, name: str, content: bytes) -> None:
    path = os.path.join(folder, name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Never through a link that lies there already.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o644), "wb") as file:
            file.write(content)
    except OSError as error:
        raise SetupError("put the job's files", str(error)) from error
