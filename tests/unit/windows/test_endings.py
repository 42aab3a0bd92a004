"""What exit codes and messages of Windows come to."""

from __future__ import annotations

import pytest

from ringfence.windows.endings import CAPABILITY_OF, FAILURES, MESSAGES, STATUSES, ending, exit_status


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 3), (255, 255), (256, 1), (0xFFFFFFFF, 255), (0x12300, 1)])
def test_an_exit_code_is_a_byte_and_success_is_zero_alone(code: int, status: int) -> None:
    assert exit_status(code) == status
    assert ending(code).exit_code == status and ending(code).native == ""


@pytest.mark.parametrize(("code", "signal"), [(0xC0000005, 11), (0xC00000FD, 11), (0xC0000409, 6), (0xC0000094, 8)])
def test_a_crash_is_told_as_the_signal_that_posix_has_for_it(code: int, signal: int) -> None:
    found = ending(code)
    assert (found.signal, found.exit_code) == (signal, None)
    assert f"0x{code:08X}" in found.native and STATUSES[code][0] in found.native


@pytest.mark.parametrize("code", FAILURES)
def test_who_could_not_go_on_has_failed(code: int) -> None:
    found = ending(code)
    assert found.exit_code and found.signal is None and FAILURES[code] in found.native


@pytest.mark.parametrize(("message", "capability"), CAPABILITY_OF.items())
def test_a_message_of_the_kernel_names_the_limit(message: int, capability: str) -> None:
    found = ending(1, [6, message, 7, 4])
    assert found.hits == (capability,) and found.native == f"JOB_OBJECT_MSG_{MESSAGES[message]}"


def test_several_limits_are_told_in_their_order_and_each_once() -> None:
    found = ending(0xC0000005, [6, 3, 3, 10, 9, 8, 4])
    assert found.hits == ("pids", "memory")
    assert found.native.startswith("JOB_OBJECT_MSG_ACTIVE_PROCESS_LIMIT; JOB_OBJECT_MSG_JOB_MEMORY_LIMIT; ")


def test_processes_that_come_and_go_are_no_limit() -> None:
    assert ending(0, [6, 7, 8, 4, 11, 99]).hits == ()
