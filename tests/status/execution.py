"""Rows of specification 4: sandboxes by id, what they use, and undo."""

from __future__ import annotations

from pathlib import Path

from ringfence import IsolationLevel, ResourceLimits, SandboxMode
from tests.status.facts import Call, Command, Fields, File, Members, Name, needed
from tests.status.row import Group, Specification, Tried, limited, named, refused, works

_MANAGER, _MONITOR = "doors/test_manager", "unit/monitor/test_resource_monitor"
_PHASES = "unit/integrations/test_agent_phases"
_AGENT, _CONFIG, _LIFE = "doors/test_safe_agent", "unit/manager/test_config", "unit/manager/test_lifecycle"
_BLOCKED = [Path("/etc"), Path("/sys"), Path("/boot"), Path("C:\\Windows"), Path("C:\\Program Files")]
_FIGURE = "no test asserts a figure."

_SANDBOXES = Group(title="SandboxManager", rows=(
    limited("`IsolationLevel`: `NONE`, `PROCESS`, `CONTAINER`, `STRICT`",
            "A closed set of texts, not an `enum.Enum`: `isinstance(level, Enum)` is false. `NONE` needs "
            "`allow_partial`.",
            Members("ringfence.IsolationLevel", {
                "NONE": "none", "PROCESS": "process", "CONTAINER": "container", "STRICT": "strict"}),
            adr=(59,),
            proof=named("unit/model/test_words") + named(_MANAGER, "no_isolation_is_refused_unless_less_is_accepted")),
    works("`create_sandbox(config) -> SandboxContext`, `destroy_sandbox(sandbox_id)`, `list_active_sandboxes()`",
          Call("ringfence.SandboxManager.create_sandbox", "config"),
          Call("ringfence.SandboxManager.destroy_sandbox", "sandbox_id"),
          Call("ringfence.SandboxManager.list_active_sandboxes"),
          proof=named(_LIFE, "a_sandbox_is_found_again_with_its_files_checkpoints_and_state",
                      "destroying_while_it_works_leaves_nothing")),
    limited("`execute_in_sandbox(context, tool_fn, params) -> ExecutionResult`",
            "What the function returns comes back as numbers, texts, bytes, times and containers of these; another "
            "object is an error that names it.",
            Call("ringfence.SandboxManager.execute_in_sandbox", "context, tool_fn, params"),
            Name("ringfence.ExecutionResult"), adr=(14,),
            proof=named(_MANAGER, "lambdas_and_closures_go_in_and_values_come_out",
                        "a_returned_object_that_would_run_code_when_loaded_is_an_error")),
    limited("`SandboxContext`: `sandbox_id`, `isolation_level`, `working_directory`, `allowed_paths`, "
            "`blocked_paths`, `environment_vars`, `timeout_seconds`, `resource_limits`",
            "Managers make it; `config` and `folder` are required in addition.",
            Fields("ringfence.SandboxContext", needed(
                "sandbox_id", "isolation_level", "working_directory", "allowed_paths", "blocked_paths",
                "environment_vars", "timeout_seconds", "resource_limits")),
            proof=named(_MANAGER, "allowed_paths_are_at_their_own_places_under_strict")),
    works("environment, working directory and file system of its own",
          Name("ringfence.SandboxManager"),
          proof=named(_MANAGER, "variables_are_set_and_the_callers_own_are_not_passed_on",
                      "nothing_outside_can_be_written", "what_is_not_allowed_or_blocked_cannot_be_had")),
    limited("import restrictions",
            "`allowed_imports` restricts import statements of honest code and is not a wall; `enforced` says so.",
            Name("ringfence.SandboxConfig"), adr=(56,),
            proof=named(_MANAGER, "imports_can_be_restricted", "a_restriction_of_imports_is_said_to_be_no_wall")),
    limited("level `container`, if Docker is available",
            "Working copies in a container; the image's Python calls functions, and has to be the caller's version. "
            "Without an engine it is refused.", Name("ringfence.IsolationLevel.CONTAINER"),
            adr=(120,),
            proof=named("doors/test_container_transactions", "the_manager_undoes_and_commits") +
            named(_MANAGER, "levels_that_are_not_there_say_so")),
    refused("a level of virtual machines, optional",
            "Start ringfence inside one, or use `container` with gVisor.", adr=(56, 124),
            tried=Tried(
                written="ringfence.SandboxConfig(isolation_level='vm')",
                words="there is no VM level"),
            proof=named("unit/model/test_policy", "a_level_that_there_is_not_is_refused_by_name_with_the_way_to_it")),
))  # fmt: skip

_SETTINGS = Group(title="SandboxConfig", rows=(
    works("`enable_sandboxing`, `sandbox_mode` (`ALWAYS`, `AUTO`, `NEVER`), `isolation_level`, `resource_limits`",
          Fields("ringfence.SandboxConfig", {
              "enable_sandboxing": True, "sandbox_mode": SandboxMode.AUTO, "isolation_level": IsolationLevel.PROCESS,
              "resource_limits": ResourceLimits()}),
          Members("ringfence.SandboxMode", {"ALWAYS": "always", "AUTO": "auto", "NEVER": "never"}),
          proof=named(_CONFIG, "the_defaults_are_the_specifications", "the_fields_stand_in_the_specifications_order")),
    limited("`sandbox_root: Path = ./sandboxes`",
            "The default is the state directory: a record that lies in a project could be somebody else's.",
            Name("ringfence.SandboxConfig"), adr=(37,),
            proof=named(_CONFIG, "sandboxes_are_kept_in_the_state_folder_and_never_below_the_current_one")),
    works("`allowed_paths`, `blocked_paths` with `/etc`, `/sys`, `/boot` and those of Windows",
          Fields("ringfence.SandboxConfig", {"allowed_paths": [], "blocked_paths": _BLOCKED}),
          proof=named(_CONFIG, "the_defaults_are_the_specifications", "paths_of_another_system_mean_nothing_here") +
          named(_MANAGER, "programs_start_with_the_specifications_blocked_paths",
                "an_attempt_on_what_is_blocked_by_default_is_recorded")),
    limited("attempts on blocked paths are recorded",
            "At `strict`; at `process` they are refused and not recorded.", Name("ringfence.SandboxManager"),
            adr=(30, 31), proof=named(_MANAGER, "an_attempt_on_a_secret_is_a_violation_and_rolled_back")),
    limited("`allow_network`, `allowed_hosts`",
            "A list of hosts at `strict`. Use of the host's network (`allow_network` alone) can't be counted, so it "
            "needs `allow_partial`. At `process` a list is refused.",
            Fields("ringfence.SandboxConfig", {"allow_network": False, "allowed_hosts": []}), adr=(72,),
            proof=named(_MANAGER, "levels_that_are_not_there_say_so",
                        "a_limit_of_the_network_that_nothing_holds_is_refused_or_said") +
            named("unit/manager/test_permissions", "the_network_is_none_the_hosts_or_some_hosts")),
    limited("no network by default; permitted hosts; traffic is monitored and logged",
            "Each decision is in `result.outcome.events`, if there is a list of hosts. The host's own network is "
            "not logged.", Name("ringfence.Event"), adr=(73,),
            proof=named("unit/engine/test_egress_events", "both_kinds_are_one_stream_in_the_order_of_time") +
            named("unit/backends/test_walled", "there_is_no_network_unless_the_policy_has_it")),
    works("`enable_auto_rollback`, `checkpoint_before_execution`",
          Fields("ringfence.SandboxConfig", {"enable_auto_rollback": True, "checkpoint_before_execution": True}),
          proof=named(_MANAGER, "a_failure_is_rolled_back_to_before_the_execution",
                      "without_auto_rollback_a_failure_leaves_its_traces")),
    works("`auto_cleanup`, `cleanup_age_hours: 24`",
          Fields("ringfence.SandboxConfig", {"auto_cleanup": True, "cleanup_age_hours": 24}),
          proof=named(_LIFE, "only_old_ones_that_nobody_uses_are_cleaned_up", "use_keeps_a_sandbox_young")),
    works("`sandbox_<id>/` with `workspace`, `checkpoints`, `metadata.json`",
          Name("ringfence.manager.registry"), proof=named("unit/manager/test_registry", "what_was_added_is_read_back")),
))  # fmt: skip

_RESOURCES = Group(title="ResourceMonitor", rows=(
    works("`ResourceLimits`: `max_cpu_percent`, `max_memory_mb`, `max_disk_mb`, `max_network_kb`, "
          "`max_execution_time`, `max_file_operations`, with their defaults",
          Fields("ringfence.ResourceLimits", {
              "max_cpu_percent": 80.0, "max_memory_mb": 512, "max_disk_mb": 1024, "max_network_kb": 10240,
              "max_execution_time": 300, "max_file_operations": 1000}),
          proof=named("unit/monitor/test_resource_limits", "the_defaults_are_those_of_the_specification")),
    works("`ResourceUsage`: `cpu_percent`, `memory_mb`, `disk_mb`, `network_kb`, `execution_time`, "
          "`file_operations`, `violations`",
          Fields("ringfence.ResourceUsage", {
              **needed("cpu_percent", "memory_mb", "disk_mb", "network_kb", "execution_time", "file_operations"),
              "violations": []}),
          proof=named(_MANAGER, "the_usage_in_a_result_is_that_of_the_execution", "usage_can_be_asked_for")),
    works("`start_monitoring(sandbox_id, limits)`, `get_usage`, `check_violations`, `terminate_if_violated`",
          Call("ringfence.ResourceMonitor.start_monitoring", "sandbox_id, limits"),
          Call("ringfence.ResourceMonitor.get_usage", "sandbox_id"),
          Call("ringfence.ResourceMonitor.check_violations", "sandbox_id"),
          Call("ringfence.ResourceMonitor.terminate_if_violated", "sandbox_id"),
          proof=named(_MANAGER, "a_sandbox_is_monitored_as_the_specification_has_it") + named(_MONITOR)),
    works("CPU over its limit for 10 s, memory, disk, time, operations: ended, reported and rolled back",
          Name("ringfence.SandboxManager"),
          proof=named(_MANAGER, "a_busy_loop_is_ended_after_its_time_over_the_limit",
                      "a_flood_of_file_operations_is_ended", "a_timeout_ends_the_execution") +
          named("doors/test_manager_limits", "a_limit_is_a_violation_at_the_default_level") +
          named("unit/monitor/test_violations", "processor_time_has_ten_seconds_unless_told_otherwise")),
    limited("`max_network_kb`",
            "Counted where a sandbox has a network of its own, or a list of hosts at `strict`.",
            Name("ringfence.ResourceLimits"),
            proof=named("unit/monitor/test_meter", "what_went_through_the_gateway_is_its_network",
                        "the_hosts_network_is_not_counted_as_the_sandboxs")),
    limited("`max_file_operations`",
            "Calls of the read and write family, counted to the end of each execution. Of orphans, and of children of "
            "a parent that ignores SIGCHLD, only what a check saw.", Name("ringfence.ResourceLimits"),
            proof=named(_MANAGER, "operations_are_counted_for_each_execution_alone_and_to_its_end")),
    limited("the monitor takes less than 5 % of a core",
            f"`python -m bench monitoring` measures it; {_FIGURE}", File("bench/monitoring.py"),
            proof=named("unit/bench/test_bench_questions",
                        "a_question_is_answered_with_a_table_a_file_and_a_picture")),
))  # fmt: skip

_UNDO = Group(title="RollbackSystem", rows=(
    works("`create_checkpoint(sandbox_id, metadata)`, `rollback_to_checkpoint`, `list_checkpoints`, "
          "`delete_checkpoint`, `auto_rollback_on_violation(sandbox_id, violation)`",
          Call("ringfence.RollbackSystem.create_checkpoint", "sandbox_id, metadata"),
          Call("ringfence.RollbackSystem.rollback_to_checkpoint", "checkpoint_id"),
          Call("ringfence.RollbackSystem.list_checkpoints", "sandbox_id"),
          Call("ringfence.RollbackSystem.delete_checkpoint", "checkpoint_id"),
          Call("ringfence.RollbackSystem.auto_rollback_on_violation", "sandbox_id, violation"),
          proof=named(_MANAGER, "checkpoints_can_be_gone_back_and_forward_to",
                      "an_attack_that_somebody_else_has_seen_is_rolled_back",
                      "a_lone_rollback_system_knows_the_open_sandboxes_of_the_process")),
    limited("`Checkpoint`: `checkpoint_id`, `timestamp`, `sandbox_id`, `filesystem_snapshot`, `state_data`, "
            "`metadata`",
            "`filesystem_snapshot` is copied when it is first read, while the sandbox is open. The checkpoint contains "
            "running processes on request: as root, at `strict`, with CRIU.",
            Fields("ringfence.Checkpoint", needed(
                "checkpoint_id", "timestamp", "sandbox_id", "filesystem_snapshot", "state_data", "metadata")),
            adr=(36,),
            proof=named(_MANAGER, "a_checkpoint_can_be_opened_as_a_folder") +
            named("unit/manager/test_live_state",
                  "a_process_goes_on_where_it_was_with_the_file_of_the_restored_layer")),
    works("`RollbackResult`: `success`, `checkpoint_id`, `rollback_type` (`full`, `partial`, `failed`), "
          "`files_restored`, `state_restored`, `error`",
          Fields("ringfence.RollbackResult", {
              **needed("success", "checkpoint_id", "rollback_type", "files_restored", "state_restored"),
              "error": None}),
          proof=named(_MANAGER, "a_rollback_can_be_partial") +
          named("unit/manager/test_result",
                "what_a_rollback_came_to_may_be_given_without_names_as_the_specification_has_it")),
    works("transactions: commit on success, roll back on failure or violation",
          Call("ringfence.SandboxManager.commit", "context"), Command("ringfence commit"),
          Command("ringfence rollback"),
          proof=named(_MANAGER, "changes_are_shown_and_committed",
                      "an_attempt_on_a_secret_is_a_violation_and_rolled_back")),
    limited("creation below 100 ms, checkpoint below 500 ms, rollback below 1 s, 10 MB a sandbox",
            f"`python -m bench manager` measures it; {_FIGURE}", File("bench/manager.py"),
            proof=named("unit/bench/test_bench_questions",
                        "a_question_is_answered_with_a_table_a_file_and_a_picture")),
))  # fmt: skip

_SAFE = Group(title="SafeDeepAgent and the rest", rows=(
    works("`_should_sandbox(tool_name, risk_score)`, exactly as specified",
          Call("ringfence.integrations.deep_agent.SafeDeepAgent._should_sandbox", "tool_name, risk_score"),
          proof=named(_PHASES, "a_call_is_sandboxed_exactly_as_the_specification_decides")),
    works("`_execute_tool(tool_name, parameters)` in four phases; `safe_config.enable_sandboxing`, "
          "`safe_config.sandbox_mode`",
          Call("ringfence.integrations.deep_agent.SafeDeepAgent._execute_tool", "tool_name, parameters"),
          Name("ringfence.integrations.deep_agent.SafeConfig"),
          proof=named(_PHASES, "a_call_is_in_the_log_before_it_runs",
                      "without_sandboxing_everything_runs_directly_and_the_log_says_that_it_should_not_have")),
    limited("`_authorize_action`, `_check_phase2_security`, `_execute_in_sandbox`, `_execute_directly`, "
            "`_log_execution`",
            "They take a `ToolCall`, tool and parameters read once, in place of the two. `_log_execution` is two "
            "records, `begin` and `end`. To change a phase, pass `authorize=`, `risk=` or `detect=`.",
            Call("ringfence.integrations.deep_agent.SafeDeepAgent._authorize_action", "call"),
            Call("ringfence.integrations.deep_agent.SafeDeepAgent._check_phase2_security", "call, risk_score"),
            Call("ringfence.integrations.deep_agent.SafeDeepAgent._execute_in_sandbox", "call, decision"),
            Call("ringfence.integrations.deep_agent.SafeDeepAgent._execute_directly", "call, decision"), adr=(35,),
            proof=named(_PHASES, "a_function_of_the_callers_that_fails_runs_nothing",
                        "a_detector_may_answer_with_texts")),
    limited('use case 1: `agent.run("Execute this Python script …")`',
            "No planner is built in: `planner=` is asked, and without one it is an error. Use `run_tool` if you "
            "plan yourself.", Call("ringfence.integrations.deep_agent.SafeDeepAgent.run", "request"), adr=(56,),
            proof=named(_PHASES, "a_planner_is_asked_and_without_one_run_is_an_error") +
            named(_AGENT, "what_a_risky_call_changed_is_committed_when_it_succeeds")),
    limited("use case 2: an attack ends the sandbox and is rolled back",
            "Detection is a heuristic, and the author of the parameters can defeat it. What `Commit.EACH_CALL` has "
            "committed stays.", Name("ringfence.AttackError"), adr=(35,),
            proof=named(_AGENT, "an_attack_is_undone_to_where_it_began_and_stops_the_agent",
                        "by_default_an_attack_restores_everything")),
    works("use case 3: a program that takes too much is ended, rolled back and reported",
          Name("ringfence.SandboxManager"),
          proof=named(_AGENT, "a_call_that_takes_too_much_is_ended_rolled_back_and_told")),
    works("`examples/foundation4_sandbox_demo.py`",
          File("examples/foundation4_sandbox_demo.py"),
          proof=named(_AGENT, "the_demonstration_shows_the_three_use_cases")),
    works("documentation",
          File("docs/reference/manager.md"), File("docs/reference/monitor.md"), File("docs/reference/safe-agent.md"),
          proof=named("doors/test_readme", "an_example_prints_what_is_written_under_it")),
    refused("the files `deepagent/sandbox/…` and `tests/test_sandbox_manager.py` …",
            "Names come from `ringfence`: change the import.", Name("ringfence.SandboxManager"), adr=(56,)),
    limited("later: network traffic inspection",
            "At `strict` and `container`, for hosts whose rule has `methods`, `paths` or `inject`.",
            Command("ringfence run", "--network"), adr=(75,),
            proof=named("doors/test_inspected_requests",
                        "what_a_rule_does_not_allow_is_answered_in_words_and_reaches_nobody") +
            named("doors/test_container_network",
                  "a_rule_that_needs_inspection_gives_the_job_an_authority_of_its_own")),
    limited("later: distributed sandboxing",
            "Pools and suites over a Ray cluster that has a token; no sandbox of a manager.",
            Name("ringfence.integrations.ray"), Command("proctor bench", "--on"),
            proof=named("doors/test_ray_cluster", "a_cluster_runs_jobs_and_no_job_reaches_the_cluster",
                        "a_killed_node_loses_and_doubles_nothing")),
    refused("later: GPU limits",
            "No level gives a job a device.", adr=(125,),
            tried=Tried(
                written="ringfence.SandboxPolicy(devices=['/dev/nvidia0'])", words="no level gives a job a GPU")),
))  # fmt: skip

EXECUTION = Specification(
    title="4. Sandboxes by id, what they use, and undo",
    about="«Foundation #4: Execution Sandboxing».",
    groups=(_SANDBOXES, _SETTINGS, _RESOURCES, _UNDO, _SAFE),
)
