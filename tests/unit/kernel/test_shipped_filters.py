"""The filters that are shipped as bytes: they are what the profiles come to, for any ids, and nothing else is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bpf_machine import decode, run, seccomp_data

from ringfence.kernel.seccomp import programs
from ringfence.kernel.seccomp.chosen import profile_of
from ringfence.kernel.seccomp.compile import RET_ALLOW, RET_ERRNO, RET_USER_NOTIF, compile
from ringfence.kernel.seccomp.programs import ANY_GID, ANY_UID, Which, program
from ringfence.kernel.seccomp.rules import Kind, Profile, Rule, decide
from ringfence.kernel.syscall_numbers import AUDIT_ARCH, NUMBERS

LAYERED = Which(name="layered", witness=True, memory=True, alone=True, notify=True)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_known", {})


@pytest.fixture
def elsewhere(tmp_path: Path, forgetful: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is shipped for one architecture."""
    place = tmp_path / "programs.bin"
    place.write_bytes(Path(programs.place_of("aarch64")).read_bytes())
    monkeypatch.setattr(programs, "place_of", lambda arch: str(place))
    return place


@pytest.mark.parametrize("arch", NUMBERS)
def test_what_is_shipped_is_what_the_profiles_come_to(arch: str) -> None:
    """Else: python hatch_build.py, which ``make`` does."""
    assert Path(programs.place_of(arch)).read_bytes() == programs.file_content(arch)


@pytest.mark.parametrize("arch", NUMBERS)
def test_every_shipped_program_is_found_without_a_compiler(
    arch: str, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {which.key: programs.compiled(which, arch) for which in programs.all_of_them()}
    monkeypatch.setattr(programs, "compiled", lambda which, arch: pytest.fail(f"{which} was compiled"))
    assert {which.key: program(which, arch) for which in programs.all_of_them()} == expected


@pytest.mark.parametrize("arch", NUMBERS)
@pytest.mark.parametrize("ids", [(1000, 100), (2_000_000_001, 2_000_000_001), (1, 0xFFFFFFFE), (ANY_GID, ANY_UID)])
def test_the_ids_of_a_sandbox_are_put_into_it(arch: str, ids: tuple[int, int]) -> None:
    """Equal ones too: a compiler that knew them would find that some blocks are the same, which changes no answer."""
    code = program(LAYERED, arch, ids)
    profile = profile_of("layered", ids, watched=False, witness={"memory": 1})
    assert _answers(code, profile, arch, ids)
    if ids[0] != ids[1]:
        assert code == compile(profile, arch, notify=True)


def _answers(code: bytes, profile: Profile, arch: str, ids: tuple[int, int]) -> bool:
    """What the calls that take ids get, for these and for others."""
    instructions = decode(code)
    for call in ("setuid", "setgid", "setresuid", "setresgid", "fchown", "fchownat"):
        number = NUMBERS[arch][call]
        for first in (*ids, 0, 5, 0xFFFFFFFF):
            for second in (*ids, 7):
                args = (first, first, second, second, 0, 0)
                told = run(instructions, seccomp_data(number, AUDIT_ARCH[arch], args))
                assert told == _expected(decide(profile, number, args, AUDIT_ARCH[arch])), (call, args)
    return True


def _expected(rule: Rule) -> int:
    if rule.action.kind is Kind.ALLOW:
        return RET_ALLOW
    return RET_ERRNO | rule.action.errno if rule.action.kind is Kind.DENY else RET_USER_NOTIF


@pytest.mark.parametrize("arch", NUMBERS)
def test_nothing_in_a_program_but_ids_looks_like_one(arch: str) -> None:
    """Only the values of instructions are changed, and only where an id is meant."""
    for which in programs.all_of_them():
        code = programs.compiled(which, arch)
        values = [code[place : place + 4] for place in range(4, len(code), 8)]
        found = sum(value in (ANY_UID.to_bytes(4, "little"), ANY_GID.to_bytes(4, "little")) for value in values)
        assert bool(found) is which.alone, which


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "changed", "other sources", "no programs"])
def test_what_is_missing_or_damaged_is_compiled(elsewhere: Path, damage: str) -> None:
    whole = elsewhere.read_bytes()
    head = whole.partition(b"\n\n")[0]
    expected = programs.compiled(LAYERED, "aarch64")
    row = next(line for line in head.split(b"\n") if line.startswith(LAYERED.key.encode()))
    start = len(head) + 2 + int(row.split()[1])
    changed = {
        "empty": b"", "cut": whole[: start + 40], "changed": whole[: start + 4] + b"\xff" + whole[start + 5 :],
        "other sources": b"0" + whole[1:] if whole[:1] != b"0" else b"1" + whole[1:], "no programs": head,
    }  # fmt: skip
    if damage == "gone":
        elsewhere.unlink()
    else:
        elsewhere.write_bytes(changed[damage])
    assert program(LAYERED, "aarch64") == expected


def test_a_profile_that_was_changed_is_compiled(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "sources_digest", lambda: b"of other sources")
    monkeypatch.setattr(programs, "compiled", lambda which, arch: b"compiled")
    assert program(Which(name="walled"), "aarch64") == b"compiled"


def test_what_is_not_shipped_is_compiled(forgetful: None) -> None:
    which = Which(name="tight", alone=True)
    assert program(which, "x86_64") == programs.compiled(which, "x86_64")


@pytest.mark.system
def test_a_shipped_program_needs_no_profile(tmp_path: Path) -> None:
    code = (
        "import sys; from ringfence.kernel.seccomp import programs; programs.program(programs.Which(name='walled'), "
        "'aarch64'); print(*sys.modules)"
    )
    source = str(Path(programs.__file__).parents[3])
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    ours = {name.rpartition(".")[2] for name in loaded if name.startswith("ringfence.kernel.seccomp.")}
    assert ours == {"bpf", "programs"} and not set(loaded) & {"re", "enum", "functools", "collections"}
