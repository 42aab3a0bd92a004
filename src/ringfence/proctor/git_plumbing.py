"""Runs git in a repository of ours, with nobody's settings, and with another repository's objects as mere data.

The other repository may be hostile. Git never takes it for a repository: its settings, hooks, attributes, references,
replacements and grafts are not read, because only its directory of objects is named. What git says is cut and escaped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer

from ringfence.errors import SandboxError, UnavailableError
from ringfence.model.system_text import escape_controls

DEADLINE_S = 3600
"""Time limit of one command: a FIFO in place of a pack would block git for ever."""
BRANCH = "main"
_PIECE_BYTES = 1 << 20
_TOLD_BYTES = 600
_SETTINGS = (
    "core.hooksPath=/dev/null", "core.attributesFile=/dev/null", "core.excludesFile=/dev/null", "core.fsmonitor=false",
    "core.commitGraph=false", "core.multiPackIndex=false", "core.useReplaceRefs=false", "core.logAllRefUpdates=false",
    "core.untrackedCache=false", "core.autocrlf=false", "core.symlinks=true", "submodule.recurse=false",
    "protocol.allow=never", "gc.auto=0", "maintenance.auto=false", "pack.useBitmaps=false", "index.sparse=false",
)  # fmt: skip
"""Commit graphs, multi-pack indexes and bitmaps of the other repository could contradict its objects."""


class Repository:
    """A repository of ours, ``folder/.git``; ``objects``: the directory with the other's objects."""

    def __init__(self, folder: str, objects: str) -> None:
        self.folder = folder
        self._objects = objects
        self._git = program()

    def create(self) -> None:
        """Make it, empty: no template of the host's gives it hooks or settings."""
        self.run("init", "--quiet", "--template=", f"--initial-branch={BRANCH}")

    def run(self, *arguments: str, data: bytes = b"", borrowing: bool = False) -> bytes:
        """Return what a command prints. ``borrowing``: it sees the other's objects too."""
        return b"".join(self.pieces(*arguments, data=data, borrowing=borrowing))

    def pieces(self, *arguments: str, data: bytes = b"", borrowing: bool = False) -> Generator[bytes, None, None]:
        """Yield what a command prints; whoever closes it ends the command."""
        with _file_with(data) as source, self._started(arguments, source, borrowing=borrowing) as process:
            assert process.stdout is not None
            while piece := process.stdout.read(_PIECE_BYTES):
                yield piece

    def take(self, commit: str) -> None:
        """Copy a commit and all that it leads to, as one pack whose objects are named anew by their bytes."""
        writing = ("pack-objects", "--revs", "--stdout", "--quiet", "--delta-base-offset", "--window=0")
        problems: list[SandboxError] = []
        try:
            with _file_with(f"{commit}\n".encode()) as source, self._started(writing, source, borrowing=True) as writer:
                self._index(writer, problems)
        except SandboxError as error:
            problems.insert(0, error)
        if problems:
            raise SandboxError("; ".join(map(str, problems))) from problems[0]

    def _index(self, writer: subprocess.Popen[bytes], problems: list[SandboxError]) -> None:
        """An error is kept: it may only follow from the writer's own."""
        assert writer.stdout is not None
        try:
            with self._started(("index-pack", "--stdin"), writer.stdout.fileno()) as reader:
                writer.stdout.close()
                assert reader.stdout is not None
                reader.stdout.read()
        except SandboxError as error:
            problems.append(error)

    @contextmanager
    def _started(
        self, arguments: Sequence[str], source: int, *, borrowing: bool = False
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A command that must succeed. It is ended at its deadline, or when its caller stops reading."""
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                self._command(arguments), cwd=self.folder, env=self._environment(borrowing), stdin=source,
                stdout=subprocess.PIPE, stderr=said, start_new_session=True, umask=0o022,
            )  # fmt: skip
            deadline = Timer(DEADLINE_S, process.kill)
            deadline.start()
            try:
                yield process
                process.wait()
            finally:
                deadline.cancel()
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
            if process.returncode:
                raise SandboxError(f"git {arguments[0]}: {_told(said.fileno(), process.returncode)}")

    def _command(self, arguments: Sequence[str]) -> list[str]:
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        return [self._git, "--no-replace-objects", "--no-pager", "--literal-pathspecs", *settings, *arguments]

    def _environment(self, borrowing: bool) -> Mapping[str, str]:
        variables = clean_environment(self.folder)
        return variables | {"GIT_ALTERNATE_OBJECT_DIRECTORIES": _listed(self._objects)} if borrowing else variables


def program() -> str:
    """Return where git is; UnavailableError where there is none."""
    folders = filter(os.path.isabs, os.get_exec_path())
    found = next((path for folder in folders if (path := shutil.which("git", path=folder))), None)
    if found is None:
        raise UnavailableError(
            "git is not installed, and a task with a base commit needs it", missing=("git",), hint="install git"
        )
    return found


def clean_environment(folder: str) -> dict[str, str]:
    """Nobody's variables: any other variable or setting could name a program to run, or objects to show."""
    return {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_DIR": os.path.join(folder, ".git"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "file",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
    }


def _listed(path: str) -> str:
    """One entry of git's colon-separated list of directories; in quotes a path may have any byte."""
    spelled = (chr(each) if 32 <= each < 127 and each not in b'"\\' else f"\\{each:03o}" for each in os.fsencode(path))
    return '"' + "".join(spelled) + '"'


@contextmanager
def _file_with(data: bytes) -> Iterator[int]:
    """A descriptor to read some bytes from; a pipe would have to be filled while the command prints."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        yield file.fileno()


def _told(said: int, status: int) -> str:
    """What a command said last, or how it ended."""
    os.lseek(said, max(0, os.fstat(said).st_size - _TOLD_BYTES), os.SEEK_SET)
    words = os.read(said, _TOLD_BYTES).decode("utf-8", "replace").strip()
    ending = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    return escape_controls(words.replace("\n", "; ")) or ending
