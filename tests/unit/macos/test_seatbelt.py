"""The text of a Seatbelt profile. That it holds, only a Mac can show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import UsageError
from ringfence.macos.seatbelt import Places, profile, real, spelled, text
from ringfence.model.policy import SandboxPolicy


def _policy(**asked: object) -> SandboxPolicy:
    return SandboxPolicy.from_dict({"isolation": "process", **asked})


def _read(words: str) -> list[object]:
    """A reader of the profile's language, written down a second time: lists, names and strings."""
    stack: list[list[object]] = [[]]
    place = 0
    while place < len(words):
        sign = words[place]
        if sign == '"':
            said, place = "", place + 1
            while words[place] != '"':
                place += words[place] == "\\"
                said, place = said + words[place], place + 1
            stack[-1].append(("text", said))
        elif sign == "(":
            stack.append([])
        elif sign == ")":
            done = stack.pop()
            stack[-1].append(done)
        elif not sign.isspace():
            end = place
            while words[end] not in "() \n\"":
                end += 1
            stack[-1].append(words[place:end])
            place = end - 1
        place += 1
    assert len(stack) == 1
    return stack[0]


_PATHS = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30).map(
    lambda name: "/srv/" + name.replace("/", "_").strip(".")  + "x"
)


@given(_PATHS)
def test_no_name_writes_rules_of_its_own(path: str) -> None:
    plain = _read(profile(_policy(hidden_paths=["/srv/x"])))
    found = _read(profile(_policy(hidden_paths=[path])))
    assert len(found) == len(plain) and found[-1] == [*plain[-1][:-1], ["subpath", ("text", path)]]  # type: ignore[index]


@pytest.mark.parametrize("path", ['/srv/a") (allow default) ("', "/srv/\\", '/srv/\\"', '/srv/")(allow network*)("'])
def test_hostile_names_are_one_string(path: str) -> None:
    rules = _read(profile(_policy(hidden_paths=[path], network="none")))
    assert rules[-1][-1] == ["subpath", ("text", path)]  # type: ignore[index]
    assert rules.count(["allow", "default"]) == 1 and ["deny", "network*"] in rules


@pytest.mark.parametrize("path", ["/srv/a\nb", "/srv/a\x00", "/srv/\x1b[2J", "/srv/\udc80", "/srv/a\u2028b"])
def test_what_nobody_knows_how_to_write_is_refused(path: str) -> None:
    with pytest.raises(UsageError):
        text(path)


def test_what_is_hidden_comes_last_and_writes_are_closed_first() -> None:
    places = Places(folders=("/var/work",), originals=("/tmp/out/base",), closed=("/state",))
    rules = _read(profile(_policy(readable_paths=["/data"], writable_paths=["/tmp/out"], hidden_paths=["/data/secret"],
                                  network="none"), places))  # fmt: skip
    assert rules[:2] == [["version", "1"], ["allow", "default"]]
    writes = [rule for rule in rules if isinstance(rule, list) and "file-write*" in rule]
    assert writes[:4] == [
        ["deny", "file-write*"],
        ["allow", "file-write*", _below("/private/tmp/out")],
        ["deny", "file-write*", _below("/private/tmp/out/base"), _below("/state")],
        ["allow", "file-write*", _below("/private/var/work")],
    ]
    assert rules[-1] == ["deny", "file*", "process-exec*", _below("/data/secret")]
    assert ["deny", "file-read-data"] in rules and ["deny", "network*"] in rules


def _below(path: str) -> list[object]:
    return ["subpath", ("text", path)]


def test_no_folder_above_what_is_hidden_can_be_renamed() -> None:
    """Else who may write there takes it out of its rule."""
    rules = _read(profile(_policy(writable_paths=["/w"], hidden_paths=["/w/a/b/secret"])))
    above = [["literal", ("text", path)] for path in ("/w", "/w/a", "/w/a/b")]
    assert rules[-2] == ["deny", "file-write*", *above]


def test_nobody_outside_acts_for_a_job() -> None:
    rules = _read(profile(_policy()))
    assert ["deny", "mach-lookup"] in rules and ["deny", "lsopen"] in rules and ["deny", "appleevent-send"] in rules
    asked = next(rule for rule in rules if isinstance(rule, list) and rule[:2] == ["allow", "mach-lookup"])
    assert not [name for name in asked if any(word in str(name) for word in ("launch", "lsd", "coreservices"))]
    assert rules.index(["deny", "signal"]) < rules.index(["allow", "signal", ["target", "same-sandbox"]])


FILES = {"/": ["Users", "tmp"], "/Users": ["ann"], "/Users/ann": ["Se\u0301cret", "other"]}


def _listed(folder: str) -> list[str]:
    if folder not in FILES:
        raise FileNotFoundError(2, "no such directory", folder)
    return FILES[folder]


@pytest.mark.parametrize(("path", "seen"), [
    ("/users/ANN/s\xe9cret", "/Users/ann/Se\u0301cret"), ("/Users/ann/other", "/Users/ann/other"),
    ("/USERS/bob/x", "/Users/bob/x"), ("/", "/"),
])  # fmt: skip
def test_a_path_is_written_as_its_folders_list_it(path: str, seen: str) -> None:
    """A rule knows case and composition, the usual file systems do not."""
    assert spelled(path, _listed) == seen


def test_a_policy_without_paths_or_network_rule_closes_writes_only() -> None:
    rules = _read(profile(_policy(network="host")))
    denied = {rule[1] for rule in rules if isinstance(rule, list) and rule[0] == "deny"}
    assert denied == {"file-write*", "mach-lookup", "mach-register", "lsopen", "appleevent-send", "job-creation",
                      "signal"}  # fmt: skip


@pytest.mark.parametrize(("path", "seen"), [("/tmp", "/private/tmp"), ("/tmp/a", "/private/tmp/a"), ("/tmpx", "/tmpx"),
                                            ("/var/a", "/private/var/a"), ("/usr", "/usr")])  # fmt: skip
def test_links_of_the_system_are_known(path: str, seen: str) -> None:
    assert real(path) == seen
