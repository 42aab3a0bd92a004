"""A project's own rules: what they change, and how a file that is wrong is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import PolicyError, UsageError
from ringfence.validation import Rules, SecurityValidator
from ringfence.validation.rules_file import read_rules, rules_of


def _file(folder: Path, text: str) -> Path:
    path = folder / "rules.yaml"
    path.write_text(text)
    return path


def _found(rules: Rules, code: str) -> list[tuple[str, str]]:
    return [(each.rule, each.level) for each in SecurityValidator(rules).validate(code).findings]


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read_rules(_file(tmp_path, "# nothing\n")).by_id == Rules().by_id


def test_a_project_adds_a_rule_of_its_own(tmp_path: Path) -> None:
    rules = read_rules(_file(tmp_path, """
add:
  no-tensorflow:
    category: dangerous_imports
    reason: takes longer to load than a strategy may run
    level: warning
    modules: [tensorflow]
    names: [math.factorial]
    calls: [math.comb]
    attributes: [secret]
    methods: [launch]
"""))  # fmt: skip
    code = "import tensorflow.keras, math\nmath.factorial\nmath.comb\nmath.comb(1, 2)\nx.secret\nx.launch\nx.launch()\n"
    found = SecurityValidator(rules).validate(code).findings
    assert {each.rule for each in found} == {"no-tensorflow"}
    assert [each.line for each in found] == [1, 2, 4, 5, 7]
    assert SecurityValidator(rules).validate(code).is_valid


def test_a_rule_is_silenced_with_a_reason(tmp_path: Path) -> None:
    rules = read_rules(_file(tmp_path, "silence:\n  dynamic-code: strategies are templates of ours\n"))
    assert _found(rules, "eval('1')") == []
    assert rules.silenced == {"dynamic-code": "strategies are templates of ours"}


def test_a_rule_is_tuned(tmp_path: Path) -> None:
    rules = read_rules(_file(tmp_path, """
tune:
  file-relative: {level: error}
  network-module: {allow: [requests], modules: [yfinance]}
  os-attribute: {allow: [umask]}
"""))  # fmt: skip
    assert _found(rules, "open('x')") == [("file-relative", "error")]
    assert _found(rules, "import requests.sessions") == []
    assert _found(rules, "import yfinance") == [("network-module", "error")]
    assert _found(rules, "import os\nos.umask(1)") == []
    assert _found(rules, "import os\nos.chroot('/tmp')") == [("os-attribute", "error")]


def test_paths_and_limits_are_a_projects_own(tmp_path: Path) -> None:
    rules = read_rules(_file(tmp_path, "paths: [/tmp, /input]\nlimits: {code_bytes: 100, nesting: 3}\n"))
    assert _found(rules, "open('/input/x')\nopen('/tmp/y')") == []
    assert _found(rules, "[[[[1]]]]") == [("nesting", "error")]
    assert _found(rules, "x = 1\n" * 20) == [("code-size", "error")]


def test_paths_can_be_changed_in_code() -> None:
    rules = Rules().with_paths("/output")
    assert _found(rules, "open('/output/result.json', 'w')") == []
    assert _found(rules, "open('/outputs/x')") == _found(rules, "open('/tmp/x')") == [("file-outside", "error")]


@pytest.mark.parametrize(("text", "message"), [
    ("foo: 1", ":1:1: foo: unknown key"),
    ("silense: {}", ':1:1: silense: unknown key; did you mean "silence"?'),
    ("- a", "rules must be a mapping"),
    ("silence:", ":1:1: silence: is empty"),
    ("silence: [a]", ":1:1: silence: must be a mapping, not list"),
    ("silence:\n  dynamic-code: ''", ":2:3: silence.dynamic-code: needs a reason"),
    ("silence:\n  dynamic-code:", ":2:3: silence.dynamic-code: needs a reason"),
    ("silence:\n  dynamic-cod: because of me", 'unknown rule; did you mean "dynamic-code"?'),
    ("silence:\n  nesting: because of me", ":2:3: silence.nesting: code that can't be examined is always refused"),
    ("tune:\n  file-relative: error", ":2:3: tune.file-relative: must be a mapping"),
    ("tune:\n  file-relativ: {level: error}", 'did you mean "file-relative"?'),
    ("tune:\n  file-relative:\n    level: fatal", ":3:5: tune.file-relative.level: 'fatal' is not one of error"),
    ("tune:\n  file-relative:\n    reason: because", ":3:5: tune.file-relative.reason: unknown key"),
    ("tune:\n  syntax: {level: warning}", "tune.syntax: code that can't be examined is always refused"),
    ("add:\n  Bad_Id: {category: limits, reason: because of me, modules: [a]}", ":2:3: add.Bad_Id: an id must consist"),
    ("add:\n  dynamic-code: {category: limits, reason: because of me, modules: [a]}",
     "a rule with that id already exists"),
    ("add:\n  mine: 3", ":2:3: add.mine: must be a mapping"),
    ("add:\n  mine: {category: limits, modules: [a]}", ":2:3: add.mine: reason is missing"),
    ("add:\n  mine: {category: limits, reason: because of me}", ":2:3: add.mine: must say what to look for"),
    ("add:\n  mine:\n    category: bad\n    reason: x\n    modules: []", ":3:5: add.mine.category: 'bad' is not"),
    ("add:\n  mine: {category: limits, reason: because of me, modules: [a b]}", "'a b' is not a name"),
    ("limits: {nesting: 0}", "limits.nesting: 0 is not a whole number from 1 to 200"),
    ("limits: {nesting: true}", "limits.nesting: True is not a whole number"),
    ("limits: {depth: 3}", "limits.depth: unknown key"),
    ("paths: /tmp", ":1:1: paths: must be a list of directories"),
    ("paths: [/tmp/..]", ":1:1: paths: '/tmp/..' is not an absolute path"),
    ("silence: &a {}", "tags, anchors and aliases are not allowed"),
    ("a: [", ":1:"),
])  # fmt: skip
def test_a_bad_file_is_refused_by_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_rules(_file(tmp_path, text))
    told = [str(each) for each in (caught.value, *caught.value.more)]
    assert any(message in line for line in told), told
    assert all("rules.yaml:" in line for line in told)


def test_all_errors_of_a_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        read_rules(_file(tmp_path, "limits: {nesting: 0, chain: 0}\npaths: [a]\n"))
    assert len(caught.value.more) == 2


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml"):
        read_rules(tmp_path / "none.yaml")


def test_rules_can_be_plain_data() -> None:
    assert rules_of({"paths": ["/data"]}).paths == ("/data",)
    with pytest.raises(PolicyError, match="mapping"):
        rules_of([])  # type: ignore[arg-type]


def test_the_file_in_the_documents_is_sound(tmp_path: Path) -> None:
    document = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "validator.md").read_text("utf-8")
    rules = read_rules(_file(tmp_path, document.partition("```yaml\n")[2].partition("```")[0]))
    assert "no-tensorflow" in rules.by_id and "environment" in rules.silenced
    assert _found(rules, "import os\nos.umask(1)\nopen('/output/x')\nimport requests") == []
