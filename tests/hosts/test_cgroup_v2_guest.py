"""Control groups, and STRICT itself, on a real cgroup v2: in a guest, as root and as a user with a delegated group."""

from __future__ import annotations

import os

import guest
import pytest

pytestmark = pytest.mark.guest

TESTS = (
    "tests/unit/linux/test_cgroups_enforced.py",
    "tests/unit/linux/test_cgroups_refused.py",
    "tests/hosts/in_guest_v2_rules.py",
    "tests/hosts/in_guest_strict.py",
)
ENVIRONMENT = {
    "RINGFENCE_TEST_CGROUPS": "v2",
    "RINGFENCE_TEST_DISK": "/dev/vda",
    **{name: os.environ[name] for name in ("RINGFENCE_LONG",) if name in os.environ},
}


@pytest.mark.parametrize("who", ["root", "user"])
def test_every_promise_holds_on_cgroup_v2(who: str) -> None:
    report = guest.run(who, TESTS, ENVIRONMENT, deadline_s=1800)
    assert {"cpu", "io", "memory", "pids"} <= set(report.fact("controllers")["controllers"])
    guest.assert_kept(report, TESTS)
