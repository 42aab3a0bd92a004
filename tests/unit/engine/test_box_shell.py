"""A shell that lives as long as its box is heard for as long, however much it has printed."""

from __future__ import annotations

import pytest
from tests.unit.engine.pooled import LEVELS, policy_of

import ringfence
from ringfence import Status
from ringfence.engine.handle import Handle

pytestmark = [pytest.mark.system, pytest.mark.privileges]

LIMIT = 20_000


class Shell:
    """The recipe of docs/reference/boxes.md: one that keeps its directory and variables, and is asked line by line."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.at = self.dropped = 0

    def ask(self, command: str) -> bytes:
        self.handle.write(f"{command}\necho END-$((6*7))\n".encode())
        said = b""
        while not said.endswith(b"END-42\n"):
            heard = self.handle.read_stdout(self.at, timeout_s=60)
            assert heard.data, "the shell is not heard any more"
            said += heard.data
            self.at, self.dropped = heard.position, self.dropped + heard.dropped
        return said.removesuffix(b"END-42\n")


@pytest.mark.parametrize("level", LEVELS)
def test_a_shell_goes_on_being_heard_beyond_output_bytes(level: str) -> None:
    with ringfence.open(policy_of(level, output_bytes=LIMIT)) as box:
        handle = box.start(["sh"])
        shell = Shell(handle)
        assert shell.ask("mkdir sub; cd sub; X=kept") == b""
        for number in range(40):
            assert shell.ask(f"printf '%01000d' {number}") == b"%01000d" % number
        assert shell.ask('echo "$X ${PWD##*/}"') == b"kept sub\n"
        assert shell.dropped == 0 and shell.at > 2 * LIMIT
        handle.close_input()
        outcome = handle.wait(60)
    assert handle.stdout.startswith(b"[TRUNCATED] ") and handle.stdout.endswith(b"kept sub\nEND-42\n")
    assert len(handle.stdout) <= LIMIT + 60
    # The result keeps the rule of run(): the first bytes, and a text at the end.
    assert outcome.status is Status.OK and outcome.stdout.startswith(b"END-42\n0000")
    assert outcome.stdout.endswith(b"\n[TRUNCATED] %d bytes dropped\n" % outcome.stdout_dropped)
    assert handle.read_stdout(shell.at).ended


def test_who_reads_too_late_is_told_how_much_is_gone() -> None:
    with ringfence.open(policy_of("strict", output_bytes=LIMIT)) as box:
        handle = box.start(["sh", "-c", "head -c 1000000 /dev/zero; echo; echo last; echo bad >&2"])
        handle.wait(60)
        heard = handle.read_stdout()
        assert (heard.dropped, heard.position, heard.ended) == (1_000_006 - LIMIT, 1_000_006, True)
        assert len(heard.data) == LIMIT and heard.data.endswith(b"\nlast\n")
        assert handle.read_stderr().data == handle.stderr == b"bad\n"


def test_on_output_hears_what_the_result_keeps() -> None:
    pieces: list[bytes] = []
    with ringfence.open(policy_of("strict", output_bytes=LIMIT)) as box:
        handle = box.start(["head", "-c", "100000", "/dev/zero"], on_output=lambda _, piece: pieces.append(piece))
        handle.wait(60)
        assert len(b"".join(pieces)) == LIMIT
