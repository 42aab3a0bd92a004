"""Rows of SWE-bench's data set and predictions: every form that there is, and errors that name file and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.proctor.foreign.instance import Instance, read_instance
from ringfence.proctor.foreign.predictions import PATCH as FILE
from ringfence.proctor.foreign.predictions import patching, prediction_for, read_predictions

PATCH = "diff --git a/f.py b/f.py\n--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-a\n+b\n"
ROW: dict[str, object] = {
    "instance_id": "acme__shapes-1", "repo": "acme/shapes", "base_commit": "a1" * 20, "problem_statement": "wrong",
    "patch": PATCH, "test_patch": PATCH, "FAIL_TO_PASS": '["t.py::a", "t.py::b"]',
    "PASS_TO_PASS": ["t.py::c", "t.py::a"],
    "version": "2.1", "hints_text": "", "environment_setup_commit": "x",
}  # fmt: skip


def _file(tmp_path: Path, text: str, name: str = "i.json") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


@pytest.mark.parametrize("text", [
    json.dumps(ROW), json.dumps([ROW]), json.dumps(ROW) + "\n", json.dumps(ROW, indent=2),
    json.dumps({**ROW, "instance_id": "other"}) + "\n\n" + json.dumps(ROW) + "\n",
], ids=["object", "list", "JSONL of one", "over lines", "JSONL"])  # fmt: skip
def test_the_data_sets_own_forms_are_read(text: str, tmp_path: Path) -> None:
    found = read_instance(_file(tmp_path, text), "acme__shapes-1")
    assert found.fail_to_pass == ("t.py::a", "t.py::b") and found.pass_to_pass == ("t.py::c", "t.py::a")
    assert found.tests == ("t.py::a", "t.py::b", "t.py::c") and found.version == "2.1"
    assert json.loads(found.text)["repo"] == "acme/shapes"


def _without(key: str) -> dict[str, object]:
    return {name: value for name, value in ROW.items() if name != key}


@pytest.mark.parametrize(("row", "key", "words"), [
    *((_without(key), key, "is missing") for key in ("instance_id", "repo", "base_commit", "problem_statement",
                                                     "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")),
    ({**ROW, "instance_id": 3}, "instance_id", "a non-empty string"),
    ({**ROW, "instance_id": "../up"}, "instance_id", "not a name"),
    ({**ROW, "repo": "shapes"}, "repo", "owner/name"),
    ({**ROW, "repo": "a/b/c"}, "repo", "owner/name"),
    ({**ROW, "base_commit": "HEAD"}, "base_commit", "40 hex"),
    ({**ROW, "base_commit": "-" * 40}, "base_commit", "40 hex"),
    ({**ROW, "problem_statement": "a\0b"}, "problem_statement", "NUL"),
    ({**ROW, "problem_statement": ""}, "problem_statement", "a non-empty string"),
    ({**ROW, "test_patch": None}, "test_patch", "must be a string"),
    ({**ROW, "test_patch": PATCH.replace("f.py", "../f.py")}, "test_patch", "is outside the repository"),
    ({**ROW, "patch": ["x"]}, "patch", "must be a string"),
    ({**ROW, "patch": PATCH.replace("@@ -1", "@@ -x")}, "patch", "does not begin a hunk"),
    ({**ROW, "FAIL_TO_PASS": "t.py::a"}, "FAIL_TO_PASS", "not JSON"),
    ({**ROW, "FAIL_TO_PASS": '{"a": 1}'}, "FAIL_TO_PASS", "a list of test names"),
    ({**ROW, "FAIL_TO_PASS": [1]}, "FAIL_TO_PASS", "a list of test names"),
    ({**ROW, "PASS_TO_PASS": "[" * 100_000}, "PASS_TO_PASS", "not JSON"),
    ({**ROW, "PASS_TO_PASS": None}, "PASS_TO_PASS", "a list of test names"),
])  # fmt: skip
def test_what_is_wrong_is_named_by_file_and_key(row: object, key: str, words: str, tmp_path: Path) -> None:
    path = _file(tmp_path, json.dumps(row))
    with pytest.raises(UsageError, match=words) as caught:
        read_instance(path)
    assert str(caught.value).startswith(path) and f"{key}: " in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [
    ("", "not JSON"), ("{", "not JSON"), ("[]", "0 rows"), ("[1]", "row 1 is not an"), ('"text"', "not an object"),
    (json.dumps([ROW, ROW]), "2 rows"), (json.dumps(ROW) + "\n{\n", "line 2: not JSON"), ("[" * 100_000, "nested|JSON"),
])  # fmt: skip
def test_a_file_that_is_no_data_set_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(UsageError, match=words) as caught:
        read_instance(path)
    assert str(caught.value).startswith(path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "i.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UsageError, match="not UTF-8 at byte 7"):
        read_instance(str(tmp_path / "i.json"))


def test_a_row_is_chosen_by_its_id_and_never_guessed(tmp_path: Path) -> None:
    path = _file(tmp_path, json.dumps([ROW, {**ROW, "instance_id": "b"}]))
    assert read_instance(path, "b").instance_id == "b"
    for wanted in ("", "c"):
        with pytest.raises(UsageError, match=r"rows"):
            read_instance(path, wanted)


# ---- predictions

MADE = {"instance_id": "acme__shapes-1", "model_patch": PATCH, "model_name_or_path": "m"}


def _instance(name: str = "acme__shapes-1") -> Instance:
    return Instance(instance_id=name, repo="a/b", base_commit="a" * 40, problem_statement="p")


@pytest.mark.parametrize("text", [
    json.dumps([MADE]), json.dumps(MADE), json.dumps(MADE) + "\n" + json.dumps({**MADE, "instance_id": "b"}),
    json.dumps({"acme__shapes-1": MADE, "b": {**MADE, "instance_id": "b"}}), json.dumps({"acme__shapes-1": PATCH}),
], ids=["list", "one", "JSONL", "by id", "by id, patches alone"])  # fmt: skip
def test_predictions_in_all_their_forms(text: str, tmp_path: Path) -> None:
    assert prediction_for(_file(tmp_path, text), _instance()).model_patch == PATCH


def test_an_agent_that_gave_up_has_an_empty_patch(tmp_path: Path) -> None:
    path = _file(tmp_path, json.dumps([{**MADE, "model_patch": None}]))
    assert prediction_for(path, _instance()).model_patch == ""


@pytest.mark.parametrize(("row", "words"), [
    ({**MADE, "instance_id": ""}, "row 1: instance_id"), ({**MADE, "model_patch": 3}, "row 1: model_patch"),
    ({"instance_id": "x"}, "row 1: model_patch"), ({**MADE, "model_name_or_path": []}, "row 1: model_name_or_path"),
])  # fmt: skip
def test_a_wrong_prediction_is_named_by_file_row_and_key(row: object, words: str, tmp_path: Path) -> None:
    path = _file(tmp_path, json.dumps([row]))
    with pytest.raises(UsageError, match=words) as caught:
        read_predictions(path)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(("patch", "written"), [
    (PATCH, PATCH.encode()), ("\udcff\r\n", b"\xff\r\n"), (f"{PATCH}\ud800", PATCH.encode() + b"\\ud800"),
], ids=["plain", "a byte that is no text", "half a character"])  # fmt: skip
def test_a_patch_of_any_text_is_written(patch: str, written: bytes, tmp_path: Path) -> None:
    """A bad one is a fail of who made it, and no error."""
    made = prediction_for(_file(tmp_path, json.dumps([{**MADE, "model_patch": patch}])), _instance())
    patching(made.model_patch, str(tmp_path), "/testbed")
    assert (tmp_path / FILE).read_bytes() == written


def test_two_predictions_or_none_for_an_instance_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="twice"):
        read_predictions(_file(tmp_path, json.dumps([MADE, MADE])))
    with pytest.raises(UsageError, match="no prediction for other"):
        prediction_for(_file(tmp_path, json.dumps([MADE])), _instance("other"))
