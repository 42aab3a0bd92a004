"""The sandbox of a deep agent (LangChain): ``create_deep_agent(model=…, backend=DeepAgentSandbox(session))``.

Its file tools are commands that deepagents itself writes; all of them run in the session's sandbox.
"""

from __future__ import annotations

import errno
import os
import secrets

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from ringfence.errors import FileError, SandboxError
from ringfence.integrations.living import words
from ringfence.integrations.living.session import MAX_FILE_BYTES, Session
from ringfence.model.job import Job


class DeepAgentSandbox(BaseSandbox):  # type: ignore[misc]  # of a package that need not be here
    """Paths are absolute, as deep agents write them; ``session.folder`` is the directory to work in."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._id = f"ringfence-{secrets.token_hex(4)}"

    @property
    def id(self) -> str:
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Return the combined output, followed by what was refused, and the exit code. The policy bounds the time."""
        try:
            outcome = self.session.run(command, timeout or None)
        except SandboxError as error:
            return ExecuteResponse(output=words.refusal_text(error), exit_code=1)
        said = (outcome.stdout + outcome.stderr).decode("utf-8", "replace")
        if not outcome.ok and str(outcome.status) != "FAILED":
            said += f"\n{words.end_of(outcome, self.session.policy)}"
        else:
            said += "".join(f"\n{line}" for line in words.refusals(outcome))
        cut = bool(outcome.stdout_dropped or outcome.stderr_dropped)
        return ExecuteResponse(output=said, exit_code=outcome.rc, truncated=cut)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._uploaded(path, content)) for path, content in files]

    def _uploaded(self, path: str, content: bytes) -> str | None:
        try:
            self.session.place.run(Job(argv=("mkdir", "-p", "--", os.path.dirname(path) or ".")))
            self.session.place.put(path, content)
        except SandboxError as error:
            return _kind(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._downloaded(path) for path in paths]

    def _downloaded(self, path: str) -> FileDownloadResponse:
        try:
            return FileDownloadResponse(path=path, content=self.session.place.get(path, MAX_FILE_BYTES))
        except SandboxError as error:
            return FileDownloadResponse(path=path, error=_kind(error))


_KINDS = {errno.ENOENT: "file_not_found", errno.ENOTDIR: "file_not_found", errno.EACCES: "permission_denied",
          errno.EROFS: "permission_denied", errno.EISDIR: "is_directory"}  # fmt: skip


def _kind(error: SandboxError) -> str:
    number = error.errno if isinstance(error, FileError) else 0
    return _KINDS.get(number, words.refusal_text(error))
