"""The manager as its user meets it: executions, changes, commits, checkpoints and rollbacks, on both levels."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence import (
    ConflictError,
    IsolationLevel,
    ResourceLimits,
    ResourceMonitor,
    RollbackSystem,
    SandboxConfig,
    SandboxContext,
    SandboxManager,
    Status,
    UnavailableError,
    UsageError,
)
from ringfence.engine.handle import Handle
from ringfence.kernel.criu import criu

LEVELS = (IsolationLevel.STRICT, IsolationLevel.PROCESS)
LIMITS = ResourceLimits(max_execution_time=60, max_file_operations=100_000)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A directory to work on."""
    for name, text in {"src/a.py": "one\n", "src/b.py": "two\n", "secret/key": "hidden\n"}.items():
        (tmp_path / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repo" / name).write_text(text)
    return tmp_path / "repo"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[SandboxManager]:
    with SandboxManager(sandbox_root=tmp_path / "sandboxes") as made:
        yield made


@pytest.fixture(params=LEVELS)
def context(request: pytest.FixtureRequest, manager: SandboxManager, repo: Path) -> Iterator[SandboxContext]:
    config = SandboxConfig(isolation_level=request.param, resource_limits=LIMITS, allowed_paths=[repo],
                           blocked_paths=[repo / "secret", Path("/etc")])  # fmt: skip
    with manager.sandbox(config) as made:
        yield made


def strict(repo: Path | None = None, **more: Any) -> SandboxConfig:
    fields = {"resource_limits": LIMITS, "allowed_paths": [repo] if repo else [], **more}
    return SandboxConfig(isolation_level=IsolationLevel.STRICT, **fields)


def unisolated(**more: Any) -> SandboxConfig:
    fields = {"resource_limits": LIMITS, "allow_partial": True, **more}
    return SandboxConfig(isolation_level=IsolationLevel.NONE, **fields)


def edit(path: str, text: str) -> int:
    with open(path, "w") as file:
        return file.write(text)


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def fail(path: str) -> None:
    edit(path, "broken\n")
    raise RuntimeError("on purpose")


def run_ok(manager: SandboxManager, context: SandboxContext, function: Any, **params: Any) -> Any:
    done = manager.execute_in_sandbox(context, function, params)
    assert done.success, (done.error, done.traceback, done.stderr)
    return done.value


def _await_output(handle: Handle) -> None:
    while not handle.stdout and not handle.done:
        time.sleep(0.02)


# ---- executions


def test_what_a_function_writes_is_seen_by_the_next_and_not_by_the_host(
    manager: SandboxManager, context: SandboxContext, repo: Path
) -> None:
    assert run_ok(manager, context, edit, path="src/a.py", text="changed\n") == 8
    assert run_ok(manager, context, read, path="src/a.py") == "changed\n"
    assert (repo / "src/a.py").read_text() == "one\n"
    assert manager.run(context, ["cat", "src/a.py"]).stdout == "changed\n"


def test_lambdas_and_closures_go_in_and_values_come_out(manager: SandboxManager, context: SandboxContext) -> None:
    factor = 6
    assert run_ok(manager, context, lambda x: {"all": (x * factor, b"\0", {1, 2})}, x=7) == {"all": (42, b"\0", {1, 2})}


def test_an_exception_comes_back_as_texts(manager: SandboxManager, context: SandboxContext) -> None:
    done = manager.execute_in_sandbox(context, fail, {"path": "src/a.py"})
    assert not done.success and done.error_type == "RuntimeError" and done.error == "RuntimeError: on purpose"
    assert "in fail" in done.traceback and done.status is Status.FAILED


def test_printed_text_is_kept_apart_from_the_value(manager: SandboxManager, context: SandboxContext) -> None:
    heard: list[tuple[str, bytes]] = []
    done = manager.execute_in_sandbox(context, lambda: print("hello"), on_output=lambda *piece: heard.append(piece))
    assert (done.stdout, done.value) == ("hello\n", None) and heard == [("stdout", b"hello\n")]


def test_imports_can_be_restricted(manager: SandboxManager) -> None:
    def use_json() -> str:
        import json

        return json.dumps([1])

    with manager.sandbox(strict(allowed_imports=["os"])) as context:
        done = manager.execute_in_sandbox(context, use_json, {})
        assert done.error_type == "ImportError" and "'json' is not allowed" in (done.error or "")
    with manager.sandbox(strict(allowed_imports=["json"])) as context:
        assert run_ok(manager, context, use_json) == "[1]"


def test_variables_are_set_and_the_callers_own_are_not_passed_on(
    manager: SandboxManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLERS_TOKEN", "secret")
    with manager.sandbox(strict(environment_vars={"MODE": "test"})) as context:
        found = run_ok(manager, context, lambda: dict(__import__("os").environ))
    assert found["MODE"] == "test" and "CALLERS_TOKEN" not in found


class Trap:
    """What a pickle of it would do when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_returned_object_that_would_run_code_when_loaded_is_an_error(
    manager: SandboxManager, context: SandboxContext, tmp_path: Path
) -> None:
    bait = tmp_path / "sprung"
    done = manager.execute_in_sandbox(context, Trap, {"path": str(bait)})
    assert not done.success and done.value is None and "can't be sent" in (done.error or "")
    forged = pickle.dumps(Trap(str(bait)))
    written = manager.execute_in_sandbox(context, lambda data: __import__("os").write(3, data), {"data": forged})
    assert not written.success and written.value is None
    assert not bait.exists()
    pickle.loads(forged)  # the control: an encoding that can hold it would have sprung the trap
    assert bait.is_dir()


def test_a_timeout_ends_the_execution(manager: SandboxManager) -> None:
    config = strict(resource_limits=ResourceLimits(max_execution_time=4, max_file_operations=100_000))
    with manager.sandbox(config) as context:
        assert context.timeout_seconds == 4
        done = manager.execute_in_sandbox(context, lambda: __import__("time").sleep(60), {})
        assert done.status is Status.TIMEOUT and not done.success and done.violations
        assert run_ok(manager, context, lambda: 1) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_box_that_was_ended_is_replaced_and_the_files_stay(manager: SandboxManager, level: IsolationLevel) -> None:
    config = SandboxConfig(isolation_level=level, resource_limits=LIMITS, enable_auto_rollback=False)
    with manager.sandbox(config) as context:
        run_ok(manager, context, edit, path="kept", text="1")
        handle = manager.start(context, ["sh", "-c", "echo up; exec sleep 4321"])
        _await_output(handle)
        box = manager._find(context.sandbox_id).box()
        assert box.watchable.terminate is not None
        box.watchable.terminate()
        assert handle.wait(20).status is Status.KILLED_KILL
        while level is IsolationLevel.STRICT and not box.ended:
            time.sleep(0.01)
        assert run_ok(manager, context, read, path="kept") == "1"


def test_an_execution_that_takes_too_much_memory_leaves_the_sandbox_usable(manager: SandboxManager) -> None:
    # As an ordinary user what our processes share with the job counts more than once while it is started.
    limits = ResourceLimits(max_memory_mb=256, max_execution_time=60, max_file_operations=100_000)
    with manager.sandbox(strict(resource_limits=limits, enable_auto_rollback=False)) as context:
        run_ok(manager, context, edit, path="kept", text="1")
        done = manager.execute_in_sandbox(context, lambda: len(bytearray(2**30)), {})
        assert not done.success and done.value is None and not done.rolled_back
        assert run_ok(manager, context, read, path="kept") == "1"


def test_a_child_that_is_killed_for_its_memory_is_a_violation_and_the_status_stays_the_jobs(
    manager: SandboxManager,
) -> None:
    def cope() -> int:
        import subprocess

        hog = "x = bytearray(400 << 20); x[::4096] = b'1' * len(x[::4096])"
        return subprocess.run([sys.executable, "-c", hog], stderr=subprocess.DEVNULL).returncode

    limits = ResourceLimits(max_memory_mb=150, max_execution_time=60, max_file_operations=100_000)
    with manager.sandbox(strict(resource_limits=limits, enable_auto_rollback=False)) as context:
        done = manager.execute_in_sandbox(context, cope, {})
        if done.outcome is None or "cgroup" not in done.outcome.enforced["memory"].by:
            assert not done.success or done.value == 1  # without a group: the watchdog ended it, or it was refused
            return
        assert (done.status, done.rc, done.value) == (Status.OK, 0, -9)
        assert done.violations == ("limit memory reached",) and not done.success
        assert done.error == "violation: limit memory reached"
        assert manager.execute_in_sandbox(context, lambda: 1, {}).violations == ()


def test_params_that_are_no_names_and_values_are_refused(manager: SandboxManager, context: SandboxContext) -> None:
    for params in ([1], {1: 2}, "text"):
        with pytest.raises(UsageError, match="params"):
            manager.execute_in_sandbox(context, read, params)  # type: ignore[arg-type]
    with open(os.devnull) as file, pytest.raises(UsageError, match="argument 'path'"):
        manager.execute_in_sandbox(context, read, {"path": file})


def test_a_function_that_ends_its_process_gives_no_value(manager: SandboxManager, context: SandboxContext) -> None:
    done = manager.execute_in_sandbox(context, lambda: __import__("os")._exit(0), {})
    assert not done.success and done.value is None and "without returning" in (done.error or "")


def test_a_background_process_serves_later_executions(manager: SandboxManager) -> None:
    server = "import socket; s = socket.create_server(('127.0.0.1', 5005)); print('up', flush=True)\n"
    server += "while True: s.accept()[0].sendall(b'answer')"
    client = "import socket; print(socket.create_connection(('127.0.0.1', 5005)).recv(9).decode())"
    with manager.sandbox(strict()) as context:
        handle = manager.start(context, [sys.executable, "-c", server])
        _await_output(handle)
        assert manager.run(context, [sys.executable, "-c", client]).stdout == "answer\n"


# ---- paths


def test_allowed_paths_are_at_their_own_places_under_strict(manager: SandboxManager, repo: Path) -> None:
    with manager.sandbox(strict(repo)) as context:
        assert context.working_directory == repo and context.allowed_paths == [repo]
        assert run_ok(manager, context, read, path=str(repo / "src/a.py")) == "one\n"


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_not_allowed_or_blocked_cannot_be_had(
    manager: SandboxManager, repo: Path, tmp_path: Path, level: IsolationLevel
) -> None:
    (tmp_path / "outside").write_text("content\n")
    blocked = [repo / "secret", Path("/etc")]
    targets = [str(tmp_path / "outside"), str(repo / "secret/key"), "secret/key", "/etc/shadow", "/etc/hostname"]
    host_name = Path("/etc/hostname").read_text()
    config = SandboxConfig(isolation_level=level, resource_limits=LIMITS, allowed_paths=[repo], blocked_paths=blocked,
                           enable_auto_rollback=False)  # fmt: skip
    with manager.sandbox(config) as context:
        for target in targets:
            done = manager.execute_in_sandbox(context, read, {"path": target})
            assert done.value is None or done.value not in ("content\n", "hidden\n", host_name), target
    control = unisolated(allowed_paths=[repo])
    with manager.sandbox(control) as context:
        for target in (targets[0], targets[1]):
            assert run_ok(manager, context, read, path=target) in ("content\n", "hidden\n")


@pytest.mark.parametrize("level", LEVELS)
def test_a_blocked_path_is_blocked_whichever_name_it_was_given_by(
    manager: SandboxManager, repo: Path, level: IsolationLevel
) -> None:
    (repo.parent / "way").symlink_to("repo")
    (repo / "alias").symlink_to("secret")
    for names, seen in ((), True), (("way/secret/key",), False), (("repo/alias/key",), False):
        blocked = [repo.parent / name for name in names]
        config = SandboxConfig(isolation_level=level, allowed_paths=[repo], blocked_paths=blocked)
        with manager.sandbox(config) as context:
            done = manager.execute_in_sandbox(context, read, {"path": "secret/key"})
            assert (done.value == "hidden\n") is done.success is seen


@pytest.mark.parametrize("level", LEVELS)
def test_programs_start_with_the_specifications_blocked_paths(manager: SandboxManager, level: IsolationLevel) -> None:
    with manager.sandbox(SandboxConfig(isolation_level=level)) as context:
        done = manager.run(context, ["sh", "-c", "ls -l . && awk 'BEGIN { print 6 * 7 }'"])
        assert done.success and "42" in done.stdout, (done.error, done.stderr, done.violations)
        assert run_ok(manager, context, lambda: __import__("platform").system()) == "Linux"


def test_nothing_outside_can_be_written(manager: SandboxManager, context: SandboxContext, tmp_path: Path) -> None:
    target = tmp_path / "planted"
    manager.execute_in_sandbox(context, edit, {"path": str(target), "text": "x"})
    assert not target.exists()


def test_a_guest_reaches_nothing_of_its_sandboxs_own_records(manager: SandboxManager, context: SandboxContext) -> None:
    def reach(folder: str) -> list[str]:
        import os

        found = []
        for name in ("metadata.json", "transaction.json", "lock", "checkpoints/planted", "planted"):
            for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
                try:
                    os.close(os.open(f"{folder}/{name}", flags))
                    found.append(name)
                except OSError:
                    pass
        return found

    assert {"metadata.json", "lock"} <= set(os.listdir(context.folder))
    assert run_ok(manager, context, reach, folder=str(context.folder)) == []
    with manager.sandbox(unisolated()) as control:
        assert "metadata.json" in run_ok(manager, control, reach, folder=str(context.folder))


def test_sandboxes_may_lie_in_the_folder_that_they_work_on(repo: Path) -> None:
    with SandboxManager(sandbox_root=repo / "sandboxes") as inner, inner.sandbox(strict(repo)) as context:
        run_ok(inner, context, edit, path="src/a.py", text="changed\n")
        assert [change.path for change in inner.changes(context)] == [f"{repo}/src/a.py"]
        assert "metadata.json" not in inner.run(context, ["sh", "-c", "ls sandboxes/*; true"]).stdout
        inner.commit(context)
    assert (repo / "src/a.py").read_text() == "changed\n" and os.listdir(repo / "sandboxes") == []


def test_no_isolation_is_refused_unless_less_is_accepted(manager: SandboxManager) -> None:
    with pytest.raises(UnavailableError, match="isolation none can't enforce this") as error:
        manager.create_sandbox(unisolated(allow_partial=False))
    assert "memory" in error.value.missing and "allow_partial" in error.value.hint
    with manager.sandbox(unisolated()) as context:  # control
        done = manager.run(context, ["true"])
    assert done.success and done.partial and done.reason.startswith("PARTIAL_ENFORCEMENT")


def test_an_allowed_path_must_be_a_folder_that_is_there(manager: SandboxManager, repo: Path) -> None:
    for path, said, hint in (
        (repo / "src/a.py", "is a file, and a layer is based on directories",
         f"give the directory that it is in, {repo}/src;"),
        (repo / "scr", "no such directory", f"did you mean {repo}/src?"),
        (repo / "far/nowhere", "no such directory", "directories that exist"),
    ):
        for level in LEVELS:
            with pytest.raises(UsageError, match=said) as error:
                manager.create_sandbox(SandboxConfig(isolation_level=level, allowed_paths=[path]))
            assert hint in error.value.hint
    assert manager.stored_sandboxes() == []


def test_a_restriction_of_imports_is_said_to_be_no_wall(manager: SandboxManager, context: SandboxContext) -> None:
    def go_round() -> int:
        known = ().__class__.__base__.__subclasses__()  # type: ignore[attr-defined]
        importer = next(each for each in known if each.__name__ == "BuiltinImporter")
        return importer.load_module("posix").getpid()

    config = replace(context.config, allowed_imports=["math"])
    with manager.sandbox(config) as limited:
        refused = manager.execute_in_sandbox(limited, lambda: __import__("os").getpid())
        assert refused.error_type == "ImportError"
        assert manager.execute_in_sandbox(limited, lambda: __import__("math").sqrt(4)).value == 2.0
        done = manager.execute_in_sandbox(limited, go_round)  # there is always a way: the sandbox is the wall
        assert done.outcome is not None and done.value != os.getpid()
        entry = done.outcome.enforced["allowed_imports"]
        assert "no wall" in entry.details and entry.requested == ("math",)
    plain = manager.execute_in_sandbox(context, lambda: __import__("os").getpid())
    assert plain.success and plain.outcome is not None and "allowed_imports" not in plain.outcome.enforced


def test_a_base_that_is_gone_is_named_and_the_sandbox_can_be_destroyed(manager: SandboxManager, repo: Path) -> None:
    context = manager.create_sandbox(strict(repo))
    assert manager.run(context, ["true"]).success
    manager.rollback(context)  # which ends the box, so that the next execution has a new one
    repo.rename(repo.parent / "moved")
    with pytest.raises(UsageError, match="no such directory"):
        manager.run(context, ["true"])
    manager.destroy_sandbox(context.sandbox_id)


def test_levels_that_are_not_there_say_so(manager: SandboxManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nobody/is/here")
    with pytest.raises(UnavailableError) as error:
        manager.create_sandbox(SandboxConfig(isolation_level=IsolationLevel.CONTAINER))
    assert "strict" in error.value.hint
    with pytest.raises(UnavailableError):
        manager.create_sandbox(SandboxConfig(allow_network=True, allowed_hosts=["a.example"]))
    assert manager.stored_sandboxes() == []


def test_a_limit_of_the_network_that_nothing_holds_is_refused_or_said(manager: SandboxManager) -> None:
    with pytest.raises(UnavailableError, match="max_network_kb") as error:
        manager.create_sandbox(SandboxConfig(allow_network=True))
    assert "allow_partial" in error.value.hint
    assert manager.stored_sandboxes() == []
    with manager.sandbox(SandboxConfig(allow_network=True, allow_partial=True)) as context:
        done = manager.run(context, ["true"])
        assert done.success and done.partial and "max_network_kb" in done.reason
    with manager.sandbox(SandboxConfig()) as context:
        assert not manager.run(context, ["true"]).partial


# ---- changes


def test_changes_are_shown_and_committed(manager: SandboxManager, context: SandboxContext, repo: Path) -> None:
    run_ok(manager, context, edit, path="src/a.py", text="changed\n")
    run_ok(manager, context, edit, path="src/new.py", text="new\n")
    assert manager.run(context, ["rm", "src/b.py"]).success
    found = {(change.path, str(change.kind)) for change in manager.changes(context)}
    assert found == {(f"{repo}/src/a.py", "modified"), (f"{repo}/src/new.py", "added"), (f"{repo}/src/b.py", "deleted")}
    text = manager.diff(context)
    assert "-one" in text and "+changed" in text and "+new" in text and "-two" in text
    assert "+changed" in manager.diff(context, "src/a.py") and "+new" not in manager.diff(context, "src/a.py")
    manager.commit(context)
    assert (repo / "src/a.py").read_text() == "changed\n" and not (repo / "src/b.py").exists()
    assert manager.changes(context) == ()
    run_ok(manager, context, edit, path="src/a.py", text="again\n")
    manager.commit(context)
    assert (repo / "src/a.py").read_text() == "again\n"


def test_some_paths_can_be_committed(manager: SandboxManager, context: SandboxContext, repo: Path) -> None:
    run_ok(manager, context, edit, path="src/a.py", text="changed\n")
    run_ok(manager, context, edit, path="src/b.py", text="changed\n")
    manager.commit(context, paths=["src/a.py"])
    assert (repo / "src/a.py").read_text() == "changed\n" and (repo / "src/b.py").read_text() == "two\n"
    assert [change.path for change in manager.changes(context)] == [f"{repo}/src/b.py"]
    with pytest.raises(UsageError):
        manager.commit(context, paths="src/b.py")


def test_a_commit_leaves_a_server_running_and_can_be_repeated(manager: SandboxManager, repo: Path) -> None:
    with manager.sandbox(strict(repo)) as context:
        handle = manager.start(context, ["sh", "-c", "echo up; exec sleep 4321"])
        _await_output(handle)
        for text in ("first\n", "second\n"):
            run_ok(manager, context, edit, path="src/a.py", text=text)
            manager.commit(context)
            assert (repo / "src/a.py").read_text() == text and manager.changes(context) == ()
        assert not handle.done


def test_what_somebody_else_changed_is_a_conflict(manager: SandboxManager, context: SandboxContext, repo: Path) -> None:
    run_ok(manager, context, edit, path="src/a.py", text="changed\n")
    (repo / "src/a.py").write_text("theirs\n")
    with pytest.raises(ConflictError) as error:
        manager.commit(context)
    assert error.value.paths == (f"{repo}/src/a.py",) and (repo / "src/a.py").read_text() == "theirs\n"
    done = manager.commit(context, on_conflict="mine")
    assert done.mine == error.value.paths and (repo / "src/a.py").read_text() == "changed\n"


# ---- checkpoints


def test_a_failure_is_rolled_back_to_before_the_execution(
    manager: SandboxManager, context: SandboxContext, repo: Path
) -> None:
    run_ok(manager, context, edit, path="src/a.py", text="good\n")
    done = manager.execute_in_sandbox(context, fail, {"path": "src/a.py"})
    assert done.rolled_back and done.rollback is not None and done.rollback.checkpoint_id == done.checkpoint_id
    assert done.rollback.rollback_type == "full" and done.rollback.files_restored == 1
    assert run_ok(manager, context, read, path="src/a.py") == "good\n"


def test_without_auto_rollback_a_failure_leaves_its_traces(manager: SandboxManager, repo: Path) -> None:
    config = strict(repo, enable_auto_rollback=False, checkpoint_before_execution=False)
    with manager.sandbox(config) as context:
        done = manager.execute_in_sandbox(context, fail, {"path": "src/a.py"})
        assert not done.success and not done.rolled_back and done.checkpoint_id == "" and done.rollback is None
        assert run_ok(manager, context, read, path="src/a.py") == "broken\n"
        assert manager.rollback_system.list_checkpoints(context.sandbox_id) == []


def test_an_attempt_on_a_secret_is_a_violation_and_rolled_back(manager: SandboxManager, repo: Path) -> None:
    def steal() -> bool:
        edit("src/a.py", "bad\n")
        try:
            return bool(open("/etc/shadow").read())
        except OSError:
            return False

    with manager.sandbox(strict(repo)) as context:
        done = manager.execute_in_sandbox(context, steal, {})
        assert not done.success and done.value is False and done.rolled_back
        assert any("/etc/shadow" in violation for violation in done.violations)
        assert run_ok(manager, context, read, path="src/a.py") == "one\n"


@pytest.mark.parametrize("path", ["/boot", "/sys/firmware", "/sys/module/x"])
def test_an_attempt_on_what_is_blocked_by_default_is_recorded(manager: SandboxManager, repo: Path, path: str) -> None:
    with manager.sandbox(strict(repo)) as context:
        tried = manager.run(context, ["cat", path])
        honest = manager.run(context, ["cat", "/sys/fs/cgroup/memory.max"])
    assert tried.violations == (f"lookup {path}",) and honest.success and honest.violations == ()


def test_checkpoints_can_be_gone_back_and_forward_to(manager: SandboxManager, context: SandboxContext) -> None:
    system = manager.rollback_system
    context.state_data["step"] = 1
    first = system.create_checkpoint(context.sandbox_id, {"why": "start"})
    run_ok(manager, context, edit, path="src/a.py", text="second\n")
    context.state_data["step"] = 2
    second = system.create_checkpoint(context.sandbox_id, {"why": "edited"}, state_data={"step": 2})
    back = system.rollback_to_checkpoint(first.checkpoint_id)
    assert (back.success, back.rollback_type, back.state_restored, back.error) == (True, "full", True, None)
    assert context.state_data == {"step": 1} and run_ok(manager, context, read, path="src/a.py") == "one\n"
    assert system.rollback_to_checkpoint(second.checkpoint_id).success
    assert context.state_data == {"step": 2} and run_ok(manager, context, read, path="src/a.py") == "second\n"
    listed = {each.checkpoint_id: each for each in system.list_checkpoints(context.sandbox_id)}
    assert listed[second.checkpoint_id] == second and second.metadata == {"why": "edited"}
    assert second.timestamp.tzinfo is not None
    system.delete_checkpoint(first.checkpoint_id)
    with pytest.raises(UsageError):
        system.rollback_to_checkpoint("none")


def test_a_checkpoint_can_be_opened_as_a_folder(manager: SandboxManager, context: SandboxContext, repo: Path) -> None:
    def change(text: str) -> None:
        import os

        with open("src/a.py", "w") as file:
            file.write(text)
        os.unlink("src/b.py")
        os.makedirs("new/deep")
        with open("new/deep/c", "w") as file:
            file.write(text)
        os.symlink("deep/c", "new/link")
        os.mkfifo("new/fifo")
        os.chmod("src/a.py", 0o750)

    system = manager.rollback_system
    first = system.create_checkpoint(context.sandbox_id, {})
    assert (repo / "secret/key").exists()  # what is blocked is in no snapshot
    run_ok(manager, context, change, text="changed\n")
    second = system.create_checkpoint(context.sandbox_id, {})
    run_ok(manager, context, edit, path="src/a.py", text="later\n")
    assert "snapshots" not in os.listdir(context.folder)  # nobody has asked for one
    assert _texts(first.filesystem_snapshot) == {"src/a.py": "one\n", "src/b.py": "two\n"}
    assert _texts(second.filesystem_snapshot) == {
        "src/a.py": "changed\n", "new/deep/c": "changed\n", "new/link": "changed\n",
    }  # fmt: skip
    assert os.listdir(second.filesystem_snapshot / "src") == ["a.py"]
    assert (second.filesystem_snapshot / "src/a.py").stat().st_mode & 0o777 == 0o750
    place = second.filesystem_snapshot
    system.delete_checkpoint(second.checkpoint_id)
    assert not place.exists() and first.filesystem_snapshot.is_dir()
    with pytest.raises(UsageError, match="no longer exists"):
        os.listdir(second.filesystem_snapshot)
    manager.commit(context)
    assert os.listdir(context.folder / "snapshots") == []


def _texts(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}


@pytest.mark.parametrize("level", LEVELS)
def test_a_snapshot_of_several_paths_has_each_at_its_own(
    manager: SandboxManager, repo: Path, level: IsolationLevel
) -> None:
    (repo.parent / "other").mkdir()
    (repo.parent / "other/x").write_text("x\n")
    config = SandboxConfig(isolation_level=level, allowed_paths=[repo / "src", repo.parent / "other"])
    with manager.sandbox(config) as context:
        made = manager.rollback_system.create_checkpoint(context.sandbox_id, {})
        top = made.filesystem_snapshot
        assert Path(f"{top}{repo}/src/a.py").read_text() == "one\n"
        assert Path(f"{top}{repo.parent}/other/x").read_text() == "x\n"


def test_a_rollback_can_be_partial(manager: SandboxManager, context: SandboxContext) -> None:
    before = manager.rollback_system.create_checkpoint(context.sandbox_id, {})
    context.state_data["kept"] = True
    run_ok(manager, context, edit, path="src/a.py", text="x\n")
    run_ok(manager, context, edit, path="src/b.py", text="y\n")
    done = manager.rollback(context, before.checkpoint_id, paths=["src/a.py"])
    assert (done.rollback_type, done.state_restored) == ("partial", False) and context.state_data == {"kept": True}
    assert run_ok(manager, context, read, path="src/a.py") == "one\n"
    assert run_ok(manager, context, read, path="src/b.py") == "y\n"


def test_a_rollback_without_a_checkpoint_goes_back_to_the_beginning(manager: SandboxManager, repo: Path) -> None:
    with manager.sandbox(strict(repo, checkpoint_before_execution=False)) as context:
        run_ok(manager, context, edit, path="src/a.py", text="x\n")
        done = manager.rollback(context)
        assert done.success and done.files_restored >= 1 and manager.changes(context) == ()


def test_some_paths_without_a_checkpoint_are_refused_and_nothing_is_lost(manager: SandboxManager, repo: Path) -> None:
    with manager.sandbox(strict(repo, checkpoint_before_execution=False)) as context:
        run_ok(manager, context, edit, path="src/a.py", text="changed\n")
        with pytest.raises(UsageError, match="no checkpoint"):
            manager.rollback(context, paths=["src/b.py"])
        assert run_ok(manager, context, read, path="src/a.py") == "changed\n"


def test_a_commit_of_what_did_not_change_ends_nothing(manager: SandboxManager, context: SandboxContext) -> None:
    run_ok(manager, context, edit, path="src/a.py", text="changed\n")
    kept = manager.rollback_system.create_checkpoint(context.sandbox_id)
    assert manager.commit(context, paths=["src/b.py", "nowhere"]).paths == ()
    assert kept in manager.rollback_system.list_checkpoints(context.sandbox_id)


def test_a_rollback_ends_what_runs_and_says_what_that_was(manager: SandboxManager) -> None:
    with manager.sandbox(strict()) as context:
        assert manager.run(context, ["sh", "-c", "sleep 1234 & sleep 0.1"]).success
        handle = manager.start(context, ["sh", "-c", "echo up; exec sleep 4321"])
        _await_output(handle)
        while "sleep 4321" not in [line.split(" ", 1)[1] for line in manager._of(context).programs()]:
            time.sleep(0.02)  # it is still the shell that has said so
        done = manager.rollback(context)
        assert done.success and {line.split(" ", 1)[1] for line in done.processes_ended} == {"sleep 1234", "sleep 4321"}
        assert handle.wait(20).status is Status.KILLED_KILL
        assert "sleep" not in manager.run(context, ["sh", "-c", "cat /proc/[0-9]*/comm | grep sleep; true"]).stdout


def test_an_attack_that_somebody_else_has_seen_is_rolled_back(manager: SandboxManager, context: SandboxContext) -> None:
    run_ok(manager, context, edit, path="src/a.py", text="good\n")
    manager.rollback_system.create_checkpoint(context.sandbox_id, {})
    run_ok(manager, context, edit, path="src/a.py", text="bad\n")
    last = manager.rollback_system.create_checkpoint(context.sandbox_id, {})
    manager.run(context, ["sh", "-c", "echo worse > src/a.py"])
    done = manager.rollback_system.auto_rollback_on_violation(context.sandbox_id, "exfiltration")
    assert done.success and done.checkpoint_id != last.checkpoint_id  # the one before the last execution
    assert run_ok(manager, context, read, path="src/a.py") == "bad\n"


def test_a_violation_without_a_checkpoint_ends_what_runs(manager: SandboxManager) -> None:
    with manager.sandbox(strict(checkpoint_before_execution=False)) as context:
        handle = manager.start(context, ["sleep", "4321"])
        done = manager.rollback_system.auto_rollback_on_violation(context.sandbox_id, "exfiltration")
        assert (done.success, done.rollback_type) == (False, "failed") and "exfiltration" in (done.error or "")
        assert handle.wait(20).status is Status.KILLED_KILL


def test_without_criu_running_processes_are_not_kept_and_that_is_said(
    manager: SandboxManager, context: SandboxContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criu, "_FOLDERS", "/nowhere")
    before = manager.rollback_system.list_checkpoints(context.sandbox_id)
    with pytest.raises(UnavailableError) as error:
        manager.rollback_system.create_checkpoint(context.sandbox_id, {}, processes=True)
    strictly = context.isolation_level is IsolationLevel.STRICT
    assert error.value.missing == (("criu",) if strictly else ("strict isolation",)) and error.value.hint
    assert manager.rollback_system.list_checkpoints(context.sandbox_id) == before


def test_state_that_cannot_be_kept_is_refused(manager: SandboxManager, context: SandboxContext) -> None:
    for state in ({"a": object()}, {"a": float("nan")}):
        with pytest.raises(UsageError, match="state_data"):
            manager.rollback_system.create_checkpoint(context.sandbox_id, {}, state_data=state)


def test_old_automatic_checkpoints_go(manager: SandboxManager, monkeypatch: pytest.MonkeyPatch) -> None:
    from ringfence.manager import rollback

    monkeypatch.setattr(rollback, "KEPT_AUTOMATIC", 2)
    with manager.sandbox(strict()) as context:
        mine = manager.rollback_system.create_checkpoint(context.sandbox_id, {"mine": True})
        done = [manager.run(context, ["true"]).checkpoint_id for _ in range(5)]
        kept = [each.checkpoint_id for each in manager.rollback_system.list_checkpoints(context.sandbox_id)]
        assert kept == [mine.checkpoint_id, *done[2:]]


def test_old_automatic_checkpoints_go_also_those_from_before_an_attach(
    manager: SandboxManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringfence.manager import rollback

    monkeypatch.setattr(rollback, "KEPT_AUTOMATIC", 2)
    context = manager.create_sandbox(SandboxConfig(isolation_level=IsolationLevel.PROCESS, resource_limits=LIMITS))
    mine = manager.rollback_system.create_checkpoint(context.sandbox_id, {"automatic": True})
    done = []
    for _ in range(4):
        done.append(manager.run(context, ["true"]).checkpoint_id)
        manager.detach(context.sandbox_id)
        context = manager.attach(context.sandbox_id)
    kept = [each.checkpoint_id for each in manager.rollback_system.list_checkpoints(context.sandbox_id)]
    assert kept == [mine.checkpoint_id, *done[2:]]


def test_checkpoints_can_be_bounded_in_what_they_take(manager: SandboxManager) -> None:
    with manager.sandbox(strict()) as context:
        for _ in range(3):
            assert manager.run(context, ["sh", "-c", "head -c 100000 /dev/urandom > file"]).success
        last = manager.rollback_system.create_checkpoint(context.sandbox_id, {})
        assert len(manager.rollback_system.list_checkpoints(context.sandbox_id)) == 4
        assert len(manager.rollback_system.collect(context.sandbox_id, 150_000)) >= 2
        kept = [each.checkpoint_id for each in manager.rollback_system.list_checkpoints(context.sandbox_id)]
        assert kept[-1] == last.checkpoint_id and manager.rollback(context).success
        assert manager.run(context, ["true"]).success


# ---- limits that the monitor holds


def test_a_busy_loop_is_ended_after_its_time_over_the_limit(tmp_path: Path) -> None:
    limits = ResourceLimits(max_cpu_percent=10, max_execution_time=60, max_file_operations=100_000)
    with SandboxManager(sandbox_root=tmp_path / "busy") as manager:
        manager.monitor._over_for_s["max_cpu_percent"] = 0.5
        with manager.sandbox(strict(resource_limits=limits)) as context:
            done = manager.run(context, [sys.executable, "-c", "while True: pass"])
            assert done.status is Status.CPU_LIMIT and not done.success and done.rolled_back
            assert done.reason.startswith("cpu: ") and done.error == f"CPU_LIMIT: {done.reason}"
            assert any("cpu" in violation for violation in done.violations)
            manager.monitor._over_for_s["max_cpu_percent"] = 60  # to open a box anew takes processor time, too
            assert manager.run(context, ["true"]).success


@pytest.mark.parametrize("level", LEVELS)
def test_a_flood_of_file_operations_is_ended(manager: SandboxManager, level: IsolationLevel) -> None:
    def flood(count: int) -> None:
        import os
        import time

        zero = os.open("/dev/zero", os.O_RDONLY)
        for _ in range(count):
            os.read(zero, 1)
        time.sleep(0.5 if count < 1000 else 60)

    limits = ResourceLimits(max_file_operations=1000, max_execution_time=60)
    with manager.sandbox(SandboxConfig(isolation_level=level, resource_limits=limits)) as context:
        for _ in range(3):  # of each execution, not of all together
            run_ok(manager, context, flood, count=300)
        done = manager.execute_in_sandbox(context, flood, {"count": 20_000})
        assert done.status is Status.OPERATIONS_LIMIT and done.duration_s < 50
        assert done.error is not None and done.error.startswith("OPERATIONS_LIMIT: file operations: ")
        assert done.resource_usage is not None and done.resource_usage.violations == list(done.violations)


def test_operations_are_counted_for_each_execution_alone_and_to_its_end(tmp_path: Path) -> None:
    def operations(count: int, wait_s: float = 0.0) -> None:
        import os
        import time

        print("begun", flush=True)
        zero = os.open("/dev/zero", os.O_RDONLY)
        for _ in range(count):
            os.read(zero, 1)
        time.sleep(wait_s)

    limits = ResourceLimits(max_file_operations=1000, max_execution_time=60)
    with SandboxManager(sandbox_root=tmp_path / "counted") as manager:
        manager.monitor = ResourceMonitor(deep_every_s=3600.0)  # which by itself looks at the beginning only
        with manager.sandbox(strict(resource_limits=limits)) as context:
            for _ in range(3):
                run_ok(manager, context, operations, count=500)
            look = lambda *_: manager.monitor.sample(context.sandbox_id)  # noqa: E731
            late = manager.execute_in_sandbox(context, operations, {"count": 500, "wait_s": 0.3}, on_output=look)
            assert late.success, late.violations
            flood = manager.execute_in_sandbox(context, operations, {"count": 3000})
            assert not flood.success and flood.rolled_back and "file operations" in str(flood.violations)


def _operate(count: int, wait_s: float = 0.0, short_children: int = 0) -> None:
    import os
    import time

    zero = os.open("/dev/zero", os.O_RDONLY)
    for _ in range(short_children):
        child = os.fork()
        if child == 0:
            for _ in range(100):
                os.read(zero, 1)
            os._exit(0)
        os.waitpid(child, 0)
    for _ in range(count):
        os.read(zero, 1)
    time.sleep(wait_s)


@pytest.mark.parametrize("level", LEVELS)
def test_above_the_limit_of_operations_is_a_violation_each_time_and_below_it_never(
    manager: SandboxManager, level: IsolationLevel
) -> None:
    """However short it is, and whoever makes them: the same number is made each time, and one less is too few."""
    cases = [{"count": 800, "wait_s": 0.0}, {"count": 800, "wait_s": 0.06}, {"count": 0, "short_children": 8}]
    with manager.sandbox(SandboxConfig(isolation_level=level, resource_limits=LIMITS)) as context:
        done = [manager.execute_in_sandbox(context, _operate, case).resource_usage for case in cases]
    made = {usage.file_operations for usage in done if usage is not None}
    (number,) = made
    assert 800 < number < 1200
    for limit, expected in ((number, Status.OK), (number - 1, Status.OPERATIONS_LIMIT)):
        limits = ResourceLimits(max_execution_time=60, max_file_operations=limit)
        with manager.sandbox(SandboxConfig(isolation_level=level, resource_limits=limits)) as context:
            ended = [manager.execute_in_sandbox(context, _operate, case) for case in cases[::2]]
        assert [one.status for one in ended] == [expected] * 2, [one.resource_usage for one in ended]


@pytest.mark.parametrize("level", LEVELS)
def test_operations_of_one_execution_are_not_those_of_another_beside_it(
    manager: SandboxManager, level: IsolationLevel
) -> None:
    limits = ResourceLimits(max_execution_time=60, max_file_operations=1200)
    with manager.sandbox(SandboxConfig(isolation_level=level, resource_limits=limits)) as context:
        with ThreadPoolExecutor(3) as beside:
            each = [beside.submit(manager.execute_in_sandbox, context, _operate, {"count": 800, "wait_s": 0.3})
                    for _ in range(3)]  # fmt: skip
        ended = [one.result() for one in each]
        assert [one.status for one in ended] == [Status.OK] * 3, [one.resource_usage for one in ended]


@pytest.mark.parametrize("level", LEVELS)
def test_the_usage_in_a_result_is_that_of_the_execution(manager: SandboxManager, level: IsolationLevel) -> None:
    def use(megabytes: int, busy_s: float) -> None:
        import os
        import time

        hoard = b"x" * (megabytes << 20)
        with open("file", "wb") as file:
            for _ in range(megabytes):
                file.write(hoard[: 1 << 20])
            file.flush()
            os.fsync(file.fileno())
        until_s = time.process_time() + busy_s
        while time.process_time() < until_s:
            pass
        time.sleep(0.5)  # of what has ended only root can still read the counts

    with manager.sandbox(SandboxConfig(isolation_level=level, resource_limits=LIMITS)) as context:
        much = manager.execute_in_sandbox(context, use, {"megabytes": 60, "busy_s": 0.5})
        little = manager.execute_in_sandbox(context, use, {"megabytes": 0, "busy_s": 0.0})
        assert much.success and little.success, (much.error, little.error)
    more, less = much.resource_usage, little.resource_usage
    assert more is not None and less is not None
    assert more.memory_mb > 60 and more.cpu_percent * more.execution_time > 40 and more.disk_mb >= 59
    assert less.memory_mb < more.memory_mb and less.disk_mb < 5
    assert less.file_operations <= LIMITS.max_file_operations / 100


def test_usage_can_be_asked_for(manager: SandboxManager) -> None:
    with manager.sandbox(strict()) as context:
        assert manager.run(context, ["true"]).success
        assert manager.monitor.get_usage(context.sandbox_id).memory_mb >= 0
        assert manager.monitor.check_violations(context.sandbox_id) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_sandbox_is_monitored_as_the_specification_has_it(tmp_path: Path, level: IsolationLevel) -> None:
    """By its id and limits alone: before the first execution, by the manager's monitor or one's own, box after box."""
    limits = ResourceLimits(max_cpu_percent=5, max_file_operations=10**9)
    config = SandboxConfig(isolation_level=level, resource_limits=LIMITS)
    own = ResourceMonitor(over_for_s={"max_cpu_percent": 0.3})
    with SandboxManager(sandbox_root=tmp_path / "s") as manager, manager.sandbox(config) as context, own:
        for monitor in (manager.monitor, own):
            monitor.start_monitoring(context.sandbox_id, limits)
            assert monitor.check_violations(context.sandbox_id) == []
            with pytest.raises(UsageError, match="monitored already"):
                monitor.start_monitoring(context.sandbox_id, limits)
        manager.rollback(context)  # which gives it another box
        busy = manager.start(context, [sys.executable, "-c", "while True: pass"])
        while not own.terminate_if_violated(context.sandbox_id):
            time.sleep(0.05)
        assert not busy.wait(30).ok
        assert own.violations(context.sandbox_id)[0].name == "max_cpu_percent"
        assert manager.monitor.stop_monitoring(context.sandbox_id).execution_time > 0
        assert manager.monitor.get_usage(context.sandbox_id).execution_time > 0  # the manager's own goes on


def test_to_stop_monitoring_does_not_take_a_limit_off(manager: SandboxManager) -> None:
    limits = ResourceLimits(max_file_operations=300, max_execution_time=60)
    code = "import os, time\nzero = os.open('/dev/zero', 0)\nfor _ in range(9000): os.read(zero, 1)\ntime.sleep(50)"
    with manager.sandbox(strict(resource_limits=limits)) as context:
        manager.monitor.start_monitoring(context.sandbox_id, LIMITS)
        manager.monitor.stop_monitoring(context.sandbox_id)
        assert manager.run(context, ["true"]).success
        manager.monitor.stop_monitoring(context.sandbox_id)
        assert manager.run(context, [sys.executable, "-c", code]).status is Status.OPERATIONS_LIMIT


def test_a_lone_rollback_system_knows_the_open_sandboxes_of_the_process(
    manager: SandboxManager, context: SandboxContext
) -> None:
    alone = RollbackSystem()
    made = alone.create_checkpoint(context.sandbox_id, {"why": "before"})
    run_ok(manager, context, edit, path="src/a.py", text="changed\n")
    assert made.checkpoint_id in [each.checkpoint_id for each in alone.list_checkpoints(context.sandbox_id)]
    assert alone.rollback_to_checkpoint(made.checkpoint_id).success
    assert run_ok(manager, context, read, path="src/a.py") == "one\n"
    assert alone.auto_rollback_on_violation(context.sandbox_id, "cpu").success
    alone.delete_checkpoint(made.checkpoint_id)
    with pytest.raises(UsageError, match="no sandbox 'nobody'"):
        alone.create_checkpoint("nobody", {})
