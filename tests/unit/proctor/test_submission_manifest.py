"""Manifests of submissions: digests of hostile trees, what a manifest says, and which answers are found in it."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.proctor.test_history import commit, git

from ringfence import cli
from ringfence.errors import EvidenceError, UsageError
from ringfence.evidence.digest import tree_digest
from ringfence.model.record import replace
from ringfence.proctor.foreign.instance import instance_of
from ringfence.proctor.submission_manifest import binding, document, known_answers, reading
from ringfence.proctor.submission_manifest.document import Submitted, capture, differences, encode, read_manifest
from ringfence.proctor.submission_manifest.reading import read_input
from ringfence.proctor.submission_manifest.search import Answer, Search
from ringfence.proctor.task import Grader, Root, Task

SECRET = "flag-9f3a-77aa-the-answer"


@pytest.fixture
def handed_in(tmp_path: Path) -> Submitted:
    scaffold = tmp_path / "prompts"
    (scaffold / "deep").mkdir(parents=True)
    (scaffold / "system.md").write_text("You solve tasks.\n")
    (scaffold / "deep" / "tool.py").write_text("print('a tool')\n")
    (scaffold / "deep" / "tool.py").chmod(0o755)
    (scaffold / "link").symlink_to("deep/tool.py")
    (tmp_path / "AGENTS.md").write_text("Read the instruction first.\n")
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\necho 42 > answer.txt\n")
    agent.chmod(0o755)
    return Submitted(agent_binary=str(agent), scaffold=(str(scaffold),), instructions=(str(tmp_path / "AGENTS.md"),),
                     environment=("MODEL_API_KEY",))  # fmt: skip


@pytest.fixture
def task(tmp_path: Path) -> Task:
    folder = tmp_path / "sum"
    for name in ("workspace", "oracle"):
        (folder / name).mkdir(parents=True)
    (folder / "workspace" / "readme.txt").write_text("write the answer into answer.txt\n")
    (folder / "oracle" / "expected.txt").write_text(SECRET + "\n")
    (folder / "oracle" / "test_it.py").write_text("def test_the_number_is_right():\n    assert value() == 17\n")
    (folder / "grade.sh").write_text("true\n")
    return Task.from_folder(folder)


# ---- reading


def test_a_tree_has_the_digest_of_the_formats_document(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "sub").mkdir()
    (tmp_path / "t" / "sub" / "run").write_text("x")
    (tmp_path / "t" / "sub" / "run").chmod(0o700)
    (tmp_path / "t" / "link").symlink_to("sub")
    with open(os.fsencode(tmp_path) + b"/t/\xff\xfe", "wb") as file:
        file.write(b"no text")
    found, other = read_input("scaffold", "t", str(tmp_path / "t")), tree_digest(str(tmp_path / "t"))
    assert (found.sha256, found.files, found.bytes) == (other.sha256, other.files, other.size_bytes)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


@pytest.mark.parametrize("make", [_fifo, _socket])
def test_what_is_neither_file_folder_nor_link_is_refused_and_waited_for_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    Path("t").mkdir()
    make(Path("t/odd"))
    with pytest.raises(EvidenceError, match="is not a file, a directory or a link"):
        read_input("scaffold", "t", "t")
    with pytest.raises(EvidenceError):
        read_input("agent", "odd", "t/odd")


@pytest.mark.parametrize(("target", "allowed"), [
    ("../secret", False), ("/etc/passwd", False), ("sub/../../secret", False), ("sub/x", True), ("/usr/bin/env", True),
])  # fmt: skip
def test_a_link_leads_to_what_is_bound_or_to_the_system(tmp_path: Path, target: str, allowed: bool) -> None:
    (tmp_path / "t" / "sub").mkdir(parents=True)
    (tmp_path / "t" / "sub" / "x").write_text("x")
    (tmp_path / "secret").write_text("answers")
    (tmp_path / "t" / "link").symlink_to(target)
    if allowed:
        assert read_input("scaffold", "t", str(tmp_path / "t")).files == 1
    else:
        with pytest.raises(EvidenceError, match="points outside"):
            read_input("scaffold", "t", str(tmp_path / "t"))


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"before")

    def look(_: str, chunks: Iterator[bytes]) -> None:
        place.write_bytes(b"afterwards, and longer")

    with pytest.raises(EvidenceError, match="changed while it was read"):
        read_input("agent", "file", str(place), look)


def test_a_folder_that_gets_another_file_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").write_text("a")

    def look(_: str, chunks: Iterator[bytes]) -> None:
        (tmp_path / "t" / "late").write_text("added")

    with pytest.raises(EvidenceError, match="changed while it was read"):
        read_input("scaffold", "t", str(tmp_path / "t"), look)


def test_a_folder_swapped_for_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "t" / "sub").mkdir(parents=True)
    (tmp_path / "t" / "a").write_text("a")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "secret").write_text("secret")
    seen: list[bytes] = []

    def look(path: str, chunks: Iterator[bytes]) -> None:
        seen.extend(chunks)
        if path == "a":
            (tmp_path / "t" / "sub").rmdir()
            (tmp_path / "t" / "sub").symlink_to(tmp_path / "out")

    with pytest.raises(EvidenceError):
        read_input("scaffold", "t", str(tmp_path / "t"), look)
    assert b"secret" not in seen


def test_there_is_an_end_to_how_much_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").mkdir()
    for number in range(5):
        (tmp_path / "t" / str(number)).write_text("12345")
    monkeypatch.setattr(reading, "MAX_ENTRIES", 4)
    with pytest.raises(EvidenceError, match="more than"):
        read_input("scaffold", "t", str(tmp_path / "t"))
    monkeypatch.setattr(reading, "MAX_ENTRIES", 100)
    monkeypatch.setattr(reading, "MAX_BYTES", 24)
    with pytest.raises(EvidenceError, match="more than"):
        read_input("scaffold", "t", str(tmp_path / "t"))


# ---- the document


def test_a_manifest_is_read_as_it_was_written(handed_in: Submitted, tmp_path: Path) -> None:
    found = capture(handed_in)
    assert [(row["role"], row["name"], row["kind"]) for row in found["inputs"]] == [
        ("agent", "agent", "file"), ("instruction", "AGENTS.md", "file"), ("scaffold", "prompts", "tree")]  # fmt: skip
    (tmp_path / "m.json").write_bytes(encode(found))
    assert read_manifest(str(tmp_path / "m.json")) == found
    assert str(tmp_path).encode() not in encode(found)
    assert differences(found, capture(handed_in)) == []


def _spoilt(found: dict[str, object], **changes: object) -> bytes:
    return encode({**found, **changes})


@pytest.mark.parametrize("spoil", [
    lambda found: b"not json",
    lambda found: json.dumps(found, indent=1).encode(),
    lambda found: _spoilt(found, extra=1),
    lambda found: _spoilt(found, format="ringfence.inputs/1"),
    lambda found: _spoilt(found, inputs=[row for row in found["inputs"] if row["role"] != "agent"]),
    lambda found: _spoilt(found, inputs=[*reversed(found["inputs"])]),
    lambda found: _spoilt(found, inputs=[{**found["inputs"][0], "name": "../x"}]),
    lambda found: _spoilt(found, inputs=[{**found["inputs"][0], "role": "oracle"}]),
    lambda found: _spoilt(found, environment_variables=["B", "A"]),
])  # fmt: skip
def test_what_is_no_manifest_is_refused_by_name(
    handed_in: Submitted, tmp_path: Path, spoil: Callable[[dict[str, object]], bytes]
) -> None:
    (tmp_path / "m.json").write_bytes(spoil(capture(handed_in)))
    with pytest.raises(EvidenceError, match=r"m\.json"):
        read_manifest(str(tmp_path / "m.json"))


def test_every_difference_is_told(handed_in: Submitted, tmp_path: Path) -> None:
    declared = capture(handed_in)
    (tmp_path / "agent").write_text("#!/bin/sh\necho 43 > answer.txt\n")
    (tmp_path / "more").write_text("x")
    now = Submitted(agent_binary=handed_in.agent_binary, scaffold=(*handed_in.scaffold, str(tmp_path / "more")),
                    environment=("MODEL_API_KEY", "OTHER"))  # fmt: skip
    told = differences(declared, capture(now))
    assert told == [
        "agent agent differs: the same size, other content",
        "instruction AGENTS.md is in the manifest but not here",
        "scaffold more is not in the manifest", "the variable OTHER is not in the manifest"]  # fmt: skip
    fewer = Submitted(agent_binary=handed_in.agent_binary, scaffold=handed_in.scaffold,
                      instructions=handed_in.instructions)  # fmt: skip
    assert [line for line in differences(declared, capture(fewer)) if "variable" in line] == []


def test_names_are_texts_and_each_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in "ab":
        (tmp_path / folder / "x").write_text("x")
    one, other = str(tmp_path / "a" / "x"), str(tmp_path / "b" / "x")
    two = Submitted(agent_binary=one, scaffold=(one, other))
    with pytest.raises(UsageError, match="are named x"):
        capture(two)
    with pytest.raises(UsageError, match="not UTF-8"):
        [*Submitted(agent_binary=os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).named()]
    with pytest.raises(UsageError) as told:
        document.names_in(["KEY=hunter2"])
    assert "hunter2" not in str(told.value)


# ---- answers


def _found(answers: list[Answer], data: bytes) -> list[str]:
    return [form for _, form in Search(answers).of(iter([data]))]


_FILLER = b"and no other the value is " * 100  # what can't be made shorter is stored as it is


def _zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one.txt", "nothing")
        archive.writestr("two.txt", data)
    return file.getvalue()


@pytest.mark.parametrize(("disguise", "form"), [
    (lambda text: b"say: " + text + b".", "as it is"),
    (lambda text: text.replace(b" ", b"\r\n\t"), "as it is"),
    (lambda text: text.decode().encode("utf-16"), "UTF-16"),
    (lambda text: text.hex().upper().encode(), "hexadecimal"),
    (lambda text: text[::-1], "backwards"),
    (lambda text: base64.b64encode(text), "base64"),
    (lambda text: base64.encodebytes(b"x" + text + b"tail"), "base64"),
    (lambda text: base64.urlsafe_b64encode(b"xx" + text + b"tail"), "base64"),
    (lambda text: gzip.compress(_FILLER + text), "in gzip"),
    (lambda text: bz2.compress(_FILLER + text), "in bzip2"),
    (lambda text: lzma.compress(_FILLER + text), "in xz"),
    (_zipped, "in zip"),
    (lambda text: b"#!/usr/bin/env python3\n" + _zipped(text), "in zip"),
    (lambda text: b"\x7fELF" + bytes(5000) + _zipped(text), "in zip"),
])  # fmt: skip
def test_an_answer_is_found_in_every_plain_disguise(disguise: Callable[[bytes], bytes], form: str) -> None:
    text = b"the value is 9f3a?>~ and no other"
    answer = Answer(kind="oracle string", source="oracle/x", text=text)
    assert _found([answer], disguise(text)) == [form]
    assert _found([answer], disguise(b"the value is 9f3b?>~ and no other")) == []


def test_an_answer_is_found_across_chunks_and_in_large_files() -> None:
    answer = Answer(kind="oracle string", source="x", text=b"alpha beta_gamma delta")
    padding = [os.urandom(1 << 10) * 600 for _ in range(3)]
    chunks = [padding[0], padding[1] + b" xalpha bet", b"a_gamma\ndeltas " + padding[2]]
    assert [form for _, form in Search([answer]).of(iter(chunks))] == ["as it is"]
    assert Search([answer]).of(iter(padding)) == []


@pytest.mark.parametrize("code", ["ascii", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(("blank", "times"), [(" ", 100), (" ", 80_000), ("\r\n", 40_000), (" ", 700_000)])
def test_an_answer_is_found_however_much_white_space_lies_over_the_end_of_a_chunk(
    blank: str, times: int, code: str
) -> None:
    answer = Answer(kind="oracle string", source="x", text=b"alpha beta_gamma delta")
    data = ("#" * 200_000 + f" alpha{blank * times}beta_gamma delta.").encode(code)
    size = 1 << 18
    chunks = [data[place : place + size] for place in range(0, len(data), size)]
    assert len(Search([answer]).of(iter(chunks))) == 1
    other = [each.replace("beta".encode(code), "bete".encode(code)) for each in chunks]
    assert Search([answer]).of(iter(other)) == []


def test_what_only_looks_like_an_archive_is_searched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringfence.proctor.submission_manifest import search

    monkeypatch.setattr(search, "MAX_UNPACKED_BYTES", 1 << 10)
    answer = Answer(kind="oracle string", source="x", text=b"alpha beta_gamma delta")
    for begin in (b"\x1f\x8b", b"#!/bin/sh\nPK\x03\x04"):
        chunks = [begin + bytes(100), bytes(1000), bytes(1000), b"alpha beta_gamma delta"]
        assert [form for _, form in Search([answer]).of(iter(chunks))] == ["as it is"]


def test_a_broken_or_endless_archive_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringfence.proctor.submission_manifest import search

    answer = Answer(kind="oracle string", source="x", text=b"alpha beta_gamma delta")
    assert _found([answer], gzip.compress(b"x" * 1000)[:30]) == []
    assert _found([answer], b"PK\x03\x04 rubbish") == []
    monkeypatch.setattr(search, "MAX_UNPACKED_BYTES", 1 << 20)
    bomb = gzip.compress(bytes(40 << 20) + answer.text)
    assert _found([answer], bomb) == []
    assert _found([answer], gzip.compress(bytes(1 << 10) + answer.text)) == ["in gzip"]


def test_what_of_a_task_gives_it_away(task: Task) -> None:
    known = known_answers.known_answers(task)
    assert {(each.kind, each.text) for each in known.answers} >= {
        ("oracle string", SECRET.encode()), ("test id", b"test_the_number_is_right")}  # fmt: skip
    assert {source for _, source in known.copies} == {"oracle/expected.txt", "oracle/test_it.py"}


def test_what_everybody_gets_is_no_answer(task: Task) -> None:
    (Path(task.workspace) / "notes.txt").write_text(f"for example {SECRET}\n")
    (Path(task.workspace) / "test_it.py").write_bytes((Path(task.oracle) / "test_it.py").read_bytes())
    known = known_answers.known_answers(task)
    assert [each for each in known.answers if each.source != "grader"] == []
    assert {source for _, source in known.copies} == {"oracle/expected.txt"}


def test_where_the_caller_is_is_nothing_that_everybody_gets(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task with a root of its own may have no workspace."""
    monkeypatch.chdir(task.oracle)
    (tmp_path / "root").mkdir()
    root = Root(folder=str(tmp_path / "root"), workdir="/")
    known = known_answers.known_answers(replace(task, workspace="", root=root))
    assert SECRET.encode() in {each.text for each in known.answers} and len(known.copies) == 2


@pytest.mark.system
def test_what_a_clone_has_after_its_base_commit_is_nothing_that_everybody_gets(task: Task, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet")
    base = commit(clone, "test_it.py", (Path(task.oracle) / "test_it.py").read_text())
    commit(clone, "fix.py", f"answer = {SECRET!r}\n")
    policy = replace(task.policy, base_commit=base)
    known = known_answers.known_answers(replace(task, workspace=str(clone), policy=policy))
    assert SECRET.encode() in {each.text for each in known.answers}
    assert b"test_the_number_is_right" not in {each.text for each in known.answers}


def test_the_instance_that_a_task_is_graded_by_is_an_answer(task: Task) -> None:
    row = {"instance_id": "x", "repo": "a/b", "base_commit": "a1" * 20, "problem_statement": "p", "patch": PATCH,
           "test_patch": "", "FAIL_TO_PASS": ["tests/test_m.py::test_scaled[2-7]"], "PASS_TO_PASS": []}  # fmt: skip
    known = known_answers.known_answers(replace(task, grader=Grader(argv=("x",), instance=instance_of(row, "d.jsonl"))))
    assert b"tests/test_m.py::test_scaled[2-7]" in {each.text for each in known.answers}
    assert "patch hunk" in {each.kind for each in known.answers}


def test_the_folder_of_a_solution_is_an_answer_as_a_whole(task: Task, tmp_path: Path) -> None:
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "solve.sh").write_text("git apply fix.patch\n")
    (tmp_path / "solution" / "fix.patch").write_text(PATCH)
    known = known_answers.known_answers(replace(task, solution=str(tmp_path / "solution" / "solve.sh")))
    assert "patch hunk" in {each.kind for each in known.answers}


PATCH = """\
diff --git a/m.py b/m.py
--- a/m.py
+++ b/m.py
@@ -1,2 +1,3 @@
 def f(x):
-    return x
+    scaled = x * FACTOR_OF_THE_HOUSE
+    return scaled + 1
@@ -9,1 +10,1 @@
-a
+import os
"""


def test_hunks_and_test_ids_of_an_instance_are_answers(tmp_path: Path) -> None:
    row = {"instance_id": "x", "patch": PATCH, "test_patch": "",
           "FAIL_TO_PASS": json.dumps(["tests/test_m.py::test_scaled[2-7]"])}  # fmt: skip
    for name, text in (("one.json", json.dumps(row)), ("many.jsonl", json.dumps(row) + "\n" + json.dumps(row) + "\n")):
        (tmp_path / name).write_text(text)
        found = known_answers.known_answers(None, [str(tmp_path / name)]).answers
        assert {(each.kind, each.text) for each in found} == {
            ("test id", b"tests/test_m.py::test_scaled[2-7]"),
            ("patch hunk", b"scaled = x * FACTOR_OF_THE_HOUSE return scaled + 1")}  # fmt: skip
    (tmp_path / "fix.patch").write_text(PATCH)
    found = known_answers.known_answers(None, [str(tmp_path / "fix.patch")]).answers
    assert [each.kind for each in found] == ["patch hunk"]


def test_answers_in_any_input_are_found_with_their_place(handed_in: Submitted, task: Task, tmp_path: Path) -> None:
    known = known_answers.known_answers(task)
    assert binding.inspect(handed_in, known)[1] == []
    (tmp_path / "AGENTS.md").write_text(f"The answer of sum is {SECRET}.\n")
    (tmp_path / "prompts" / "deep" / "t.py").write_bytes((Path(task.oracle) / "test_it.py").read_bytes())
    (tmp_path / "agent").write_bytes(b"\x7fELF" + bytes(1000) + SECRET.encode() + bytes(1000))
    found = binding.inspect(handed_in, known, f"agent --say {SECRET}")[1]
    assert {(each.place, each.kind) for each in found} >= {
        ("instruction/AGENTS.md", "oracle string"), ("agent/agent", "oracle string"),
        ("agent/command", "oracle string"),
        ("scaffold/prompts/deep/t.py", "copy of a file"), ("scaffold/prompts/deep/t.py", "test id")}  # fmt: skip
    assert SECRET not in "".join(map(str, found))


# ---- the command line


def _words(submitted: Submitted) -> list[str]:
    return ["--agent-binary", submitted.agent_binary, "--scaffold", submitted.scaffold[0], "--instructions",
            submitted.instructions[0], "--environment", "MODEL_API_KEY"]  # fmt: skip


def test_the_command_line_writes_and_checks_a_manifest(
    handed_in: Submitted, task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, file = _words(handed_in), str(tmp_path / "m.json")
    assert cli.proctor_main(["manifest", "create", *words, "--out", file]) == 0
    assert cli.proctor_main(["manifest", "verify", *words, "--manifest", file, "--task", task.folder]) == 0
    (tmp_path / "AGENTS.md").write_text(f"It is {SECRET}\n")
    capsys.readouterr()
    assert cli.proctor_main(["manifest", "verify", *words, "--manifest", file, "--task", task.folder]) == 2
    told = capsys.readouterr().err
    assert "AGENTS.md differs" in told and "instruction/AGENTS.md: oracle string of oracle/expected.txt" in told
    assert cli.proctor_main(["manifest", "create", *words, "--out", file, "--task", task.folder, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["known_answers"] and answer["sha256"] and SECRET not in json.dumps(answer)
    assert cli.proctor_main(["manifest", "verify", *words, "--manifest", file]) == 0
    assert cli.proctor_main(["manifest", "verify", *words, "--manifest", file, "--task", task.folder]) == 2
    assert cli.proctor_main(["manifest", "create", *words]) == 2
    assert cli.proctor_main(["manifest", "verify", *words, "--out", file]) == 2


def test_the_command_of_a_run_starts_what_is_handed_in_and_names_nothing_else(
    handed_in: Submitted, task: Task, tmp_path: Path
) -> None:
    file = tmp_path / "m.json"
    file.write_bytes(encode(capture(handed_in)))
    own, other = handed_in.agent_binary, tmp_path / "other.py"
    other.write_text("x")
    assert binding.bind(str(file), handed_in, task, f"{own} --solve").findings == ()
    assert binding.bind(str(file), handed_in, task, f"cd x && {own} | tee log").findings == ()
    with pytest.raises(UsageError, match="does not name its binary"):
        binding.bind(str(file), handed_in, task, "python3 -c 'print(1)'")
    with pytest.raises(UsageError, match="not handed in"):
        binding.bind(str(file), handed_in, task, f"{own} {other}")
    assert binding.binary_of(f"{own} --solve") == own
    assert binding.binary_of("true && false") == ""
