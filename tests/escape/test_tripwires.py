"""Whoever asks a strict sandbox for a hidden path is recorded, by whatever route, and gets «no such file»."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, Outcome, SandboxPolicy, run
from ringfence.sandbox import host
from tests.escape.raw_calls import calling

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

# Relative to the directory, through links and descriptors, by calls that read, change and execute.
ROUTES = {
    "open": "open(HIDDEN)",
    "relative to the directory": "os.chdir(FOLDER); open('answers')",
    "relative to a descriptor": "open('answers', opener=lambda p, f: os.open(p, f, dir_fd=os.open(FOLDER, 0)))",
    "through a link": "os.symlink(HIDDEN, '/tmp/link'); open('/tmp/link')",
    "through a link to the directory": "os.symlink(FOLDER, '/tmp/there'); open('/tmp/there/answers')",
    "through dots": "open(FOLDER + '/deep/../answers')",
    "through /proc/self/root": "open('/proc/self/root' + HIDDEN)",
    "through /proc/self/cwd": "os.chdir(FOLDER); open('/proc/self/cwd/answers')",
    "stat": "os.stat(HIDDEN)",
    "access": "os.access(HIDDEN, os.R_OK) or os.stat('/none')",
    "readlink": "os.readlink(HIDDEN)",
    "exec": "os.execv(HIDDEN, ['x'])",
    "hard link": "os.link(HIDDEN, '/tmp/mine')",
    "unlink": "os.unlink(HIDDEN)",
    "truncate": "os.truncate(HIDDEN, 0)",
    "chmod": "os.chmod(HIDDEN, 0o777)",
    "xattr": "os.getxattr(HIDDEN, 'user.a')",
    "rename beside": "os.rename(HIDDEN, FOLDER + '/mine')",
    "below it": "open(HIDDEN + '/deeper')",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tripwires-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "deep").mkdir()
        for leaf in ("answers", "plain"):
            (place / leaf).write_text(f"text of {leaf}\n")
        yield place


def _ask(folder: Path, source: str, **policy: object) -> Outcome:
    start = f"import os, sys\nFOLDER, HIDDEN = {str(folder)!r}, {str(folder / 'answers')!r}\n"
    hidden = {"readable_paths": (str(folder),), "hidden_paths": (str(folder / "answers"),)}
    asked = SandboxPolicy.from_dict({"isolation": "strict", "wall_time_s": 20} | hidden | policy)
    return run(Job(argv=(sys.executable, "-I", "-c", start + source)), asked)


def _attempts(outcome: Outcome) -> list[dict[str, object]]:
    return [dict(event.details) for event in outcome.events if str(event.kind) == "violation"]


def test_this_host_has_what_tripwires_need() -> None:
    assert host.has_fuse(), "chmod 0666 /dev/fuse, as tests/run.py does"


@pytest.mark.parametrize("route", ROUTES)
def test_an_attempt_is_recorded_by(route: str, folder: Path) -> None:
    outcome = _ask(folder, f"try:\n    {ROUTES[route]}\nexcept OSError as error:\n    print(error.errno)\n")
    assert outcome.stdout == b"2\n", outcome.stderr
    attempts = _attempts(outcome)
    assert attempts, outcome.recorder
    assert {attempt["path"] for attempt in attempts} == {str(folder / "answers")}
    assert all(attempt["errno"] == 2 and attempt["argv"][0] == sys.executable for attempt in attempts)
    assert outcome.recorder["complete"] is True
    assert outcome.enforced["hidden_paths"].details == "absent; attempts are recorded by tripwires"


@pytest.mark.parametrize(
    ("call", "code"),
    [("openat2', AT, HIDDEN.encode(), bytes(24), 24)", errno.ENOSYS),
     ("name_to_handle_at', AT, HIDDEN.encode(), bytes(136), bytes(8), 0)", errno.EOPNOTSUPP)],
)  # fmt: skip
def test_a_call_that_is_refused_before_any_tripwire_sees_it_is_recorded_too(call: str, code: int, folder: Path) -> None:
    start = "import ctypes\nAT = -100 & (2**64 - 1)\n" + calling("openat2", "name_to_handle_at")
    beside = call.replace("HIDDEN", "(FOLDER + '/plain')")
    outcome = _ask(folder, f"{start}\ntry: call('{beside}\nexcept OSError as error: pass\n"
                           f"try: call('{call}\nexcept OSError as error: print(error.errno)\n")  # fmt: skip
    (attempt,) = _attempts(outcome)
    assert (attempt["path"], attempt["aim"], attempt["errno"]) == (str(folder / "answers"), "hidden", code)
    assert outcome.recorder["complete"] is True and outcome.recorder["caveat"] == ""


def test_a_record_says_who_asked_and_how(folder: Path) -> None:
    outcome = _ask(folder, "print(os.getpid())\nos.chdir(FOLDER)\ntry: os.stat('./answers')\nexcept OSError: pass")
    (attempt,) = _attempts(outcome)
    assert attempt["pid"] == int(outcome.stdout)
    assert attempt["asked"] == "./answers"
    assert attempt["syscall"] in ("newfstatat", "statx")
    assert str(attempt["comm"]).startswith("python")
    assert int(str(attempt["wall_ns"])) > 0 and int(str(attempt["start_ticks"])) > 0


def test_what_lies_beside_it_is_there_and_makes_no_record(folder: Path) -> None:
    look = "print(sorted(os.listdir(FOLDER)), open(FOLDER + '/plain').read(), os.path.exists(FOLDER + '/none'))"
    outcome = _ask(folder, look)
    assert outcome.stdout == b"['deep', 'plain'] text of plain\n False\n"
    assert _attempts(outcome) == []
    assert outcome.recorder["complete"] is True


@pytest.mark.control
def test_without_the_wire_the_same_question_is_answered(folder: Path) -> None:
    outcome = _ask(folder, "print(open(HIDDEN).read())", hidden_paths=())
    assert outcome.stdout == b"text of answers\n\n"


@pytest.mark.parametrize("hidden", ["/nowhere/deep/answers", "/nowhere"])
def test_a_hidden_path_of_which_nothing_is_shown_is_wired_too(folder: Path, hidden: str) -> None:
    outcome = _ask(folder, f"print(os.path.exists({hidden!r}), sorted(os.listdir('/')))", hidden_paths=(hidden,))
    assert outcome.stdout.startswith(b"False")
    assert b"usr" in outcome.stdout and (hidden != "/nowhere" or b"nowhere" not in outcome.stdout)
    assert [attempt["path"] for attempt in _attempts(outcome)] == [hidden]


# What is asked for, of a hidden path whose directory, or the directory of that, is not there: the first missing name
# tells.
MISSING = {
    "the path": ("nowhere/answers", "open(HIDDEN)"),
    "deeper": ("nowhere/deep/deeper/answers", "open(HIDDEN)"),
    "below a directory that is there": ("deep/nowhere/answers", "open(HIDDEN)"),
    "its directory": ("nowhere/answers", "os.listdir(os.path.dirname(HIDDEN))"),
    "made by the job": ("nowhere/answers", "os.mkdir(os.path.dirname(HIDDEN))"),
    "through a link": ("nowhere/answers", "os.symlink(FOLDER, '/tmp/there'); open('/tmp/there/nowhere/answers')"),
}


@pytest.mark.parametrize("what", MISSING)
def test_a_hidden_path_whose_folder_is_missing_is_wired_at_the_first_missing_name(what: str, folder: Path) -> None:
    name, ask = MISSING[what]
    hidden, first = folder / name, folder / name[: name.index("nowhere") + len("nowhere")]
    start = f"HIDDEN = {str(hidden)!r}\n"
    attempt = f"try:\n    {ask}\nexcept OSError as error:\n    print(error.errno)\n"
    outcome = _ask(folder, start + attempt, hidden_paths=(str(hidden),))
    assert outcome.stdout in (b"2\n", b"30\n"), outcome.stderr
    assert {attempt["path"] for attempt in _attempts(outcome)} == {str(first)}, outcome.recorder
    assert "tripwires" in outcome.enforced["hidden_paths"].details and outcome.recorder["complete"] is True
    control = _ask(folder, start + attempt.replace("HIDDEN", "(FOLDER + '/none/x')").replace("nowhere", "none"),
                   hidden_paths=(str(hidden),))  # fmt: skip
    assert _attempts(control) == [], "control: another name that is missing is nobody's business"


def test_what_lies_beside_a_missing_folder_is_there(folder: Path) -> None:
    hidden = (str(folder / "nowhere" / "answers"), str(folder / "deep" / "nowhere" / "answers"))
    outcome = _ask(folder, "print(sorted(os.listdir(FOLDER)), open(FOLDER + '/plain').read())", hidden_paths=hidden)
    assert outcome.stdout == b"['answers', 'deep', 'plain'] text of plain\n\n"
    assert _attempts(outcome) == []


def test_a_missing_folder_that_appears_later_is_absent_and_wired(folder: Path) -> None:
    hidden = folder / "later" / "answers"
    policy = SandboxPolicy(isolation="strict", readable_paths=(str(folder),), hidden_paths=(str(hidden),))
    with ringfence.open(policy) as box:
        hidden.parent.mkdir()
        hidden.write_text("text\n")
        outcome = box.run(["cat", str(hidden)])
    assert outcome.stdout == b"" and outcome.rc
    assert [attempt["path"] for attempt in _attempts(outcome)] == [str(hidden.parent)]


def test_a_hidden_path_below_a_file_is_recorded_by_notification(folder: Path) -> None:
    outcome = _ask(folder, "try: open(FOLDER + '/plain/answers')\nexcept OSError as error: print(error.errno)",
                   hidden_paths=(str(folder / "plain" / "answers"),))  # fmt: skip
    assert outcome.stdout == b"20\n"
    assert [attempt["path"] for attempt in _attempts(outcome)] == [str(folder / "plain" / "answers")]
    assert "open notification" in outcome.enforced["hidden_paths"].details


def test_a_flood_is_bounded_and_counted(folder: Path) -> None:
    outcome = _ask(folder, "for _ in range(20000): os.path.exists(HIDDEN)", wall_time_s=120)
    assert outcome.rc == 0, outcome.reason
    assert outcome.recorder["total"] == 20000
    assert outcome.recorder["kept"] + outcome.recorder["summarised"] == 20000
    assert len(_attempts(outcome)) < 1000


def test_a_box_counts_what_each_visit_asked_again_and_again(folder: Path) -> None:
    policy = SandboxPolicy.from_dict({"isolation": "strict", "wall_time_s": 60, "readable_paths": [str(folder)],
                                      "hidden_paths": [str(folder / "answers")]})  # fmt: skip
    ask = f"import os\nfor _ in range(2000): os.path.exists({str(folder / 'answers')!r})"
    with ringfence.open(policy) as box:
        for _ in range(2):
            told = box.run([sys.executable, "-I", "-c", ask]).recorder
            assert told["total"] == 2000 == told["kept"] + told["summarised"] and told["complete"]
            assert told["totals"] == {"hidden": 2000}
        assert box.run(["true"]).recorder["total"] == 0


def test_processes_that_die_while_they_ask_do_not_hang_anything(folder: Path) -> None:
    source = """
import signal
for _ in range(60):
    child = os.fork()
    if child == 0:
        while True:
            os.path.exists(HIDDEN)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print('done')
"""
    outcome = _ask(folder, source, wall_time_s=60)
    assert outcome.stdout == b"done\n", outcome.reason
    assert outcome.recorder["lost"] == 0


def test_a_job_that_asks_when_its_time_is_up_ends_all_the_same(folder: Path) -> None:
    source = "for _ in range(4): os.fork()\nwhile True: os.path.exists(HIDDEN)"
    outcome = _ask(folder, source, wall_time_s=1)
    assert str(outcome.status) == "TIMEOUT"
    assert outcome.recorder["total"] > 0


def test_the_wire_tells_nothing_of_where_things_lie_on_the_host(folder: Path) -> None:
    outcome = _ask(folder, "print(open('/proc/self/mountinfo').read())")
    assert b"answers" not in outcome.stdout
    assert os.fsencode(os.environ.get("TMPDIR", "/tmp")) + b"/ringfence-" not in outcome.stdout
