"""The plan of a policy can be read before anything runs."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from ringfence import IsolationLevel, SandboxPolicy, UsageError
from ringfence.cli import main
from ringfence.engine.planned import PROCESSES, Planned, planned
from ringfence.kernel.calls.described import DescribedCall, described
from ringfence.kernel.calls.table import Table

pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
]
STRICT = SandboxPolicy(isolation=IsolationLevel.STRICT)


def _of(rows: list[Planned], process: str) -> list[str]:
    return [row.step for row in rows if row.process == process]


def test_every_process_has_its_steps_in_their_order() -> None:
    rows = planned(STRICT)
    assert [name for name in PROCESSES if _of(rows, name) or name == "leader"] == list(PROCESSES)
    inside = _of(rows, "pid 1")
    order = ["await leader", "take identity", "new root", "seal root", "drop capabilities", "run as init"]
    assert [step for step in inside if step in order] == order and inside[-1] == "run as init"
    job = _of(rows, "job")
    assert job.index("no new privileges") < job.index("seccomp") < job.index("exec") == len(job) - 1


def test_only_these_steps_are_left_to_python() -> None:
    """Inside the sandbox; whoever adds a step sees here whether it becomes calls."""
    inside = [row for row in planned(STRICT) if row.process in ("pid 1", "job")]
    assert {row.step for row in inside if not row.calls} == {"clone", "reset signals", "exec"}


def _argument(rows: list[Planned], step: str) -> dict[str, Any]:
    (row,) = [row for row in rows if row.step == step]
    (argument,) = row.arguments
    assert isinstance(argument, dict)
    return argument


@pytest.mark.parametrize(("policy", "without"), [
    (STRICT, set()), (STRICT.with_changes(network="host"), {"net"}),
], ids=["default", "network: host"])  # fmt: skip
def test_pid_1_is_born_into_every_namespace_of_the_policy(policy: SandboxPolicy, without: set[str]) -> None:
    rows = planned(policy)
    inside = [row for row in rows if row.process == "pid 1"]
    born = _argument(rows, "clone")
    assert inside[0].step == "clone"
    assert set(born["namespaces"]) >= {"user", "mount", "pid", "net", "ipc", "uts"} - without
    assert not set(born["namespaces"]) & without
    assert [call.text for row in inside for call in row.calls if call.name == "unshare"] == ["unshare(CLONE_NEWCGROUP)"]
    outside = os.geteuid() or "<host id>"
    assert born["uid_map"].endswith(f" {outside} 1") and born["uid_map"].split()[0] != "0"


def test_a_network_that_another_sandbox_had_is_said_to_be_one() -> None:
    assert not _argument(planned(STRICT), "clone")["network_reused"]
    assert _argument(planned(STRICT.with_changes(syscall_profile="tight")), "clone")["network_reused"]


def test_the_watchdog_has_the_limits_that_it_holds() -> None:
    held = _argument(planned(STRICT.with_changes(wall_time_s=7)), "limits")
    assert held["wall_time"] == 7 and not any(math.isinf(limit) for limit in held.values())


def test_flags_have_their_numbers_and_their_names() -> None:
    table = Table()
    table.call("unshare", 0x02000000)
    table.call("mount", "none", "root", "tmpfs", 6, "")
    table.call("openat", -100, "/", os.O_PATH | os.O_CLOEXEC, 0)
    table.call("prctl", 4, 0, 0, 0, 0)
    table.call("setns", 3, 0x20000000)
    table.call("mount_setattr", 3, "", 0x9000, pack("QQQQ", 7, 0, 0, 0), 32)
    table.call("umount2", ".", 0x4000)
    calls = [call for _, call in described(table)]
    assert [call.text for call in calls] == [
        "unshare(CLONE_NEWCGROUP)", 'mount("none", "root", "tmpfs", MS_NOSUID|MS_NODEV, "")',
        'openat(AT_FDCWD, "/", O_PATH|O_CLOEXEC, 0)', "prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)", "setns(3, CLONE_NEWPID)",
        'mount_setattr(3, "", AT_EMPTY_PATH|AT_RECURSIVE, MOUNT_ATTR_RDONLY|MOUNT_ATTR_NOSUID|MOUNT_ATTR_NODEV, 32)',
        'umount2(".", 0x4000)',
    ]  # fmt: skip
    assert calls[0].arguments == (0x02000000,) and calls[0].names == {0: ["CLONE_NEWCGROUP"]}
    assert calls[1].names == {3: ["MS_NOSUID", "MS_NODEV"]} and calls[6].names == {}


def test_no_flag_of_a_plan_is_a_number() -> None:
    """Where such an argument is not zero, it has names."""
    places = {"unshare": 0, "mount": 3, "umount2": 1, "open_tree": 2, "move_mount": 4, "mount_setattr": 2, "openat": 2,
              "prctl": 0}  # fmt: skip
    calls = [call for row in planned(STRICT) for call in row.calls if call.name in places]
    assert calls and not [call.text for call in calls
                          if call.arguments[place := places[call.name]] and place not in call.names]  # fmt: skip


def test_a_policy_decides_which_calls_there_are() -> None:
    def limits(policy: SandboxPolicy) -> list[DescribedCall]:
        return [call for row in planned(policy) for call in row.calls if row.step == "rlimit RLIMIT_NOFILE"]

    assert limits(STRICT.with_changes(nofile=77)) != limits(STRICT.with_changes(nofile=78))


def test_a_level_without_a_plan_says_so() -> None:
    with pytest.raises(UsageError, match="no plan"):
        planned(SandboxPolicy(isolation=IsolationLevel.PROCESS))


def test_the_plan_is_printed_for_people_and_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("nofile: 77\n")
    assert main(["policy", "plan", str(file)]) == 0
    text = capsys.readouterr().out
    assert "pid 1: builds the root" in text and "    pivot_root(\".\", \".\")\n" in text
    assert main(["policy", "plan", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["policy"]["nofile"] == 77
    assert {"process": "job", "step": "reset signals", "arguments": [], "calls": []} in told["plan"]
    (born,) = [row for row in told["plan"] if row["step"] == "clone"]
    assert f"  clone\n    namespaces: {', '.join(born['arguments'][0]['namespaces'])}\n" in text
    (own,) = [call for row in told["plan"] for call in row["calls"] if call["name"] == "unshare"]
    assert (own["arguments"], own["names"]) == ([0x02000000], {"0": ["CLONE_NEWCGROUP"]})


def test_json_has_every_argument_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    (files,) = [row["arguments"][0] for row in plan if row["step"] == "configuration"]
    passwd = next(content["text"] for path, content, _ in files if path == "/etc/passwd")
    assert passwd.startswith("root:x:0:0:") and passwd.endswith("\n")
    assert not [row for row in plan if "…" in json.dumps(row, ensure_ascii=False)]


def test_a_policy_of_somebody_else_commands_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = tmp_path / "a\x1b[31m\nb"
    shown.mkdir()
    file = tmp_path / "policy.yaml"
    wanted = {"isolation": "strict", "environment": {"A\x1b[2J": "\x9b31m\n  exec ['harmless']"},
              "readable_paths": [str(shown)], "shown_at": {str(shown): "/x\x1b[33m"}}  # fmt: skip
    file.write_text(json.dumps(wanted))
    assert main(["policy", "plan", str(file)]) == 0
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.splitlines()) and "x1b[2J" in printed
    assert "  exec ['harmless']" not in printed.splitlines()
