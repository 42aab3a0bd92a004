"""What a grading comes to, from how the sandbox ended and what its first process reported."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model.outcome import Outcome, Status
from ringfence.proctor import grading, script_grader
from ringfence.proctor.grading import Grading
from ringfence.proctor.guest import grader_process
from ringfence.proctor.guest.site import sitecustomize
from ringfence.proctor.submission import Dropped, Submission

PATH = "/logs/reward.txt"


def _outcome(told: object, status: Status = Status.OK, rc: int = 0) -> Outcome:
    message = told if isinstance(told, bytes) else json.dumps(told).encode()
    return Outcome(status=status, rc=rc, reason="as \x1b[31m it was", message=message, stderr=b"\x1b[2Jred\n")


def _reward(data: bytes, writers: int = 1, *touched: str) -> dict[str, object]:
    return {"data": data.hex(), "writers": writers, "touched": list(touched)}


def test_the_verdict_is_the_graders_own_end() -> None:
    passed = script_grader.verdict(_outcome({"wall": 7, "code": 0}), "", {})
    assert passed.passed and passed.reward is None and not passed.forged
    for told, status, rc in [({"wall": 7, "code": 1}, Status.FAILED, 1), ({"wall": 7, "code": -9}, Status.FAILED, 137),
                             (b"", Status.TIMEOUT, 124), (b"", Status.KILLED_KILL, 137),
                             (b"", Status.OK, 0), ({"wall": 7, "code": 1}, Status.OK, 0),
                             ({"wall": 7, "code": 0}, Status.MEM_LIMIT, 137)]:  # fmt: skip
        failed = script_grader.verdict(_outcome(told, status, rc), "", {})
        assert not failed.passed and failed.reward is None and "\x1b" not in failed.reason


def test_escapes_of_terminals_stay_out_of_what_people_read() -> None:
    found = script_grader.verdict(_outcome({"wall": 7, "code": 1}, Status.FAILED, 1), "", {})
    assert found.details["stderr_tail"] == "\\x1b[2Jred\n" and "\\x1b" in found.reason


# shortcoming 4
def test_a_reward_counts_only_with_exit_status_0_and_a_pass_only_with_a_reward() -> None:
    def graded(reward: dict[str, object], code: int = 0) -> Grading:
        status = Status.FAILED if code else Status.OK
        told = {"wall": 7, "code": code, "reward": reward}
        return script_grader.verdict(_outcome(told, status, code), PATH, {})

    good = graded(_reward(b"0.5"))
    assert good.passed and good.reward == 0.5
    assert (graded(_reward(b"0")).passed, graded(_reward(b"0")).reward) == (False, 0.0)
    assert (graded(_reward(b"1"), code=1).passed, graded(_reward(b"1"), code=1).reward) == (False, 0.0)
    forged = graded(_reward(b"1", 2))
    assert not forged.passed and forged.reward == 0.0 and forged.forged
    assert not graded(_reward(b"", 0)).passed and graded(_reward(b"inf")).reward == 0.0


@pytest.mark.parametrize("message", [b"no json", b"[1]", b"{" * 5000, b'{"code": 0}' + b" " * (2 << 20)],
                         ids=["text", "list", "depth", "length"])  # fmt: skip
def test_a_report_that_is_none_passes_nobody(message: bytes) -> None:
    assert not script_grader.verdict(_outcome(message), "", {}).passed
    odd = {"wall": 7, "code": 0, "reward": {"data": "zz", "writers": "1", "touched": "x"}}
    assert not script_grader.verdict(_outcome(odd), PATH, {}).passed


def test_a_kernel_that_cannot_keep_the_promise_is_no_fail_of_the_agent() -> None:
    with pytest.raises(UnavailableError, match="Landlock"):
        script_grader.verdict(_outcome({"wall": 0}, Status.FAILED, 125), "", {})


@pytest.mark.parametrize("details", [
    {"restored": ["\x7f" * 3000] * 100_000}, {"uncollected": {f"{number}{'x' * 3000}": "no" for number in range(9000)}},
    {"messages": {"a": "\\" * (30 << 20)}}, {"tests": {"deep": [["y" * 3000]] * 100_000}},
], ids=["list", "names", "text", "deep"])  # fmt: skip
def test_a_grading_of_any_size_fits_into_a_bundle(details: dict[str, object]) -> None:
    """One that does not would be a run without a verdict, which code under test could bring about."""
    document = Grading(passed=False, details={"first": "kept", **details, "last": "left out"}).plain()
    assert len(json.dumps(json.dumps(document))) < 3 * grading.MAX_CHARS and document["cut"] is True
    assert document["details"]["first"] == "kept" and "last" not in document["details"]  # type: ignore[index,operator]
    small = {"names": ["a"], "pairs": {"b": (1, 2.5, None)}}
    kept = Grading(passed=True, details=small).plain()
    assert kept["details"] == {"names": ["a"], "pairs": {"b": [1, 2.5, None]}} and "cut" not in kept


def test_a_forged_grading_has_neither_pass_nor_reward() -> None:
    with pytest.raises(ValueError):
        Grading(passed=True, forged="so")
    with pytest.raises(ValueError):
        Grading(passed=False, reward=1.0, forged="so")
    plain = Grading(passed=False, reward=0.0, forged="so", details={"a": 1}, outcome=_outcome(b"")).plain()
    assert json.loads(json.dumps(plain))["forged"] == "so"


class _Grader:
    argv, script, pytest, reward_file, wall_time_s = ("true",), "", (), PATH, 5.0


class _Task:
    id, grader, oracle = "t", _Grader(), ""


def test_what_cannot_be_imported_fails_and_starts_nothing() -> None:
    broken = Submission(folder="/nowhere", problem="too deep", dropped=(Dropped(path="p", reason="r"),))
    found = grading.grade(_Task(), broken)  # type: ignore[arg-type]
    assert not found.passed and found.reward == 0.0 and found.reason == "too deep" and found.outcome is None
    assert found.details["dropped"] == [{"path": "p", "reason": "r"}]


def test_tests_of_pytest_go_to_their_own_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("ringfence.proctor.pytest_grader")
    module.grade = lambda task, prepared, submission, on_event: Grading(passed=True, reason=prepared)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ringfence.proctor.pytest_grader", module)
    task = _Task()
    task.grader = type("G", (_Grader,), {"pytest": ("test_a.py",), "instance": None})()
    left = Submission(folder="/x", dropped=(Dropped(path="p", reason="r"),), settings=("conftest.py",))
    found = grading.grade(task, left, prepared="made")  # type: ignore[arg-type]
    assert found.reason == "made" and found.details["test_settings"] == ["conftest.py"] and found.details["dropped"]
    with pytest.raises(UsageError, match=r"prepare\(\) was not called"):
        grading.grade(task, Submission(folder="/x"))  # type: ignore[arg-type]
    task.grader = None  # type: ignore[assignment]
    with pytest.raises(UsageError, match="no grader"):
        grading.grade(task, Submission(folder="/x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("words", "script"), [
    (["python3", "a.py"], "a.py"), (["python3"], ""), (["python3", "-"], ""), (["python3", "-m", "pytest"], ""),
    (["python3", "-Wd", "-X", "dev", "-OO", "a.py", "-c"], "a.py"), (["python3", "-Im", "x"], ""),
    (["python3", "--", "a.py"], "a.py"), (["python3", "--check-hash-based-pycs", "never", "b.py"], "b.py"),
])  # fmt: skip
def test_the_script_of_a_command_line_is_found(words: list[str], script: str) -> None:
    assert sitecustomize.script_of(words) == script


def test_modules_of_the_submission_come_last_and_those_of_the_grader_first() -> None:
    path = ["/usr/lib/python3"]
    sitecustomize.arrange(path, ["python3", "-c", ""], "/workspace", "/workspace")
    assert path == ["/usr/lib/python3", "/workspace"]
    path = ["/usr/lib/python3"]
    sitecustomize.arrange(path, ["python3", "/oracle/check.py"], "/workspace", "/workspace")
    assert path == ["/oracle", "/usr/lib/python3", "/workspace"]
    path = ["/usr/lib/python3"]
    sitecustomize.arrange(path, ["python3", "tools/run.py"], "/workspace", "/workspace")
    assert path == ["/usr/lib/python3", "/workspace/tools", "/workspace"]


def _started(work: Path, code: str, *words: str, python: str = sys.executable) -> str:
    """What a Python prints that starts as it does in a grader's sandbox, with its options."""
    own = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.path.dirname(sitecustomize.__file__), "PROCTOR_WORKSPACE": str(work)}
    done = subprocess.run([python, "-B", *words, *(("-c", code) if code else ())], cwd=work, env=own,
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]


@pytest.mark.system
def test_names_of_the_standard_library_that_are_not_installed_are_not_found(tmp_path: Path) -> None:
    for name in ("org", "msvcrt", "winreg", "json", "pytest", "solution"):
        (tmp_path / f"{name}.py").write_text("import os; place = os.path.dirname(__file__)")
    (tmp_path / "java").mkdir()
    tried = """
from importlib import import_module
for name in ("solution", "json", "pytest", "org", "msvcrt", "winreg", "java"):
    try:
        print(hasattr(import_module(name), "place"), end=" ")
    except ModuleNotFoundError as error:
        print(error.name, end=" ")
"""
    assert _started(tmp_path, tried) == "True False False org msvcrt winreg java"
    # Control: without the guard the last place on the path answers.
    unguarded = "import sys; del sys.meta_path[-2]; import org; print(org.place)"
    assert _started(tmp_path, unguarded) == str(tmp_path)


@pytest.mark.system
def test_in_an_image_the_guard_holds_for_pytest_as_a_module(tmp_path: Path) -> None:
    text = Path(sitecustomize.__file__).read_text()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(text.replace(sitecustomize.IN_AN_IMAGE, f"{tmp_path}/"))
    (tmp_path / "app").mkdir()
    for name in ("org", "msvcrt"):
        (tmp_path / "app" / f"{name}.py").write_text("import os\nos._exit(7)")
    run = [sys.executable, "-B", "-m", "pytest", "--version"]
    guarded = {"PYTHONPATH": str(tmp_path / "site")}
    assert subprocess.run(run, cwd=tmp_path / "app", env={}, capture_output=True).returncode == 7
    assert subprocess.run(run, cwd=tmp_path / "app", env=guarded, capture_output=True).returncode == 0


@pytest.mark.system
def test_a_python_that_does_not_know_the_variable_finds_the_submission_last_too(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    text = Path(sitecustomize.__file__).read_text().replace("sys.flags", "object()")
    (tmp_path / "site" / "sitecustomize.py").write_text(text)
    app = tmp_path / "app"
    (app / "tools").mkdir(parents=True)
    for name in ("json", "pip", "textwrap"):
        for folder in (app, app / "tools"):
            (folder / f"{name}.py").write_text("planted = 1")
    (app / "solution.py").touch()
    (app / "tools" / "beside.py").touch()
    code = """
import json, textwrap, solution
try:
    import pip
except ImportError:
    pip = None
print(any(hasattr(each, "planted") for each in (json, textwrap, pip)))
"""
    (app / "tools" / "run.py").write_text(f"import beside{code}")
    (app / "solution_program.py").write_text(code)

    def said(site: str, *words: str) -> str:
        own = {"PYTHONPATH": site, "PROCTOR_WORKSPACE": str(app)}
        done = subprocess.run([sys.executable, "-B", *words], cwd=app, env=own, capture_output=True, text=True)
        return done.stdout.strip() or done.stderr

    for words in (("-c", code), ("-m", "solution_program")):
        assert said(str(tmp_path / "site"), *words) == "False"
        assert said("", *words) == "True"  # control
    assert said(str(tmp_path / "site"), "tools/run.py") == "False"


@pytest.mark.system
def test_a_submission_may_be_what_only_a_runner_asks_for_where_there_is_no_runner(tmp_path: Path) -> None:
    (tmp_path / "tomli").mkdir()
    (tmp_path / "tomli" / "__init__.py").write_text("here = 'here'")
    (tmp_path / "pytest.py").write_text("")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    home = os.path.dirname(os.path.realpath(sys.executable))
    settings = f"home = {home}\ninclude-system-site-packages = false\n"
    (tmp_path / "venv" / "pyvenv.cfg").write_text(settings)
    empty = tmp_path / "venv" / "bin" / "python"
    empty.symlink_to(os.path.realpath(sys.executable))
    assert _started(tmp_path, "import tomli; print(tomli.here)", python=str(empty)) == "here"
    assert _started(tmp_path, "import pytest", python=str(empty)) == "ModuleNotFoundError: No module named 'pytest'"
    # Control: beside an installed pytest a name that it may ask for is looked for among what is installed alone.
    if importlib.util.find_spec("tomli") is None:
        assert _started(tmp_path, "import tomli") == "ModuleNotFoundError: No module named 'tomli'"


def test_the_graders_environment_names_nothing_of_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/evil.so")
    made = script_grader.environment("/app", PATH)
    assert made["PROCTOR_WORKSPACE"] == "/app" and made["PROCTOR_REWARD_FILE"] == PATH
    assert not [name for name in made if name.startswith(("LD_", "BASH"))]
    pairs = {made[f"GIT_CONFIG_KEY_{n}"]: made[f"GIT_CONFIG_VALUE_{n}"] for n in range(int(made["GIT_CONFIG_COUNT"]))}
    assert pairs["core.fsmonitor"] == "false" and pairs["core.hooksPath"] == "/dev/null"


OPENED, MODIFIED, WRITTEN, READ, MOVED = 0x20, 0x2, 0x8, 0x10, 0x800


@pytest.mark.parametrize(("events", "writers", "touched"), [
    ([MODIFIED, OPENED, MODIFIED, WRITTEN], 1, False),
    ([OPENED, READ, OPENED, WRITTEN, OPENED, READ], 1, False),
    ([OPENED, MODIFIED, OPENED, MODIFIED, WRITTEN], 1, True),  # two closings that became one event
    ([OPENED, READ, READ, OPENED, WRITTEN], 1, True),  # two openings that became one
    ([OPENED, WRITTEN, OPENED, WRITTEN], 2, False),
    ([OPENED, WRITTEN, MOVED], 1, True),
    ([0x4000], 0, True),
    ([MODIFIED, OPENED, WRITTEN, MODIFIED, OPENED, READ], 1, True),  # cut, and looked at
    ([OPENED, WRITTEN, MODIFIED, OPENED, MODIFIED, WRITTEN], 2, False),  # emptied by a second writer
])  # fmt: skip
def test_who_opens_the_reward_file_does_so_in_turns(events: list[int], writers: int, touched: bool) -> None:
    watch = grader_process.Watch.__new__(grader_process.Watch)
    watch.writers, watch.touched, watch._is_open, watch._is_cut = 0, set(), False, False
    for mask in events:
        watch._note(mask)
    assert (watch.writers, bool(watch.touched)) == (writers, touched)


def test_nothing_is_killed_outside_of_a_sandbox(capfd: pytest.CaptureFixture[str]) -> None:
    assert not grader_process.is_in_sandbox()
    assert grader_process.main(["lead", "", "--", "true"]) == 2 and grader_process.main([]) == 2


def test_where_the_oracle_is_stands_in_the_confining_command(capfd: pytest.CaptureFixture[str]) -> None:
    *_, verb, word = script_grader.environment("/app", oracle_at="/the answers/*")["PROCTOR_CONFINE"].split()
    assert verb == "confine" and grader_process.oracle_of(word) == "/the answers/*" and "*" not in word
    assert script_grader.environment("/app")["PROCTOR_CONFINE"].endswith(" confine")
    assert grader_process.main(["confine", word]) == grader_process.main(["confine"]) == 2
    assert capfd.readouterr().err.count("usage") == 2


def test_what_the_first_process_tells_is_json() -> None:
    touched = sorted(grader_process._TOUCHES.values())
    told = {"wall": 7, "code": -9, "reward": {"data": b"1\n".hex(), "writers": 1, "touched": touched},
            "preferred": {"data": "", "writers": 0, "touched": []}}  # fmt: skip
    assert json.loads(grader_process.as_json(told)) == told


def test_an_operators_full_disk_is_an_error_without_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(script_grader, "new_folder", full)
    with pytest.raises(SetupError, match="No space") as error:
        script_grader._private_folder(str(tmp_path / "submission"))
    assert error.value.errno == errno.ENOSPC and error.value.hint


def test_places_beside_closed_ones_are_the_highest_and_no_links(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    closed = [f"{tmp_path}/a/b/c"]
    assert grader_process.beside(closed, str(tmp_path)) == [f"{tmp_path}/a/d", f"{tmp_path}/e"]
