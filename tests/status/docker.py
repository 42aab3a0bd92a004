"""Rows of specification 2: strategies in containers."""

from __future__ import annotations

from tests.status.facts import Call, Command, Fields, File, Keys, Metrics, Name, Value, needed
from tests.status.row import Group, Specification, Tried, limited, named, not_yet, refused, works

_EXECUTOR, _CONFIG = "unit/docker_sandbox/test_docker_executor", "unit/docker_sandbox/test_docker_config"
_ENGINE, _VALIDATOR = "doors/test_docker_sandbox", "unit/validation/test_validator"
_METRICS = "unit/metrics/test_metrics"

_VALIDATION = Group(title="SecurityValidator", rows=(
    works("`SecurityValidator.validate_code(code) -> tuple[bool, list[str]]`",
          Call("ringfence.SecurityValidator.validate_code", "code"), Command("ringfence validate"),
          proof=named(_VALIDATOR, "malicious_code_is_rejected_with_line_column_and_reason", "honest_code_passes")),
    works("`os.system()`, `subprocess.call()`, `eval()`, `exec()`, `/etc/passwd`, `open('/root/...')`, "
          "`urllib.request`, `socket.socket()` and `requests` are found; `/tmp` and honest code are not",
          Name("ringfence.validation.rules.Rules"),
          proof=named(_VALIDATOR, "malicious_code_is_rejected_with_line_column_and_reason", "honest_code_passes") +
          named("unit/validation/test_rules_file", "paths_and_limits_are_a_projects_own")),
    works("`_check_dangerous_imports`, `_check_file_operations`, `_check_network_operations` of a tree",
          Call("ringfence.SecurityValidator._check_dangerous_imports", "ast_tree"),
          Call("ringfence.SecurityValidator._check_file_operations", "ast_tree"),
          Call("ringfence.SecurityValidator._check_network_operations", "ast_tree"),
          proof=named(_VALIDATOR, "each_check_takes_a_tree_and_tells_its_own_category")),
    works("`SecurityValidationResult`: `is_valid`, `errors`, `warnings`, `dangerous_imports`, `file_operations`, "
          "`network_operations`",
          Fields("ringfence.SecurityValidationResult", needed(
              "is_valid", "errors", "warnings", "dangerous_imports", "file_operations", "network_operations")),
          proof=named(_VALIDATOR, "the_result_has_the_fields_of_the_specification_first")),
    limited("it prevents code injection",
            "It reads code and is not a boundary: Python can spell any name at run time. The attacks of the tests "
            "also run with it switched off.", Name("ringfence.SecurityValidator"), adr=(96,),
            proof=named(_ENGINE, "an_attack_fails_with_the_validator_off")),
))  # fmt: skip

_EXECUTION = Group(title="DockerExecutor and its result", rows=(
    works("`DockerExecutor(config)`, as a context manager too",
          Call("ringfence.DockerExecutor", "config"),
          proof=named(_EXECUTOR, "all_that_is_open_is_closed_at_the_exit") +
          named(_ENGINE, "a_valid_strategy_runs_and_its_container_is_gone")),
    limited("`execute_strategy(code, data: Any) -> dict`",
            "`data` is what JSON can express, or a `pathlib.Path` of a file: no pickle goes in. The strategy is a "
            "function `run(data)` that returns a dict.",
            Call("ringfence.DockerExecutor.execute_strategy", "code, data"),
            Command("ringfence strategy", "run"), adr=(103,),
            proof=named(_EXECUTOR, "execute_strategy_returns_the_result_as_a_dict",
                        "what_the_caller_gets_wrong_is_raised")),
    works("`_create_container(code) -> str`, `_run_container(container_id, timeout) -> dict`, "
          "`_cleanup_container(container_id)`",
          Call("ringfence.DockerExecutor._create_container", "code"),
          Call("ringfence.DockerExecutor._run_container", "container_id, timeout"),
          Call("ringfence.DockerExecutor._cleanup_container", "container_id"),
          proof=named(_EXECUTOR, "the_methods_of_the_specification_work_one_by_one")),
    works("`cleanup_orphaned_containers()`",
          Call("ringfence.DockerExecutor.cleanup_orphaned_containers"), Command("ringfence cleanup"),
          proof=named(_EXECUTOR, "orphans_of_earlier_runs_are_removed_at_the_first_use") +
          named("doors/test_container_level", "cleanup_removes_orphans_and_leaves_what_somebody_owns")),
    works("`DockerExecutionResult`: `success`, `metrics`, `container_id`, `execution_time`, `memory_used_mb`, "
          "`cpu_percent`, `error_message`, `security_rejections`",
          Fields("ringfence.DockerExecutionResult", {
              **needed("success", "metrics", "container_id", "execution_time", "memory_used_mb", "cpu_percent"),
              "error_message": None, "security_rejections": None}),
          proof=named(_EXECUTOR, "a_strategy_is_run_and_its_container_removed")),
    limited("results by a bind mount at `/output`",
            "`/output/result.json` is written inside, in memory of limited size, and its bytes come out through the "
            "container's streams.", Keys({"docker.output_dir": "sandbox_output"}), adr=(103,),
            proof=named(_EXECUTOR, "results_are_kept_in_a_folder") + named(_ENGINE, "a_file_is_in_input")),
    works("no network, a root that can't be written, a writable `/tmp`",
          Name("ringfence.DockerExecutor"),
          proof=named(_ENGINE, "there_is_no_network_even_if_the_validator_missed_it",
                      "etc_is_refused_and_tmp_is_writable")),
    limited("up to 10 containers at once; creation in 2 to 3 s, overhead below 5 %, removal below 1 s",
            "`python -m bench container` measures the times; no test asserts a figure.",
            Keys({"docker.max_containers": 10}),
            proof=named(_EXECUTOR, "there_are_never_more_than_may_be") +
            named(_ENGINE, "five_run_at_once", "many_are_made_and_none_is_left")),
))  # fmt: skip

_CONFIGURATION = Group(title="DockerConfig and its files", rows=(
    works("`DockerConfig`: `image`, `memory_limit`, `cpu_limit`, `timeout_seconds`, `network_mode`, `read_only`, "
          "`tmpfs_size`, `seccomp_profile`, with their defaults",
          Fields("ringfence.DockerConfig", {
              "image": "python:3.10-slim", "memory_limit": "2g", "cpu_limit": 0.5, "timeout_seconds": 600,
              "network_mode": "none", "read_only": True, "tmpfs_size": "1g", "seccomp_profile": "default"}),
          proof=named(_CONFIG, "the_defaults_are_the_specifications",
                      "values_may_be_given_without_their_names_as_the_specification_has_it")),
    works("`DockerConfig.from_yaml(path)`; a missing file means the defaults; `-1g` and `abc` are refused",
          Call("ringfence.DockerConfig.from_yaml", "path"), File("config/docker_config.yaml"),
          proof=named(_CONFIG, "the_specifications_file_means_the_defaults",
                      "a_missing_file_means_the_defaults_unless_it_has_to_be_there",
                      "a_wrong_value_is_refused_by_its_key")),
    works("keys of the file, section `docker`",
          Keys({
              "docker.enabled": True, "docker.image": "python:3.10-slim", "docker.memory_limit": "2g",
              "docker.cpu_limit": 0.5, "docker.timeout_seconds": 600, "docker.read_only": True,
              "docker.tmpfs.path": "/tmp", "docker.tmpfs.size": "1g", "docker.tmpfs.options": "rw,noexec,nosuid",
              "docker.seccomp_profile": "default", "docker.output_dir": "sandbox_output",
              "docker.cleanup_on_exit": True}),
          proof=named(_CONFIG, "the_specifications_file_means_the_defaults", "a_good_value_is_taken_from_anywhere") +
          named(_EXECUTOR, "a_container_has_all_that_the_configuration_says",
                "containers_are_kept_where_the_configuration_says_so")),
    limited("`docker.memory_swap_limit: 2g`",
            "Its default is empty, which means `memory_limit`: no swap, even if you lower only `memory_limit`.",
            Keys({"docker.memory_swap_limit": ""}), adr=(102,),
            proof=named(_CONFIG, "the_specifications_file_means_the_defaults")),
    limited("`docker.network_mode: none`",
            "`none` or `bridge`; `host` and another container's network are refused.",
            Keys({"docker.network_mode": "none"}), adr=(102,),
            proof=named(_CONFIG, "a_wrong_value_is_refused_by_its_key")),
    works("section `monitoring`",
          Keys({
              "monitoring.export_container_stats": True, "monitoring.alert_on_orphaned_containers": 3,
              "monitoring.prometheus_port": 8000}),
          Command("ringfence metrics", "serve"),
          proof=named(_CONFIG, "a_good_value_is_taken_from_anywhere") +
          named(_METRICS, "figures_are_served_on_loopback") +
          named(_EXECUTOR, "without_statistics_none_are_asked_for")),
    works("variables of the environment win over the file",
          Value("ringfence.docker_sandbox.config_keys.PREFIX", "RINGFENCE_"), Command("ringfence config", "show"),
          proof=named(_CONFIG, "arguments_win_over_the_environment_and_that_over_the_file",
                      "config_show_tells_each_value_and_its_origin")),
    refused("the engine's settings in a project's own file, `config/learning_system.yaml`",
            "The file has the sections `docker` and `monitoring` and no others: among unknown keys, a misspelled "
            "limit would go unnoticed. Keep it beside the project's own file.",
            Call("ringfence.DockerConfig.from_yaml", "path"), adr=(102, 139),
            tried=Tried(
                written="ringfence.DockerConfig.from_yaml('learning_system.yaml')",
                words="settings of other programs go into another file",
                files={"learning_system.yaml": "learning:\n  rate: 1\ndocker:\n  memory_limit: 1g\n"}),
            proof=named(_CONFIG, "a_section_that_is_not_ours_is_refused_with_what_helps")),
    limited("`config/seccomp_profile.json`: no `execve`, `fork`, `clone`, `socket`, `connect`, `bind`",
            "Under the specification's list no program starts. ringfence's profile is made from its own tables and "
            "leaves `execve` open; the runner closes it, too, before the strategy runs.",
            File("config/seccomp_profile.json"), adr=(100,),
            proof=named("unit/container/test_seccomp_profile",
                        "what_python_needs_is_open_and_what_the_specification_closes_is_closed") +
            named(_ENGINE, "no_program_no_process_and_no_socket_once_python_runs")),
    refused("`src/sandbox/docker_executor.py`, `security_validator.py`, `docker_config.py` and test files of these "
            "names",
            "Names come from `ringfence`: change the import. Tests are named by what they show.",
            Name("ringfence.DockerExecutor"), adr=(139,)),
))  # fmt: skip

_SCENARIOS = Group(title="Error scenarios and metrics", rows=(
    limited("1. engine unavailable: fall back to direct execution if the configuration says so; "
            "`docker_fallback_total`",
            "Never without a sandbox: `fallback_to_direct` runs at `fallback_level`, ringfence's own `strict` or "
            "`process`, and the warning names it (`Docker unavailable, falling back to STRICT (UNSAFE)`).",
            Keys({"docker.fallback_to_direct": False}), Metrics(("docker_fallback_total",)), adr=(102, 103),
            proof=named(_EXECUTOR, "without_an_engine_the_strategy_is_not_run",
                        "a_fallback_runs_at_a_level_of_ours_and_says_so",
                        "a_fallback_holds_what_the_container_would")),
    works("2. creation fails: one pull and one more try, failed with the container's log",
          Metrics(("container_creation_failed_total",)),
          proof=named(_EXECUTOR, "a_missing_image_is_pulled_once", "a_failed_creation_is_counted_and_leaves_nothing",
                      "a_container_whose_python_does_not_begin_tells_its_log") +
          named(_ENGINE, "an_image_that_is_missing_is_pulled_once")),
    works("3. timeout: killed, partial results dropped",
          Metrics(("execution_timeout_total", "execution_timeout_duration_seconds")),
          proof=named(_EXECUTOR, "a_strategy_that_takes_too_long_is_killed") +
          named(_ENGINE, "one_that_takes_too_long_is_killed_and_told")),
    works("4. rejected by the validator before any container; reasons `dangerous_imports`, `file_operations`, "
          "`network_operations`",
          Metrics(("security_rejections_total",)),
          Value(
              "ringfence.validation.result.CATEGORIES",
              ("dangerous_imports", "file_operations", "network_operations", "obfuscation", "limits")),
          proof=named(_EXECUTOR, "a_rejection_comes_before_any_container") +
          named("doors/test_docker_validated", "a_rejection_comes_before_any_container")),
    works("5. removal fails: reported, tried again in the background, alert above 3",
          Metrics(("orphaned_containers", "orphaned_containers_alert")),
          proof=named(_EXECUTOR, "what_can_not_be_removed_is_tried_again_and_told") +
          named("unit/docker_sandbox/test_monitor", "more_than_three_orphans_raise_the_alert_until_they_are_gone")),
    works("6. memory or CPU limit: resource exhaustion",
          Metrics(("resource_limit_exceeded_total",)),
          proof=named(_EXECUTOR, "memory_that_is_used_up_is_a_limit") +
          named(_ENGINE, "a_strategy_of_three_gigabytes_is_killed_at_two")),
    works("errors of the engine's own library (`DockerException`, `ImageNotFound`, `APIError`, `ContainerError`) are "
          "caught, each kind by itself",
          Name("ringfence.container.api"),
          proof=named("unit/container/test_api", "a_missing_image_is_told_from_another_refusal",
                      "an_engine_that_ends_in_the_middle_is_unavailable", "a_broken_answer_is_an_error_of_ours")),
    works("the daemon dies in the middle: reported, fallback if enabled, orphans removed by the next run",
          Name("ringfence.DockerExecutor"),
          proof=named(_ENGINE, "a_daemon_killed_in_the_middle_is_told_and_recovered_from")),
    works("`ContainerMonitor.record_container_created`, `record_resource_usage`, `record_container_cleanup`; "
          "`active_containers`",
          Call("ringfence.ContainerMonitor.record_container_created", "container_id"),
          Call("ringfence.ContainerMonitor.record_resource_usage", "container_id, stats"),
          Call("ringfence.ContainerMonitor.record_container_cleanup", "container_id, success"),
          Metrics(("active_containers",)),
          proof=named("unit/docker_sandbox/test_monitor", "the_methods_of_the_specification_move_the_metrics")),
    limited("`memory_usage` and `cpu_usage` of containers",
            "They are called `container_memory_usage_bytes` and `container_cpu_usage_percent`. Metrics are off until "
            "`RINGFENCE_METRICS` asks for them.",
            Metrics(("container_memory_usage_bytes", "container_cpu_usage_percent")), adr=(104,),
            proof=named(_ENGINE, "metrics_of_containers_are_the_engines") +
            named(_METRICS, "every_metric_of_the_specification_is_there_once")),
    works("a structured JSON log of every event, with the trace",
          Name("ringfence.metrics.life_log.write_json_lines"), Command("ringfence strategy", "--log-json"),
          proof=named(_METRICS, "a_line_of_the_log_is_json_with_the_trace_id")),
    refused("the project's own `MetricsCollector`, JSON logger and AST validator",
            "They belong to the project. Prometheus' client, Python's `logging` and ringfence's own validator "
            "replace them.", Name("ringfence.metrics.recorder"), adr=(139,)),
))  # fmt: skip

_OPERATION = Group(title="Operation, and what the specification leaves for later", rows=(
    limited("the autonomous loop runs its strategies in containers",
            "The loop belongs to the project; examples/autonomous_loop.py is a loop of ten iterations, some of them "
            "hostile.",
            File("examples/autonomous_loop.py"), adr=(139,),
            proof=named("doors/test_docker_validated", "the_loop_of_the_example_goes_through_its_ten_iterations")),
    limited("Docker Engine 20.10 and later",
            "The tests start Debian's own (20.10.24 in bookworm), and Podman's 4.3.",
            Command("ringfence selfcheck", "--level container"), adr=(99,),
            proof=named("doors/test_container_level", "the_promise_holds_in_a_container") +
            named("doors/test_container_podman", "podman_runs_strategies_and_holds_their_limits")),
    limited("coverage: validator 90 %, executor 85 %, configuration 100 %",
            "Not asserted for each one. `make test-all` asserts 85 % of the whole.", File("tests/measured.py"),
            proof=named("run")),
    works("deployment checklist, base image, emergency procedure",
          File("docs/how-to/containers/deployment.md"), File("docs/how-to/containers/base-image.md"),
          File("docs/how-to/containers/emergency.md"),
          proof=named("unit/docker_sandbox/test_documents_of_containers",
                      "the_emergency_procedure_names_the_switch_that_is_tested")),
    works("alerts and a dashboard for Grafana",
          File("deploy/prometheus/alerts.yml"), File("deploy/grafana/ringfence.json"),
          proof=named("unit/docker_sandbox/test_documents_of_containers", "the_dashboard_shows_every_metric",
                      "the_alert_on_orphans_and_on_fallbacks_is_there")),
    limited("later: container pooling",
            "Containers stand by, and each is used once: none is reused.", Keys({"docker.warm_containers": 2}),
            adr=(103, 119), proof=named(_EXECUTOR, "warm_containers_stand_by_and_each_is_used_once")),
    limited("later: a network with permitted hosts",
            "For jobs at the level `container`, called by root; not for strategies.",
            Command("ringfence run", "--network --isolation"), adr=(101,),
            proof=named("doors/test_container_network", "what_is_listed_is_reached_by_the_first_word_of_a_program")),
    refused("later: GPU access",
            "No level gives a job a device.", adr=(125,),
            tried=Tried(written="ringfence.SandboxPolicy(gpu=1)", words="no level gives a job a GPU")),
    not_yet("later: a package cache that is mounted",
            "A strategy's container shows no directory of the host; what it needs belongs in the image ([base "
            "image](how-to/containers/base-image.md)).",
            Tried(written="ringfence.DockerConfig(volumes='/cache')", words="there is no such key")),
    not_yet("later: permitted hosts for strategies",
            "They have the engine's whole network (`bridge`) or none.",
            Tried(
                written="ringfence.DockerConfig(network_mode='api.example.com')", words="must be one of none, bridge")),
))  # fmt: skip

DOCKER = Specification(
    title="2. Strategies in containers",
    about="«Design Document: Docker Sandbox Security».",
    groups=(_VALIDATION, _EXECUTION, _CONFIGURATION, _SCENARIOS, _OPERATION),
)
