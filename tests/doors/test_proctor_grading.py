"""Grading with a script, end to end: each cheat with a control in which it wins, and honest work that passes."""

from __future__ import annotations

import os
import subprocess
import textwrap
import zlib
from pathlib import Path

import pytest

from ringfence import SandboxPolicy, Status, run
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import UsageError
from ringfence.model.outcome import Outcome
from ringfence.proctor.grading import Grading, grade
from ringfence.proctor.submission import Submission, take
from ringfence.proctor.task import Grader, Task

pytestmark = pytest.mark.system

REWARD = "/logs/verifier/reward.txt"


class Case:
    """A task with its submission in a directory, and both ways to grade it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir()
        (folder / "oracle").mkdir()
        (folder / "oracle" / "expected.txt").write_text("42\n")
        self.oracle, self.script = str(folder / "oracle"), folder / "grade.sh"
        self.grader = Grader(script=str(self.script))

    def graded_by(self, script: str, reward_file: str = "", wall_time_s: float = 60) -> None:
        self.script.write_text(textwrap.dedent(script))
        self.grader = Grader(script=str(self.script), reward_file=reward_file, wall_time_s=wall_time_s)

    def leave(self, **files: str) -> None:
        for name, text in files.items():
            (self.work / name.replace("__", ".")).write_text(textwrap.dedent(text))

    def grade(self, submission: Submission | None = None) -> Grading:
        task = Task(id="case", workspace=str(self.work), grader=self.grader, oracle=self.oracle)
        return grade(task, submission or Submission(folder=str(self.work)))

    def naively(self) -> tuple[Outcome, str]:
        """The same script in a plain sandbox; what its reward file holds."""
        logs = self.folder / "logs"
        logs.mkdir()
        places = {str(self.work): "/workspace", self.oracle: "/oracle", self.grader.script: "/grader/grade.sh",
                  str(logs): "/logs/verifier"}  # fmt: skip
        policy = SandboxPolicy(isolation="strict", shown_at=places)
        with Transaction.create(self.folder / "naive", [str(self.work), str(logs)]) as transaction:
            outcome = run(["/bin/sh", "/grader/grade.sh"], policy, transaction=transaction)
            found = Path(transaction.layers[1][1]) / "upper" / "reward.txt"
            return outcome, found.read_text().strip() if found.exists() else ""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


# ---- the agent's layer, through the filter, into the grader's sandbox


AGENT = """
rm -r old; rm gone.txt; mkfifo pipe; ln -s /oracle/expected.txt answer.txt; ln -s notes.txt kept
echo work > notes.txt; mkdir -p __pycache__; echo x > __pycache__/solution.cpython-311.pyc; echo cheat > tests/check
mkdir shut; chmod 0 shut
"""
LOOKS = """
test ! -e old && test ! -e gone.txt && test ! -e pipe && test ! -e __pycache__ && cat kept
test "$(cat tests/check)" = real && test -r shut || exit 3
cmp answer.txt /oracle/expected.txt
"""


# shortcomings 2 and 8
@pytest.mark.privileges
def test_what_an_agent_left_is_imported_without_links_that_leave_and_with_its_deletions(case: Case) -> None:
    staged = case.folder / "staged"
    (staged / "old" / "deep").mkdir(parents=True)
    (staged / "old" / "deep" / "x").touch()
    (staged / "tests").mkdir()
    (staged / "tests" / "check").write_text("real\n")
    (staged / "gone.txt").touch()
    case.graded_by(LOOKS)
    policy = SandboxPolicy(isolation="strict", shown_at={str(staged): "/workspace"})
    with Transaction.create(case.folder / "kept", [staged]) as transaction:
        agent = run(["sh", "-ec", AGENT], policy, transaction=transaction)
        assert agent.ok, agent.stderr
        target = str(case.folder / "graded")
        found = take(transaction, str(staged), target, "/workspace", ["/workspace/tests"])
    assert found.forbidden == ("/workspace/tests/check",) and not found.problem
    assert {each.path for each in found.dropped} == {"pipe", "answer.txt", "__pycache__"}
    graded = case.grade(found)
    assert not graded.passed and graded.outcome is not None
    assert graded.outcome.rc not in (0, 3) and graded.outcome.stdout == b"work\n", graded.outcome.stderr
    case.graded_by("cmp answer.txt /oracle/expected.txt")
    (case.work / "answer.txt").symlink_to("/oracle/expected.txt")
    assert case.naively()[0].ok and not case.grade(found).passed  # the link passes where it is imported


@pytest.mark.privileges
@pytest.mark.parametrize("closed", ["src/a src .", "."])
def test_an_agent_that_closes_its_workspace_is_graded_all_the_same(case: Case, closed: str) -> None:
    staged = case.folder / "staged"
    (staged / "src").mkdir(parents=True)
    (staged / "src" / "a").write_text("a\n")
    policy = SandboxPolicy(isolation="strict", shown_at={str(staged): "/workspace"})
    with Transaction.create(case.folder / "kept", [staged]) as transaction:
        agent = run(["sh", "-c", f"echo more >> src/a; chmod 0 {closed}"], policy, transaction=transaction)
        assert agent.ok and [each.path for each in agent.changes][-1].endswith("src/a")
        assert "src/a" in transaction.diff()
        found = take(transaction, str(staged), str(case.folder / "graded"))
    assert not found.problem and (case.folder / "graded" / "src" / "a").read_text() == "a\nmore\n"


def test_honest_work_passes_and_leaves_the_submission_as_it_is(case: Case) -> None:
    case.leave(answer__txt="42\n")
    case.graded_by('echo scribble > left; cmp answer.txt /oracle/expected.txt && test "$(pwd)" = /workspace')
    graded = case.grade()
    assert graded.passed and graded.reward is None, graded.outcome
    assert os.listdir(case.work) == ["answer.txt"] and sorted(os.listdir(case.folder)) == ["grade.sh", "oracle", "work"]


# ---- the verdict


FORGED_MEMORY = """
import os
script = os.getppid()
first = int(open(f"/proc/{script}/stat").read().rpartition(")")[2].split()[1])
def opened(path):
    try:
        open(path, "r+b", 0)
    except OSError as error:
        return False
    return True
print(opened(f"/proc/{script}/mem"), opened(f"/proc/{first}/mem"), opened(f"/proc/{first}/fd/3"))
"""


@pytest.mark.privileges
def test_code_under_test_cannot_write_the_memory_of_the_grader(case: Case) -> None:
    case.leave(solution__py=FORGED_MEMORY)
    case.graded_by("python3 solution.py; exit 1")
    naive, _ = case.naively()
    assert naive.stdout.startswith(b"True")
    graded = case.grade()
    assert graded.outcome is not None and graded.outcome.stdout == b"False False False\n" and not graded.passed


def test_code_under_test_can_only_make_the_grader_fail_by_killing(case: Case) -> None:
    case.leave(solution__py="import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n")
    case.graded_by("python3 solution.py; exit 0")
    graded = case.grade()
    assert not graded.passed and graded.outcome is not None and graded.outcome.status is not Status.OK
    case.leave(solution__py="import os, signal\nos.kill(-1, signal.SIGKILL)\n")
    assert not case.grade().passed


def test_what_is_left_running_ends_with_the_grader(case: Case) -> None:
    case.leave(solution__sh="setsid sleep 1000 & setsid sleep 1000 &")
    case.graded_by("sh solution.sh; exit 0")
    assert case.grade().passed


# ---- the reward


WRITES_IT = f"""
import os
os.makedirs(os.path.dirname("{REWARD}"), exist_ok=True)
open("{REWARD}", "w").write("1")
open("{REWARD.removesuffix('txt')}json", "w").write('{{"reward": 1}}')
"""
REWRITES_IT = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        time.sleep(0.01)
        open("{REWARD}", "w").write("1")
"""
HOLDS_IT = f"""
if os.fork() == 0:
    held = os.open("{REWARD}", os.O_RDWR)
    while os.pread(held, 1, 0) != b"0":
        pass
    os.pwrite(held, b"1", 0)
    os.close(held)
    os._exit(0)
"""
SCRIPT = f"python3 solution.py; echo 0 > {REWARD}; sleep 0.2; exit 0"


def test_an_honest_reward_counts(case: Case) -> None:
    case.leave(solution__py="")
    case.graded_by(f"python3 solution.py; cat {REWARD}; echo 0.5 > {REWARD}; cat {REWARD}", REWARD)
    graded = case.grade()
    assert graded.passed and graded.reward == 0.5 and not graded.forged, graded
    assert graded.outcome is not None and graded.outcome.stdout == b"0.5\n"


# shortcoming 4
@pytest.mark.privileges
def test_a_reward_that_the_code_under_test_wrote_too_is_forged(case: Case) -> None:
    case.leave(solution__py=REWRITES_IT)
    case.graded_by(SCRIPT, REWARD)
    assert case.naively()[1] in ("1", "")  # whoever writes last wins; it is empty in the middle of a write
    graded = case.grade()
    assert not graded.passed and graded.reward == 0.0 and graded.forged
    case.leave(solution__py=WRITES_IT)
    graded = case.grade()
    assert not graded.passed and graded.reward == 0.0 and "2 times" in graded.forged


# shortcoming 4
def test_a_reward_without_the_exit_status_does_not_count(case: Case) -> None:
    case.leave(solution__py=WRITES_IT)
    case.graded_by("python3 solution.py && exit 1", REWARD)
    assert case.naively()[1] == "1"
    graded = case.grade()
    assert not graded.passed and graded.reward == 0.0 and not graded.forged


@pytest.mark.parametrize("cheat", [
    f"os.rename('{REWARD}', '{REWARD}.old'); open('{REWARD}', 'w').write('1')", f"os.chmod('{REWARD}', 0o400)",
    f"os.link('{REWARD}', '{REWARD}.link')", HOLDS_IT, f"os.unlink('{REWARD}'); os.symlink('/dev/null', '{REWARD}')",
], ids=["moved", "closed", "linked", "held", "removed"])  # fmt: skip
def test_a_reward_file_that_is_exchanged_is_forged(case: Case, cheat: str) -> None:
    case.leave(solution__py=f"import os\n{cheat}\n")
    case.graded_by(SCRIPT, REWARD)
    graded = case.grade()
    assert not graded.passed and graded.reward == 0.0 and graded.forged, graded


def test_code_under_test_cannot_take_the_scripts_descriptors_so_that_its_write_fails(case: Case) -> None:
    case.leave(solution__py=f"""
        import os, resource
        try:
            resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))
        except PermissionError:
            print("refused", resource.prlimit(0, resource.RLIMIT_NOFILE)[0] > 0)
        open("{REWARD}", "w").write("1")
    """)
    case.graded_by(SCRIPT, REWARD)
    naive, value = case.naively()
    assert b"refused" not in naive.stdout and value == "1"  # the script's own write failed
    graded = case.grade()
    assert graded.outcome is not None and graded.outcome.stdout == b"refused True\n"
    assert not graded.passed and graded.forged


# shortcoming 13
def test_a_reward_that_is_not_finite_is_a_fail_and_no_error(case: Case) -> None:
    case.graded_by(f"echo inf > {REWARD}", REWARD)
    graded = case.grade()
    assert not graded.passed and graded.reward == 0.0 and "finite" in graded.reason


# shortcoming 4
@pytest.mark.parametrize("place", ["/workspace/reward.txt", "/tmp/logs/reward.txt", "/reward.txt", "reward.txt"])
def test_a_reward_file_where_code_under_test_writes_is_refused(case: Case, place: str) -> None:
    case.graded_by("exit 0", place)
    with pytest.raises(UsageError, match="reward file"):
        case.grade()


def test_a_reward_that_nobody_wrote_is_none(case: Case) -> None:
    case.graded_by("exit 0", REWARD)
    graded = case.grade()
    assert not graded.passed and graded.reward == 0.0 and "wrote no" in graded.reason


KEEPS_OUT = f"""
import os
open("{REWARD}", "w").write("1")
os.chmod(os.path.dirname("{REWARD}"), 0)
"""


# shortcoming 4
@pytest.mark.privileges
def test_a_directory_that_keeps_the_script_out_is_forged(case: Case) -> None:
    case.leave(solution__py=KEEPS_OUT)
    case.graded_by(SCRIPT, REWARD)
    naive, _ = case.naively()
    assert naive.ok and b"denied" in naive.stderr.lower()  # the script could not write its own
    graded = case.grade()
    assert not graded.passed and graded.reward == 0.0 and "closed" in graded.forged, graded


def test_nobody_takes_a_lease_on_the_reward_file(case: Case) -> None:
    case.leave(solution__py=f"""
        import fcntl, os
        try:
            fcntl.fcntl(os.open("{REWARD}", os.O_RDONLY), 1024, fcntl.F_RDLCK)
        except PermissionError:
            print("refused")
    """)
    case.graded_by("python3 solution.py", REWARD)
    graded = case.grade()
    assert graded.outcome is not None and graded.outcome.stdout == b"refused\n"


@pytest.mark.privileges
def test_confined_code_can_reach_neither_the_reward_nor_the_oracle_and_still_work(case: Case) -> None:
    case.leave(solution__py=f"""
        import os, signal, sys
        def tried(work):
            try:
                work()
            except OSError as error:
                return type(error).__name__
            return "done"
        open("/workspace/out.txt", "w").write("work"); open("/tmp/out", "w").write("work")
        os.rename("/workspace/out.txt", "/workspace/sub/out.txt")
        print(tried(lambda: open("{REWARD}", "w")), tried(lambda: os.unlink("{REWARD}")),
              tried(lambda: open("{REWARD}.other", "w")), tried(lambda: open(f"/proc/{{os.getppid()}}/mem", "rb")),
              tried(lambda: open("/oracle/expected.txt")), tried(lambda: os.listdir("/oracle")), sys.stdin.read())
    """)  # fmt: skip
    (case.work / "sub").mkdir()
    confined = "$PROCTOR_CONFINE python3 solution.py < /oracle/expected.txt"
    case.graded_by(f"{confined} && cat sub/out.txt && echo 1 > {REWARD}", REWARD)
    graded = case.grade()
    assert graded.passed and graded.reward == 1.0 and graded.outcome is not None, graded
    assert graded.outcome.stdout == b"PermissionError " * 6 + b"42\n\nwork"


@pytest.mark.privileges
def test_confined_code_cannot_put_a_link_to_the_answer_in_place_of_its_output(case: Case) -> None:
    case.leave(solution__py="""
        import os
        os.unlink("/tmp/output")
        os.symlink("/oracle/expected.txt", "/tmp/output")
    """)
    for begin, passes in (("", True), ("$PROCTOR_CONFINE", False)):
        case.graded_by(f"{begin} python3 solution.py > /tmp/output; cmp /tmp/output /oracle/expected.txt")
        graded = case.grade()
        assert graded.passed == passes and graded.outcome is not None, graded
    assert b"PermissionError" in graded.outcome.stderr


@pytest.mark.privileges
@pytest.mark.parametrize("place", ["/oracle", "/tests", "/the answers/*"])
def test_confined_code_cannot_read_the_oracle_wherever_it_is(case: Case, place: str) -> None:
    case.leave(solution__py=f"print(open({place + '/expected.txt'!r}).read(), end='')")
    for begin, passes in (("", True), ("$PROCTOR_CONFINE", False), ("unset ${!PROCTOR_*}; eval $mine", False)):
        case.graded_by(f"mine=$PROCTOR_CONFINE; {begin} python3 solution.py | cmp - '{place}/expected.txt'")
        argv = ("/bin/bash", "/grader/grade.sh")
        case.grader = Grader(script=str(case.script), argv=argv, oracle_at=place)
        graded = case.grade()
        assert graded.passed == passes and graded.outcome is not None, (begin, graded)
    assert b"PermissionError" in graded.outcome.stderr


def test_what_is_compared_by_a_pipe_is_what_the_program_printed(case: Case) -> None:
    case.leave(solution__py="print(42)")
    case.graded_by("$PROCTOR_CONFINE python3 solution.py < /dev/null | cmp - /oracle/expected.txt")
    assert case.grade().passed
    case.leave(solution__py="print(43)")
    assert not case.grade().passed


# ---- the surroundings


def test_modules_of_the_submission_replace_none_that_the_grader_uses(case: Case) -> None:
    case.leave(json__py="print('planted')", sitecustomize__py="print('planted')", usercustomize__py="print('planted')",
               solution__py="import json\nanswer = json.loads('42')")  # fmt: skip
    (case.folder / "oracle" / "check.py").write_text("import helper, solution\nprint(helper.ok(solution.answer))")
    (case.folder / "oracle" / "helper.py").write_text("def ok(value):\n    return value == 42\n")
    case.graded_by("""
        python3 -c 'import json, solution; print(json.loads("1"), solution.answer)' && python3 /oracle/check.py
    """)
    naive, _ = case.naively()
    assert b"planted" in naive.stdout
    graded = case.grade()
    assert graded.passed and graded.outcome is not None and graded.outcome.stdout == b"1 42\nTrue\n", graded.outcome


def test_the_submission_does_not_answer_what_the_standard_library_asks_for(case: Case) -> None:
    """Modules of other systems and Pythons: no Python here has them, so the search goes on to the end."""
    case.leave(**dict.fromkeys(("org__py", "msvcrt__py"), "import os\nos._exit(0)"), java__py="fine = True")
    case.graded_by("exec python3 -c 'import copy, subprocess, sys; sys.exit(1)'")
    naive, _ = case.naively()
    assert naive.ok
    graded = case.grade()
    assert not graded.passed and graded.outcome is not None and graded.outcome.rc == 1, graded.outcome


@pytest.mark.privileges
def test_metadata_in_the_submission_loads_no_plugin_into_the_graders_pytest(case: Case) -> None:
    staged = case.folder / "staged"
    staged.mkdir()
    agent = "mkdir evil-1.dist-info; cd evil-1.dist-info; printf '[pytest11]\\nevil = evil\\n' > entry_points.txt"
    named = "printf 'Name: evil\\nVersion: 1\\n' > METADATA; echo 'import os; os._exit(0)' > ../evil.py"
    (case.folder / "oracle" / "loads.py").write_text(
        "from importlib.metadata import entry_points\nassert not [each.load() for each in entry_points(name='evil')]\n"
        "raise SystemExit('honest')\n")  # fmt: skip
    case.graded_by("exec python3 /oracle/loads.py")
    policy = SandboxPolicy(isolation="strict", shown_at={str(staged): "/workspace"})
    with Transaction.create(case.folder / "kept", [staged]) as transaction:
        assert run(["sh", "-ec", f"{agent}; {named}"], policy, transaction=transaction).ok
        found = take(transaction, str(staged), str(case.folder / "graded"))
    assert [each.path for each in found.dropped] == ["evil-1.dist-info/entry_points.txt"]
    graded = case.grade(found)
    assert not graded.passed and graded.outcome is not None and b"honest" in graded.outcome.stderr
    subprocess.run(["sh", "-ec", f"{agent}; {named}"], cwd=case.work, check=True)
    assert case.grade().passed  # where nothing is filtered it is loaded


def test_configuration_of_a_repository_runs_nothing(case: Case) -> None:
    git = ["git", "-C", str(case.work), "-c", "safe.directory=*"]
    subprocess.run([*git, "init", "-q"], check=True)
    case.leave(a__txt="a\n")
    (case.work / "hook").write_text("#!/bin/sh\necho planted >&2\n")
    (case.work / "hook").chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "diff.external"):
        subprocess.run([*git, "config", name, "/workspace/hook"], check=True)
    case.graded_by("git add a.txt && git status --short && git diff --cached --stat")
    naive, _ = case.naively()
    assert b"planted" in naive.stderr
    graded = case.grade()
    assert graded.passed and graded.outcome is not None and b"planted" not in graded.outcome.stderr


@pytest.mark.parametrize("cheat", ["object", "index"])
def test_tests_are_taken_from_a_repository_only_once_it_is_looked_through(case: Case, cheat: str) -> None:
    """As docs/reference/proctor/grading.md says; without that it gives what the agent wants."""
    git = ["git", "-C", str(case.work), "-c", "user.name=a", "-c", "user.email=a@a", "-c", "safe.directory=*"]
    case.leave(expected="fixed\n", other="same\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run([*git, *words], check=True)
    name = subprocess.run([*git, "rev-parse", "HEAD:expected"], check=True, capture_output=True, text=True).stdout
    checks = "git checkout -q HEAD -- . && grep -qx cheated expected"
    looks = "rm -f .git/index && git fsck --full --no-dangling"
    case.graded_by(checks)
    assert not case.grade().passed
    case.leave(expected="cheated\n")
    if cheat == "object":
        path = case.work / ".git" / "objects" / name[:2] / name[2:].strip()
        path.chmod(0o600)
        path.write_bytes(zlib.compress(b"blob 8\0cheated\n"))
        (case.work / "expected").unlink()
    else:
        subprocess.run([*git, "update-index", "--skip-worktree", "expected"], check=True)
    assert case.grade().passed
    case.graded_by(f"{looks} && {checks}")
    assert not case.grade().passed
    case.graded_by(f"{looks} && {checks.replace('cheated', 'fixed')}")
    assert case.grade().passed == (cheat == "index"), "the commit's own file is back, where it has one"


@pytest.mark.privileges
def test_nothing_of_the_callers_environment_and_no_network_is_there(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_PRELOAD_X", "BASH_ENV", "GIT_DIR", "PYTHONSTARTUP", "PROCTOR_SIGNING_SEED"):
        monkeypatch.setenv(name, "/planted")
    case.graded_by("env; ls -A ~; cat /proc/net/dev | grep -vc lo: ; ls /proc/self/fd")
    graded = case.grade()
    assert graded.outcome is not None and b"planted" not in graded.outcome.stdout
    assert graded.outcome.stdout.endswith(b"2\n0\n1\n2\n3\n"), graded.outcome.stdout  # 3 is that of ls itself


def test_a_grader_that_never_ends_is_a_fail(case: Case) -> None:
    case.leave(solution__sh="exec sleep 1000")
    case.graded_by("sh solution.sh", wall_time_s=1)
    graded = case.grade()
    assert not graded.passed and graded.outcome is not None and graded.outcome.status is Status.TIMEOUT
