"""A control that the host refuses is told apart from a control that fails."""

from __future__ import annotations

import errno

import pytest
from tests.testable import host_refusal, needs_of_the_host, not_testable_here


@pytest.mark.parametrize(
    ("told", "refusal"),
    (
        (b"-1 ENOSYS\nHOST-REFUSES iopl ENOSYS\n", "iopl ENOSYS"),
        (b"[Errno 97] Address family not supported by protocol\n", "the kernel was built without it"),
        (b"-1 EPERM\n", ""),
        (b"[Errno 13] Permission denied\n", ""),
        (b"Traceback\nValueError: x\n", ""),
        (b"", ""),
    ),
)
def test_only_what_the_host_itself_refuses_is_a_refusal(told: bytes, refusal: str) -> None:
    assert host_refusal(told).startswith(refusal) and bool(host_refusal(told)) == bool(refusal)


def test_a_preparation_that_this_host_lacks_is_not_testable_and_any_other_error_stays() -> None:
    with pytest.raises(pytest.skip.Exception, match="not testable here: IPv6"), needs_of_the_host("IPv6", (97,)):
        raise OSError(97, "no such family")
    with pytest.raises(OSError, match="too many"), needs_of_the_host("IPv6", (97,)):
        raise OSError(errno.EMFILE, "too many")


def test_the_reason_is_told() -> None:
    with pytest.raises(pytest.skip.Exception, match="not testable here: no clock"):
        not_testable_here("no clock")
