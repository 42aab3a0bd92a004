"""Whole suites from end to end: what they leave, how they go on after each kind of interruption, and that nothing of a
task, an agent or a worker is lost, doubled, trusted or left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import swebench_material
from tests.patience import eventually
from tests.testable import not_testable_here

if sys.platform != "linux":
    pytest.skip("proctored runs need Linux", allow_module_level=True)

from ringfence.proctor.foreign.host_facts import ThisHost

pytestmark = pytest.mark.system

PATIENCE_S = 180.0
AGENT = "sh -c 'sh ./do.sh'"
POLICY = "version: 1\nenv:\n  allow: [QUICK, TOKEN]\n"
ANSWER = "echo 42 > a\n"
GRADE = 'test "$(cat a)" = "$(cat /oracle/e)"\n'


def _task(suite: Path, name: str, does: str = ANSWER, solution: str = "") -> Path:
    """One whose workspace says what the agent does."""
    folder = suite / name
    for part in ("workspace", "oracle"):
        (folder / part).mkdir(parents=True)
    (folder / "workspace" / "do.sh").write_text(does)
    (folder / "oracle" / "e").write_text("42\n")
    (folder / "grade.sh").write_text(GRADE)
    (folder / "policy.yaml").write_text(POLICY)
    if solution:
        (folder / "solution.sh").write_text(solution)
    return folder


Start = Callable[..., "subprocess.Popen[str]"]


def _words(suite: Path, out: Path, *more: str, agent: str = AGENT) -> list[str]:
    entry = "import sys; from ringfence.cli import proctor_main; sys.argv[0] = 'proctor'; proctor_main()"
    return [sys.executable, "-P", "-c", entry, "bench", str(suite), "--agent", agent, "--out", str(out), *more]


def _bench(
    suite: Path, out: Path, *more: str, agent: str = AGENT, variables: Mapping[str, str] | None = None, **how: object
) -> tuple[int, dict[str, dict[str, object]], str]:
    """The exit code, what it told of each task, and stderr."""
    done = subprocess.run(  # type: ignore[call-overload]
        [*_words(suite, out, *more, agent=agent), "--json"], capture_output=True, text=True, check=False,
        env={**os.environ, **(variables or {})}, **how,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    told = {event["id"]: event for event in events if event["event"] == "result"}
    return done.returncode, told, done.stderr + done.stdout[:150] + done.stdout[-300:]


def _public_key(out: Path) -> str:
    return str(json.loads((out / "results.json").read_text())["public_key"])


def _verifies(out: Path) -> int:
    from ringfence.cli import PROCTOR_COMMANDS, dispatch

    words = ["verify-suite", "--manifest", str(out / "manifest.json"), "--pubkey", _public_key(out)]
    return dispatch("proctor", PROCTOR_COMMANDS, words)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return tmp_path / "suite"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.usefixtures("unmeasured")
def test_a_suite_from_its_tasks_to_the_signed_manifest_and_once_more(suite: Path, out: Path) -> None:
    secret = uuid.uuid4().hex
    _task(suite, "good", f'test -n "$TOKEN" && {ANSWER}')
    _task(suite, "bad", "echo 41 > a\n")
    _task(suite, "cheat", f"cat /oracle/e; {ANSWER}")
    (_task(suite, "odd") / "workspace" / ".git").mkdir()
    code, told, said = _bench(suite, out, "--jobs", "2", variables={"TOKEN": secret})
    assert code == 1, said
    assert '"event": "asks", "task": "suite", "variables": ["QUICK", "TOKEN"]' in said
    assert {name: (each["state"], each.get("pass"), each.get("status")) for name, each in told.items()} == {
        "good": ("verdict", True, "clean"), "bad": ("verdict", False, "clean"),
        "cheat": ("verdict", True, "compromised"), "odd": ("refused", None, None),
    }, said  # fmt: skip
    assert told["odd"]["attempts"] == 1 and "git repository" in str(told["odd"]["error"])
    assert told["good"]["score"] == 1 and told["cheat"]["score"] == 0 and told["good"]["cost"]["cpu_s"] > 0  # type: ignore[index]
    assert {"results.json", "junit.xml", "plot.svg", "index.html", "manifest.json", "harbor", "tasks"} <= {
        each.name for each in out.iterdir()}  # fmt: skip
    assert sorted(each.name for each in (out / "tasks").iterdir()) == ["bad", "cheat", "good"]
    assert all("--paper" in (out / name).read_text() for name in ("index.html", "tasks/good/report.html"))
    assert _verifies(out) == 0
    assert [str(path) for path in out.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()] == []
    _goes_on(suite, out)


def _goes_on(suite: Path, out: Path) -> None:
    """What is whole is kept; a report that somebody touched and a task that changed are done again."""
    (suite / "odd" / "workspace" / ".git").rmdir()
    with (out / "tasks" / "bad" / "report.html").open("a") as file:
        file.write("<p>a pass!</p>")
    (suite / "cheat" / "oracle" / "e").write_text("43\n")
    code, told, said = _bench(suite, out, "--jobs", "2", variables={"TOKEN": "x"})
    assert code == 0, said
    assert {name: each["reused"] for name, each in told.items()} == {
        "good": True, "bad": False, "cheat": False, "odd": False}  # fmt: skip
    assert told["cheat"]["pass"] is False and _verifies(out) == 0
    bundle = out / "tasks" / "bad" / "bundle.json"
    shutil.copyfile(out / "tasks" / "good" / "bundle.json", bundle)
    assert _verifies(out) == 2


@pytest.mark.usefixtures("unmeasured")
def test_the_oracle_solves_every_task_and_who_does_nothing_none(suite: Path, tmp_path: Path) -> None:
    _task(suite, "script", solution="#!/bin/sh\ncat /solution/solution.sh > read\necho 42 > a\n")
    files = _task(suite, "files")
    (files / "reference").mkdir()
    (files / "reference" / "a").write_text("42\n")
    (files / "task.yaml").write_text("grader:\n  reference: reference\n")
    for agent, score in (("oracle", 1), ("nop", 0)):
        code, told, said = _bench(suite, tmp_path / agent, agent=agent)
        assert code == 0, said
        assert {name: (each["score"], each["status"]) for name, each in told.items()} == {
            "script": (score, "clean"), "files": (score, "clean")}, said  # fmt: skip
    bundle = json.loads((tmp_path / "oracle" / "tasks" / "script" / "bundle.json").read_text())
    assert bundle["environment"]["agent_command"] == "oracle"


@pytest.mark.usefixtures("unmeasured")
def test_no_other_agent_sees_a_solution(suite: Path, out: Path) -> None:
    seen = _task(suite, "seen", solution="echo 4242424242\n")
    (seen / "workspace" / "do.sh").write_text(f"ls /solution; cat {seen}/solution.sh\n{ANSWER}")
    code, _, said = _bench(suite, out)
    log = (out / "tasks" / "seen" / "agent.stdout").read_text()
    assert code == 0 and "4242424242" not in log and "solution.sh" not in log, said


MATERIAL = Path(__file__).resolve().parents[1] / "material" / "terminal_tasks"


@pytest.mark.usefixtures("unmeasured")
def test_tasks_of_public_formats_run_side_by_side(suite: Path, out: Path) -> None:
    if "debian" not in ThisHost().family():
        not_testable_here("these tasks ask for a host of Debian's kind")
    for kind, name in (("harbor", "hello-file"), ("terminal-bench", "hello-world")):
        shutil.copytree(MATERIAL / kind / name, suite / name)
    _task(suite, "ours", solution=ANSWER)
    code, told, said = _bench(suite, out, "--rootfs", "host", "--jobs", "2", agent="oracle")
    assert code == 0, said
    assert {(each["kind"], each["score"], each["status"], each["reused"]) for each in told.values()} == {
        ("harbor", 1, "clean", False), ("terminal-bench", 1, "clean", False), ("generic", 1, "clean", False),
    }, said  # fmt: skip
    assert _verifies(out) == 0


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_a_data_set_of_swe_bench_is_graded_and_goes_on(tmp_path: Path, out: Path) -> None:
    swebench_material.shapes(tmp_path / "made")
    (tmp_path / "made" / "clone").rename(tmp_path / "made" / "shapes")
    words = ("--repos", str(tmp_path / "made"), "--rootfs", "host", "--grade")
    data = tmp_path / "made" / "instance.json"
    code, told, said = _bench(data, out, *words, agent="oracle")
    assert code == 0 and [each["score"] for each in told.values()] == [1], said
    code, told, said = _bench(data, out, *words, agent="oracle")
    assert code == 0 and [each["reused"] for each in told.values()] == [True], said


# ---- interruptions


class _Interrupted:
    """A suite of a quick task and one that sleeps until it is told that it need not."""

    def __init__(self, suite: Path, out: Path) -> None:
        self.suite, self.out = suite, out
        self.mark = f"6{uuid.uuid4().int % 10**9:09}"
        _task(suite, "quick")
        _task(suite, "slow", f'test -n "$QUICK" || sleep {self.mark}\n{ANSWER}')
        self.bench: subprocess.Popen[str] | None = None

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Until the quick task is done and the other one sleeps."""
        words = _words(self.suite, self.out, "--jobs", "2", *more)
        self.bench = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        eventually(lambda: (self.out / "tasks" / "quick").exists() and self.sleepers(), PATIENCE_S,
                   told=lambda: self.bench and self.bench.poll())  # fmt: skip
        return self.bench

    def sleepers(self) -> list[str]:
        return [pid for pid in os.listdir("/proc") if pid.isdecimal() and self.mark in _arguments(pid)]

    def nothing_is_left(self) -> None:
        eventually(lambda: not self.sleepers(), PATIENCE_S)
        private = self.out / "tasks"
        eventually(lambda: not [name for name in os.listdir(private) if name.startswith(".")], PATIENCE_S)

    def resumes(self) -> None:
        code, told, said = _bench(self.suite, self.out, "--jobs", "2", variables={"QUICK": "1"})
        assert code == 0, said
        assert {name: (each["reused"], each["pass"]) for name, each in told.items()} == {
            "quick": (True, True), "slow": (False, True)}, said  # fmt: skip
        assert _verifies(self.out) == 0


def _arguments(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def interrupted(suite: Path, out: Path, unmeasured: None) -> Iterator[_Interrupted]:
    made = _Interrupted(suite, out)
    yield made
    if made.bench is not None and made.bench.poll() is None:
        made.bench.kill()
        made.bench.communicate()


@pytest.mark.privileges
@pytest.mark.parametrize("number", [
    pytest.param(signal.SIGINT, id="interrupt"),
    pytest.param(signal.SIGTERM, id="term", marks=pytest.mark.long),
    pytest.param(signal.SIGKILL, id="kill"),
])  # fmt: skip
def test_whatever_ends_a_bench_nothing_is_left_and_it_goes_on(interrupted: _Interrupted, number: int) -> None:
    bench = interrupted.start()
    bench.send_signal(number)
    _, said = bench.communicate()
    if number == signal.SIGKILL:
        interrupted.nothing_is_left()
    else:
        assert bench.returncode == 130 and "the same command continues" in said
        assert interrupted.sleepers() == []
        assert sorted(os.listdir(interrupted.out / "tasks")) == ["quick"]
        assert not (interrupted.out / "manifest.json").exists()
    interrupted.resumes()


@pytest.mark.privileges
def test_a_worker_that_is_killed_loses_its_task_and_no_other(interrupted: _Interrupted) -> None:
    bench = interrupted.start("--retries", "0")
    workers = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
    eventually(lambda: len(workers.read_text().split()) == 1, PATIENCE_S)
    os.kill(int(workers.read_text()), signal.SIGKILL)
    said, _ = bench.communicate()
    assert bench.returncode == 1 and "slow: failed: the worker was killed by SIGKILL" in said
    interrupted.nothing_is_left()
    interrupted.resumes()


# ---- what the machine gets wrong


def _no_large_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))


@pytest.mark.usefixtures("unmeasured")
def test_a_file_that_cannot_be_written_is_tried_again_and_is_no_verdict(suite: Path, out: Path) -> None:
    _task(suite, "a")
    code, told, said = _bench(suite, out, "--retries", "1", preexec_fn=_no_large_files)
    assert code == 1, said
    assert (told["a"]["state"], told["a"]["attempts"]) == ("failed", 2) and "File too large" in str(told["a"]["error"])
    assert os.listdir(out / "tasks") == [] and _verifies(out) == 0


@pytest.mark.root
@pytest.mark.usefixtures("unmeasured")
def test_a_full_disk_ends_with_words_and_without_a_verdict(suite: Path, out: Path) -> None:
    _task(suite, "a")
    out.mkdir(mode=0o700)
    mount = f"mount -t tmpfs -o size=100k,mode=700 none {out} && exec \"$@\""
    words = ["unshare", "-m", "sh", "-c", mount, "sh", *_words(suite, out, "--retries", "0")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert "No space left" in done.stdout + done.stderr


def test_bad_usage_is_told_before_anything_runs(
    suite: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ringfence.cli import PROCTOR_COMMANDS, dispatch

    _task(suite, "a")
    file = tmp_path / "file"
    file.write_text("")

    def told(*more: str, to: Path = out) -> tuple[int, str]:
        words = ["bench", str(suite), "--agent", "nop", "--out", str(to), *more]
        return dispatch("proctor", PROCTOR_COMMANDS, words), capsys.readouterr().err

    assert told("--jobs", "0") == (2, "proctor: --jobs 0: must be from 1 to 10,000\n")
    assert told("--retries", "-1")[0] == told("--on", "moon")[0] == 2
    assert told(to=file)[0] == 2
    code, said = told(to=suite / "a" / "out")
    assert code == 2 and "is in the suite" in said
    code, said = told("--scaffold", str(tmp_path))
    assert code == 2 and "would be shown to the agent" in said
    for place in ("", "a", "a/workspace"):  # the agent of one task could read it, and sign for all
        key = suite / place / "ops.key"
        key.write_text("12" * 32)
        key.chmod(0o600)
        code, said = told("--key", str(key))
        assert code == 2 and "would be shown to the agent or its grader" in said
        key.unlink()
    assert not out.exists() and not (suite / "a" / "out").exists()
