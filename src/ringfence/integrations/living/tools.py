"""A session's tools as plain functions, for frameworks that read name, types and docstring."""

from __future__ import annotations

from collections.abc import Callable

from ringfence.integrations.living.session import Session


def functions(session: Session) -> list[Callable[..., str]]:
    """All but commit, which is up to the caller: ``session.commit(session.to_commit())``. They raise SandboxError."""

    def run_command(command: str, timeout_s: float | None = None) -> str:
        """Run a command of the shell in the sandbox; a fresh shell each time, in the working directory."""
        return session.run_command(command, timeout_s)

    def run_python(code: str) -> str:
        """Run Python in an interpreter that keeps its variables; the last expression's value is shown."""
        return session.run_python(code)

    def write_file(path: str, content: str) -> str:
        """Write a text file; a relative path is one in the working directory."""
        return session.write_file(path, content)

    def read_file(path: str, offset: int = 0) -> str:
        """Read a text file; offset reads on in a long one."""
        return session.read_file(path, offset)

    def list_files(path: str = ".") -> str:
        """List a directory; names of directories end with a slash."""
        return session.list_files(path)

    def diff(path: str = "") -> str:
        """What has changed in the working directory, all of it or one path, as a unified diff."""
        return session.diff(path)

    def checkpoint(name: str = "") -> str:
        """Remember the files as they are now."""
        return session.checkpoint(name)

    def rollback(checkpoint_id: str = "") -> str:
        """Take the files back to a checkpoint, the newest if none is named. Ends all that runs."""
        return session.rollback(checkpoint_id)

    def read_output(name: str, offset: int = 0) -> str:
        """Read on in an output that was cut."""
        return session.read_output(name, offset)

    return [run_command, run_python, write_file, read_file, list_files, diff, checkpoint, rollback, read_output]
