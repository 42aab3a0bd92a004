"""A sandbox provider for Inspect: ``Task(…, sandbox="ringfence")``, or ``sandbox=("ringfence", "policy.yaml")``.

Inspect finds it through this package's entry point. Each sample has a sandbox of its own, with one user inside:
``user=`` is refused. The policy is the operator's: Inspect can only ask for less time.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from typing import Any

import anyio
from anyio.to_thread import run_sync
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from ringfence.errors import FileError, SetupError
from ringfence.integrations.living.session import ROOMY, Session
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome, Status
from ringfence.model.policy import SandboxPolicy

_SIGKILL = 9
_DEFAULT = {"isolation": "strict", **ROOMY, "wall_time_s": 3600, "cpu_time_s": 4 * 3600}
_NOT_FOUND = 127
# A file is replaced, not written into, so permission is checked first.
_BEFORE_WRITING = """\
[ -d "$2" ] && exit 21
[ -e "$2" ] && [ ! -w "$2" ] && exit 13
mkdir -p -- "$1"
"""  # by the numbers of EISDIR and EACCES
_ERRORS: dict[int, type[OSError]] = {
    errno.ENOENT: FileNotFoundError,
    errno.ENOTDIR: FileNotFoundError,
    errno.EACCES: PermissionError,
    errno.EPERM: PermissionError,
    errno.EROFS: PermissionError,
    errno.EISDIR: IsADirectoryError,
}


@sandboxenv(name="ringfence")
class RingfenceSandboxEnvironment(SandboxEnvironment):
    """One sample's sandbox."""

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """UnavailableError if this host can't enforce the policy: an eval does not run with less."""
        return {"default": await run_sync(lambda: cls(_policy(config)))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for each in environments.values():
            if isinstance(each, cls):
                with anyio.CancelScope(shield=True):
                    await run_sync(each.close)

    @classmethod
    def config_files(cls) -> list[str]:
        """Beside a task; taken where the task names none."""
        return ["ringfence.yaml"]

    @classmethod
    def default_concurrency(cls) -> int | None:
        return 2 * (os.cpu_count() or 1)

    def __init__(self, policy: SandboxPolicy) -> None:
        super().__init__()
        self._open = ExitStack()
        self._session = self._open.enter_context(Session.opened(policy))
        self._session.place.box()  # fails now if this host can't enforce it

    def close(self) -> None:
        self._open.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None:
            raise SandboxUserUnsupportedError(
                f"the sandbox has one user, root without privileges; {user!r} is not available")  # fmt: skip
        fed = input.encode() if isinstance(input, str) else input
        job = Job(argv=tuple(cmd), cwd=self._absolute(cwd) if cwd else None, environment=env or {}, stdin=fed or b"")
        try:
            outcome = await self._run(job, timeout)
        except SetupError as error:
            return _not_started(cmd, error)
        return _result(outcome, timeout)

    async def _run(self, job: Job, timeout: int | None) -> Outcome:
        """A cancelled caller ends the command."""
        handle = await run_sync(lambda: self._session.place.start(job, timeout=timeout))
        try:
            return await run_sync(handle.wait, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            handle.signal(_SIGKILL)
            raise

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        await run_sync(lambda: self._write(self._absolute(file), data))

    def _write(self, path: str, data: bytes) -> None:
        made = self._session.place.run(Job(argv=("sh", "-c", _BEFORE_WRITING, "sh", os.path.dirname(path), path)))
        if not made.ok:
            raise _as_os_error(made.rc, made.stderr.decode("utf-8", "replace"), path)
        try:
            self._session.place.put(path, data)
        except FileError as error:
            raise _as_os_error(error.errno, str(error), path) from error

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        data = await run_sync(lambda: self._read(self._absolute(file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE))
        return data.decode("utf-8") if text else data

    def _read(self, path: str, most: int) -> bytes:
        try:
            return self._session.place.get(path, most)
        except FileError as error:
            if error.errno == errno.EFBIG:
                limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                raise OutputLimitExceededError(limit_str=limit, truncated_output=None) from error
            is_directory = self._session.place.run(Job(argv=("test", "-d", path))).ok
            raise _as_os_error(errno.EISDIR if is_directory else error.errno, str(error), path) from error

    def _absolute(self, path: str) -> str:
        return os.path.join(self._session.folder, path)


def _policy(config: object) -> SandboxPolicy:
    """The file's policy, or generous limits; as much output as Inspect takes."""
    if config is None:
        policy = SandboxPolicy.from_dict(_DEFAULT)
    else:
        from ringfence.model.policy_file import read_policy

        policy = read_policy(str(config), SandboxPolicy.from_dict, _DEFAULT)
    return policy.with_changes(output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE)


def _not_started(cmd: list[str], error: SetupError) -> ExecResult[str]:
    if error.errno in (errno.EACCES, errno.EPERM, errno.ENOEXEC):
        raise PermissionError(error.errno, f"can't be executed: {error}", cmd[0]) from error
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ExecResult(success=False, returncode=_NOT_FOUND, stdout="", stderr=f"{cmd[0]}: {error}")
    raise error


def _result(outcome: Outcome, timeout: int | None) -> ExecResult[str]:
    if outcome.status is Status.TIMEOUT:
        raise TimeoutError(f"the command took longer than {timeout or 'its policy allows'} s")
    out, err = (part.decode("utf-8", "replace") for part in (outcome.stdout, outcome.stderr))
    if outcome.stdout_dropped or outcome.stderr_dropped:
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
        raise OutputLimitExceededError(limit_str=limit, truncated_output=out or err)
    if outcome.status not in (Status.OK, Status.FAILED):
        err += f"\nringfence: {outcome.status}: {outcome.reason}"
    return ExecResult(success=outcome.ok, returncode=outcome.rc, stdout=out, stderr=err)


def _as_os_error(number: int, said: str, path: str) -> OSError:
    kind = _ERRORS.get(number)
    return OSError(f"{path}: {said.strip()}") if kind is None else kind(number, os.strerror(number), path)
