"""The tests of control groups on a real cgroup v2: in a guest, as root and as a user with delegation."""

from __future__ import annotations

import guest
import pytest

TESTS = (
    "tests/unit/linux/test_cgroups_enforced.py",
    "tests/unit/linux/test_cgroups_refused.py",
    "tests/hosts/in_guest_v2_rules.py",
)
ENVIRONMENT = {"RINGFENCE_TEST_CGROUPS": "v2", "RINGFENCE_TEST_DISK": "/dev/vda"}


@pytest.fixture(scope="module")
def report() -> guest.GuestReport:
    return guest.run(TESTS, ENVIRONMENT)


def test_the_guest_has_a_unified_hierarchy_with_every_controller_we_use(report: guest.GuestReport) -> None:
    assert {"cpu", "io", "memory", "pids"} <= set(report.fact("controllers")["controllers"])


def test_the_guest_runs_to_its_end(report: guest.GuestReport) -> None:
    assert report.fact("done") == {"done": True}


@pytest.mark.parametrize("who", ["root", "user"])
def test_every_promise_holds_on_cgroup_v2(report: guest.GuestReport, who: str) -> None:
    tests = report.of(who, "test")
    wrong = [f"{fact['test']}: {fact['outcome']}\n{fact['text']}" for fact in tests if not fact["passed"]]
    assert not wrong, "\n\n".join(wrong)
    ran = {str(fact["test"]).partition("[")[0] for fact in tests}
    assert guest.names_of_tests(TESTS) <= ran, report.console[-4000:]


@pytest.mark.parametrize("who", ["root", "user"])
def test_no_group_is_left_behind_in_the_guest(report: guest.GuestReport, who: str) -> None:
    (end,) = report.of(who, "exit_code")
    assert end["exit_code"] == 0
    assert end["left_behind"] == []
