"""What this host cannot show: a control that the host itself refuses proves nothing, and breaks nothing.

Such a test is reported as «not testable here» with the reason. It counts as neither passed nor failed, and the switch
that forbids skipped tests leaves it alone. Only controls and their preparation may use it, and protections that are
promised only where a control group can be had: anything else that this host does not hold is a failure.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

PREFIX = "not testable here: "
HOST_REFUSES = "HOST-REFUSES"
"""A control prints it, with the call and the error, when the bare host refuses what it tries."""

# A kernel that was built without a call, a family or a protocol says so; a permission never reads like this.
_BUILT_WITHOUT = (errno.ENOSYS, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)


def not_testable_here(reason: str) -> NoReturn:
    pytest.skip(PREFIX + reason)


def host_refusal(told: bytes) -> str:
    """Why the bare host refused a control, taken from what the control printed; empty when it did not."""
    lines = told.decode("utf-8", "replace").splitlines()
    for line in lines:
        if line.startswith(HOST_REFUSES):
            return line.removeprefix(HOST_REFUSES).strip()
    words = [word for number in _BUILT_WITHOUT for word in (errno.errorcode[number], os.strerror(number))]
    for line in lines:
        if any(word in line for word in words):
            return f"the kernel was built without it: {line.strip()}"
    return ""


@contextmanager
def needs_of_the_host(what: str, errors: Iterable[int]) -> Iterator[None]:
    """Preparation that some hosts refuse with these errors, e.g. a socket of a family that is switched off."""
    try:
        yield
    except OSError as error:
        if error.errno not in errors:
            raise
        not_testable_here(f"{what}: {error.strerror}")


def is_untestable(report: pytest.TestReport) -> bool:
    return report.skipped and isinstance(report.longrepr, tuple) and PREFIX in report.longrepr[2]
