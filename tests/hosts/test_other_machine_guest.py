"""System call tables, filters and STRICT on the architecture that this host is not: in an emulated guest.

A smoke run of what depends on the architecture, as root; the rest is the same everywhere and is tried outside.
qemu's emulation of single programs would be quicker, but has no seccomp.
"""

from __future__ import annotations

import subprocess
import sys

import guest
import guest_packages
import pytest

pytestmark = pytest.mark.guest
TESTS = (
    "tests/hosts/in_guest_other_machine.py",
    "tests/unit/kernel/test_requester.py::test_the_numbers_of_this_machine_are_those_of_its_kernel_headers",
    "tests/unit/kernel/test_calls.py::test_a_clone_that_does_nothing_ends_with_its_parent",
    "tests/unit/kernel/test_seccomp_attacks.py::test_raw_sockets_are_closed_even_with_all_capabilities",
    "tests/unit/kernel/test_landlock.py::test_nothing_is_executed_that_was_not_named",
    "tests/unit/kernel/test_landlock.py::test_a_file_moves_between_open_folders_and_not_out_of_them",
)


def _compile_for_the_other_machine() -> None:
    """The native parts, into the tree that the guest gets; this host has no use for them."""
    guest_packages.program(f"{guest.OTHER}-linux-gnu-gcc", f"gcc-{guest.OTHER.replace('_', '-')}-linux-gnu")
    command = [sys.executable, "hatch_build.py", guest.OTHER]
    done = subprocess.run(command, cwd=guest.PROJECT, capture_output=True, text=True, check=True)
    assert f"init-{guest.OTHER}" in done.stdout, done.stderr


def test_what_depends_on_the_architecture_holds_on_the_other_one() -> None:
    _compile_for_the_other_machine()
    report = guest.run({"root": TESTS}, {"RINGFENCE_TEST_CGROUPS": "v2"}, machine=guest.OTHER, deadline_s=1200)
    guest.assert_kept(report, {"root": TESTS})
