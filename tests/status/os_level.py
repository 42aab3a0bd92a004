"""Rows of specification 1: pytest under limits of the operating system."""

from __future__ import annotations

from tests.status.facts import Call, Codes, Command, Fields, File, Name, Value, needed
from tests.status.row import Group, Specification, limited, named, refused, works

_DOOR, _POLICY = "doors/test_pytest_door", "unit/model/test_policy"
_WINE = "Shown under Wine 8 (`make test-windows`); on Windows itself nothing has run yet."
_NO_MAC = "Shown on Linux with everything of Linux taken away; on a Mac nothing has run yet."

_NAMES = Group(title="Functions and classes", rows=(
    works("`run_pytests(paths, timeout_s) -> tuple[int, str]`, unchanged",
          Call("ringfence.run_pytests", "paths, timeout_s"),
          proof=named(_DOOR, "the_shim_returns_the_code_and_the_output")),
    works("`run_pytests_v2(paths, policy) -> SandboxResultV2`",
          Call("ringfence.run_pytests_v2", "paths, policy"),
          proof=named(_DOOR, "a_passing_suite_is_ok", "each_end_has_its_status_and_return_code")),
    limited("`SandboxPolicy`: `wall_time_s`, `cpu_time_s`, `mem_bytes`, `pids_max`, `nofile`, `output_bytes`, "
            "`enforce_network`, `allow_partial`, with the budget's defaults",
            "Values are given by name: `SandboxPolicy(30)` is refused with an explanation.",
            Fields("ringfence.SandboxPolicy", {
                "wall_time_s": 30, "cpu_time_s": 20, "mem_bytes": 512 * 2**20, "pids_max": 32, "nofile": 512,
                "output_bytes": 2**20, "enforce_network": False, "allow_partial": False}),
            proof=named(_POLICY, "the_defaults_are_those_of_the_specification",
                        "a_value_without_a_name_is_refused_in_words")),
    works("policy validation",
          Name("ringfence.PolicyError"),
          proof=named(_POLICY, "a_wrong_value_is_refused_by_name", "all_that_is_wrong_is_told_at_once")),
    limited("`enforce_network` (Linux and seccomp)",
            "Enforced at `strict`, and at `process` where the policy names paths. Elsewhere the host lacks it: "
            "`INTERNAL_ERROR`, or reported with `allow_partial`.", Name("ringfence.SandboxPolicy"), adr=(31,),
            proof=named(_DOOR, "what_the_host_lacks_is_an_internal_error_with_the_fix") +
            named("unit/backends/test_walled", "there_is_no_network_unless_the_policy_has_it") +
            named("escape/test_corpus", "the_attack_fails")),
    works("`SandboxResultV2`: `version`, `status`, `rc`, `reason`, `stdout`, `stderr`, `duration_ms`, `cmd`, "
          "`traceId`, `enforced`",
          Fields("ringfence.SandboxResultV2", needed(
              "version", "status", "rc", "reason", "stdout", "stderr", "duration_ms", "cmd", "traceId", "enforced")),
          proof=named(_DOOR, "a_passing_suite_is_ok", "two_runs_have_the_same_status_return_code_and_header")),
    works("`enforced`: `{capability: {requested, applied, details}}`, always present",
          Fields("ringfence.pytest_runner.result.EnforcedCapability", needed(
              "requested", "applied", "mechanism", "details")),
          proof=named(_DOOR, "what_the_host_lacks_is_an_internal_error_with_the_fix",
                      "partial_enforcement_runs_and_says_so")),
    limited("the test agent's optional path (`traceId`, `status`)",
            "The agent belongs to its project; none is here. It keeps using `run_pytests`, or calls `run_pytests_v2` "
            "([pytest](how-to/pytest.md#from-python)).", Call("ringfence.run_pytests_v2", "paths, policy"), adr=(139,),
            proof=named(_DOOR, "the_shim_returns_the_code_and_the_output") +
            named("doors/test_readme", "a_page_can_be_followed_from_top_to_bottom")),
    refused("the file `exec/sandbox.py`",
            "Names come from `ringfence`: change the import.", Name("ringfence.run_pytests"), adr=(139,)),
))  # fmt: skip

_STATUSES = Group(title="Statuses and return codes", rows=(
    works("`OK` 0, `TIMEOUT` 124, `CPU_LIMIT` 152, `MEM_LIMIT` 137, `KILLED_TERM` 143, `KILLED_KILL` 137, "
          "`FORBIDDEN_SYSCALL` 159, `INTERNAL_ERROR` 1",
          Codes({
              "OK": 0, "TIMEOUT": 124, "CPU_LIMIT": 152, "MEM_LIMIT": 137, "KILLED_TERM": 143, "KILLED_KILL": 137,
              "FORBIDDEN_SYSCALL": 159, "INTERNAL_ERROR": 1}),
          proof=named("unit/model/test_outcome", "the_return_codes_are_those_of_the_specification") +
          named(_DOOR, "each_end_has_its_status_and_return_code",
                "memory_beyond_the_limit_is_told_apart_from_a_plain_failure") +
          named("unit/engine/test_verdict", "each_end_is_told_apart_with_its_evidence")),
    limited("these eight are all statuses",
            "There are more: `FAILED`, `CRASHED`, `PIDS_LIMIT` … ([statuses](reference/statuses.md)).",
            Name("ringfence.Status"),
            proof=named(_DOOR, "each_kind_of_outcome_is_counted_and_named") +
            named("doors/test_pytest_limits", "a_limit_that_fails_a_test_is_the_status_of_the_run")),
    limited("`FORBIDDEN_SYSCALL`, by seccomp",
            "Where a filter is in force: at `strict`, and at `process` where the policy names paths. Most closed "
            "calls are refused with an error instead.", Name("ringfence.Status"), adr=(23,),
            proof=named("unit/kernel/test_seccomp_attacks", "an_attack_without_a_supervisor_ends_the_process") +
            named("escape/test_corpus", "the_attack_fails")),
    works("`INTERNAL_ERROR` where a capability is missing; with `allow_partial` the `reason` is "
          "`PARTIAL_ENFORCEMENT`",
          Value("ringfence.model.outcome.PARTIAL_ENFORCEMENT", "PARTIAL_ENFORCEMENT"),
          proof=named(_DOOR, "what_the_host_lacks_is_an_internal_error_with_the_fix",
                      "partial_enforcement_runs_and_says_so")),
    limited("ends on Windows, with NTSTATUS or the job's limit in `reason`",
            f"The rules are tested on any system. {_WINE}", Name("ringfence.windows.endings"),
            proof=named("unit/windows/test_windows_promises", "a_message_of_the_job_object_is_the_status",
                        "an_ntstatus_is_in_the_reason") +
            named("unit/windows/test_endings")),
))  # fmt: skip

_MATRIX = Group(title="The feature matrix", rows=(
    works("Linux: wall timeout, CPU time (`RLIMIT_CPU`), open files (`RLIMIT_NOFILE`), working directory, output caps",
          Command("ringfence selfcheck", "--level process"),
          proof=named("contract/test_conformance", "the_promise_holds_and_its_control_succeeds") +
          named("unit/kernel/test_rlimits")),
    limited("Linux: memory by `RLIMIT_AS` as a fallback",
            "`RLIMIT_DATA` and a watchdog in its place: private memory, not address space. A control group where one "
            "is available.", Command("ringfence run", "--memory"), adr=(46,),
            proof=named("unit/backends/test_process_group", "the_kernel_holds_memory_and_tasks_of_a_plain_job",
                        "where_no_group_is_to_be_had_the_table_says_what_holds_it_instead")),
    limited("Linux: processes by `RLIMIT_NPROC` as a fallback",
            "A watchdog counts the tasks of the tree every 25 ms; `RLIMIT_NPROC` is a safety net. A control group "
            "where one is available.", Command("ringfence run", "--pids"), adr=(8,),
            proof=named("unit/backends/test_process_group", "a_job_that_leaves_its_group_is_held_by_the_watchdog")),
    limited("Linux: control groups v2 (`memory.max`, `pids.max`, `cpu.max`), by sysfs or a scope of systemd",
            "Also v1, and both at once. `cpu.max` only at `strict` (`cpu_share`). No scope is started: `ringfence "
            "probe` prints the `systemd-run` line. v2 is shown in a guest kernel (`make test-all`).",
            Command("ringfence probe"), adr=(25, 67),
            proof=named("hosts/test_cgroup_v2_guest") + named("unit/kernel/test_cgroups_enforced")),
    limited("Linux: seccomp-bpf, when the policy asks for it",
            "At `strict` always, at `process` where the policy names paths; a job at `process` without paths has "
            "none. libseccomp is not needed.", Name("ringfence.model.limits.SyscallProfile"), adr=(23,),
            proof=named("unit/kernel/test_seccomp_attacks", "an_attack_that_works_without_the_filter_fails_under_it") +
            named("unit/backends/test_walled", "calls_are_filtered_by_the_profile_that_is_asked_for")),
    limited("Windows: Job Objects (wall and CPU time, memory, active processes), working directory, output caps",
            f"{_WINE} Wine's job objects limit neither memory, processes nor CPU time: a watchdog limits the first "
            "two there, and CPU time is refused.", Name("ringfence.windows.job_object"),
            File("tests/programs/windows_checks.py"), adr=(109, 110),
            proof=named("unit/windows/test_job_limits") + named("unit/windows/test_visit_by_hand")),
    limited("Windows, optional: Restricted Token",
            "A token without privileges, and low integrity where the policy names writable paths. Wine has neither, "
            "and on Windows itself nothing has run yet.", Name("ringfence.windows.integrity"), adr=(113,),
            proof=named("unit/windows/test_integrity", "the_token_of_a_job_is_lowered_before_it_is_made",
                        "where_nothing_is_promised_the_policy_is_refused")),
    limited("macOS: rlimits, wall timeout, working directory, output caps",
            f"{_NO_MAC} A watchdog limits memory and processes, as best effort.",
            Name("ringfence.backends.tables.ON_MACOS"), File("tests/programs/macos_checks.py"), adr=(112,),
            proof=named("unit/test_other_systems", "the_process_level_runs_without_anything_of_linux",
                        "what_a_system_lacks_is_lacking")),
    works("capability detection: what is enforced here, and how to get the rest",
          Command("ringfence probe", "--json"),
          proof=named("doors/test_cli", "probe_tells_each_capability_with_its_mechanism")),
))  # fmt: skip

_BEHAVIOUR = Group(title="Behaviour", rows=(
    works("`PYTHONHASHSEED=0`, `PYTHONDONTWRITEBYTECODE=1`",
          Call("ringfence.run_pytests_v2", "paths, policy"),
          proof=named(_DOOR, "the_environment_is_deterministic_and_clean")),
    works("`PYTHONPATH` and `COVERAGE_PROCESS_START` are passed on",
          Call("ringfence.run_pytests_v2", "paths, policy"),
          proof=named(_DOOR, "pythonpath_is_propagated", "coverage_of_a_subprocess_is_measured")),
    works("a working directory of its own",
          Call("ringfence.run_pytests_v2", "paths, policy"),
          proof=named(_DOOR, "tests_run_in_a_folder_of_their_own_and_leave_the_callers_alone")),
    works("output beyond the cap is cut, with `[TRUNCATED]`",
          Call("ringfence.run_pytests_v2", "paths, policy"),
          proof=named(_DOOR, "output_beyond_the_cap_is_cut_with_a_marker")),
    works("two runs under one policy have the same status, return code and header",
          Call("ringfence.run_pytests_v2", "paths, policy"),
          proof=named(_DOOR, "two_runs_have_the_same_status_return_code_and_header")),
    limited("overhead below 5 %",
            "`python -m bench overhead` measures it, with environment and versions; no test asserts a figure.",
            File("bench/overhead.py"),
            proof=named("unit/bench/test_bench_questions",
                        "a_question_is_answered_with_a_table_a_file_and_a_picture")),
    limited("coverage of 85 %, of enforcing code 90 %",
            "Asserted by `make test-all`, not by the gate.", File("tests/measured.py"), proof=named("run")),
    limited("CI on Windows 10 and 11, Ubuntu 22.04 and 24.04, macOS",
            "The workflow names all except Windows 10 and 11, for which it has the server editions. No run of it is "
            "on record: the rows above say what was tried where.", File(".github/workflows/ci.yml"),
            proof=named("unit/test_other_systems", "every_module_imports")),
))  # fmt: skip

OS_LEVEL = Specification(
    title="1. Pytest under limits of the operating system",
    about="«ADR-0001: OS-level sandboxing for exec/sandbox.py».",
    groups=(_NAMES, _STATUSES, _MATRIX, _BEHAVIOUR),
)
