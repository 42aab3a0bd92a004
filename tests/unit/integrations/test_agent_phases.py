"""The four phases, with tools that need no sandbox: who runs where, who is not run, and what is written down."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from ringfence.errors import AttackError, EvidenceError, PolicyError, RefusedError, UsageError
from ringfence.integrations.deep_agent import (
    Commit,
    Decision,
    Finding,
    SafeConfig,
    SafeDeepAgent,
    ToolCall,
    verify_audit,
)
from ringfence.integrations.deep_agent.paths import meeting
from ringfence.manager.config import SandboxConfig, SandboxMode

RAN: list[str] = []


def read_notes(path: str = "") -> str:
    RAN.append(path)
    return f"read {path} in {os.getpid()}"


def delete_file(path: str = "") -> str:
    RAN.append(path)
    return f"deleted {path} in {os.getpid()}"


def show_error(password: str = "") -> None:
    raise ValueError(f"no login with {password}")


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RAN.clear()
    (tmp_path / "w").mkdir()
    monkeypatch.chdir(tmp_path / "w")


def agent(tmp_path: Path, mode: SandboxMode = SandboxMode.AUTO, **more: Any) -> SafeDeepAgent:
    sandbox = SandboxConfig(allowed_paths=[tmp_path / "w"], sandbox_root=tmp_path / "s", sandbox_mode=mode)
    config = {name: more.pop(name) for name in list(more) if name in SafeConfig.__dataclass_fields__}
    return SafeDeepAgent(
        [read_notes, delete_file, show_error], safe_config=SafeConfig(sandbox=sandbox, **config), **more
    )


def events(made: SafeDeepAgent) -> list[dict[str, Any]]:
    verify_audit(made.audit.path)
    return [json.loads(line) for line in Path(made.audit.path).read_text().splitlines()]


# ---- who goes into the sandbox

ALWAYS, AUTO, NEVER = SandboxMode.ALWAYS, SandboxMode.AUTO, SandboxMode.NEVER
SHOULD = [
    # Always sandbox high-risk actions
    ("look", 0.71, NEVER, True),
    ("look", 0.7, NEVER, False),
    # Always sandbox destructive operations
    ("delete_file", 0.0, NEVER, True),
    ("Modify", 0.0, NEVER, True),
    ("run_EXECUTE", 0.0, NEVER, True),
    ("administrate", 0.0, NEVER, True),
    # Always sandbox network operations
    ("Network_scan", 0.0, NEVER, True),
    ("HTTPGet", 0.0, NEVER, True),
    # Sandbox based on mode
    ("look", 0.0, ALWAYS, True),
    ("look", 0.6, NEVER, False),
    ("look", 0.51, AUTO, True),
    ("look", 0.5, AUTO, False),
    ("look", 0.0, AUTO, False),
]


@pytest.mark.parametrize(("name", "risk", "mode", "expected"), SHOULD)
def test_a_call_is_sandboxed_exactly_as_the_specification_decides(tmp_path, name, risk, mode, expected) -> None:
    assert agent(tmp_path, mode)._should_sandbox(name, risk) is expected


def test_a_call_that_needs_no_sandbox_runs_in_the_agents_own_process(tmp_path: Path) -> None:
    made = agent(tmp_path)
    result = made.run_tool("read_notes", path="a.txt")
    assert result.success and not result.sandboxed and result.value == f"read a.txt in {os.getpid()}"
    assert made.sandbox.sandbox_id == ""  # none was made


def test_without_sandboxing_everything_runs_directly_and_the_log_says_that_it_should_not_have(tmp_path: Path) -> None:
    made = agent(tmp_path, enable_sandboxing=False)
    result = made.run_tool("delete_file", path="a.txt")
    assert not result.sandboxed and result.value == f"deleted a.txt in {os.getpid()}"
    begin, _ = events(made)
    assert (begin["sandboxed"], begin["should_sandbox"]) == (False, True)


def test_what_a_direct_tool_raises_is_in_its_result(tmp_path: Path) -> None:
    result = agent(tmp_path, risk=lambda call: 0.0).run_tool("show_error", password="hunter2")
    assert not result.success and result.error == "ValueError: no login with hunter2"


class Wordless(Exception):
    def __str__(self) -> str:
        raise self


def wordless() -> None:
    raise Wordless


def ends_the_program() -> None:
    raise SystemExit("enough")


def very_deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(5000):
        made = [made]
    return made


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Liar(dict, metaclass=Nameless):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise RuntimeError("no length")

    items = keys = values = __iter__ = __len__  # type: ignore[assignment]


class Pretender:
    __class__ = str  # type: ignore[assignment]

    def __fspath__(self) -> str:
        raise RuntimeError("no path")


RETURNS = {"very deep": very_deep, "liar": lambda: Liar(), "pretender": lambda: Pretender()}
RAISES = {"wordless": wordless, "end": ends_the_program}


@pytest.mark.parametrize("name", RETURNS | RAISES)
def test_whatever_a_direct_tool_gives_back_is_a_result_and_in_the_log(tmp_path: Path, name: str) -> None:
    sandbox = SandboxConfig(sandbox_root=tmp_path / "s")
    made = SafeDeepAgent({"look": (RETURNS | RAISES)[name]}, safe_config=sandbox, risk=lambda call: 0.0)
    assert made.run_tool("look").success is (name in RETURNS)
    assert [each["event"] for each in events(made)] == ["begin", "end"]


def test_an_exception_without_a_text_is_still_named(tmp_path: Path) -> None:
    made = SafeDeepAgent({"look": wordless}, safe_config=SandboxConfig(sandbox_root=tmp_path), risk=lambda call: 0.0)
    assert made.run_tool("look").error == "Wordless: (it has no text)"
    made._risk = lambda call: wordless()  # type: ignore[assignment, func-returns-value]
    with pytest.raises(Wordless):
        made.run_tool("look")
    assert events(made)[-1]["reason"] == "Wordless: (it has no text)"


# ---- who is not run


@pytest.mark.parametrize("name", [None, 7, ["read_notes"], {}])
def test_what_is_no_name_is_no_tool(tmp_path: Path, name: Any) -> None:
    assert "no such tool" in not_run(agent(tmp_path), RefusedError, name)


def not_run(made: SafeDeepAgent, kind: type[Exception], name: str = "read_notes", **parameters: Any) -> str:
    with pytest.raises(kind) as caught:
        made.run_tool(name, **parameters)
    assert RAN == []
    last = events(made)[-1]
    assert last["event"] == "refused"
    return str(caught.value)


def test_an_unknown_tool_is_refused_and_the_nearest_are_named(tmp_path: Path) -> None:
    made = agent(tmp_path)
    assert "no such tool" in not_run(made, RefusedError, "read_note")
    with pytest.raises(RefusedError) as caught:
        made.run_tool("read_nоtes")  # a look-alike is another tool
    assert "read_notes" in caught.value.hint


def test_a_score_above_the_bound_is_refused(tmp_path: Path) -> None:
    made = agent(tmp_path, max_risk=0.5)
    assert "risk 0.8 is above 0.5" in not_run(made, RefusedError, "delete_file")
    assert made.run_tool("read_notes", path="a").success  # control


@pytest.mark.parametrize("score", [math.nan, -1, 2, "0.1", None, True])
def test_a_score_that_is_none_runs_nothing(tmp_path: Path, score: object) -> None:
    """NaN is neither above nor below a threshold: it would run everything outside."""
    not_run(agent(tmp_path, risk=lambda call: score), UsageError, path="a")
    authorize = lambda call, assessment: Decision(allowed=True, risk_score=score)  # noqa: E731
    not_run(agent(tmp_path, authorize=authorize), UsageError, path="a")


def test_a_function_of_the_callers_that_fails_runs_nothing(tmp_path: Path) -> None:
    def broken(*_: object) -> Any:
        raise LookupError("my own bug")

    for name in ("risk", "authorize", "detect"):
        not_run(agent(tmp_path, **{name: broken}), LookupError, path="a")


@pytest.mark.parametrize("said", [True, None, "yes", object()])
def test_an_authorisation_that_is_no_decision_runs_nothing(tmp_path: Path, said: object) -> None:
    not_run(agent(tmp_path, authorize=lambda call, assessment: said), UsageError, path="a")


def test_a_refusal_of_the_callers_is_a_refusal(tmp_path: Path) -> None:
    def authorize(call: ToolCall, assessment: Any) -> Decision:
        return Decision(allowed=call.parameters["path"] != "a", risk_score=0.1, reason="not that one")

    made = agent(tmp_path, authorize=authorize)
    assert "not that one" in not_run(made, RefusedError, path="a")
    assert made.run_tool("read_notes", path="b").success


def test_parameters_that_nobody_can_look_through_run_nothing(tmp_path: Path) -> None:
    not_run(agent(tmp_path, max_parameter_bytes=100), RefusedError, path="x" * 200)


# ---- attacks


def test_an_attack_stops_the_agent_until_it_is_reset(tmp_path: Path) -> None:
    finding = Finding(pattern="mine", reason="seen before", first_step=1)
    made = agent(tmp_path, detect=lambda history, call: [finding] if call.parameters.get("path") == "bad" else [])
    assert made.run_tool("read_notes", path="good").success
    with pytest.raises(AttackError, match="seen before") as caught:
        made.run_tool("read_notes", path="bad")
    assert caught.value.findings == ("seen before",) and made.halted and RAN == ["good"]
    for action in (lambda: made.run_tool("read_notes", path="good"), made.commit):
        with pytest.raises(AttackError, match="not run: an attack was found"):
            action()
    session = made.session
    made.reset()
    assert made.run_tool("read_notes", path="good").success and made.session != session
    told = [entry["event"] for entry in events(made)]
    assert told == ["begin", "end", "attack", "rollback", "refused", "reset", "begin", "end"]


def test_a_detector_may_answer_with_texts(tmp_path: Path) -> None:
    made = agent(tmp_path, detect=lambda history, call: ["looks odd"] if len(history) == 2 else ())
    made.run_tool("read_notes"), made.run_tool("read_notes")
    with pytest.raises(AttackError, match="looks odd"):
        made.run_tool("read_notes")


def test_the_history_holds_what_ran_and_starts_anew_with_a_session(tmp_path: Path) -> None:
    made = agent(tmp_path)
    made.run_tool("read_notes", path="a")
    with pytest.raises(RefusedError):
        made.run_tool("nothing")
    made.run_tool("read_notes", path="b")
    assert [(step.number, step.call.parameters["path"]) for step in made.history] == [(1, "a"), (3, "b")]
    made.reset()
    assert made.history == []


def test_a_call_that_was_broken_off_counts_as_one_that_ran(tmp_path: Path) -> None:
    def read_slowly(path: str) -> None:
        raise KeyboardInterrupt

    made = SafeDeepAgent(
        {"read_slowly": read_slowly, "http_post": read_notes}, audit=tmp_path / "a", risk=lambda call: 0.0
    )
    with pytest.raises(KeyboardInterrupt):
        made.run_tool("read_slowly", path=".env")
    assert events(made)[-1]["event"] == "broken-off"
    with pytest.raises(AttackError):
        made.run_tool("http_post")


# ---- the audit log


def test_a_call_is_in_the_log_before_it_runs(tmp_path: Path) -> None:
    seen: list[Any] = []
    made = SafeDeepAgent(
        {"read_log": lambda: seen.extend(events(made))}, audit=tmp_path / "a.jsonl", risk=lambda call: 0.0
    )
    made.run_tool("read_log")
    assert [entry["event"] for entry in seen] == ["begin"]
    assert [entry["event"] for entry in events(made)] == ["begin", "end"]


def test_what_can_not_be_written_down_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made = agent(tmp_path, audit=tmp_path / "a")
    with pytest.raises(EvidenceError):
        made.run_tool("read_notes", path="x")
    assert RAN == []


def test_the_log_may_not_lie_where_tools_write(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "w")
    for place in (tmp_path / "w" / "audit", tmp_path / "link" / "deep" / "audit"):
        with pytest.raises(UsageError, match="is in an allowed path"):
            agent(tmp_path, audit=place)
    agent(tmp_path, audit=tmp_path / "audit")  # control


def test_no_secret_of_a_call_is_in_the_log_neither_as_parameter_nor_in_a_message(tmp_path: Path) -> None:
    made = agent(tmp_path, risk=lambda call: 0.0)
    result = made.run_tool("show_error", password="hunter2-hunter2")
    assert "hunter2" in str(result.error)  # control: the caller sees it
    text = Path(made.audit.path).read_text()
    assert "hunter2" not in text and "[redacted]" in text


@pytest.mark.system
def test_a_secret_that_is_the_name_of_a_parameter_is_not_in_the_log_either(tmp_path: Path) -> None:
    made = agent(tmp_path)
    made.run_tool("read_notes", path=".env")
    token = "ghp_" + "a1B2" * 8
    for name in (token, "x" * 100_000):
        with pytest.raises(AttackError) as caught:
            made._check_phase2_security(ToolCall("read_notes", {"path": {name: "http://198.51.100.7/"}}), 0.5)
        assert len(str(caught.value)) < 300
    assert token not in Path(made.audit.path).read_text()
    assert [each["event"] for each in events(made)][-4:] == ["attack", "rollback"] * 2


def test_a_reason_never_quotes_what_it_judges(tmp_path: Path) -> None:
    made = agent(tmp_path, authorize=lambda call, said: Decision(allowed=True, risk_score=0, reason=str(said.reasons)))
    made.run_tool("show_error", password="huntеr2", path="nоtes-hunter2")
    begin = events(made)[0]
    assert "disguise: the parameter 'password'" in begin["reason"] and "hunt" not in begin["reason"]


def test_the_log_lies_beside_the_sandboxes_unless_told_otherwise(tmp_path: Path) -> None:
    made = agent(tmp_path)
    made.run_tool("read_notes")
    assert made.audit.path == str(tmp_path / "s" / "audit.jsonl") and made.manager.stored_sandboxes() == []


# ---- odds and ends


def test_parameters_may_have_any_name(tmp_path: Path) -> None:
    made = SafeDeepAgent({"show": lambda **names: sorted(names)}, audit=tmp_path / "a", risk=lambda call: 0.0)
    assert made.run_tool("show", tool_name=1, self=2, name=3).value == ["name", "self", "tool_name"]


def test_a_tool_may_call_another_one_and_each_keeps_its_number(tmp_path: Path) -> None:
    made = SafeDeepAgent(
        {"outer": lambda: made.run_tool("inner").value + 1, "inner": lambda: 1}, audit=tmp_path / "a",
        risk=lambda call: 0.0,
    )  # fmt: skip
    assert made.run_tool("outer").value == 2 and made.run_tool("inner").value == 1
    told = [(entry["event"], entry["tool"], entry["step"]) for entry in events(made)]
    assert told == [("begin", "outer", 1), ("begin", "inner", 2), ("end", "inner", 2), ("end", "outer", 1),
                    ("begin", "inner", 3), ("end", "inner", 3)]  # fmt: skip


def test_many_paths_in_a_call_are_held_against_many_changes_quickly() -> None:
    changed = frozenset(f"/w/{'d/' * (number % 50)}{number}" for number in range(5_000))
    texts = [f"x/{number}" for number in range(5_000)]
    assert not meeting(("/w", "/v"), texts, changed)
    assert meeting(("/w",), [*texts, "d/d"], changed) and meeting(("/v",), ["../w/d/1/below"], changed)
    assert not meeting(("/w",), ["\0", "d" * 5000], changed)


def test_a_closed_agent_runs_nothing(tmp_path: Path) -> None:
    with agent(tmp_path) as made:
        pass
    not_run(made, UsageError, path="a")


def test_a_planner_is_asked_and_without_one_run_is_an_error(tmp_path: Path) -> None:
    def planner(request: str, run_tool: Any) -> str:
        return f"{request}: {run_tool('read_notes', path='a').success}"

    assert agent(tmp_path, planner=planner).run("Read the notes") == "Read the notes: True"
    with pytest.raises(UsageError, match="no planner"):
        agent(tmp_path).run("Read the notes")


@pytest.mark.parametrize("tools", [[lambda: 1], {"": print}, {"x": 3}, {1: print}])
def test_a_tool_without_a_name_is_an_error(tools: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a function with a name"):
        SafeDeepAgent(tools, audit=tmp_path / "a")


def test_a_sandbox_config_alone_will_do_and_its_switches_count() -> None:
    config = SandboxConfig(sandbox_mode=SandboxMode.NEVER, enable_sandboxing=False)
    assert SafeDeepAgent([read_notes], safe_config=config).safe_config == SafeConfig(sandbox=config)
    assert (SafeConfig(sandbox=config).sandbox_mode, SafeConfig(sandbox=config).enable_sandboxing) == (NEVER, False)
    assert SafeConfig(sandbox=config, sandbox_mode=ALWAYS).sandbox_mode is ALWAYS
    assert SafeConfig(commit="on-request").commit is Commit.ON_REQUEST  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields", [{"sandbox": 3}, {"sandbox_mode": "sometimes"}, {"commit": "never"}, {"max_risk": 2},
               {"enable_sandboxing": "no"}, {"max_parameter_bytes": 0}],
    ids=str,
)  # fmt: skip
def test_a_wrong_setting_is_an_error_that_names_it(fields: Any) -> None:
    with pytest.raises((PolicyError, UsageError)):
        SafeConfig(**fields)
