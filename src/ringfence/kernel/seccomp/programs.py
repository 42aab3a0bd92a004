"""The filters of all profiles as programs: shipped with the package as bytes, so that no process compiles them anew.

A program depends on the architecture, on its ``Which`` and on the two ids of the sandbox, which are put into it at the
end. What is shipped holds only for the very sources that it was made from: a file that is missing, damaged or of other
sources is not used, and the program is compiled. ``python -m ringfence.kernel.seccomp.programs`` writes the files anew.
"""

from __future__ import annotations

import os

from ringfence.kernel.seccomp import bpf
from ringfence.model.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.kernel.seccomp.rules import Profile

# Stand for the ids of a sandbox in a program that is not for a certain one; nothing else in a filter is so large.
ANY_UID, ANY_GID = 0x5EC0FFE1, 0x5EC0FFE2
# What a program is made from, beside its Which.
_SOURCES = (
    "../syscall_numbers.py", "bpf.py", "chosen.py", "compile.py", "open_half.py", "profiles.py", "programs.py",
    "rules.py", "watched_calls.py", "witness_rules.py",
)  # fmt: skip
_HERE = os.path.dirname(os.path.abspath(__file__))
_HEAD_BYTES = 1 << 14
_STRICT = ("default", "layered", "unix_pairs", "tight_exec")
_WITHOUT_SOCKETS = ("tight_exec",)
_WALLED = ("walled", "confined", "confined_tight")
WITNESS = "witness"


@record
class Which:
    """What decides on a program, beside the architecture and the ids. For the fields see ``chosen.profile_of``."""

    name: str
    """A profile; ``WITNESS``: the filter that closes nothing."""
    watched: bool = False
    wired: bool = False
    witness: bool = False
    """A witness is told."""
    memory: bool = False
    """It is told of large mappings too."""
    sockets: bool = False
    """It is told of sockets too."""
    alone: bool = False
    """The sandbox has two ids only."""
    notify: bool = False

    @property
    def key(self) -> str:
        flags = (self.watched, self.wired, self.witness, self.memory, self.sockets, self.alone, self.notify)
        return f"{self.name}:{''.join('01'[flag] for flag in flags)}"


_known: dict[tuple[str, str], bytes] = {}


def program(which: Which, arch: str, ids: tuple[int, int] = (ANY_UID, ANY_GID)) -> bytes:
    """The filter for a sandbox with these ids; compiled, or read from what is shipped, once for a process."""
    key = (which.key, arch)
    if key not in _known:
        _known[key] = _shipped(which.key, arch) or compiled(which, arch)
    return _with_ids(_known[key], ids) if which.alone else _known[key]


def _with_ids(code: bytes, ids: tuple[int, int]) -> bytes:
    """The program for these ids in place of any."""
    changed = bytearray(code)
    for any_id, own in zip((ANY_UID, ANY_GID), ids, strict=True):
        wanted, text = any_id.to_bytes(4, "little"), own.to_bytes(4, "little")
        place = code.find(wanted)
        while place >= 0:
            if place % bpf.INSTRUCTION_BYTES == 4:  # the value of an instruction
                changed[place : place + 4] = text
            place = code.find(wanted, place + 1)
    return bytes(changed)


def compiled(which: Which, arch: str) -> bytes:
    """What is shipped, made anew."""
    from ringfence.kernel.seccomp.compile import compile

    return compile(_profile(which), arch, notify=which.notify)


def _profile(which: Which) -> Profile:
    from ringfence.kernel.seccomp import profiles, witness_rules
    from ringfence.kernel.seccomp.chosen import profile_of

    if which.name == WITNESS:
        return witness_rules.alone(memory=which.memory)
    if not which.alone:
        return profiles.PROFILES[which.name]
    witness = {"memory": int(which.memory), "sockets": int(which.sockets)} if which.witness else None
    ids = (ANY_UID, ANY_GID)
    return profile_of(which.name, ids, watched=which.watched, wired=which.wired, witness=witness)


# ---- what is shipped: a head (digest of the sources, then a line for each program), an empty line, the programs


def place_of(arch: str) -> str:
    """The file with the programs of an architecture."""
    return os.path.join(_HERE, f"programs-{arch}.bin")


def _shipped(key: str, arch: str) -> bytes:
    """Empty: there is none that can be used."""
    try:
        with open(place_of(arch), "rb", buffering=0) as file:
            head, end, _ = file.read(_HEAD_BYTES).partition(b"\n\n")
            digest, *lines = head.split(b"\n")
            rows = {name: rest for name, *rest in map(bytes.split, lines)}
            if not end or key.encode() not in rows or digest != sources_digest():
                return b""
            start, length, own_digest = rows[key.encode()]
            file.seek(len(head) + len(end) + int(start))
            found = file.read(int(length))
    except (OSError, ValueError):
        return b""
    return found if digest_of(found) == own_digest else b""


def sources_digest() -> bytes:
    """The digest of what the programs are made from; OSError if that can't be read."""
    whole = b""
    for name in _SOURCES:
        with open(f"{_HERE}/{name}", "rb", buffering=0) as file:
            whole += file.read()
    return digest_of(whole)


def digest_of(content: bytes) -> bytes:
    """Tells mistakes, not attackers: whoever can change these files can change any other of the package."""
    from binascii import crc32

    return b"%08x-%d" % (crc32(content), len(content))


def all_of_them() -> list[Which]:
    """Every program that is shipped."""
    strict = [Which(name=name, watched=watched, wired=wired, witness=True, memory=memory, alone=True, notify=notify)
              for name in _STRICT for watched, wired in ((False, False), (True, False), (True, True))
              for memory in (False, True) for notify in (False, True)]  # fmt: skip
    strict += [replace(which, sockets=True) for which in strict if which.notify and which.name not in _WITHOUT_SOCKETS]
    walled = [Which(name=name) for name in _WALLED]
    return [*strict, *walled, *(Which(name=WITNESS, memory=memory, notify=True) for memory in (False, True))]


def file_content(arch: str) -> bytes:
    """What is to be shipped for an architecture."""
    lines, whole = [sources_digest()], b""
    for which in all_of_them():
        code = compiled(which, arch)
        lines.append(b"%s %d %d %s" % (which.key.encode(), len(whole), len(code), digest_of(code)))
        whole += code
    return b"\n".join(lines) + b"\n\n" + whole


def main() -> None:
    """Write the files of both architectures."""
    from ringfence.kernel.syscall_numbers import NUMBERS
    from ringfence.model.own_files import write_whole

    for arch in NUMBERS:  # a process that runs a job meanwhile reads the old one or the new
        write_whole(place_of(arch), file_content(arch), mode=0o644)


if __name__ == "__main__":
    main()
