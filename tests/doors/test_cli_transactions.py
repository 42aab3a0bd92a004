"""What a strict run changed is kept, looked at, carried over, undone and dropped, from the command line."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.checkpoint.transaction import Transaction
from ringfence.cli import after_run, main, state_folder
from ringfence.cli.run import parse_quickly
from ringfence.cli.stored_sandbox import StoredSandbox
from ringfence.errors import UsageError
from ringfence.manager.registry import Registry
from ringfence.model.outcome import Outcome, Status
from ringfence.model.system_text import escape_controls

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

EMPTY = "diff --git a/d/empty b/d/empty\nnew file mode 100644\n"


class Shell:
    """A person in a directory, with a state directory of their own."""

    def __init__(self, command: list[str], top: Path) -> None:
        self.command = command
        self.here = top / "project"
        self.state = top / "state/ringfence/sandboxes"
        self.environment = os.environ | {"XDG_STATE_HOME": str(top / "state")}
        self.here.mkdir()
        (self.here / "old").write_text("old\n")

    def __call__(self, *words: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*self.command, *words], capture_output=True, text=True, timeout=60,
                              cwd=cwd or self.here, env=self.environment, stdin=subprocess.DEVNULL)  # fmt: skip
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def keep(self, text: str = "echo more >> old; echo new > new", *flags: str) -> str:
        """Run it; the id under which its changes are kept."""
        said = self("run", "--strict", *flags, "--", "sh", "-c", text).stderr
        found = re.search(r"; keep: ringfence commit (\w+), drop: ringfence discard (\w+)\n", said)
        assert found and found[1] == found[2], said
        return found[1]

    def kept(self) -> list[str]:
        return sorted(os.listdir(self.state)) if self.state.exists() else []

    def texts(self) -> dict[str, str]:
        return {str(path.relative_to(self.here)): path.read_text() for path in self.here.rglob("*") if path.is_file()}


@pytest.fixture
def shell(ringfence_command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield Shell(ringfence_command, tmp_path)


@pytest.mark.parametrize(("module", "name"), [
    ("ringfence.manager.registry", "VERSION"), ("ringfence.checkpoint.layout", "_VERSION"),
])  # fmt: skip
def test_what_another_version_stored_in_another_format_is_named_and_can_only_be_discarded(
    shell: Shell, module: str, name: str
) -> None:
    script = (f"import sys, {module} as stored; stored.{name} = 2; from ringfence.cli import main;"
              "sys.exit(main(['run', '--', 'sh', '-c', 'echo new > new']))")  # fmt: skip
    subprocess.run([sys.executable, "-c", script], cwd=shell.here, env=shell.environment, check=True)
    (kept,) = shell.kept()
    for words in (("diff", kept), ("commit", kept), ("sandboxes", "--trust", kept)):
        said = shell(*words, code=1).stderr
        assert "is of format 2, and this ringfence reads format 1" in said and "commit it with that version" in said
    assert "is of format 2" in shell("sandboxes").stdout
    shell("discard", kept)
    assert shell.kept() == [] and shell.texts() == {"old": "old\n"}


def test_a_run_says_in_one_line_what_changed_and_how_to_keep_or_drop_it(shell: Shell) -> None:
    done = shell("run", "--strict", "--", "sh", "-c", "echo out; echo more >> old; echo new > new; exit 3", code=3)
    (sandbox,) = shell.kept()
    assert done.stdout == "out\n"
    assert done.stderr == (
        f"ringfence: 2 paths changed: new, old; keep: ringfence commit {sandbox}, drop: ringfence discard {sandbox}\n"
    )
    assert shell.texts() == {"old": "old\n"}
    assert os.stat(shell.state).st_mode & 0o777 == 0o700
    assert shell("commit", sandbox).stdout == "2 paths applied\n"
    assert shell.texts() == {"old": "old\nmore\n", "new": "new\n"} and shell.kept() == []


def test_a_run_that_changed_nothing_keeps_nothing_and_says_nothing(shell: Shell) -> None:
    done = shell("run", "--strict", "--", "cat", "old")
    assert (done.stdout, done.stderr, shell.kept()) == ("old\n", "", [])


def test_what_somebody_else_was_faster_with_is_kept_aside_and_not_lost(shell: Shell) -> None:
    words = [*shell.command, "run", "--strict", "--commit", "--", "sh", "-c", "echo ours > old; echo ready; read line"]
    with subprocess.Popen(words, cwd=shell.here, env=shell.environment, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:  # fmt: skip
        assert running.stdout and running.stdout.readline() == "ready\n"
        (shell.here / "old").write_text("hers\n")
        _, said = running.communicate("\n", timeout=60)
    (sandbox,) = shell.kept()
    assert running.returncode == 1 and shell.texts() == {"old": "hers\n"}
    assert said == (
        "ringfence: not applied: changed by somebody else since the layer was opened: old\n"
        f"ringfence: 1 path changed: old; keep: ringfence commit {sandbox}, drop: ringfence discard {sandbox}\n"
    )
    assert "+ours\n" in shell("diff", sandbox).stdout


@pytest.mark.parametrize("flag", ("--commit", "--discard"))
def test_what_is_decided_at_once_is_not_kept(shell: Shell, flag: str) -> None:
    done = shell("run", "--strict", flag, "--", "sh", "-c", "echo new > new")
    fate = "applied" if flag == "--commit" else "discarded"
    assert done.stderr == f"ringfence: 1 path changed: new ({fate})\n"
    assert ("new" in shell.texts()) is (flag == "--commit")
    assert not shell.state.exists()


def test_diff_shows_text_and_names_the_rest(shell: Shell) -> None:
    sandbox = shell.keep("echo more >> old; printf '\\0' > binary; mkdir d; echo x > d/x")
    text = shell("diff", sandbox).stdout
    assert "--- a/old\n+++ b/old\n@@ -1 +1,2 @@\n old\n+more\n" in text
    assert "file binary: added, mode 0644, not text\n" in text and "directory d: added, mode 0755\n" in text
    assert "+++ b/d/x" in text
    assert shell("diff", sandbox, "d/x", "binary").stdout.count("\n") == 7
    assert "x: nothing changed there" in shell("diff", sandbox, "x", cwd=shell.here.parent, code=2).stderr
    patched = shell.here.parent / "patched"
    patched.mkdir()
    (patched / "old").write_text("old\n")
    if shutil.which("patch"):
        part = shell("diff", sandbox, "old").stdout
        subprocess.run(["patch", "-p1", "-d", patched], input=part, text=True, check=True)
        assert (patched / "old").read_text() == "old\nmore\n"


def test_paths_are_chosen_from_where_one_stands(shell: Shell) -> None:
    sandbox = shell.keep("mkdir d; echo 1 > d/1; echo 2 > d/2; echo 3 > 3")
    (shell.here / "d").mkdir()
    left = f"applied; left in {sandbox}"
    assert shell("commit", sandbox, "1", cwd=shell.here / "d").stdout == f"1 path {left}: 2\n"
    assert shell("commit", sandbox, "d", cwd=shell.here.parent).stdout == f"1 path {left}: 1\n"
    assert shell.texts() == {"old": "old\n", "d/1": "1\n", "d/2": "2\n"}
    refused = shell("commit", sandbox, "/etc/passwd", code=2)
    assert "none of its directories" in refused.stderr


def test_one_can_go_on_in_a_kept_sandbox_and_undo_that(shell: Shell) -> None:
    sandbox = shell.keep("echo 1 > file")
    text = "cat file; echo 2 > file; touch more"
    done = shell("run", "--strict", "--transaction", sandbox[:3], "--", "sh", "-c", text)
    assert done.stdout == "1\n"
    assert done.stderr.startswith("ringfence: 2 paths changed: file, more; keep: ringfence commit " + sandbox)
    listed = shell("checkpoints", sandbox).stdout
    assert "before sh -c cat file" in listed
    (point,) = json.loads(shell("checkpoints", sandbox, "--json").stdout)
    assert point["checkpoint_id"] in listed and point["current"] and point["changed"] == 1
    assert "as at " + point["checkpoint_id"] in shell("rollback", sandbox, "file").stdout
    assert shell("diff", sandbox, "file").stdout.endswith("+1\n")
    assert len(json.loads(shell("sandboxes", "--json").stdout)) == 1
    shell("rollback", sandbox, point["checkpoint_id"][:5])
    shell("commit", sandbox)
    assert shell.texts() == {"old": "old\n", "file": "1\n"}
    assert "no sandbox" in shell("rollback", sandbox, code=2).stderr


def test_a_run_in_a_kept_sandbox_can_carry_over_at_once(shell: Shell) -> None:
    sandbox = shell.keep("echo 1 > file")
    away = shell.here.parent / "away"
    away.mkdir()
    text = "pwd; echo 2 >> file"
    done = shell("run", "--strict", "--transaction", sandbox, "--commit", "--", "sh", "-c", text, cwd=away)
    assert done.stdout == f"{shell.here}\n", "elsewhere it begins in the sandbox's own directory"
    assert shell.texts()["file"] == "1\n2\n" and shell.kept() == []


def test_a_conflict_names_the_files_and_writes_nothing(shell: Shell) -> None:
    sandbox = shell.keep()
    (shell.here / "old").write_text("hers\n")
    refused = shell("commit", sandbox, code=1)
    assert "changed by somebody else" in refused.stderr and f"{shell.here}/old" in refused.stderr
    assert shell.texts() == {"old": "hers\n"}
    shell("commit", sandbox, "new")
    assert shell.kept() == [sandbox], "what is in conflict is still there"
    shell("discard", sandbox)
    assert shell.texts() == {"old": "hers\n", "new": "new\n"} and shell.kept() == []


DECIDED = {"--mine": "old\nmore\n", "--theirs": "hers\nold\n", "--merge": "hers\nold\nmore\n"}


def test_a_conflict_says_the_commands_that_decide_it_and_they_do(shell: Shell) -> None:
    for number, (flag, text) in enumerate(DECIDED.items()):
        (shell.here / "old").write_text("old\n")
        sandbox = shell.keep(f"echo more >> old; echo {number} > new")
        (shell.here / "old").write_text("hers\nold\n")
        said = shell("commit", sandbox, code=1).stderr.splitlines()[1:]
        words = {line.split()[3]: line.split() for line in said}
        assert words.keys() == DECIDED.keys() and words[flag][:5] == ["ringfence", "commit", sandbox, flag, "old"]
        shell(*words[flag][1:5])
        assert (shell.here / "old").read_text() == text
        shell("commit", sandbox)
        assert (shell.here / "new").read_text() == f"{number}\n" and shell.kept() == []


def test_both_changes_of_a_text_are_merged(shell: Shell) -> None:
    lines = [f"{number}\n" for number in range(9)]
    (shell.here / "old").write_text("".join(lines))
    sandbox = shell.keep("sed -i s/^1$/mine/ old; chmod 700 old")
    (shell.here / "old").write_text("".join(lines).replace("7", "hers"))
    done = json.loads(shell("commit", sandbox, "--merge", "--json").stdout)
    assert done["merged"] == [f"{shell.here}/old"] and done["left"] == 0
    expected = "".join(lines).replace("1", "mine").replace("7", "hers")
    assert (shell.here / "old").read_text() == expected and os.access(shell.here / "old", os.X_OK)
    assert shell.kept() == []


def test_the_same_on_both_sides_and_changed_back_are_no_conflict(shell: Shell) -> None:
    sandbox = shell.keep()
    (shell.here / "old").write_text("hers\n")
    (shell.here / "old").write_text("old\n")
    (shell.here / "new").write_text("new\n")
    shell("commit", sandbox)
    assert shell.texts() == {"old": "old\nmore\n", "new": "new\n"} and shell.kept() == []


KILLED = """
import os, sys
from ringfence.checkpoint.transaction import Transaction
from ringfence.checkpoint.workspace import Workspace
Workspace._finish_commit = lambda *_: os._exit(9)
Transaction.open(sys.argv[1]).commit()
"""


def test_a_commit_that_was_killed_is_finished_before_its_sandbox_goes(shell: Shell) -> None:
    sandbox = shell.keep()
    assert subprocess.run([sys.executable, "-c", KILLED, str(shell.state / sandbox)], check=False).returncode == 9
    assert (shell.here / "old").read_text() == "old\n"
    assert "an operation was" in shell("sandboxes").stdout
    assert "stays: an operation was" in shell("sandboxes", "--prune", "0s").stdout
    assert (shell.here / "old").read_text() == "old\n", "to list and to prune finish nothing"
    told = shell("discard", sandbox).stdout
    assert told == f"{sandbox} discarded; an interrupted commit or rollback was completed first\n"
    assert shell.texts() == {"old": "old\nmore\n", "new": "new\n"} and shell.kept() == []


def test_what_others_changed_after_a_killed_commit_is_named_once(shell: Shell) -> None:
    sandbox = shell.keep()
    assert subprocess.run([sys.executable, "-c", KILLED, str(shell.state / sandbox)], check=False).returncode == 9
    (shell.here / "old").write_text("hers\n")
    told = shell("diff", sandbox, code=1).stderr
    assert told.count(f"{shell.here}/old") == 1, told
    assert shell.texts() == {"old": "hers\n", "new": "new\n"}


def test_one_that_can_not_be_finished_stays_until_somebody_says_otherwise(shell: Shell) -> None:
    sandbox = shell.keep()
    assert subprocess.run([sys.executable, "-c", KILLED, str(shell.state / sandbox)], check=False).returncode == 9
    shell.here.rename(shell.here.parent / "away")
    here = shell.here.parent
    assert "stays: " in shell("sandboxes", "--prune", "0s", cwd=here).stdout and shell.kept() == [sandbox]
    shell("discard", sandbox, cwd=here)
    assert shell.kept() == []


def test_sandboxes_lists_what_is_kept_and_prunes_what_is_old(shell: Shell) -> None:
    assert shell("sandboxes").stdout == "no sandboxes are kept\n"
    first, second = shell.keep("touch 1 2"), shell.keep("dd if=/dev/zero of=big bs=1M count=3 2> /dev/null")
    heading, *rows = shell("sandboxes").stdout.splitlines()
    assert heading.split() == ["ID", "MADE", "COMMAND", "OVER", "CHANGED", "SIZE"]
    assert rows[0].startswith(first) and "sh -c touch 1 2" in rows[0] and str(shell.here) in rows[0]
    assert rows[1].startswith(second) and rows[1].endswith("3 MiB")
    data = json.loads(shell("sandboxes", "--json").stdout)
    assert [(each["id"], each["changed"]) for each in data] == [(first, 2), (second, 1)]
    assert {each["isolation"] for each in data} == {"strict"}
    assert data[1]["bases"] == [str(shell.here)] and data[1]["bytes"] >= 3 << 20
    os.utime(shell.state / first / "metadata.json", (1, 1))
    (shell.state / ".making-dead").mkdir()
    os.utime(shell.state / ".making-dead", (1, 1))
    with Transaction.open(shell.state / second):
        assert f"in use ({os.getpid()})" in shell("sandboxes").stdout
        assert shell("sandboxes", "--prune", "24h").stdout == f"{first} removed\n"
        assert shell("sandboxes", "--prune", "24h").stdout == "no sandbox is that old\n"
        (kept,) = json.loads(shell("sandboxes", "--prune", "0s", "--json").stdout)
        assert not kept["removed"] and "in use" in kept["problem"]
        assert f"in use by process {os.getpid()}" in shell("sandboxes", "--prune", "0s").stdout
        assert "in use" in shell("discard", second, code=1).stderr
    assert shell.kept() == [second]
    assert "is not an age" in shell("sandboxes", "--prune", "soon", code=2).stderr


def test_ids_may_be_cut_short_and_a_wrong_one_names_the_nearest(shell: Shell) -> None:
    sandbox = shell.keep()
    wrong = sandbox[:3] + ("0" if sandbox[3] != "0" else "1")
    assert f"did you mean {sandbox}?" in shell("diff", wrong, code=2).stderr
    (shell.state / sandbox).rename(shell.state / "aaa1")
    _rename(shell.state / "aaa1")
    sandbox = shell.keep("touch b")
    (shell.state / sandbox).rename(shell.state / "aaa2")
    _rename(shell.state / "aaa2")
    assert "aaa1, aaa2" in shell("diff", "aa", code=2).stderr
    assert "+more" in shell("diff", "aaa1").stdout
    for word in ("../../x", "", "a/b"):
        shell("discard", word, code=2)
    assert shell.kept() == ["aaa1", "aaa2"]


def _rename(folder: Path) -> None:
    text = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps(text | {"sandbox_id": folder.name}))
    Registry(folder.parent).trust(folder.name)


def test_a_sandbox_whose_folder_is_gone_can_still_be_dropped(shell: Shell) -> None:
    sandbox = shell.keep()
    shell.here.rename(shell.here.parent / "moved")
    shell.here.mkdir()
    assert "was replaced" in shell("diff", sandbox, code=1).stderr
    assert sandbox in shell("sandboxes").stdout
    assert shell("discard", sandbox).stdout == f"{sandbox} discarded\n"
    assert shell.kept() == []


def test_a_checkpoint_counts_its_changes_as_the_list_of_sandboxes_does(shell: Shell) -> None:
    (shell.here / "src").mkdir()
    for name in ("a", "b"):
        (shell.here / "src" / name).write_text("one\n")
    sandbox = shell.keep("echo two > src/a; rm src/b; mkdir d; touch d/e")
    shell("run", "--strict", "--transaction", sandbox, "--", "true")
    (listed,) = json.loads(shell("sandboxes", "--json").stdout)
    (point,) = json.loads(shell("checkpoints", sandbox, "--json").stdout)
    assert listed["changed"] == point["changed"] == 4  # not the directory in which something changed
    shell("run", "--strict", "--transaction", sandbox, "--", "sh", "-c", "echo one > src/a; touch -r old src/a")
    shell("run", "--strict", "--transaction", sandbox, "--", "rm", "-r", "d")
    first, *_ = json.loads(shell("checkpoints", sandbox, "--json").stdout)
    assert first["changed"] == 4  # what came later says nothing of it
    (listed,) = json.loads(shell("sandboxes", "--json").stdout)
    assert listed["changed"] == 2


def test_json_has_the_id(shell: Shell) -> None:
    done = shell("run", "--strict", "--json", "--", "touch", "new")
    assert [json.loads(done.stdout)["transaction"]] == shell.kept() and done.stderr == ""
    assert json.loads(shell("run", "--strict", "--json", "--", "true").stdout)["transaction"] == ""


@pytest.mark.parametrize("words", ((), ("--commit",)))
def test_where_nothing_can_be_kept_that_is_said_before_anything_runs(shell: Shell, words: tuple[str, ...]) -> None:
    shell.state.parent.mkdir(parents=True, mode=0o700)
    shell.state.write_text("in the way")
    refused = shell("run", "--strict", *words, "--", "touch", "new", code=2).stderr
    assert "could not be kept" in refused and "XDG_STATE_HOME" in refused and "--discard" in refused
    assert shell("run", "--strict", "--discard", "--", "touch", "new").stderr.endswith("(discarded)\n")
    shell.state.unlink()
    assert shell.keep("touch new")  # control


def test_a_state_folder_of_somebody_else_or_closed_to_us_is_told_before_too(shell: Shell) -> None:
    top = shell.state.parent
    top.mkdir(parents=True, mode=0o700)
    assert shell.keep("touch new")  # control
    if os.geteuid() == 0:
        os.chown(top, 65534, 65534)  # as with sudo, and the home of the user
    else:
        shell.state.chmod(0o500)
    refused = shell("run", "--strict", "--", "touch", "new", code=2).stderr
    shell.state.chmod(0o700)
    assert "could not be kept" in refused and "changed" not in refused


@pytest.mark.parametrize("decision", ("--discard", "--ask", "--commit"))
def test_a_level_without_a_layer_does_not_pretend(shell: Shell, decision: str) -> None:
    refused = shell("run", "--isolation", "process", decision, "--", "touch", "new", code=2)
    assert "strict" in refused.stderr and shell.texts() == {"old": "old\n"}


def test_decisions_exclude_one_another(shell: Shell) -> None:
    assert parse_quickly(["--strict", "--commit", "--discard", "--", "x"]) is None
    assert "not allowed with" in shell("run", "--strict", "--commit", "--ask", "--", "touch", "new", code=2).stderr
    sandbox = shell.keep()
    refused = shell("run", "--strict", "--transaction", sandbox, "--discard", "--", "true", code=2)
    assert "which keeps the changes" in refused.stderr


def test_a_run_at_home_keeps_a_layer_that_lies_in_its_own_base(shell: Shell) -> None:
    shell.environment |= {"XDG_STATE_HOME": "relative counts as none", "HOME": str(shell.here)}
    shell.state = shell.here / ".local/state/ringfence/sandboxes"
    assert "--here-anyway" in shell("run", "--strict", "--", "true", code=2).stderr
    sandbox = shell.keep("echo 1 > file", "--here-anyway")
    text = "cat file; find . -name transaction.json"
    again = shell("run", "--strict", "--transaction", sandbox, "--", "sh", "-c", text)
    assert again.stdout == "1\n"
    shell("commit", sandbox)
    assert (shell.here / "file").read_text() == "1\n" and shell.kept() == []


# ---- on a terminal


def _on_terminal(shell: Shell, words: list[str], answer: bytes, code: int = 0) -> str:
    """Everything that a person sees; the answer is typed once the question stands there."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(shell.here)
        os.execve(shell.command[0], [*shell.command, *words], shell.environment)
    seen = b""
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                break
            if answer and b"Apply these changes?" in seen:
                os.write(terminal, answer)
                answer = b""
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == code, seen
    finally:
        os.close(terminal)
    return seen.decode().replace("\r\n", "\n")


ANSWERS = (("y", "new", 0), ("n", "old", 0), ("l", "old", 1), ("\x04", "old", 1))


@pytest.mark.parametrize(("answer", "text", "kept"), ANSWERS)
def test_ask_shows_the_changes_and_does_what_is_said(shell: Shell, answer: str, text: str, kept: int) -> None:
    typed = answer.encode() + (b"" if answer == "\x04" else b"\n")
    seen = _on_terminal(shell, ["run", "--strict", "--ask", "--", "sh", "-c", "echo new > old"], typed)
    assert "\x1b[31m-old\x1b[m\n\x1b[32m+new\x1b[m\n" in seen
    assert shell.texts() == {"old": f"{text}\n"} and len(shell.kept()) == kept
    assert ("keep: ringfence commit" in seen) is bool(kept)
    assert ("(applied)" in seen) is (answer == "y")


@pytest.mark.parametrize("marked", [True, False])
def test_diff_and_ask_name_the_attributes_that_a_commit_carries_over(shell: Shell, marked: bool) -> None:
    code = "import os; open('old', 'a').write('more\\n')" + marked * "; os.setxattr('old', 'user.payload', b'x')"
    line = "file old: attribute set: user.payload\n"
    seen = _on_terminal(shell, ["run", "--strict", "--ask", "--", "python3", "-c", code], b"l\n")
    assert "+more" in seen and (line in seen) is marked
    told = shell("diff", *shell.kept()).stdout
    assert told.endswith(f"+more\n{line if marked else ''}")
    shell("commit", *shell.kept())
    assert ("user.payload" in os.listxattr(shell.here / "old")) is marked


def _before_the_question(shell: Shell, words: list[str], early: bytes, late: bytes, again: bytes = b"") -> int:
    """With an input that is no terminal: what is typed waits in the terminal for who reads from it next. How often it
    asked; ``again``: the answer to the second question, without which the terminal hangs up then."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(shell.here)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.execve(shell.command[0], [*shell.command, *words], shell.environment)
    os.write(terminal, early)
    seen, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            break
        if late and b"Apply these changes?" in seen:
            if late == b"hang up":
                break
            os.write(terminal, late)
            late = b""
        elif not late and seen.count(b"Apply these changes?") == 2:
            if not again:
                break
            os.write(terminal, again)
            again = b" "  # it is not asked a third time
    os.close(terminal)
    os.waitpid(process, 0)
    return seen.count(b"Apply these changes?")


LATE = ((b"later\n", "old", 1), (b"yes\n", "new", 0), (b"yikes\n", "old", 1))


@pytest.mark.parametrize(("late", "text", "kept"), LATE)
def test_what_was_typed_before_the_question_is_no_answer(shell: Shell, late: bytes, text: str, kept: int) -> None:
    words = ["run", "--strict", "--ask", "--", "sh", "-c", "echo new > old"]
    _before_the_question(shell, words, b"y\n", late)
    assert shell.texts() == {"old": f"{text}\n"} and len(shell.kept()) == kept


NO_ANSWERS = {"hang up": b"hang up", "ctrl-c": b"\x03", "a report": b"\x1b[1;1R\n", "no text": b"\xff\n",
              "long": b"y" * 3000 + b"\n"}  # fmt: skip


@pytest.mark.parametrize("late", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_terminal_that_gives_no_answer_carries_nothing_over(shell: Shell, late: bytes) -> None:
    words = ["run", "--strict", "--ask", "--", "sh", "-c", "echo new > old"]
    asked = _before_the_question(shell, words, b"", late)
    assert shell.texts() == {"old": "old\n"} and len(shell.kept()) == 1
    assert asked == (1 if late in (b"hang up", b"\x03") else 2), "what is no answer is asked for again"


@pytest.mark.parametrize(("again", "text", "kept"), ((b"yes\n", "new", 0), (b"no\n", "old", 0), (b"l\n", "old", 1)))
def test_an_answer_that_was_not_offered_is_asked_for_again(shell: Shell, again: bytes, text: str, kept: int) -> None:
    words = ["run", "--ask", "--", "sh", "-c", "echo new > old"]
    assert _before_the_question(shell, words, b"", b"?\n", again) == 2
    assert shell.texts() == {"old": f"{text}\n"} and len(shell.kept()) == kept


def test_what_changes_after_it_was_shown_is_not_carried_over(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = shell.keep("echo new > old")
    layer = shell.state / kept / "layers/0/upper/old"

    def ask(change: str) -> str:
        layer.write_text(change)
        return "y"

    with StoredSandbox(Registry(str(shell.state)), kept) as opened:
        outcome = Outcome(status=Status.OK, rc=0, reason="", transaction=kept)
        monkeypatch.setattr(after_run, "_ask", lambda: ask("evil\n"))
        assert after_run._decide(opened, outcome).transaction == kept
        shown = capsys.readouterr()
        assert "+new\n" in shown.out and "has changed since it was looked at" in shown.err
        assert shell.texts() == {"old": "old\n"}
        monkeypatch.setattr(after_run, "_ask", lambda: "y")
        assert after_run._decide(opened, outcome).committed, "the control: what was shown is carried over"
    assert shell.texts() == {"old": "evil\n"}


def test_ask_without_a_terminal_is_refused_before_anything_runs(shell: Shell) -> None:
    words = [*shell.command, "run", "--strict", "--ask", "--", "sh", "-c", "echo ran"]
    process = subprocess.run(words, env=shell.environment, cwd=shell.here, capture_output=True, text=True,
                             start_new_session=True)  # fmt: skip
    assert process.returncode == 2 and "terminal" in process.stderr and process.stdout == ""


def test_what_a_program_wrote_does_not_command_the_terminal(shell: Shell) -> None:
    evil = "\\033]0;owned\\007\\033[2J\\342\\200\\256"
    sandbox = shell.keep(f"printf '{evil}\\n' > file; printf x > \"$(printf 'a\\033[2Jb')\"")
    seen = _on_terminal(shell, ["diff", sandbox], b"")
    assert "\\x1b]0;owned\\x07\\x1b[2J\\u202e" in seen and "\x1b[2J" not in seen and "\x1b]" not in seen
    assert "\x1b[2J" in shell("diff", sandbox).stdout, "the control: not on a terminal it is as it is"
    shell("commit", sandbox)


def test_what_people_write_is_not_escaped() -> None:
    assert escape_controls("\tgrün 漢字 é", keep="\t") == "\tgrün 漢字 é"
    assert escape_controls("a\rb\x9b1m\udcff") == "a\\rb\\x9b1m\\udcff"


Quickly = Callable[..., tuple[int, str, str]]


@pytest.fixture
def quickly(shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Quickly:
    """A command in this very process, for those that run no job: its exit code and what it printed."""
    monkeypatch.chdir(shell.here)
    monkeypatch.setenv("XDG_STATE_HOME", shell.environment["XDG_STATE_HOME"])

    def command(*words: str) -> tuple[int, str, str]:
        return main(words), *capsys.readouterr()

    return command


@pytest.mark.usefixtures("unmeasured")
def test_a_path_at_which_nothing_changed_is_a_mistake_and_ends_no_history(shell: Shell, quickly: Quickly) -> None:
    kept = shell.keep("mkdir d; touch d/empty; echo 1 > d/one; rm old")
    shell("run", "--strict", "--transaction", kept, "--", "sh", "-c", "echo 2 > d/one")
    for words in (["commit", kept, "elsewhere"], ["diff", kept, "d/on"], ["rollback", kept, "d/on"],
                  ["commit", kept, "d", "elsewhere"]):  # fmt: skip
        code, _, said = quickly(*words)
        assert code == 2 and "nothing changed there" in said
    code, _, said = quickly("rollback", kept, "beef")
    assert code == 2 and "not a checkpoint" in said
    assert len(json.loads(quickly("checkpoints", kept, "--json")[1])) == 1
    assert shell.texts() == {"old": "old\n"}


@pytest.mark.usefixtures("unmeasured")
def test_the_diff_of_a_folder_is_that_of_all_below_it(shell: Shell, quickly: Quickly) -> None:
    (shell.here / "gone").mkdir()
    (shell.here / "gone/file").write_text("1\n")
    kept = shell.keep("mkdir d; touch d/empty; echo 1 > d/one; rm -r gone; echo new >> old")
    _, whole, _ = quickly("diff", kept)
    _, shown, _ = quickly("diff", kept, "d")
    assert shown in whole and EMPTY in shown and "+1\n" in shown and "/old" not in shown
    assert quickly("diff", kept, ".")[1] == whole
    assert "-1\n" in quickly("diff", kept, "gone/file")[1]
    assert quickly("diff", kept, "d/empty") == (0, EMPTY, "")


@pytest.mark.usefixtures("unmeasured")
def test_who_goes_on_under_another_level_is_told_which_it_was(shell: Shell) -> None:
    kept = shell.keep()
    refused = shell("run", "--isolation", "process", "--transaction", kept, "--", "true", code=2)
    assert "--isolation strict" in refused.stderr


@pytest.mark.usefixtures("unmeasured")
def test_a_sandbox_that_is_named_twice_is_discarded_once(shell: Shell) -> None:
    kept = shell.keep()
    assert shell("discard", kept, kept[:3]).stdout == f"{kept} discarded\n"


@pytest.mark.usefixtures("unmeasured")
def test_what_undo_does_can_be_had_as_data(shell: Shell, quickly: Quickly) -> None:
    kept = shell.keep("echo 1 > one; mkfifo pipe")
    shell("run", "--strict", "--transaction", kept, "--", "sh", "-c", "echo 2 > two")
    back = json.loads(quickly("rollback", kept, "--json")[1])
    assert (back["id"], back["restored"], len(back["checkpoint_id"])) == (kept, 1, 12)
    done = json.loads(quickly("commit", kept, "--json")[1])
    here = str(shell.here)
    decided: dict[str, list[str]] = {"merged": [], "mine": [], "theirs": []}
    told = {"id": kept, "carried_over": [f"{here}/one"], "not_carried_over": [f"{here}/pipe"], "left": 1}
    assert done == told | decided
    gone = {"id": kept, "removed": True, "restored": 0, "finished": False}
    assert json.loads(quickly("discard", kept, "--json")[1]) == [gone]


@pytest.mark.usefixtures("unmeasured")
def test_a_commit_says_that_what_makes_room_for_a_pipe_is_removed(shell: Shell, quickly: Quickly) -> None:
    kept = shell.keep("rm old; mkfifo old pipe")
    code, said, _ = quickly("commit", kept)
    assert code == 0 and "link: old; what was there before is removed\nnot" in said
    assert "link: pipe\n1 path applied" in said and shell.texts() == {}


@pytest.mark.usefixtures("unmeasured")
def test_a_name_in_an_error_does_not_steer_the_terminal(shell: Shell, quickly: Quickly) -> None:
    deep = "import os\nfor _ in range(600): os.mkdir('a\\x1b[31mb'); os.chdir('a\\x1b[31mb')"
    kept = shell("run", "--strict", "--", sys.executable, "-c", deep).stderr.rpartition(" ")[2].strip()
    code, _, said = quickly("commit", kept)
    assert code == 1 and "directories deep" in said and "a\\033[31mb/" in said and "\x1b" not in said


def test_an_odd_name_has_one_spelling_everywhere(shell: Shell) -> None:
    """That of git, which a diff has to have."""
    made = "import os; open(b'bad\\xffname', 'w').close(); open('esc\\x1b[2Jx', 'w').write('1')"
    spelled = ('"bad\\377name"', '"esc\\033[2Jx"')
    said = shell("run", "--", sys.executable, "-c", made).stderr
    assert ", ".join(spelled) in said, said
    (sandbox,) = shell.kept()
    again = shell("run", "--transaction", sandbox, "--", "true").stderr
    assert ", ".join(spelled) in again, again
    assert f"b/{spelled[1][1:-1]}" in shell("diff", sandbox).stdout
    for name in (b"bad\xffname", b"esc\x1b[2Jx"):
        (shell.here / os.fsdecode(name)).write_text("hers")
    refused = shell("commit", sandbox, code=1).stderr
    assert all(f'"{shell.here}/{each[1:]}' in refused for each in spelled), refused
    done = shell("commit", sandbox, "--theirs").stdout
    assert all(f"kept the directory's version: {each}\n" in done for each in spelled), done


ERRORS = {
    ("run", "--json", "--memory", "lots", "--pids", "few", "--", "true"): (2, ["--memory", "--pids"], "PolicyError"),
    ("run", "--json", "--isolation", "container", "--", "true"): (2, [], "UnavailableError"),
    ("run", "--json", "--", "/no/such/program"): (127, [], "SetupError"),
    ("run", "--json", "--wal", "3", "--", "true"): (2, [], "UsageError"),
    ("policy", "check", "--json", "bad.yaml"): (2, ["mem_bytes", "pids_max"], "PolicyError"),
    ("diff", "beef", "--json"): (2, [], "UsageError"),
    ("keygen", "--json", "--out", "/no/such/folder/key"): (2, [], "UsageError"),
    ("verify-page", "--json", "--out", "/no/such/folder/page"): (2, [], "UsageError"),
    ("rollback", "--json"): (2, [], "UsageError"),
}


@pytest.mark.parametrize("words", ERRORS, ids=" ".join)
def test_with_json_an_error_is_one_object_too(shell: Shell, words: tuple[str, ...]) -> None:
    code, fields, kind = ERRORS[words]
    (shell.here / "bad.yaml").write_text("mem_bytes: 5x\npids_max: 0\n")
    done = shell(*words, code=code)
    told = json.loads(done.stdout)
    assert done.stderr == "" and told["kind"] == kind and told["exit_code"] == code and told["error"]
    assert [each["field"] for each in told["fields"]] == fields
    plain = shell(*(word for word in words if word != "--json"), code=code)
    assert plain.stdout == "" and plain.stderr, "the control: words, on stderr"


def test_a_conflict_and_a_diff_are_data_with_json(shell: Shell) -> None:
    sandbox = shell.keep()
    data = json.loads(shell("diff", sandbox, "--json").stdout)
    told = [(each["path"], each["kind"]) for each in data["changes"]]
    assert told == [(f"{shell.here}/new", "added"), (f"{shell.here}/old", "modified")]
    assert "+more\n" in data["diff"] and data["changes_complete"] is True
    one = json.loads(shell("diff", sandbox, "new", "--json").stdout)
    assert [each["path"] for each in one["changes"]] == [f"{shell.here}/new"] and "+more" not in one["diff"]
    (shell.here / "old").write_text("hers\n")
    error = json.loads(shell("commit", sandbox, "--json", code=1).stdout)
    assert error["paths"] == [f"{shell.here}/old"] and error["kind"] == "ConflictError"
    assert f"ringfence commit {sandbox} --mine" in error["hint"]


def test_whatever_is_printed_can_be_had_as_data(shell: Shell) -> None:
    (shell.here / "p.yaml").write_text("pids_max: 9\n")
    told = json.loads(shell("policy", "check", "p.yaml", "--json").stdout)
    assert told["sound"] is True and told["policy"]["pids_max"] == 9
    keys = json.loads(shell("keygen", "--json").stdout)
    assert [len(keys[name]) for name in ("seed", "pubkey")] == [64, 64]
    (shell.here / "keys").mkdir(mode=0o700)
    assert json.loads(shell("keygen", "--json", "--out", "keys/key").stdout).keys() == {"pubkey"}
    assert "<html" in json.loads(shell("verify-page", "--json").stdout)["page"].lower()
    written = json.loads(shell("verify-page", "--json", "--out", "page.html").stdout)
    assert written["bytes"] == os.stat(shell.here / "page.html").st_size
    shown = json.loads(shell("demo", "--json").stdout)
    assert shown["isolation"] == "strict" and not any(each["reached"] for each in shown["attempts"])


def test_without_a_word_the_help_is_a_mistake(shell: Shell) -> None:
    done = shell(code=2)
    assert done.stdout == "" and "usage: ringfence COMMAND" in done.stderr
    assert shell("--help").stdout == done.stderr


def test_without_a_home_nothing_is_kept_and_no_folder_is_named_after_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user whom nobody knows
    for ask in (state_folder.new_place, state_folder.sandboxes_folder):
        with pytest.raises(UsageError, match="no home directory"):
            ask()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somewhere"))
    assert state_folder.new_place().startswith(f"{tmp_path}/somewhere/ringfence/sandboxes/.making-")
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("form", ("{}/../state", "{}/../other/./state", "{}/..//state", "{}/../link"))
def test_the_state_folder_may_be_written_in_any_form(shell: Shell, form: str) -> None:
    (shell.here.parent / "led").mkdir()
    (shell.here.parent / "link").symlink_to("led")
    shell.environment |= {"XDG_STATE_HOME": form.format(shell.here)}
    said = shell("run", "--", "sh", "-c", "echo 1 > new").stderr
    kept = said.partition("ringfence commit ")[2].partition(",")[0]
    assert shell("commit", kept).stdout == "1 path applied\n"
