"""Control groups, and STRICT itself, on a real cgroup v2: in a guest, as root and as a user with a delegated group.

One guest for both: it boots once and loads everything once.
"""

from __future__ import annotations

import os

import guest
import pytest

pytestmark = pytest.mark.guest

STRICT = "tests/hosts/in_guest_strict.py"
OF_GROUPS = (
    "tests/unit/kernel/test_cgroups_enforced.py",
    "tests/unit/kernel/test_cgroups_refused.py",
    "tests/hosts/in_guest_v2_rules.py",
)
OF_ROOT = "tests/hosts/in_guest_v2_root.py"
# What a group holds it holds for everybody, and a delegated one is the harder case: so what is of groups alone is the
# user's, and of STRICT's promises each has some. ``make soak`` gives all to both; an emulated machine is slow.
BY_BOTH = (
    "test_the_backend_conforms",
    "test_an_attack_that_a_group_holds_fails",
    "test_the_same_succeeds_without_a_sandbox",
    "test_the_job_is_in_its_group_when_its_first_instruction_runs",
    "test_no_group_and_no_process_outlives_a_caller_that_was_killed",
)
BY_ROOT = (
    "test_what_ran_out_of_memory_is_read_from_the_events",
    "test_the_disk_is_slowed_to_the_limit",
)
BY_USER = (
    "test_the_corpus_still_has_the_attacks_that_are_named_here",
    "test_the_table_names_the_files_of_cgroup_v2",
    "test_even_what_the_loader_allocates_is_counted",
    "test_a_workspace_on_no_disk_is_refused_or_said",
    "test_a_group_that_the_operator_gave_is_used",
    "test_without_a_delegated_group_the_table_and_the_fix_say_so",
)
IN_SHORT = {
    "root": (OF_ROOT, *(f"{STRICT}::{name}" for name in (*BY_BOTH, *BY_ROOT))),
    "user": (*OF_GROUPS, *(f"{STRICT}::{name}" for name in (*BY_BOTH, *BY_USER))),
}
IN_FULL = {"root": (*OF_GROUPS, OF_ROOT, STRICT), "user": (*OF_GROUPS, STRICT)}
ENVIRONMENT = {
    "RINGFENCE_TEST_CGROUPS": "v2",
    "RINGFENCE_TEST_DISK": "/dev/vda",
    **{name: os.environ[name] for name in ("RINGFENCE_LONG",) if name in os.environ},
}


def test_every_promise_holds_on_cgroup_v2() -> None:
    tests = IN_FULL if os.environ.get("RINGFENCE_LONG") else IN_SHORT
    report = guest.run(tests, ENVIRONMENT, deadline_s=1500 if tests is IN_SHORT else 4000)
    assert {"cpu", "io", "memory", "pids"} <= set(report.fact("controllers")["controllers"])
    guest.assert_kept(report, tests)
