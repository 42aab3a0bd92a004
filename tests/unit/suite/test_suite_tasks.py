"""What a suite consists of, and what is refused, by file and key."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ringfence.errors import PolicyError, UsageError
from ringfence.proctor.suite.entry import folder_name
from ringfence.proctor.suite.tasks import tasks_of


def _generic(folder: Path, settings: str = "") -> Path:
    (folder / "workspace").mkdir(parents=True)
    (folder / "grade.sh").write_text("true\n")
    if settings:
        (folder / "task.yaml").write_text(settings)
    return folder


def _with(folder: Path, *names: str) -> None:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("")


def test_the_format_of_each_task_is_told_by_its_files(tmp_path: Path) -> None:
    _generic(tmp_path / "ours")
    _with(tmp_path / "tb2", "task.toml", "task.yaml")
    with pytest.raises(UsageError, match="by itself"):
        tasks_of(str(tmp_path), only=["tb2"], options={"policy": "/p.yaml"})
    _with(tmp_path / "tb1", "task.yaml", "run-tests.sh")
    (tmp_path / "README.md").write_text("not a task")
    (tmp_path / ".git").mkdir()
    found = tasks_of(str(tmp_path), rootfs="host")
    assert [(entry.id, entry.kind) for entry in found] == [
        ("ours", "generic"), ("tb1", "terminal-bench"), ("tb2", "harbor")]  # fmt: skip
    assert all(entry.options == {"rootfs": "host"} and os.path.isabs(entry.path) for entry in found)


def test_one_task_is_a_suite_of_one(tmp_path: Path) -> None:
    assert [entry.id for entry in tasks_of(str(_generic(tmp_path / "alone")))] == ["alone"]


def test_a_folder_that_is_no_task_is_an_error_and_can_be_left_out_by_name(tmp_path: Path) -> None:
    _generic(tmp_path / "a")
    (tmp_path / "scripts").mkdir()
    with pytest.raises(UsageError, match="scripts is not a task") as caught:
        tasks_of(str(tmp_path))
    assert "--skip" in caught.value.hint
    assert [entry.id for entry in tasks_of(str(tmp_path), skip=["scr*"])] == ["a"]


def test_a_link_in_a_suite_makes_no_task_of_what_lies_elsewhere(tmp_path: Path) -> None:
    mine = _generic(tmp_path / "mine")
    _generic(tmp_path / "suite" / "a")
    (tmp_path / "suite" / "b").symlink_to(mine)
    with pytest.raises(UsageError, match="b is a link that points outside the suite"):
        tasks_of(str(tmp_path / "suite"))
    assert [entry.id for entry in tasks_of(str(tmp_path / "suite"), skip=["b"])] == ["a"]
    (tmp_path / "link").symlink_to(tmp_path / "suite")
    assert [entry.id for entry in tasks_of(str(tmp_path / "link"), only=["a"])] == ["a"]
    assert [entry.id for entry in tasks_of(str(tmp_path / "suite" / "b"))] == ["b"], "who names it means it"


def test_tasks_are_chosen_by_patterns(tmp_path: Path) -> None:
    for name in ("easy-1", "easy-2", "hard-1"):
        _generic(tmp_path / name)
    assert [entry.id for entry in tasks_of(str(tmp_path), only=["easy-*"], skip=["*-2"])] == ["easy-1"]
    with pytest.raises(UsageError, match="none of 3 tasks"):
        tasks_of(str(tmp_path), only=["none"])


def test_what_is_wrong_with_a_task_is_told_before_any_runs_with_file_and_key(tmp_path: Path) -> None:
    _generic(tmp_path / "a", "version: 1\ngrader:\n  comand: [sh]\n")
    with pytest.raises(PolicyError, match=r"a/task.yaml:3:\d+: grader.comand"):
        tasks_of(str(tmp_path))
    (tmp_path / "a" / "task.yaml").unlink()
    (tmp_path / "a" / "policy.yaml").write_text("version: 1\nlimits:\n  pids: none\n")
    with pytest.raises(PolicyError, match=r"a/policy.yaml:3:\d+: limits.pids"):
        tasks_of(str(tmp_path))


def test_an_empty_or_missing_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no task in it"):
        tasks_of(str(tmp_path))
    with pytest.raises(UsageError, match="is not a directory"):
        tasks_of(str(tmp_path / "nowhere"))


def test_two_tasks_with_one_id_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _generic(tmp_path / name, "id: same\n")
    with pytest.raises(UsageError, match=r"b/task.yaml: id: 'same' is that of .*/a too"):
        tasks_of(str(tmp_path))


@pytest.mark.parametrize("name", [b"a\xff", b"a\x1b[2J", b"a\nb"])
def test_a_name_that_is_no_text_or_steers_a_terminal_is_refused(tmp_path: Path, name: bytes) -> None:
    os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    with pytest.raises(UsageError, match="is not a task id") as caught:
        tasks_of(str(tmp_path))
    assert str(caught.value).isprintable()


# ---- ids


@pytest.mark.parametrize("name", [
    "../../etc/passwd", "/etc/passwd", "..", ".", "", ".hidden", "-rf", "a/b", "a\0b", "a\nb", "\udcff", "x" * 300, "é",
])  # fmt: skip
def test_no_id_becomes_a_path(name: str) -> None:
    folder = folder_name(name)
    assert os.path.basename(folder) == folder and folder.isascii() and folder[0] not in ".-"
    assert len(folder) < 120 and folder not in ("", ".", "..")


def test_other_ids_have_other_folders() -> None:
    names = ["a/b", "a_b", "a b", "A_b", "a_b-" + "0" * 16]
    assert len({folder_name(name) for name in names}) == len(names)
    assert folder_name("django__django-11099") == "django__django-11099"


# ---- SWE-bench


def _instance(name: str = "o__n-1", **changes: object) -> dict[str, object]:
    texts = {"problem_statement": "Mend it.", "test_patch": "", "FAIL_TO_PASS": "[]", "PASS_TO_PASS": []}
    return {"instance_id": name, "repo": "o/n", "base_commit": "0" * 40, **texts, **changes}


def _data_set(folder: Path, *instances: object) -> str:
    path = folder / "set.jsonl"
    path.write_text("\n".join(map(json.dumps, instances)))
    return str(path)


@pytest.mark.parametrize("clone", ["o__n", "o/n", "n"])
def test_instances_find_their_clones(tmp_path: Path, clone: str) -> None:
    (tmp_path / clone).mkdir(parents=True)
    path = _data_set(tmp_path, _instance("o__n-2"), _instance("o__n-1"))
    found = tasks_of(path, repos=str(tmp_path), options={"grade": "yes", "python": ""})
    assert [(entry.id, entry.kind) for entry in found] == [("o__n-1", "swebench"), ("o__n-2", "swebench")]
    assert found[0].options == {"grade": "yes", "repo": str(tmp_path / clone)}


def test_a_list_and_one_object_are_data_sets_too(tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    path = tmp_path / "set.json"
    for content in ([_instance()], _instance()):
        path.write_text(json.dumps(content))
        assert [entry.id for entry in tasks_of(str(path), repos=str(tmp_path))] == ["o__n-1"]


@pytest.mark.parametrize(("instances", "told"), [
    ([_instance(), {"instance_id": "x"}], r"set.jsonl: x: repo: is missing"),
    ([_instance(7)], r"set.jsonl: instance_id: "),  # type: ignore[arg-type]
    ([7], r"set.jsonl: row 1 is not an object"),
    ([_instance(), _instance()], "'o__n-1' appears twice"),
    ([_instance(repo="../../etc")], r"repo: '../../etc' is not owner/name"),
    ([_instance(repo="../n")], r"'../n' is not owner/name"),
    ([_instance(repo="other/one")], "no clone of other/one"),
    ([_instance("a\x1b[2J")], "instance_id: .* is not a name"),
    ([_instance("x" * 300)], "is not a task id"),
])  # fmt: skip
def test_a_wrong_instance_is_told_by_file_and_key(tmp_path: Path, instances: list[object], told: str) -> None:
    (tmp_path / "n").mkdir()
    with pytest.raises(UsageError, match=told):
        tasks_of(_data_set(tmp_path, *instances), repos=str(tmp_path))


@pytest.mark.parametrize("text", ["{", "\xff", "[" * 100_000])
def test_what_is_no_json_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(json.dumps(_instance()).encode() + b"\n" + text.encode("latin-1"))
    (tmp_path / "n").mkdir()
    with pytest.raises(UsageError, match=r"set\.jsonl"):
        tasks_of(str(path), repos=str(tmp_path))


def test_clones_go_with_a_data_set_and_with_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs --repos"):
        tasks_of(_data_set(tmp_path, _instance()))
    with pytest.raises(UsageError, match="--repos is for"):
        tasks_of(str(_generic(tmp_path / "a")), repos=str(tmp_path))
