"""The command line as a person and as a script meet it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from itertools import pairwise
from pathlib import Path
from typing import IO

import pytest
from tests.no_spawner import end_spawner

from ringfence import __version__
from ringfence.cli import COMMANDS, main
from ringfence.cli.command_words import commands_of
from ringfence.cli.hostile import ATTEMPTS
from ringfence.cli.parser import _ELSEWHERE
from ringfence.roles import spawner
from ringfence.sandbox import host

pytestmark = pytest.mark.privileges


def _ringfence(command: list[str], *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


def test_the_output_and_exit_code_of_the_command_are_passed_through(ringfence_command: list[str]) -> None:
    done = _ringfence(ringfence_command, "run", "--", "sh", "-c", "echo out; echo err >&2; exit 5")
    assert (done.returncode, done.stdout, done.stderr) == (5, "out\n", "err\n")


def test_stdin_is_passed_through(ringfence_command: list[str]) -> None:
    done = _ringfence(ringfence_command, "run", "--", "cat", input="hello")
    assert done.stdout == "hello"


@pytest.mark.parametrize("asks, told", [
    ("connect(('192.0.2.7', 80))", "192.0.2.7:80: there is no network. Allow it with --network 192.0.2.7:80"),
    ("sendto(b'x', ('192.0.2.7', 9))", "192.0.2.7:9 by UDP: there is no network, and a network list does not carry "
     "UDP. Only --network host does"),
    ("connect(('127.0.0.1', 53))", "a name look-up: there is no network. Allow a host with --network NAME"),
    ("connect(('127.0.0.1', 80))", ""),
])  # fmt: skip
def test_who_asks_where_there_is_no_network_is_told_how_to_allow_it(
    ringfence_command: list[str], asks: str, told: str
) -> None:
    code = f"import socket\ntry: socket.socket().{asks}\nexcept OSError: pass"
    done = _ringfence(ringfence_command, "run", "--strict", "--", "/usr/bin/python3", "-c", code)
    assert done.stderr == (f"ringfence: refused: {told}\n" if told else "")


def test_the_command_runs_in_the_current_folder(ringfence_command: list[str], tmp_path: Path) -> None:
    done = _ringfence(ringfence_command, "run", "--", "pwd", cwd=tmp_path)
    assert done.stdout.strip() == str(tmp_path)


def test_output_arrives_while_the_command_runs(ringfence_command: list[str]) -> None:
    command = [*ringfence_command, "run", "--", "sh", "-c", "echo first; sleep 20"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    assert process.poll() is None
    process.terminate()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(
    ("words", "code", "status", "advice"),
    [
        (["--wall", "0.3", "--", "sleep", "5"], 124, "TIMEOUT", "--wall"),
        (["--cpu", "1", "--", sys.executable, "-c", "while True: pass"], 152, "CPU_LIMIT", "--cpu"),
        (["--memory", "100M", "--", sys.executable, "-c", "x = bytearray(1 << 30)"], 137, "MEM_LIMIT", "--memory"),
        (["--nofile", "32", "--", sys.executable, "-c", "a = [open('/dev/null') for _ in range(99)]"],
         1, "NOFILE_LIMIT", "--nofile"),
        (["--", "sh", "-c", "kill -9 $$"], 137, "KILLED_KILL", ""),
        (["--", "sh", "-c", "kill -15 $$"], 143, "KILLED_TERM", ""),
        (["--", "sh", "-c", "kill -11 $$"], 139, "CRASHED", ""),
    ],
)  # fmt: skip
def test_one_line_says_which_limit_was_hit_and_what_would_raise_it(
    ringfence_command: list[str], words: list[str], code: int, status: str, advice: str
) -> None:
    done = _ringfence(ringfence_command, "run", *words)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == code
    assert last.startswith(f"ringfence: {status}: ")
    assert last.endswith(f"Raise it with {advice}" if advice else last[-1])


def test_json_is_the_whole_result_and_nothing_else(ringfence_command: list[str]) -> None:
    done = _ringfence(ringfence_command, "run", "--json", "--", "sh", "-c", "echo out; exit 3")
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert (result["status"], result["rc"], result["stdout"]) == ("FAILED", 3, "out\n")
    assert result["enforced"]["memory"]["applied"] is True
    assert result["usage"]["wall_s"] > 0
    assert [event["kind"] for event in result["events"]] == ["start", "exit"]


def test_output_that_is_cut_is_said_to_be_cut(ringfence_command: list[str]) -> None:
    done = _ringfence(ringfence_command, "run", "--output", "1K", "--", "sh", "-c", "yes | head -c 5000")
    assert done.returncode == 0
    assert len(done.stdout) == 1024
    assert "3976 bytes dropped" in done.stderr
    assert "--output" in done.stderr


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("words", "code", "word"),
    [
        (["run"], 2, "no command"),
        (["run", "--", "/no/such/program"], 127, "No such file"),
        (["run", "--", "/usr/lib/os-release"], 126, "Permission denied"),
        (["run", "--memory", "lots", "--", "true"], 2, "not a size"),
        (["run", "--wall", "-1", "--", "true"], 2, "--wall: -1 must be greater than 0"),
        (["run", "--pids", "few", "--", "true"], 2, "--pids: 'few' is not a whole number\n"),
        (["run", "--nofile", "9999999", "--", "true"], 2, "than the maximum, 1,048,576\n"),
        (["run", "--env", "=", "--", "true"], 2, "--env"),
        (["run", "--wal", "3", "--", "true"], 2, "no option --wal; did you mean --wall?"),
        (["test", "--jsn"], 2, "did you mean --json?"),
        (["run", "--cpus", "2", "--", "true"], 2, "no option --cpus; use --cpu-share CORES\n"),
        (["run", "--gpus=all", "--", "true"], 2, "no option --gpus; strict and container show a job no GPU\n"),
        (["test", "--gpu", "1"], 2, "no option --gpu; strict and container show a job no GPU\n"),
        (["run", "-m", "1g", "--", "true"], 2, "no option -m; use --memory BYTES\n"),
        (["run", "-v/data:/data", "--", "true"], 2, "; use --readable PATH, or --writable PATH\n"),
        (["run", "--timeout", "5", "--", "true"], 2, "no option --timeout; use --wall SECONDS\n"),
        (["corpus", "--timeot", "5"], 2, "no option --timeot; did you mean --timeout?\n"),
        (["run", "--rm", "--", "true"], 2, "no option --rm; use --discard, which throws away"),
        (["commit", "--rm", "beef"], 2, "no option --rm"),
        (["probe", "now"], 2, "too many arguments: now"),
        (["commit"], 2, "required: ID\n"),
        (["commit", "beef"], 2, "ringfence sandboxes lists them"),
        (
            ["run", "--isolation", "process", "--network", "none", "--", "true"],
            2,
            "needs a network namespace\n  network: use isolation strict, which makes one\n  or accept less",
        ),
        (["run", "--network", "bogus", "--", "true"], 2, "bogus is not none, host or the name of a host\n  write"),
        (["run", "--network", "a.example,,b.example", "--", "true"], 2, "an entry is empty"),
        (["run", "--network", "a.example:80,443", "--", "true"], 2, "443 is a port without a host\n  give each"),
        (["run", "--network", "a..b", "--", "true"], 2, "--network: 'a..b' has an empty label"),
        (["run", "--network", "a.example:0", "--", "true"], 2, "--network: 'a.example:0': port 0 is not between"),
        (
            ["run", "--isolation", "process", "--network", "a.example", "--", "true"],
            2,
            "needs a network namespace with an egress gateway\n  network: use isolation strict, or",
        ),
        (["run", "--isolation", "process", "--commit", "--", "true"], 2, "--commit needs isolation strict"),
        (["run", "--readable", "/usr/bim", "--", "true"], 2, "no such file or directory\n  did you mean /usr/bin?"),
        (["run", "--writable", "", "--", "true"], 2, "--writable : no such file"),
        (["run", "--hidden", "/", "--", "true"], 2, "--hidden: / is the whole system"),
        (["run", "--image", "debian", "--", "true"], 2, "choose container"),
        (["run", "--policy", "/no/such/file", "--", "true"], 2, "No such file"),
        (["nonsense"], 2, "no command 'nonsense'"),
        (["tets"], 2, "no command 'tets'; did you mean test?"),
        (["policy", "check"], 2, "no file"),
    ],
)
def test_a_mistake_is_explained_and_has_its_exit_code(
    ringfence_command: list[str], words: list[str], code: int, word: str
) -> None:
    done = _ringfence(ringfence_command, *words)
    assert done.returncode == code, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 3


def test_the_options_of_others_lead_to_options_that_there_are() -> None:
    (run,) = (each for each in commands_of("ringfence") if each.name == "run")
    known = {name for word in run.words for name in word.names}
    for option, (needed, advice) in _ELSEWHERE.items():
        assert option not in known and {needed, *re.findall(r"--[a-z-]+", advice)} <= known, option


@pytest.mark.parametrize("partial", [[], ["--allow-partial"]])
@pytest.mark.parametrize("flag", ["--discard", "--commit", "--ask"])
def test_where_strict_is_blocked_what_needs_its_layer_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str, partial: list[str]
) -> None:
    why = ("user namespaces, which this host has switched off", "sysctl -w kernel.of_a_test=1")
    monkeypatch.setattr(host, "user_namespaces_blocked", lambda: why)
    assert main(["run", "--strict", flag, *partial, "--", "true"]) == 2
    told = capsys.readouterr().err
    assert f"{flag} needs a layer" in told and all(words in told for words in why), told
    assert "write --strict" not in told, "it was written"


def test_an_engine_that_is_missing_is_said_to_be_whatever_image_is_named(
    ringfence_command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/socket")
    done = _ringfence(ringfence_command, "run", "--isolation", "container", "--image", "debian", "--", "true")
    assert done.returncode == 2 and "/nonexistent/socket does not answer" in done.stderr, done.stderr
    assert "image:" not in done.stderr


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("level", "mode", "code", "word"), [
    ("strict", 0o644, 126, "Permission denied"), ("process", 0o644, 126, "Permission denied"),
    ("strict", 0o755, 126, "its interpreter (#!) or its loader is not"),
    ("process", 0o755, 126, "its interpreter (#!) or its loader is not"), ("process", 0, 127, "No such file"),
])  # fmt: skip
def test_the_exit_code_is_by_the_errno_and_not_by_words(
    ringfence_command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, mode: int, code: int,
    word: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if mode:
        (tmp_path / "No such file").write_text("#!/of/nobody\n")
        (tmp_path / "No such file").chmod(mode)
    done = _ringfence(ringfence_command, "run", "--isolation", level, "--discard" if level == "strict" else "--quiet",
                      "--", "./No such file")  # fmt: skip
    assert (done.returncode, word in done.stderr) == (code, True), done.stderr


def test_no_place_for_the_private_folder_is_said_with_what_helps(
    ringfence_command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    done = _ringfence(ringfence_command, "run", "--", "true")
    assert done.returncode == 1
    assert "No such file or directory: /no/such/folder" in done.stderr and "set TMPDIR" in done.stderr


def test_partial_enforcement_is_said_aloud(ringfence_command: list[str]) -> None:
    less = ["--isolation", "process", "--network", "none", "--allow-partial", "--output", "9"]
    done = _ringfence(ringfence_command, "run", *less, "--", "echo", "more than nine")
    assert done.returncode == 0
    assert "PARTIAL_ENFORCEMENT: not applied: network" in done.stderr
    assert "stdout was cut, 6 bytes dropped. Raise it with --output" in done.stderr


@pytest.mark.usefixtures("unmeasured")
def test_the_test_command_says_what_was_not_held_and_which_limit_was_hit(
    ringfence_command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text("import time\ndef test_it(): time.sleep(30)\n")
    words = ["test", "test_it.py", "--network", "none", "--wall", "1"]
    done = _ringfence(ringfence_command, *words, "--allow-partial", cwd=tmp_path)
    limit, partial = done.stderr.splitlines()
    assert done.returncode == 124
    assert limit.startswith("ringfence: TIMEOUT: ") and limit.endswith("Raise it with --wall")
    assert partial == "ringfence: PARTIAL_ENFORCEMENT: not applied: network"
    refused = _ringfence(ringfence_command, *words, cwd=tmp_path)
    assert refused.returncode == 2 and "use isolation strict" in refused.stderr


def test_policy_errors_name_file_line_and_field(ringfence_command: list[str], tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("wall_time_s: 5\nmem_bytes: 512MM\nnetwrok: none\n")
    done = _ringfence(ringfence_command, "policy", "check", str(policy))
    assert done.returncode == 2
    assert f'{policy}:2:1: mem_bytes: "512MM" is not a size' in done.stderr
    assert f'{policy}:3:1: netwrok: unknown key; did you mean "network"?' in done.stderr
    policy.write_text("wall_time_s: 5\n")
    assert _ringfence(ringfence_command, "policy", "check", str(policy)).stdout == f"{policy}: valid policy\n"


def test_a_policy_that_is_shown_can_be_read_again(ringfence_command: list[str], tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("mem_bytes: 1G\nenvironment: {A: b}\n")
    shown = _ringfence(ringfence_command, "policy", "show", str(policy)).stdout
    policy.write_text(shown)
    assert "mem_bytes: 1073741824" in shown
    assert _ringfence(ringfence_command, "policy", "show", str(policy)).stdout == shown


def test_flags_override_the_policy_file(ringfence_command: list[str], tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("nofile: 99\npids_max: 7\n")
    done = _ringfence(ringfence_command, "run", "--policy", str(policy), "--pids", "9", "--env", "A=b c", "--json",
                      "--", "sh", "-c", "ulimit -n; echo $A")  # fmt: skip
    result = json.loads(done.stdout)
    assert result["stdout"] == "99\nb c\n"
    assert result["enforced"]["pids"]["requested"] == 9


def test_probe_tells_each_capability_with_its_mechanism(ringfence_command: list[str]) -> None:
    done = _ringfence(ringfence_command, "probe", "--json")
    levels = json.loads(done.stdout)["levels"]
    assert done.returncode == 0
    assert levels["process"]["capabilities"]["nofile"] == {
        "applied": True, "mechanism": "RLIMIT_NOFILE", "details": "per process", "by": ["rlimit"],
    }  # fmt: skip
    assert levels["process"]["capabilities"]["network"]["applied"] is False
    assert "yes  memory" in _ringfence(ringfence_command, "probe").stdout


@pytest.mark.parametrize("blocked", [True, False])
def test_probe_says_of_a_level_by_its_exit_code_whether_a_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], blocked: bool
) -> None:
    if blocked:
        monkeypatch.setattr(host, "user_namespaces_blocked", lambda: ("user namespaces", "switch them on"))
    assert main(["probe", "--level", "strict"]) == blocked
    assert ("strict: a run is refused here" in capsys.readouterr().out) is blocked
    assert main(["run", "--strict", "--quiet", "--", "true"]) == (2 if blocked else 0)
    assert main(["probe"]) == 0


def test_probe_prints_where_control_groups_are_made_and_the_order(ringfence_command: list[str]) -> None:
    places = json.loads(_ringfence(ringfence_command, "probe", "--json").stdout)["control_groups"]
    printed = _ringfence(ringfence_command, "probe").stdout
    order = "named by RINGFENCE_CGROUP, the caller's own group, beside the caller's own group"
    assert (f"control groups, tried in this order: {order}" in printed) is bool(places)
    for place in places:
        mark = "yes" if place["taken"] else "no "
        where = f": {place['directory']}" if place["directory"] else ""
        assert f"  {mark}  v{place['version']} {place['place']}{where}\n" in printed
    named = _ringfence(ringfence_command, "probe", "--json", env={**os.environ, "RINGFENCE_CGROUP": "/nonexistent"})
    told = json.loads(named.stdout)["control_groups"]
    assert {(place["place"], place["taken"]) for place in told} <= {("named by RINGFENCE_CGROUP", False)}


def test_the_demo_shows_what_was_tried_and_what_stopped_it(ringfence_command: list[str]) -> None:
    done = _ringfence(ringfence_command, "demo")
    assert done.returncode == 0, done.stderr
    assert "under isolation strict" in done.stdout and "REACHED" not in done.stdout
    assert all(f" {name} " in done.stdout for name, _ in ATTEMPTS)
    assert "\nstatus " in done.stdout and "  yes  memory " in done.stdout


@pytest.mark.usefixtures("unmeasured")
def test_the_demo_hides_nothing_of_what_the_process_level_does_not_hold(ringfence_command: list[str]) -> None:
    done = _ringfence(ringfence_command, "demo", "--isolation", "process")
    reached = [line for line in done.stdout.splitlines() if "REACHED" in line]
    assert {"read a file of yours", "connect to a service of the host"} <= {line[4:41].rstrip() for line in reached}
    assert all(line.startswith("  ! ") for line in reached)
    # A group refuses the bomb, which goes on to the memory; without one the tree is ended for the bomb.
    assert re.search(r"status (PIDS|MEM)_LIMIT", done.stdout) and "allocate 4 GiB" in done.stdout


def test_help_lists_every_command(ringfence_command: list[str]) -> None:
    shown = _ringfence(ringfence_command, "--help").stdout
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert _ringfence(ringfence_command, "--version").stdout == f"ringfence {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and f"ringfence {name} " in shown.partition("examples:")[2]


@pytest.mark.parametrize(("command", "level"), (("run", "strict)"), ("test", "process)"), ("demo", "strict where")))
def test_help_tells_the_true_level(command: str, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    levels = "{none,process,strict}" if command == "test" else "{none,process,container,strict}"
    assert f"isolated (default: {level}" in shown and levels in shown, "only what there is"


def test_help_tells_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["test", "--help"])
    shown = capsys.readouterr().out
    assert "whole tree is killed (default: 30)" in shown and "memory of the whole tree (default: 512 MiB)" in shown


def test_a_reader_that_goes_away_does_not_cause_a_traceback(ringfence_command: list[str]) -> None:
    words = " ".join([*ringfence_command, "run", "--output", "100M", "--", "yes"])
    done = subprocess.run(["bash", "-c", f"{words} | head -1; exit ${{PIPESTATUS[0]}}"], capture_output=True,
                          text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)  # fmt: skip
    assert done.stdout == "y\n"
    assert "Traceback" not in done.stderr
    assert done.returncode == 141


@pytest.mark.parametrize("flags", [[], ["--commit"], ["--discard"]])
def test_what_a_job_changed_is_not_lost_with_the_reader(
    ringfence_command: list[str], tmp_path: Path, flags: list[str]
) -> None:
    (tmp_path / "project").mkdir()
    command = [*ringfence_command, "run", *flags, "--", "sh", "-c", "echo one > kept; while :; do echo line; done"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.Popen(command, cwd=tmp_path / "project", env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert done.stdout is not None and done.stderr is not None
    assert done.stdout.readline() == b"line\n"
    done.stdout.close()
    with done.stderr:
        told = done.stderr.read().decode()
    assert done.wait(timeout=120) == 141
    fate = {"": "; keep: ringfence commit ", "--commit": " (applied)", "--discard": " (discarded)"}
    assert told.startswith(f"ringfence: 1 path changed: kept{fate[''.join(flags)]}") and told.count("\n") == 1, told
    assert (tmp_path / "project/kept").exists() is ("--commit" in flags)
    assert len([*(tmp_path / "state").glob("ringfence/sandboxes/*/metadata.json")]) == (not flags)


def test_a_reader_that_is_gone_when_an_error_is_told_does_not_cause_a_traceback(ringfence_command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*ringfence_command, "run", "--json", "--readable", "/none", "--", "true"], stdout=writer,
                              stderr=subprocess.PIPE, timeout=120, stdin=subprocess.DEVNULL, check=False)  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("level", ["process", "strict"])
def test_all_of_a_long_output_is_passed_on_if_asked_for(
    ringfence_command: list[str], tmp_path: Path, level: str
) -> None:
    words = ["run", "--isolation", level, "--", "sh", "-c", "head -c 5000000 /dev/zero; echo end"]
    for flags, size in ([], 2**20), (["--output", "unlimited"], 5_000_004):
        with (tmp_path / "out").open("wb") as out:
            command = [*ringfence_command, words[0], *flags, *words[1:]]
            done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, timeout=60, stdin=subprocess.DEVNULL,
                                  check=True)  # fmt: skip
        assert (tmp_path / "out").stat().st_size == size
        told = b"stdout was cut, 3951428 bytes dropped. Raise it with --output, for all" in done.stderr
        assert told is not bool(flags), done.stderr
    refused = _ringfence(ringfence_command, "run", "--json", "--output", "unlimited", "--", "true")
    assert refused.returncode == 2 and "kept in memory" in json.loads(refused.stdout)["error"]


class Terminal:
    """A person at a terminal: types, and reads the screen."""

    def __init__(self, command: list[str], stderr: IO[bytes] | None = None) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=stderr or theirs,
                                        start_new_session=True)  # fmt: skip
        os.close(theirs)
        self.screen = b""

    def wait_for(self, text: bytes, seconds: float = 15) -> bool:
        until = time.monotonic() + seconds
        while text not in self.screen and time.monotonic() < until:
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.screen += os.read(self.ours, 4096)
                except OSError:
                    break
        return text in self.screen

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self) -> int:
        code = self.process.wait(timeout=120)
        os.close(self.ours)
        return code


def test_on_a_terminal_the_command_has_one_of_its_own(ringfence_command: list[str]) -> None:
    code = "import os, sys; print(os.isatty(0), os.isatty(1), *os.get_terminal_size()); print('<', input(), '>')"
    terminal = Terminal([*ringfence_command, "run", "--", sys.executable, "-c", code])
    assert terminal.wait_for(b"True True 77 33"), terminal.screen
    terminal.type(b"typed\n")
    assert terminal.wait_for(b"< typed >"), terminal.screen
    assert terminal.end() == 0


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("level", ["process", "strict"])
def test_what_goes_to_stderr_goes_where_that_was_sent_also_on_a_terminal(
    ringfence_command: list[str], tmp_path: Path, level: str
) -> None:
    code = "test -t 0 && test -t 1 && echo terminal; echo words >&2"
    with open(tmp_path / "log", "wb") as log:
        terminal = Terminal([*ringfence_command, "run", "--isolation", level, "--", "sh", "-c", code], log)
        assert terminal.wait_for(b"terminal"), terminal.screen
        assert terminal.end() == 0
    assert (tmp_path / "log").read_text() == "words\n" and b"words" not in terminal.screen


def test_ctrl_c_on_a_terminal_interrupts_the_command(ringfence_command: list[str]) -> None:
    code = "import time\ntry:\n print('ready'); time.sleep(30)\nexcept KeyboardInterrupt: print('stopped'); exit(9)"
    terminal = Terminal([*ringfence_command, "run", "--", sys.executable, "-c", code])
    assert terminal.wait_for(b"ready")
    terminal.type(b"\x03")
    assert terminal.wait_for(b"stopped"), terminal.screen
    assert terminal.end() == 9


def test_the_job_cannot_type_into_the_callers_terminal(
    ringfence_command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TIOCSTI would push keys into the shell behind us; the job's terminal is not ours."""
    code = "import fcntl, termios\nfor key in b'echo INJECTED\\n':\n try: fcntl.ioctl(0, termios.TIOCSTI, bytes([key]))"
    monkeypatch.setenv("CODE", code + "\n except OSError: pass")
    words = " ".join([*ringfence_command, "run", "--", sys.executable, "-c", '"$CODE"'])
    terminal = Terminal(["sh", "-c", f"{words}; echo after; cat"])
    try:
        assert terminal.wait_for(b"after")
        terminal.wait_for(b"INJECTED\r\nINJECTED", seconds=1)
        assert b"INJECTED" not in terminal.screen.split(b"after", 1)[1]
    finally:
        terminal.process.kill()
        terminal.end()


# ---- run --python


def _script(folder: Path, text: str) -> Path:
    file = folder / "script.py"
    file.write_text(text)
    return file


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("level", ["process", "strict"])
def test_a_python_file_runs_as_with_python_wherever_it_lies(
    ringfence_command: list[str], tmp_path: Path, level: str
) -> None:
    """Also in a directory that is not shown inside, and that others may not enter."""
    away, here = tmp_path / "away", tmp_path / "here"
    away.mkdir(mode=0o700)
    here.mkdir()
    (away / "secret.txt").write_text("beside it")
    file = _script(away, "import os, sys\nprint(sys.argv, __file__, __name__, os.getcwd(), sys.stdin.read())\n1 / 0")
    words = ["--flag", "-x", "--", "two words"]
    sandboxed = _ringfence(ringfence_command, "run", "--isolation", level, "--python", str(file), *words,
                           cwd=here, input="typed")  # fmt: skip
    plain = _ringfence([sys.executable], str(file), *words, cwd=here, input="typed")
    assert (sandboxed.returncode, sandboxed.stdout, sandboxed.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert plain.returncode == 1 and "ZeroDivisionError" in plain.stderr


def test_a_python_file_from_elsewhere_brings_nothing_of_its_folder_along(
    ringfence_command: list[str], tmp_path: Path
) -> None:
    away, here = tmp_path / "away", tmp_path / "here"
    away.mkdir()
    here.mkdir()
    (away / "secret.txt").write_text("beside it")
    file = _script(away, "import os\nprint(sorted(os.listdir(os.path.dirname(__file__))))")
    shown = _ringfence(ringfence_command, "run", "--strict", "--python", str(file), cwd=here).stdout
    assert shown == "['script.py']\n"
    plain = ["run", "--isolation", "process", "--python", str(file)]
    assert "secret.txt" in _ringfence(ringfence_command, *plain, cwd=here).stdout


def test_a_file_of_the_current_folder_that_is_a_link_out_shows_nothing(
    ringfence_command: list[str], tmp_path: Path
) -> None:
    here, private = tmp_path / "here", tmp_path / "private.py"
    here.mkdir()
    private.write_text("print('PRIVATE')\n")
    (here / "setup.py").symlink_to(private)
    refused = _ringfence(ringfence_command, "run", "--strict", "--python", "setup.py", cwd=here)
    assert refused.returncode and "PRIVATE" not in refused.stdout and "through a link in" in refused.stderr
    assert _ringfence(ringfence_command, "run", "--strict", "--python", str(private), cwd=here).stdout == "PRIVATE\n"


SAFE = """
import os
open("new", "w").close()
print(os.path.exists({secret!r}), os.path.exists("new"))
"""


@pytest.mark.parametrize("policy", (None, "", "pids_max: 20\n", "{}\n"))
def test_a_run_is_strict_where_nothing_says_otherwise(
    ringfence_command: list[str], tmp_path: Path, policy: str | None, unmeasured: None
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "policy.yaml").write_text(policy or "")
    words = [] if policy is None else ["--policy", str(tmp_path / "policy.yaml")]
    code = ["--", sys.executable, "-I", "-S", "-c", SAFE.format(secret=str(tmp_path / "secret"))]
    done = _ringfence(ringfence_command, "run", *words, *code, cwd=here)
    assert done.stdout == "False True\n" and "keep: ringfence commit" in done.stderr, done.stderr
    assert not (here / "new").exists()
    shown = _ringfence(ringfence_command, "policy", "show", *words[1:]).stdout
    assert "isolation: strict\n" in shown, "what is shown can be saved, and means the same"
    (tmp_path / "policy.yaml").write_text("isolation: process\n")
    for less in (["--policy", str(tmp_path / "policy.yaml")], ["--isolation", "process"]):
        done = _ringfence(ringfence_command, "run", *less, *code, cwd=here)
        assert done.stdout == "True True\n" and (here / "new").exists(), "the control: it was said"
        (here / "new").unlink()


def test_paths_are_shown_written_and_hidden_by_flags(
    ringfence_command: list[str], tmp_path: Path, unmeasured: None
) -> None:
    for name in ("here", "read", "write"):
        (tmp_path / name).mkdir()
    (tmp_path / "here/secret").write_text("x")
    (tmp_path / "read/text").write_text("shown\n")
    probe = "cat ../read/text; echo new > ../write/new; cat secret"
    flags = ["--readable", "../read", "--writable", str(tmp_path / "write"), "--hidden", "secret"]
    done = _ringfence(ringfence_command, "run", *flags, "--", "sh", "-c", probe, cwd=tmp_path / "here")
    assert done.stdout == "shown\n" and (tmp_path / "write/new").read_text() == "new\n", done.stderr
    (tmp_path / "write/new").unlink()
    control = _ringfence(ringfence_command, "run", "--", "sh", "-c", probe, cwd=tmp_path / "here")
    assert control.stdout == "x" and not (tmp_path / "write/new").exists()
    (tmp_path / "here/test_it.py").write_text("def test(): open('../read/text'); open('../write/made', 'w')\n")
    tested = _ringfence(ringfence_command, "test", "--strict", "--here", *flags, "test_it.py", cwd=tmp_path / "here")
    assert tested.returncode == 0 and (tmp_path / "write/made").exists(), tested.stdout


def test_a_python_file_in_the_current_folder_finds_its_own_modules(
    ringfence_command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "part.py").write_text("name = 'its own module'")
    _script(tmp_path, "import part, sys\nprint(part.name, sys.argv)")
    for flags in ([], ["--strict"], ["--strict", "--quiet", "--wall", "50"], ["--env", "A=1", "--strict"]):
        done = _ringfence(ringfence_command, "run", *flags, "--python", "script.py", "a", cwd=tmp_path)
        assert done.stdout == "its own module ['script.py', 'a']\n", done.stderr


def test_a_python_file_whose_name_looks_like_an_option_is_a_file(ringfence_command: list[str], tmp_path: Path) -> None:
    (tmp_path / "-c").write_text("import sys; print(sys.argv)")
    for flags in ([], ["--strict"]):
        done = _ringfence(ringfence_command, "run", *flags, "--python", "--", "-c", "print('not this')", cwd=tmp_path)
        assert "['./-c', \"print('not this')\"]" in done.stdout, done.stderr


def test_a_python_program_may_come_on_stdin(ringfence_command: list[str]) -> None:
    done = _ringfence(ringfence_command, "run", "--strict", "--python", "-", "a", input="import sys; print(sys.argv)")
    assert done.stdout == "['-', 'a']\n"


@pytest.mark.parametrize(("name", "word"), [("missing.py", "no such file"), (".", "not a plain file"), ("", "")])
def test_what_is_no_python_file_is_said(ringfence_command: list[str], tmp_path: Path, name: str, word: str) -> None:
    done = _ringfence(ringfence_command, "run", "--python", *([name] if name else []), cwd=tmp_path)
    assert done.returncode == 2 and (word in done.stderr if word else "no command" in done.stderr)


def test_a_program_that_calls_the_command_line_is_not_forked_as_the_spawner() -> None:
    """Every sandbox would have its memory: as resident memory of the job, and as a reason to end it."""
    end_spawner()
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert spawner._current is None


# ---- job control

LOOP = "while :; do echo {} $(date +%s); sleep 0.3; done"
TICKS = f'setsid sh -c "{LOOP.format("tick").replace("$", chr(92) + "$")}" & {LOOP.format("tock")}'
HANDLES = """
import os, signal, time
signal.signal(signal.SIGTSTP, lambda *_: os.write(1, b'mi' + b'ne'))
os.write(1, b'go' * 3)
time.sleep(60)
"""


class Shell(Terminal):
    """An interactive shell, which has job control, on a terminal."""

    def __init__(self) -> None:
        self.pid, self.ours = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "PS1": "ready> ", "PS2": "", "TERM": "dumb"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        self.screen = self.all = b""
        assert self.wait_for(b"ready> ")

    def say(self, line: str, until: bytes) -> None:
        self.all += self.screen
        self.screen = b""
        self.type(line.encode())
        assert self.wait_for(until, 60), self.screen

    def is_quiet(self) -> bool:
        """Nothing is printed for a while, once what was under way has come."""
        time.sleep(0.3)
        while select.select([self.ours], [], [], 0)[0]:
            self.screen += os.read(self.ours, 65536)
        return not select.select([self.ours], [], [], 1.5)[0]

    def end(self) -> int:
        os.close(self.ours)  # hangs up
        return os.waitpid(self.pid, 0)[1]


@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.parametrize("level", ["process", "strict"])
@pytest.mark.parametrize("behind", ["", " | cat"], ids=["on its own terminal", "before a pipe"])
def test_ctrl_z_suspends_the_job_with_all_that_it_started_and_fg_continues_it(
    ringfence_command: list[str], level: str, behind: str
) -> None:
    shell = Shell()
    try:
        words = " ".join([*ringfence_command, "run", "--isolation", level, "--", "sh", "-c", f"'{TICKS}'"])
        shell.say(f"{words}{behind}\n", b"\ntock ")
        for _ in range(2):
            assert shell.wait_for(b"\ntick ") and not shell.is_quiet()
            shell.say("\x1a", b"Stopped")
            assert shell.is_quiet()
            time.sleep(1.5)
            shell.say("fg\n", b"\ntock ")
        assert shell.wait_for(b"\ntick ") and not shell.is_quiet() and not shell.is_quiet()
        for name in (b"tick", b"tock"):
            stamps = [int(each) for each in re.findall(rb"\n%s (\d{10})\r" % name, shell.all + shell.screen)]
            gaps = [after - before for before, after in pairwise(stamps)]
            assert sum(gap >= 2 for gap in gaps) >= 2, "also what it started in a session of its own"
        shell.say("\x03", b"ready> ")
    finally:
        shell.end()


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_a_job_that_handles_ctrl_z_itself_keeps_it(ringfence_command: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(HANDLES)
    shell = Shell()
    try:
        words = " ".join([*ringfence_command, "run", "--python", str(tmp_path / "job.py")])
        shell.say(f"{words}\n", b"gogogo")
        shell.say("\x1a", b"mine")
        assert shell.is_quiet() and b"Stopped" not in shell.screen
        shell.say("\x03", b"ready> ")
    finally:
        shell.end()


@pytest.mark.slow
@pytest.mark.unmeasured
def test_a_suspended_job_is_ended_at_its_deadline(ringfence_command: list[str]) -> None:
    shell = Shell()
    try:
        words = " ".join([*ringfence_command, "run", "--wall", "3", "--", "sleep", "60"])
        shell.say(f"echo go; {words}\n", b"\ngo")
        time.sleep(1.5)
        shell.say("\x1a", b"Stopped")
        time.sleep(3)
        shell.say("fg\n", b"TIMEOUT")
    finally:
        shell.end()
