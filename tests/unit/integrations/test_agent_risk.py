"""What is read off a tool call, and how risky it looks: attacks on the heuristic, beside harmless twins."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from ringfence.errors import RefusedError, UsageError
from ringfence.integrations.deep_agent import secrets_and_code
from ringfence.integrations.deep_agent.call import MAX_PARAMETER_BYTES, ToolCall
from ringfence.integrations.deep_agent.confusables import fold, is_disguised, name_words
from ringfence.integrations.deep_agent.decision import Decision, allow_up_to, assess, checked_score
from ringfence.integrations.deep_agent.detection import Step
from ringfence.integrations.deep_agent.redaction import Redactor
from ringfence.integrations.deep_agent.risk import Assessment, RiskModel

SECRET_FILES = {
    ".env": ".env",
    "config/.env.production": ".env.production",
    "/home/u/.ssh/id_rsa": "id_rsa",
    "C:\\Users\\u\\.aws\\credentials": ".aws/credentials",
    "/etc/shadow": "etc/shadow",
    "/proc/self/environ": "proc/self/environ",
    "deploy/server.pem": "server.pem",
    "github_tokens.json": "github_tokens.json",
    "cat .e''nv": ".env",
    "cat .e\\nv": ".env",
    "cat${IFS}.env": ".env",
    "cat .en?": ".env",
    "cp id_r[s]a /tmp/x": "id_rsa",
    "echo LmVudg== | base64 -d": ".env",
    "2e656e76": ".env",
    "%2eenv": ".env",
    "．env": ".env",
    ".еnv": ".env",
    ".e\u200bnv": ".env",
    "open('.env').read()": ".env",
    "see .env. Then": ".env",
}
NO_SECRET_FILES = (
    "notes.txt", ".env.example", "process.env.PATH", "environment.yml", "tokenizer.json", "id_rsa_notes.md",
    "explain the credentials of the author", "keyboard.py", "*.py", "src/*", "", "shadow of a doubt",
)  # fmt: skip


@pytest.mark.parametrize(("text", "name"), SECRET_FILES.items(), ids=ascii)
def test_a_secret_file_is_seen_however_it_is_spelled(text: str, name: str) -> None:
    assert name in secrets_and_code.secret_files(text)


@pytest.mark.parametrize("text", NO_SECRET_FILES)
def test_harmless_names_are_not_taken_for_secrets(text: str) -> None:
    assert secrets_and_code.secret_files(text) == ()


LOOK_ALIKES = ("dеlete", "d\u200belete", "𝐝𝐞𝐥𝐞𝐭𝐞", "ᴅᴇʟᴇᴛᴇ", "ｄｅｌｅｔｅ", "délété", "DELETE")


@pytest.mark.parametrize("name", LOOK_ALIKES, ids=ascii)
def test_look_alike_letters_are_read_as_what_they_look_like(name: str) -> None:
    assert fold(name) == "delete"


@pytest.mark.parametrize("name", ["deleteFile", "delete_file", "DELETE-FILE", "Delete File"])
def test_names_fall_into_the_same_words_however_they_are_written(name: str) -> None:
    assert name_words(name) == {"delete", "file"}


def test_mixed_alphabets_are_a_disguise_and_other_languages_are_not() -> None:
    assert is_disguised("pаypal") and is_disguised("a\u202eb") and is_disguised("a\u200bb")
    assert not any(map(is_disguised, ("удалить", "Übergröße", "naïve", "東京タワー", "plain", "ελληνικά")))


SCORES = {
    ("read_file", "notes.txt"): (0.0, 0.5),
    ("execute_script", "analysis.py"): (0.85, 0.85),
    ("delete_file", "notes.txt"): (0.7, 1.0),
    ("dеlete_file", "notes.txt"): (0.7, 1.0),
    ("d3l3t3_everything", "notes.txt"): (0.7, 1.0),
    ("d_e_l_e_t_e", "notes.txt"): (0.7, 1.0),
    ("send_mail", "notes.txt"): (0.5, 0.7),
    ("write_file", "notes.txt"): (0.5, 0.7),
    ("frobnicate", "notes.txt"): (0.5, 0.7),
    ("удалить", "notes.txt"): (0.5, 1.0),
    ("read_file", "../../etc/passwd"): (0.7, 1.0),
    ("read_file", "/etc/hostname"): (0.7, 1.0),
    ("read_file", "~/notes.txt"): (0.7, 1.0),
    ("read_file", "sub/../notes.txt"): (0.0, 0.5),
    ("read_file", ".env"): (0.7, 1.0),
    ("read_file", "nоtes.txt"): (0.7, 1.0),
}


@pytest.mark.parametrize(("tool", "path"), SCORES, ids=ascii)
def test_scores_follow_from_names_and_parameters(
    tool: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    low, high = SCORES[tool, path]
    score = RiskModel([tmp_path])(ToolCall(tool, {"path": path})).score
    assert low <= score <= high


def test_code_secrets_in_values_and_unknown_objects_raise_the_score() -> None:
    calm = RiskModel()(ToolCall("show", {"text": "hello"})).score
    for parameters in ({"code": "1"}, {"text": "ghp_" + "a1" * 15}, {"text": object()}, {"deep": [{"code": ["x"]}]}):
        assert RiskModel()(ToolCall("show", parameters)).score > 0.5 > calm


def test_a_link_out_of_the_workspace_is_outside(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "inside").symlink_to(tmp_path)
    (workspace / "plain").touch()
    model = RiskModel([workspace])
    assert model(ToolCall("read", {"path": "inside/x"})).score > 0.7
    assert model(ToolCall("read", {"path": str(workspace / "plain")})).score < 0.5


def test_up_behind_a_link_is_where_the_kernel_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "w"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "here").symlink_to(".")
    (workspace / "deep").symlink_to("sub")
    (tmp_path / ".env").touch()
    monkeypatch.chdir(workspace)
    model = RiskModel([workspace])
    assert model(ToolCall("read", {"path": "here/../x"})).score > 0.7
    for path in ("sub/../x", "deep/../x"):
        assert model(ToolCall("read", {"path": path})).score < 0.5
    (tmp_path / "x").symlink_to(".env")
    assert ToolCall("read", {"path": "here/../x"}, folders=[str(workspace)]).secret_files == (".env",)


def test_a_relative_path_is_inside_only_if_it_is_so_from_the_current_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside a sandbox it would begin there."""
    (tmp_path / "w").mkdir()
    model, call = RiskModel([tmp_path / "w"]), ToolCall("read", {"path": "notes.txt"})
    monkeypatch.chdir(tmp_path)
    assert model(call).score > 0.7
    monkeypatch.chdir(tmp_path / "w")
    assert model(call).score < 0.5


def test_a_name_that_is_there_is_a_path_whatever_its_parameter_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "item").symlink_to("/etc/hostname")
    (tmp_path / "w" / "plain").touch()
    monkeypatch.chdir(tmp_path / "w")
    model = RiskModel([tmp_path / "w"])
    scores = [model(ToolCall("get", {"thing": name})).score for name in ("item", "plain", "absent")]
    assert scores[0] > 0.7 and scores[1] == scores[2] < 0.5


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 300, "x/" * 2000], ids=["nul", "half", "long", "deep"])
def test_a_path_that_no_file_can_have_is_outside_and_no_accident(text: str) -> None:
    assert 0 < RiskModel()(ToolCall("read", {"path": text})).score <= 1


def test_a_harmless_name_that_links_to_a_secret_names_the_secret(tmp_path: Path) -> None:
    (tmp_path / ".env").touch()
    (tmp_path / "notes").symlink_to(".env")
    assert ToolCall("read", {"path": "notes"}, folders=[str(tmp_path)]).secret_files == (".env",)
    assert ToolCall("read", {"path": "notes"}).secret_files == ()  # control: nobody said where to look


def test_a_validator_sees_the_code_and_what_it_finds_weighs_most() -> None:
    seen: list[str] = []

    def validator(source: str) -> list[str]:
        seen.append(source)
        return ["uses eval"] if "eval" in source else []

    model = RiskModel(validator=validator)
    assert model(ToolCall("run_python", {"code": "eval(x)", "path": "a.py"})).score == 1.0
    assert model(ToolCall("run_python", {"code": "1"})).score < 0.95
    assert seen == ["eval(x)", "1"]


# ---- the copy that is judged is the copy that runs


class Chameleon(str):
    """A text that says something else each time it is asked."""

    def lower(self) -> str:
        return "harmless"

    def __str__(self) -> str:
        return "harmless"


class Liar:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        return str


def test_a_text_that_changes_is_taken_once_and_as_it_is() -> None:
    call = ToolCall("read", {"path": Chameleon(".env")})
    assert call.secret_files == (".env",) and type(call.parameters["path"]) is str


def test_parameters_changed_afterwards_do_not_change_the_call() -> None:
    inner = ["notes.txt"]
    call = ToolCall("read", {"paths": inner})
    inner[0] = ".env"
    assert call.parameters == {"paths": ["notes.txt"]}


def test_an_object_that_lies_about_its_class_is_opaque() -> None:
    assert ToolCall("read", {"path": Liar()}).opaque == ("Liar",)


def test_names_of_nested_parameters_are_looked_at_too() -> None:
    assert ToolCall("store", {"data": {".env": 1}}).secret_files == (".env",)
    assert ToolCall("store", {"data": [b"cat .env", {("a", ".netrc")}]}).secret_files == (".env", ".netrc")


def test_what_is_too_large_or_too_deep_to_look_through_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    for parameters in ({"text": "x" * (MAX_PARAMETER_BYTES + 1)}, {"rows": endless}, {"rows": [0] * 60_000}):
        with pytest.raises(RefusedError, match="more than"):
            ToolCall("write", parameters)
    assert len(ToolCall("write", {"text": "x" * 1000}, max_bytes=1004).pieces) == 2


UNITS = ["token_", "a-", "[", ".env.", "://a:", "${ifs", "-----BEGIN PRIVATE KEY-----", "eyJ", "eyJ.", "::", "a.com.",
         "1.1.", "bearer ", "//a", "sk-", "password: "]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_no_text_makes_the_patterns_run_away(unit: str) -> None:
    """Ten times the text takes about ten times as long, not a hundred; measured in processor time of this process. Also
    of what a tool has returned or printed: in the sandbox that is a hostile program's choice."""

    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        start = time.process_time()
        call = ToolCall("run", {"code": text})
        RiskModel()(call), call.way_out
        for path in ("notes", ".env"):
            Step(1, ToolCall("read", {"path": path}), text)
        Redactor().text(text)
        return time.process_time() - start

    # The best of three: others share the processor's caches.
    assert min(seconds(40_000) for _ in range(3)) < 40 * max(min(seconds(4_000) for _ in range(3)), 0.005)


# ---- decisions


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1, "0.5", None, True])
def test_a_score_that_is_no_number_from_0_to_1_is_an_error(score: object) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        checked_score(score)
    with pytest.raises(UsageError):
        assess(lambda call: score, ToolCall("x", {}))  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError):
        assess(lambda call: Assessment(score=score), ToolCall("x", {}))  # type: ignore[arg-type]


def test_the_default_allows_up_to_a_score_and_says_why_not_above() -> None:
    call = ToolCall("x", {})
    assert allow_up_to(0.5)(call, Assessment(score=0.5)) == Decision(allowed=True, risk_score=0.5)
    refused = allow_up_to(0.5)(call, Assessment(score=0.6, reasons=("code: in it",)))
    assert not refused.allowed and refused.reason == "risk 0.6 is above 0.5 (code: in it)"


def test_a_plain_number_is_an_assessment_too() -> None:
    assert assess(lambda call: 0.25, ToolCall("x", {})).score == 0.25


def test_paths_arrive_as_paths() -> None:
    class Odd(os.PathLike):  # type: ignore[type-arg]
        def __fspath__(self) -> str:
            return ".env"

    call = ToolCall("read", {"path": Odd(), "other": Path("a")})
    assert call.parameters == {"path": Path(".env"), "other": Path("a")} and call.secret_files == (".env",)


UP = "../../etc/hostname"
OUTSIDE_SPELLINGS = {
    "control": UP,
    "absolute": "/etc/hostname",
    "blank": f" {UP}",
    "tab": f"\t{UP}",
    "line end": f"{UP}\n",
    "second line": f"notes.txt\n{UP}",
    "carriage return": f"notes.txt\r{UP}",
    "no-break space": f"\u00a0{UP}",
    "NUL": f"notes.txt\0{UP}",
    "quoted": "'/etc/hostname'",
    "twice quoted": '"\'/etc/hostname\'"',
    "back ticks": "`/etc/hostname`",
    "percent": "%2fetc%2fhostname",
    "percent dots": "%2e%2e/%2e%2e/etc",
    "percent twice": "%252fetc%252fhostname",
    "variable": "$OUTER/x",
    "variable in braces": "${OUTER}/x",
    "percent variable": "%24OUTER/x",
    "tilde": "~/x",
    "user": "~root/x",
    "long": "/./" * 1400 + "etc/hostname",
    "very long": "x" * 70_000,
    "backslashes": "..\\..\\etc",
    "mixed": "..\\../etc",
    "drive": "C:\\x",
    "JSON": '{"path": "/etc/hostname"}',
    "escaped JSON": '{"path": "\\/etc"}',
    "unicode escape": '{"path": "\\u002fetc"}',
    "file address": "FILE:///etc/hostname",
    "file address of one slash": "file:/etc/hostname",
    "file with host": "file://localhost/etc",
    "percent file": "file%3A%2F%2F%2Fetc",
    "response file": "@/etc/hostname",
    "option": "--file=/etc/hostname",
    "list": "a.txt,/etc/hostname",
    "blanks between": "a.txt /etc/hostname",
    "with host": "me:/etc/hostname",
    "braces": "{,/etc}/hostname",
    "fullwidth": "\uff0fetc\uff0fhostname",
    "division slash": "..\u2215..\u2215etc",
    "leader dots": "\u2025/\u2025/etc",
    "one dot leaders": "\u2024\u2024/\u2024\u2024/etc",
    "hidden character": ".\u200b./../etc",
    "goes up": "sub/../../../etc",
    "ends up": "sub/../..",
    "only up": "..",
    "root": "/",
    "glob": "../*",
}
INSIDE = ("notes.txt", " notes.txt ", "sub\\notes.txt", "sub/../notes.txt", "a%20b.txt", "it costs $5 / 100 km",
          "a and/or b", "two\nlines of text", "x" * 5000, "50%",
          "<p>text</p>", "$INNER/notes.txt", "file.txt:12")  # fmt: skip


@pytest.mark.parametrize("text", OUTSIDE_SPELLINGS.values(), ids=OUTSIDE_SPELLINGS)
@pytest.mark.parametrize("key", ("path", "name"))
def test_a_path_that_leads_outside_is_seen_however_it_is_spelled(
    text: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTER", "/somewhere")
    for value in (text, [text], {"deep": {key: (text,)}}, text.encode("utf-8", "surrogatepass")):
        assert RiskModel([tmp_path])(ToolCall("read_note", {key: value})).score > 0.5


@pytest.mark.parametrize("text", INSIDE)
def test_a_text_that_leads_nowhere_is_no_outside_path(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INNER", str(tmp_path))
    (tmp_path / "sub").mkdir()
    assert RiskModel([tmp_path])(ToolCall("read_note", {"name": text})).score == 0.1


def test_a_descriptor_in_place_of_a_path_is_outside(tmp_path: Path) -> None:
    assert RiskModel([tmp_path])(ToolCall("read_file", {"path": 0})).score > 0.5
    assert RiskModel([tmp_path])(ToolCall("list_files", {"max_files": 3})).score == 0.1
