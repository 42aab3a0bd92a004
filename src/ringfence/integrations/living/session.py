"""``Session``: what tools for a model do, in one sandbox, with texts as results. Knows no protocol and no framework.

The policy is the operator's, and no argument of a tool widens it: a tool can only ask for less time.
"""

from __future__ import annotations

import os
import posixpath
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.handle import Handle
from ringfence.engine.run import transaction_kind
from ringfence.errors import CheckpointError, UsageError
from ringfence.integrations.living import words
from ringfence.integrations.living.cut import cut
from ringfence.integrations.living.file_text import text_of_file
from ringfence.integrations.living.place import Place
from ringfence.integrations.living.python import Cell, LivingPython
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.printed import counted
from ringfence.model.record import record
from ringfence.model.system_text import escape_controls
from ringfence.model.ways.walk import real
from ringfence.roles.removal import remove_tree

MOST_CHARS = 8000
"""Length of a result; a longer one is cut, and the rest can be read on request."""
MOST_KEPT = 20
"""Outputs that can be read on."""
MOST_KEPT_CHARS = 16 << 20
"""Of all of them; the newest is kept whole. A service has many sessions in one process."""
MOST_LISTED, MOST_DIFF = 2000, 6000
"""Characters of a question to an operator: paths, and the diff."""
KeepQuestion = Callable[[str], str]
MAX_FILE_BYTES = 16 * 2**20
ROOMY = {"wall_time_s": 120, "cpu_time_s": 3600, "mem_bytes": 2 * 2**30, "pids_max": 256}
"""Limits where nobody names a policy; the processor time is that of the whole session."""


@record
class Shown:
    """What an operator is asked about."""

    text: str
    seal: str


class Session:
    """One for each agent or server."""

    def __init__(
        self, policy: SandboxPolicy, transaction: Transaction, *, workspace: str = "", place: Place | None = None,
        keep_question: KeepQuestion | None = None,
    ) -> None:  # fmt: skip
        """``workspace``: the directory of the host that is worked on; absent: a private one, which nothing is committed
        to. ``place``: on the same transaction; absent: one of its own. ``keep_question``: gets the complete changes of
        a commit if they are too long to be shown; says how an operator can read them."""
        self.policy = policy
        self.workspace = workspace
        self.place = place or Place(policy, transaction)
        self._keep_question = keep_question
        self.python = LivingPython(self.place)
        self._folder = transaction.place(transaction.bases[0])
        self._outputs: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()
        self._count = 0

    @classmethod
    @contextmanager
    def opened(
        cls, policy: SandboxPolicy | None = None, workspace: str | os.PathLike[str] | None = None
    ) -> Iterator[Self]:
        """A session that leaves nothing behind but its commits.

        ``policy``: absent: strict, with the limits of ``ROOMY``. One that is given replaces all of these: what it does
        not name has the policy's own default. ``workspace``: a directory of the host to work on, through a layer;
        absent: a private one, which nothing is committed to.
        """
        policy = policy or SandboxPolicy.from_dict({"isolation": "strict", **ROOMY})
        folder = tempfile.mkdtemp(prefix="session-", dir=state_folder.private_place())
        bases = [real(workspace)] if workspace is not None else []
        try:
            with Transaction.create(os.path.join(folder, "layer"), bases, kind=transaction_kind(policy),
                                    hidden=policy.hidden_paths) as transaction:  # fmt: skip
                session = cls(policy, transaction, workspace=bases[0] if bases else "")
                try:
                    yield session
                finally:
                    session.close()
        finally:
            with suppress(OSError):
                remove_tree(folder)

    @property
    def folder(self) -> str:
        """The working directory, as programs in the sandbox see it."""
        return self._folder

    def close(self) -> None:
        self.place.close()

    # ---- running

    def shell_job(self, command: str) -> Job:
        shell = "bash" if os.path.exists(f"{self.policy.root or ''}/bin/bash") else "sh"
        return Job(argv=(shell, "-c", command), stdin=b"")

    def start(self, command: str, timeout_s: float | None, on_output: Callable[[str, bytes], None]) -> Handle:
        """A command of the shell, in the background."""
        return self.place.start(self.shell_job(command), timeout=timeout_s, on_output=on_output)

    def run(self, command: str, timeout_s: float | None = None) -> Outcome:
        return self.place.run(self.shell_job(command), timeout=timeout_s)

    def run_command(self, command: str, timeout_s: float | None = None) -> str:
        return self.told(self.run(command, timeout_s))

    def run_python(self, code: str, timeout_s: float | None = None) -> str:
        return self.told_cell(self.python.run(code, timeout=timeout_s))

    def told(self, outcome: Outcome) -> str:
        """How a command ended, and what it printed."""
        printed = words.text_of(outcome.stdout)
        complained = words.text_of(outcome.stderr)
        parts = [words.end_of(outcome, self.policy), self.shortened(printed)]
        parts += [f"stderr:\n{self.shortened(complained)}"] if complained.strip() else []
        return "\n".join(part for part in parts if part.strip())

    def told_cell(self, cell: Cell) -> str:
        printed = "".join(words.text_of(part) for part in (cell.stdout, cell.stderr))
        parts = [self.shortened(printed).rstrip("\n"), self.shortened(words.cell_end(cell, self.policy))]
        return "\n".join(part for part in parts if part.strip()) or "(no output)"

    # ---- output that is read on

    def shortened(self, text: str) -> str:
        """Cut a long text, with a note on how to read on."""
        if len(text) <= MOST_CHARS:
            return text
        with self._lock:
            self._count += 1
            name = f"out{self._count}"
            self._outputs[name] = text
            while len(self._outputs) > MOST_KEPT or (self._kept_chars() > MOST_KEPT_CHARS and len(self._outputs) > 1):
                self._outputs.popitem(last=False)
        return cut(text, MOST_CHARS, f"read_output('{name}', offset={MOST_CHARS * 2 // 3}) reads on")

    def _kept_chars(self) -> int:
        return sum(map(len, self._outputs.values()))

    def read_output(self, name: str, offset: int) -> str:
        with self._lock:
            text = self._outputs.get(name)
        if text is None:
            raise UsageError(f"the output {name!r} does not exist, or is no longer kept",
                             hint=f"the last {MOST_KEPT} are kept")  # fmt: skip
        return _window(text, offset, "read_output with")

    # ---- files

    def write_file(self, path: str, content: str) -> str:
        data = content.encode("utf-8", "surrogatepass")
        self.place.put(path, data)
        return f"wrote {len(data)} bytes to {path}"

    def read_file(self, path: str, offset: int) -> str:
        return _window(text_of_file(self.place, path, MAX_FILE_BYTES), offset, "read_file with")

    def list_files(self, path: str) -> str:
        """The names in a directory; those of directories end with a slash."""
        outcome = self.place.run(Job(argv=("ls", "-1Ap", "--", path or ".")))
        if not outcome.ok:
            raise UsageError(words.text_of(outcome.stderr).strip() or outcome.reason)
        return self.shortened(words.text_of(outcome.stdout)) or "(empty)"

    # ---- what changed

    def diff(self, path: str) -> str:
        text = self.place.diff(self._inside(path) if path else None)
        return self.shortened(text) or "nothing has changed"

    def checkpoint(self, name: str) -> str:
        made = self.place.checkpoint(name[:60])
        return f"checkpoint {made.checkpoint_id}: {counted(len(made.layer), 'changed path')}"

    def rollback(self, checkpoint_id: str) -> str:
        """Go back to a checkpoint, named by its id or the beginning of it; without a name, to the newest."""
        known = self.place.checkpoints()
        found = [each for each in known if each.checkpoint_id.startswith(checkpoint_id)]
        if not found or (checkpoint_id and len(found) > 1):
            listed = ", ".join(f"{each.checkpoint_id} {each.name}".strip() for each in known) or "none"
            raise UsageError(f"no checkpoint, or several, match {checkpoint_id!r}", hint=f"there are: {listed}")
        done = self.place.roll_back(found[-1].checkpoint_id)
        told = f"back at checkpoint {done.checkpoint_id}: {counted(done.files_restored, 'path')} restored."
        return f"{told} Running processes have ended; Python variables are lost."

    def to_commit(self) -> Shown:
        """What a commit would carry over now; the seal covers what is shown."""
        if not self.workspace:
            raise UsageError("there is no workspace to commit to", hint="the operator names one with --workspace")
        with self.place.at_rest():  # else another call could change it between the seal and the look
            seal, changes = self.place.seal(), self.place.changes()
            told = self.place.diff() if changes.complete else ""
            self.place.transaction().unseal()  # the model may go on, and look at what it does
        if not changes:
            raise UsageError("nothing has changed, so there is nothing to commit")
        if not changes.complete:
            raise CheckpointError("there are too many changes to show, so they can't be committed")
        # A name may contain line breaks, and its parts would look like paths of their own.
        rows = [f"{each.kind} {escape_controls(os.path.relpath(each.path, self.workspace))}" for each in changes]
        listed, diff = "\n".join(rows), words.text_of(told.encode("utf-8", "surrogateescape"))
        asked, end = f"Commit {counted(len(rows), 'changed path')} to {self.workspace}?", f"[{seal[:16]}]"
        left = max(0, len(listed) - MOST_LISTED) + max(0, len(diff) - MOST_DIFF)
        if left:  # placed above the program's own text, which could say anything
            asked += f"\nNOT ALL OF IT IS SHOWN: {left} of {len(listed) + len(diff)} characters are left out"
            if self._keep_question is not None:
                asked += "; " + self._keep_question(f"{listed}\n\n{diff}\n{end}\n")
        listed, diff = (cut(text, most, "see above") for text, most in ((listed, MOST_LISTED), (diff, MOST_DIFF)))
        return Shown(text=f"{asked}\n{listed}\n\n{diff}\n{end}", seal=seal)

    def commit(self, shown: Shown) -> str:
        """Exactly what was shown."""
        done = self.place.commit(sealed=shown.seal)
        return f"committed {counted(len(done.paths), 'path')} to {self.workspace}"

    def _inside(self, path: str) -> str:
        whole = posixpath.normpath(posixpath.join(self.place.transaction().bases[0], path))
        if not within(whole, self.place.transaction().bases[0]):
            raise UsageError(f"{path} is not in the workspace", hint="name a path in it")
        return whole


def _window(text: str, offset: int, how: str) -> str:
    if offset < 0 or (offset >= len(text) and offset):
        raise UsageError(f"offset: {offset} is not within its {len(text)} characters", hint="begin at a smaller one")
    part, left = text[offset : offset + MOST_CHARS], len(text) - offset - MOST_CHARS
    return part + (f"\n[… {left} more characters; {how} offset={offset + MOST_CHARS} reads on]" if left > 0 else "")
