"""The private directory of a box on Windows, and the small clean environment that points into it."""

from __future__ import annotations

import os
from _collections_abc import Mapping

from ringfence.backends.scratch import Scratch
from ringfence.errors import SetupError, UsageError, is_of_a_call
from ringfence.model import windows_paths as paths
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.windows import integrity
from ringfence.windows.removal import is_real_folder, remove_tree

_PASSED = ("PATH", "PATHEXT", "SystemRoot", "SystemDrive", "windir", "ComSpec", "NUMBER_OF_PROCESSORS",
           "PROCESSOR_ARCHITECTURE", "CommonProgramFiles", "ProgramFiles", "ProgramData")  # fmt: skip
"""Variables that name places of the system and say nothing about the caller."""


class WindowsScratch(Scratch):
    """As elsewhere, but below ``%TEMP%``, which only its owner can enter."""

    variable = "TEMP"
    prefix = "ringfence-"

    def __init__(self, *, low: bool = False) -> None:
        """``low``: its jobs have low integrity, and could not write it without a label."""
        super().__init__()
        self._low = low

    def _make_top(self) -> None:
        super()._make_top()
        if self._low:  # while it is empty: what is made in it has the label, and no junction of a job is there yet
            integrity.label_tree(self.path)

    def _remove_tree(self) -> None:
        remove_tree(self.path)

    def _write_file(self, folder: str, name: str, content: bytes) -> None:
        _write_file(folder, name, content)

    def _locked(self) -> int:
        return -1

    def _sweep_once(self, gone: str) -> None:
        """Nobody locks these, so nobody can tell whose caller is gone."""

    def environment(self, policy: SandboxPolicy, job: Job, own: Mapping[str, str] = os.environ) -> dict[str, str]:
        """What the job finds: little and known, then what is passed on, set by the policy, by the job. A name is one
        name however it is written."""
        home, temporary = os.path.join(self.path, "home"), os.path.join(self.path, "tmp")
        clean = {name: own[name] for name in _PASSED if name in own}
        clean |= {"HOME": home, "USERPROFILE": home, "APPDATA": home, "LOCALAPPDATA": home, "TEMP": temporary,
                  "TMP": temporary, "TMPDIR": temporary, "LANG": "C.UTF-8"}  # fmt: skip
        passed = {name: own[name] for name in policy.pass_environment if name in own}
        merged: dict[str, tuple[str, str]] = {}
        for name, value in (*clean.items(), *passed.items(), *policy.environment.items(), *job.environment.items()):
            merged[name.upper()] = name, value
        return dict(merged.values())


def _write_file(folder: str, name: str, content: bytes) -> None:
    """Put a new file there; what an earlier job left is replaced, and no junction is gone through."""
    problem = next(filter(None, map(paths.problem, name.split("/"))), "")
    if problem:
        raise UsageError(f"{name!r} can't be a file on Windows: {problem}")
    try:
        place = paths.extended(folder)
        *parents, leaf = name.split("/")
        for part in parents:
            place = os.path.join(place, part)
            if not os.path.lexists(place):
                os.mkdir(place)
            if not is_real_folder(place):
                raise NotADirectoryError(20, "not a directory", place)
        target = os.path.join(place, leaf)
        if os.path.lexists(target):
            os.unlink(target)
        with open(target, "xb") as file:
            file.write(content)
    except OSError as error:
        if not is_of_a_call(error):
            raise
        raise SetupError("put the job's files", f"{name}: {error.strerror}") from error
