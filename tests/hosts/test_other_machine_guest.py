"""System call tables, filters and STRICT on the architecture that this host is not: in an emulated guest.

A smoke run of what depends on the architecture, as root; the rest is the same everywhere and is tried outside.
qemu's emulation of single programs would be quicker, but has no seccomp.
"""

from __future__ import annotations

import guest
import pytest

pytestmark = pytest.mark.guest
TESTS = (
    "tests/hosts/in_guest_other_machine.py",
    "tests/unit/linux/test_requester.py::test_the_numbers_of_this_machine_are_those_of_its_kernel_headers",
    "tests/unit/linux/test_seccomp_attacks.py::test_raw_sockets_are_closed_even_with_all_capabilities",
    "tests/unit/linux/test_landlock.py::test_nothing_is_executed_that_was_not_named",
    "tests/unit/linux/test_landlock.py::test_a_file_moves_between_open_folders_and_not_out_of_them",
)


def test_what_depends_on_the_architecture_holds_on_the_other_one() -> None:
    report = guest.run("root", TESTS, {"RINGFENCE_TEST_CGROUPS": "v2"}, machine=guest.OTHER, deadline_s=1800)
    guest.assert_kept(report, TESTS)
