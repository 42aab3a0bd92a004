"""run_pytests and run_pytests_v2: statuses, counts, determinism, and what must keep working under them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence import IsolationLevel, SandboxPolicy, run_pytests, run_pytests_v2
from ringfence.cli.json_text import json_text
from ringfence.pytest_runner import records
from ringfence.pytest_runner.records import parse_records

pytestmark = pytest.mark.privileges

KEYS = {"version", "status", "rc", "reason", "stdout", "stderr", "duration_ms", "cmd", "traceId", "enforced", "usage",
        "counts", "tests", "limits_hit", "garbled", "doubt", "hints"}  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that the caller stands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def _write(folder: Path, body: str, name: str = "test_sample.py") -> str:
    (folder / name).write_text(body)
    return name


def test_a_passing_suite_is_ok(suite: Path) -> None:
    result = run_pytests_v2([_write(suite, "def test_a(): pass\ndef test_b(): pass\n")], SandboxPolicy())
    assert set(result) == KEYS
    assert (result["version"], result["status"], result["rc"]) == (2, "OK", 0)
    assert result["counts"]["passed"] == 2
    assert result["cmd"][1].endswith("pytest_runner/guest/start.py")


def test_each_kind_of_outcome_is_counted_and_named(suite: Path) -> None:
    body = (
        "import pytest\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert False\n"
        "@pytest.mark.skip\ndef test_skips(): pass\n"
        "@pytest.mark.xfail\ndef test_xfails(): assert False\n"
        "@pytest.mark.xfail\ndef test_xpasses(): pass\n"
        "@pytest.fixture\ndef broken(): raise RuntimeError\n"
        "def test_errors(broken): pass\n"
    )
    result = run_pytests_v2([_write(suite, body)], SandboxPolicy())
    assert result["status"] == "FAILED"
    assert result["rc"] == 1
    assert result["counts"] == {"passed": 1, "failed": 1, "error": 1, "skipped": 1, "xfailed": 1, "xpassed": 1,
                                "rerun": 0, "deselected": 0}  # fmt: skip
    outcomes = {test["test"].rpartition("::test_")[2]: test["outcome"] for test in result["tests"]}
    assert outcomes == {"passes": "passed", "fails": "failed", "skips": "skipped", "xfails": "xfailed",
                        "xpasses": "xpassed", "errors": "error"}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "policy", "status", "rc"),
    [
        ("import time\ndef test_a(): time.sleep(30)", {"wall_time_s": 2}, "TIMEOUT", 124),
        ("def test_a():\n while True: pass", {"cpu_time_s": 1}, "CPU_LIMIT", 152),
        ("import os\ndef test_a(): os.kill(os.getpid(), 9)", {}, "KILLED_KILL", 137),
        ("import os\ndef test_a(): os.kill(os.getpid(), 15)", {}, "KILLED_TERM", 143),
        ("import os\ndef test_a(): os.abort()", {}, "CRASHED", 134),
        ("import os, time\ndef test_a():\n for _ in range(50):\n  if os.fork() == 0: time.sleep(30)\n time.sleep(30)",
         {"pids_max": 10}, "PIDS_LIMIT", None),
        ("def test_a(): assert False", {}, "FAILED", 1),
        ("def nothing(): pass", {}, "FAILED", 5),
    ],
    ids=["timeout", "cpu", "kill", "term", "crash", "pids", "failed", "no tests"],
)  # fmt: skip
def test_each_end_has_its_status_and_return_code(
    suite: Path, body: str, policy: dict[str, object], status: str, rc: int | None
) -> None:
    result = run_pytests_v2([_write(suite, body)], SandboxPolicy.from_dict(policy))
    if rc is None:  # a group refuses the fork, and the test fails; the watchdog kills
        rc = 1 if "cgroup" in result["enforced"]["pids"]["by"] else 137
    assert (result["status"], result["rc"]) == (status, rc), result["reason"]
    assert result["reason"]


def test_memory_beyond_the_limit_is_told_apart_from_a_plain_failure(suite: Path) -> None:
    body = "def test_a():\n blocks = []\n while True: blocks.append(bytearray(16 << 20))\n"
    hog = "import sys\nblocks = []\nwhile True: blocks.append(bytearray(16 << 20))\n"
    for plugins in ([], ["-p", "no:hypothesispytest", "-p", "no:_hypothesis_pytestplugin"]):
        failing = run_pytests_v2([_write(suite, body)], SandboxPolicy(mem_bytes=300 << 20), arguments=plugins)
        told = (failing["status"], failing["rc"], failing["limits_hit"])
        assert told == ("MEM_LIMIT", 137, ["memory"]), failing["reason"]
    from ringfence import run

    outcome = run([sys.executable, "-c", hog], SandboxPolicy(mem_bytes=300 << 20))
    assert (outcome.status, outcome.rc) == ("MEM_LIMIT", 137)


def test_usage_is_that_of_the_run(suite: Path) -> None:
    body = (
        "import time\ndef test_a():\n block = bytearray(100 << 20)\n"
        " while time.process_time() < 2: pass\n with open('f', 'wb') as f: f.write(block[:5 << 20])\n"
    )
    usage = run_pytests_v2([_write(suite, body)])["usage"]
    assert usage["peak_memory_bytes"] > 100 << 20
    assert usage["wall_s"] > 1 and usage["cpu_user_s"] + usage["cpu_system_s"] > 1.9


def test_output_beyond_the_cap_is_cut_with_a_marker(suite: Path) -> None:
    body = "import os\ndef test_a():\n for _ in range(64): os.write(1, b'x' * 65536)\n"
    result = run_pytests_v2([_write(suite, body)], SandboxPolicy(), arguments=["-s"])
    assert result["status"] == "OK"
    assert "[TRUNCATED]" in result["stdout"]
    assert len(result["stdout"]) < (1 << 20) + 100
    assert result["limits_hit"] == ["output"]


@pytest.mark.parametrize("ending", [
    "os._exit(0)", "sys.exit(0)", "pytest.exit('bye', returncode=0)", "[os.write(3, DONE), os._exit(0)]",
    "[os.write(3, PASSED + DONE + DONE), pytest.exit('bye', returncode=0)]",
])  # fmt: skip
def test_a_test_that_ends_the_process_with_0_does_not_pass(suite: Path, ending: str) -> None:
    told = 'PASSED = b\'{"test":"x","outcome":"passed","duration_s":0}\\n\'\nDONE = b\'{"finished": 0}\\n\'\n'
    body = f"import os, sys, pytest\n{told}def test_a(): {ending}\ndef test_b(): assert False\n"
    result = run_pytests_v2([_write(suite, body)], SandboxPolicy())
    assert (result["status"], result["rc"]) == ("FAILED", 1), result["reason"]


@pytest.mark.parametrize(("body", "status", "rc"), [
    ("def nothing(): pass", "FAILED", 5),
    ("import pytest\n@pytest.mark.skip\ndef test_a(): pass", "OK", 0),
    ("import pytest\n@pytest.mark.xfail\ndef test_a(): assert False", "OK", 0),
    ("import pytest\ndef test_a(): pass\ndef test_b(): pytest.exit('bye', returncode=0)", "FAILED", 1),
    ("import os\ndef test_a(): os.write(3, b'what is this\\n')", "FAILED", 1),
    ("def test_a(): assert False\ndef test_b(request): request.session.testsfailed = 0", "FAILED", 1),
], ids=["none", "skipped", "xfailed", "broken off", "garbled", "forgotten"])  # fmt: skip
def test_ok_needs_a_whole_session_with_a_test_in_it(suite: Path, body: str, status: str, rc: int) -> None:
    result = run_pytests_v2([_write(suite, body)])
    assert (result["status"], result["rc"]) == (status, rc), result["reason"]
    assert result["garbled"] == ("what is this" in body)


def test_two_runs_have_the_same_status_return_code_and_header(suite: Path) -> None:
    name = _write(suite, "import random\ndef test_a(): assert len({'a', 'b', hash('x')}) == 3\n")
    first, second = (run_pytests_v2([name], SandboxPolicy(), arguments=["-v"]) for _ in range(2))
    assert first["status"] == second["status"] == "OK"
    assert first["rc"] == second["rc"] == 0
    header = [result["stdout"].split("collecting")[0] for result in (first, second)]
    assert header[0] == header[1]
    assert "rootdir" in header[0]
    assert first["enforced"] == second["enforced"]
    assert first["traceId"] != second["traceId"]


def test_the_environment_is_deterministic_and_clean(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "x")
    body = (
        "import os, sys\n"
        "def test_a():\n"
        " assert os.environ['PYTHONHASHSEED'] == '0' and sys.dont_write_bytecode\n"
        " assert 'MY_SECRET' not in os.environ\n"
    )
    result = run_pytests_v2([_write(suite, body)], SandboxPolicy())
    assert result["status"] == "OK", result["stdout"]
    assert not list(suite.rglob("__pycache__"))


def test_tests_run_in_a_folder_of_their_own_and_leave_the_callers_alone(suite: Path) -> None:
    (suite / "helper.py").write_text("VALUE = 7\n")
    body = "import helper, os\ndef test_a():\n open('litter', 'w').close()\n assert os.listdir('.') == ['litter']\n"
    name = _write(suite, body)
    result = run_pytests_v2([name], SandboxPolicy())
    assert result["status"] == "OK", result["stdout"]
    assert sorted(path.name for path in suite.iterdir()) == ["helper.py", name]


def test_here_runs_the_tests_in_the_current_folder(suite: Path) -> None:
    name = _write(suite, "def test_a(): open('litter', 'w').close()\n")
    assert run_pytests_v2([name], SandboxPolicy(), here=True)["status"] == "OK"
    assert (suite / "litter").exists()


def test_pythonpath_is_propagated(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (suite / "lib").mkdir()
    (suite / "lib" / "far_module.py").write_text("X = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(suite / "lib"))
    assert run_pytests_v2([_write(suite, "import far_module\ndef test_a(): pass\n")])["status"] == "OK"


def test_variables_of_the_policy_win_over_the_callers(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (suite / "lib").mkdir()
    (suite / "lib" / "far_module.py").write_text("X = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(suite / "elsewhere"))
    body = "import far_module, os\ndef test_a(): assert os.environ['PYTHONHASHSEED'] == '7'\n"
    policy = SandboxPolicy(environment={"PYTHONPATH": str(suite / "lib"), "PYTHONHASHSEED": "7"})
    result = run_pytests_v2([_write(suite, body)], policy)
    assert result["status"] == "OK", result["stdout"]


def test_coverage_of_a_subprocess_is_measured(
    suite: Path, monkeypatch: pytest.MonkeyPatch, unmeasured_spawner: None
) -> None:
    (suite / "product.py").write_text("def double(x):\n    return 2 * x\n")
    (suite / "rc").write_text(f"[run]\nparallel = true\ndata_file = {suite}/.coverage\n")
    monkeypatch.setenv("COVERAGE_PROCESS_START", "rc")
    monkeypatch.delenv("COVERAGE_FILE", raising=False)
    body = (
        "import coverage, os\ncoverage.process_startup()\nimport product\ndef test_a(): assert product.double(2) == 4\n"
    )
    result = run_pytests_v2([_write(suite, body)], SandboxPolicy())
    assert result["status"] == "OK", result["stdout"]
    assert list(suite.glob(".coverage.*"))


def test_pytest_cov_works_and_its_data_reaches_the_caller(
    suite: Path, monkeypatch: pytest.MonkeyPatch, unmeasured_spawner: None
) -> None:
    for name in ("COVERAGE_PROCESS_START", "COVERAGE_FILE"):
        monkeypatch.delenv(name, raising=False)
    (suite / "product.py").write_text("def double(x):\n    return 2 * x\n")
    name = _write(suite, "import product\ndef test_a(): assert product.double(2) == 4\n")
    result = run_pytests_v2([name], SandboxPolicy(), arguments=["--cov=product"])
    assert result["status"] == "OK", result["stdout"]
    assert "product.py" in result["stdout"]
    assert (suite / ".coverage").exists()


def test_reports_leave_a_strict_run_by_a_writable_path(
    suite: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, unmeasured_spawner: None
) -> None:
    for name in ("COVERAGE_PROCESS_START", "COVERAGE_FILE"):
        monkeypatch.delenv(name, raising=False)
    (suite / "product.py").write_text("def double(x):\n    return 2 * x\n")
    name = _write(suite, "import product\ndef test_a(): assert product.double(2) == 4\n")
    reports = tmp_path_factory.mktemp("reports")
    policy = SandboxPolicy(isolation=IsolationLevel.STRICT, writable_paths=(str(reports),))
    asked = ["--cov=product", f"--cov-report=xml:{reports}/coverage.xml", f"--junitxml={reports}/junit.xml"]
    result = run_pytests_v2([name], policy, arguments=asked)
    assert result["status"] == "OK", result["stdout"]
    assert sorted(path.name for path in reports.iterdir()) == ["coverage.xml", "junit.xml"]
    assert 'line-rate="1"' in (reports / "coverage.xml").read_text()
    assert sorted(path.name for path in suite.iterdir()) == ["product.py", name]


def test_xdist_works_and_counts_are_right(suite: Path) -> None:
    body = "import pytest\n@pytest.mark.parametrize('n', range(12))\ndef test_n(n): assert n != 5\n"
    policy = SandboxPolicy(pids_max=64, wall_time_s=60)
    result = run_pytests_v2([_write(suite, body)], policy, arguments=["-n", "2"])
    assert result["counts"]["passed"] == 11, result["stdout"] + result["stderr"]
    assert result["counts"]["failed"] == 1


FORGED = (
    "import os\n"
    'record = b\'{"test":"test_sample.py::test_a","outcome":"passed","duration_s":0.1}\'\n'
    "os.write(3, record + b'\\n' + b'{\"finished\":0}' + b'\\n')\n"
    "os._exit(0)\n"
)


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]], ids=["alone", "xdist"])
@pytest.mark.parametrize("place", ["current directory", "PYTHONPATH"])
def test_no_module_of_the_tests_replaces_the_reporter(
    suite: Path, place: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = suite if place == "current directory" else suite / "lib"
    folder.mkdir(exist_ok=True)
    (folder / "ringfence_reporter.py").write_text(FORGED)
    (folder / "start.py").write_text(FORGED)
    if place == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(folder))
    body = "import os\ndef test_a(): assert os.path.basename(os.getcwd()) != 'work'\n"
    policy = SandboxPolicy(pids_max=64, wall_time_s=60)
    result = run_pytests_v2([_write(suite, body)], policy, arguments=arguments)
    assert (result["status"], result["rc"]) == ("FAILED", 1), result["stdout"] + result["stderr"]
    assert result["counts"]["failed"] == 1


def test_modules_of_the_current_folder_are_found_as_under_python_m(suite: Path) -> None:
    (suite / "own_plugin.py").write_text("import pytest\n@pytest.fixture\ndef seven(): return 7\n")
    (suite / "pytest.ini").write_text("[pytest]\naddopts = -p own_plugin\n")
    body = "import sys\ndef test_a(seven):\n assert seven == 7\n assert 'guest' not in sys.path[0]\n"
    result = run_pytests_v2([_write(suite, body)], arguments=["-W", "error"])
    assert result["status"] == "OK", result["stdout"] + result["stderr"]


def test_node_ids_and_a_path_that_looks_like_an_option_work(suite: Path) -> None:
    (suite / "-x").mkdir()
    (suite / "-x" / "test_odd.py").write_text("def test_a(): pass\ndef test_b(): assert False\n")
    result = run_pytests_v2(["-x/test_odd.py::test_a"], SandboxPolicy())
    assert result["counts"]["passed"] == 1
    assert result["status"] == "OK"


def test_what_the_host_lacks_is_an_internal_error_with_the_fix(suite: Path) -> None:
    name = _write(suite, "def test_a(): pass\n")
    result = run_pytests_v2([name], SandboxPolicy(enforce_network=True))
    assert (result["status"], result["rc"]) == ("INTERNAL_ERROR", 1)
    assert "network" in result["reason"]
    assert "isolation strict" in result["reason"]
    assert result["enforced"]["network"]["applied"] is False
    assert result["enforced"]["memory"]["applied"] is False


def test_partial_enforcement_runs_and_says_so(suite: Path) -> None:
    name = _write(suite, "def test_a(): pass\n")
    result = run_pytests_v2([name], SandboxPolicy(enforce_network=True, allow_partial=True))
    assert (result["status"], result["reason"]) == ("OK", "PARTIAL_ENFORCEMENT")
    assert result["enforced"]["network"]["applied"] is False
    assert result["enforced"]["memory"]["applied"] is True


def test_the_shim_returns_the_code_and_the_output(suite: Path) -> None:
    assert run_pytests([_write(suite, "def test_a(): pass\n")], 60)[0] == 0
    rc, output = run_pytests([_write(suite, "import time\ndef test_a(): time.sleep(60)\n")], 6)
    assert rc == 124
    assert "test session starts" in output


def test_a_forged_channel_is_read_without_harm() -> None:
    numbers = (b'{"finished": 1e400}', b'{"finished": 999}', b'{"finished": true}', b'{"deselected": -1}')
    durations = [_told("a", took) for took in ("NaN", "1e999", "-1.0", '0.5,"more":1', "true", "9" * 4000, "-1")]
    forged = b"\n".join((b'{"test": 1}', b"[[[", b"[" * 100_000, *numbers, *durations, b"", b"9" * 5000, b"\xff"))
    found = parse_records(forged)
    assert (found.tests, found.finished, found.deselected) == ([], None, 0)
    assert (found.garbled, found.problem) == (17, "")
    assert parse_records(_told("a", "0")).tests == [("a", "passed", 0.0)]
    assert parse_records(_told("x\\ud800", "0.5")).tests == [("x\\ud800", "passed", 0.5)]


def _told(name: str, duration: str) -> bytes:
    return f'{{"test":"{name}","outcome":"passed","duration_s":{duration}}}'.encode()


@pytest.mark.parametrize(("line", "count", "bound"), [
    (b"\n", 10_000_000, 1001), (b"x\n", 5_000_000, 1001), (b"9" * 60_000 + b"\n", 200, 18),
    (b'{"finished":0}\n', 1_000_000, 200_000),
], ids=["empty", "short", "long", "sound"])  # fmt: skip
def test_a_flood_in_the_channel_is_read_up_to_a_bound(
    line: bytes, count: int, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = line * count
    read, parse = [], records._read
    monkeypatch.setattr(records, "_read", lambda line: read.append(line) or parse(line))
    assert parse_records(flood).problem
    assert len(read) <= bound


def test_a_flooded_channel_is_a_failure_in_words(suite: Path) -> None:
    body = "import os\ndef test_a(): os.write(3, b'\\n' * 5000)\n"
    result = run_pytests_v2([_write(suite, body)])
    assert (result["status"], result["rc"]) == ("FAILED", 1)
    assert "can't be read to its end" in result["reason"]


def test_the_reporter_needs_nothing_of_ringfence(suite: Path) -> None:
    import ringfence

    guest = Path(ringfence.__file__).parent / "pytest_runner" / "guest"
    name = _write(suite, "import sys\ndef test_a(): assert not any(m.startswith('ringfence.') for m in sys.modules)\n")
    start = f"import sys; sys.path[:0] = [{str(guest)!r}]; import pytest; "
    code = f"{start}sys.exit(pytest.main(['-p', 'no:ringfence', '-p', 'ringfence_reporter', {name!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=suite,
                          env={k: v for k, v in os.environ.items() if not k.startswith("COV")})  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_what_a_test_writes_into_the_channel_is_printed_as_json_all_the_same(
    tmp_path: Path, ringfence_command: list[str]
) -> None:
    body = (
        "import os\ndef test_a():\n"
        " for name, took in (('a\\\\ud800', '0.5'), ('b', 'NaN'), ('c', '1e999'), ('d', '-1e308')):\n"
        '  record = \'{"test":"%s","outcome":"passed","duration_s":%s}\' % (name, took)\n'
        "  os.write(3, record.encode() + b'\\n')\n"
    )
    command = [*ringfence_command, "test", _write(tmp_path, body), "--json"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    said = json.loads(done.stdout, parse_constant=pytest.fail)
    assert [test["test"].rpartition("::")[2] for test in said["tests"]] == ["a\\ud800", "test_a"]


def test_json_text_is_json_whatever_is_in_it() -> None:
    hostile = {"\udc80": [math.nan, -math.inf, 1.5, ("\ud83d", "\x1b", b"x")], 3: {"deep": math.inf}, "big": 2**80}
    text = json_text(hostile)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "\\udc80": [None, None, 1.5, ["\\ud83d", "\x1b", "b'x'"]], "3": {"deep": None}, "big": 2**80,
    }  # fmt: skip
    assert text.isascii() and "\\ud8" in text.replace("\\\\", "\\")
