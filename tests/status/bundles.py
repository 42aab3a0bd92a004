"""Rows of specification 3: proctored runs and signed bundles."""

from __future__ import annotations

from tests.status.facts import Call, Command, File, Name, Value
from tests.status.row import Group, Specification, Tried, limited, named, not_yet, works

_RUN, _FINDINGS = "doors/test_proctor_run", "unit/proctor/test_findings_of_sandboxes"
_CLI, _VERIFY = "unit/evidence/test_evidence_cli", "unit/evidence/test_evidence_verify"
_SWE = "doors/test_proctor_swebench"
_NO_PUBLIC = "Shown with tasks and images that the tests make; no public data set is in the tests."
_TASK = {"task/task.toml": 'version = "1.0"\n', "task/instruction.md": "Do it.\n", "task/tests/test.sh": "true\n",
         "task/environment/Dockerfile": "FROM debian:bookworm\nWORKDIR /app\n"}  # fmt: skip

_COMMANDS = Group(title="Commands", rows=(
    works("`proctor run --task DIR --agent CMD --policy FILE`",
          Command("proctor run", "--task --agent --policy --out"),
          proof=named(_RUN, "an_honest_agent_passes_clean_and_its_bundle_verifies_with_all_files",
                      "without_a_named_folder_a_run_writes_into_a_new_one")),
    limited("`proctor run-tb` (Terminal-Bench, Harbor's format)",
            "The root has to be named: `--image` or `--rootfs host`. Some keys of a task are refused by name "
            f"([which](reference/proctor/terminal-bench.md)). {_NO_PUBLIC}",
            Command("proctor run-tb", "--task --agent --out --image --rootfs"),
            proof=named("doors/test_proctor_terminal_tasks", "the_oracle_scores_one_and_nothing_scores_none",
                        "a_cheat_scores_nothing")),
    limited("`proctor run-swebench`, `--grade`",
            "The root has to be named: `--image` or `--rootfs host`. The grader has no network unless a policy gives "
            f"it one. {_NO_PUBLIC}", Command("proctor run-swebench", "--instance --repo --agent --grade --rootfs"),
            adr=(87,),
            proof=named(_SWE, "the_oracle_resolves", "without_grade_there_is_no_pass_and_no_future",
                        "code_under_test_that_forges_results_does_not_resolve")),
    limited("`--image`: agent and grader in the instance's own image, the repository over it at `/testbed`",
            "It needs the command of Docker or Podman. A named image has to be in the engine; in a build the engine "
            "pulls what `FROM` names. A Dockerfile for BuildKit (`COPY --chmod`) needs a `docker` that has it. "
            f"{_NO_PUBLIC}",
            Command("proctor run-swebench", "--image"), Command("proctor run-tb", "--image --build-network"),
            adr=(85, 86),
            proof=named("doors/test_proctor_engines", "an_instance_in_its_image_resolves_by_its_own_patch_alone",
                        "podman_builds_and_exports_the_same_roots") +
            named(_SWE, "in_an_image_the_repository_alone_is_graded")),
    not_yet("fetching an image without an engine",
            "Podman needs no daemon, and is the least that `--image` needs. Without either engine nothing runs, and "
            "nothing falls back to the host.",
            Tried(
                written="proctor run-tb --task task --agent nop --image", words="install podman, which needs no daemon",
                files=_TASK),
            proof=named("unit/container/test_engine", "the_first_that_answers_is_found")),
    limited("`proctor verify-bundle`: signature, chain, log hashes",
            "Without a key or a trust file the best result is «intact, signer unknown» and exit code 2; "
            "`--allow-unknown-signer` accepts it.",
            Command("proctor verify-bundle", "--bundle --pubkey --artifacts --allow-unknown-signer"), adr=(21,),
            proof=named(_CLI, "a_good_bundle_with_its_key_is_ok_and_0", "a_tampered_bundle_is_2_and_names_the_step",
                        "an_unknown_signer_is_said_and_2_unless_allowed") +
            named(_VERIFY, "a_tampered_bundle_fails_exactly_at_its_step")),
    works("`proctor keygen`, a stable operator key",
          Command("proctor keygen", "--out --format"),
          proof=named(_CLI, "keygen_prints_a_seed_and_its_public_key",
                      "keygen_writes_a_private_file_and_prints_no_secret")),
    works("`PROCTOR_SIGNING_SEED`",
          Value("ringfence.evidence.keys.SEED_VARIABLE", "PROCTOR_SIGNING_SEED"),
          Command("proctor run", "--signing-seed --key"),
          proof=named("unit/evidence/test_evidence_keys", "the_signing_key_is_looked_up_in_proctors_order")),
    works("`proctor probe`",
          Command("proctor probe"), proof=named("doors/test_cli", "probe_tells_each_capability_with_its_mechanism")),
    works("`proctor --version`, and every command's `--help`",
          Name("ringfence.__version__"),
          proof=named("doors/test_cli", "help_lists_every_command") + named("release/test_smoke")),
))  # fmt: skip

_WRITTEN = Group(title="What a run writes", rows=(
    works("`verdict.json`: `pass`, `status` (`clean`, `compromised`), `violations_count` …",
          Name("ringfence.proctor.Verdict"),
          proof=named(_RUN, "a_wrong_answer_fails_and_is_clean",
                      "who_reads_the_oracle_by_name_gets_nothing_and_is_compromised") +
          named(_VERIFY, "a_verdict_alone_verifies_and_every_changed_field_fails")),
    works("`violations.jsonl`: `step`, `kind` (`masked_read`, `masked_write`, `blocked_connect`), `path`, `host` …, "
          "a hash chain",
          Name("ringfence.proctor.findings.violations_of"),
          proof=named("unit/proctor/test_findings", "violations_have_the_form_of_the_formats_document") +
          named("unit/evidence/test_evidence_chain", "the_chain_follows_the_documents_rule",
                "every_changed_line_is_found")),
    works("`bundle.json`: verdict, violations and log hashes under one signature",
          Name("ringfence.evidence.bundle"), File("docs/reference/formats.md"), File("examples/bundle/bundle.json"),
          proof=named(_VERIFY, "our_bundle_verifies_under_proctors_rules") +
          named("doors/test_example_bundle", "the_bundle_of_the_repository_verifies_and_tells_of_the_cheat",
                "a_changed_byte_is_noticed")),
    works("Ed25519 over RFC 8785 canonical JSON, with an environment digest",
          Name("ringfence.evidence.canonical"),
          proof=named("unit/evidence/test_evidence_keys", "rfc_8032_test_1_signs_as_published") +
          named("unit/evidence/test_evidence_json", "the_example_of_rfc_8785_section_3_2_2") +
          named("unit/evidence/test_evidence_digest", "a_labelled_digest_is_sorted_and_nul_separated")),
    works("the policy file: `workspace.mount_at`, `forbidden`, `network`, `git.base_commit`, `env.allow`, `limits`",
          Name("ringfence.proctor.task_policy.TaskPolicy"), File("docs/reference/proctor/tasks.md"),
          proof=named("unit/proctor/test_task_policy", "proctors_own_file_is_read",
                      "what_the_file_does_not_say_is_as_in_proctor", "a_wrong_file_is_refused_by_file_line_and_key")),
))  # fmt: skip

_ISOLATION = Group(title="Isolation and record", rows=(
    works("user, mount, PID, network, IPC and UTS namespaces, without privileges",
          Command("ringfence selfcheck", "--level strict"),
          proof=named("escape/test_corpus", "the_attack_fails", "the_same_succeeds_without_a_sandbox")),
    works("oracle, tests and solution are absent: `open()` gives ENOENT",
          Call("ringfence.proctor.proctor", "task, agent, out"),
          proof=named(_RUN, "who_reads_the_oracle_by_name_gets_nothing_and_is_compromised",
                      "nothing_lies_under_the_mask_and_no_capability_takes_it_off")),
    works("no network: direct connections end with ENETUNREACH and are recorded",
          Call("ringfence.proctor.proctor", "task, agent, out"),
          proof=named(_FINDINGS, "connections_outwards_count_and_questions_and_own_servers_do_not")),
    works("a list of permitted hosts; every decision is in the signed record",
          Name("ringfence.egress.gateway"),
          proof=named("escape/test_egress", "the_attack_fails") +
          named("unit/attest/test_attest_events", "every_decision_of_the_gateway_is_told_also_what_was_allowed")),
    limited("approved hosts through a proxy on the host, over a Unix socket",
            "A gateway in its place: it accepts the sandbox's sockets outside, so that programs without proxy "
            "settings reach listed hosts too. It understands CONNECT and SOCKS.", Command("ringfence run", "--network"),
            adr=(73, 74), proof=named("doors/test_network_clients", "curl", "raw_tcp_by_socks")),
    works("the repository at its base commit, without later history",
          Name("ringfence.proctor.history.materialise"),
          proof=named("unit/proctor/test_history", "it_has_the_true_ancestors_and_no_other_object",
                      "a_copy_without_references_would_still_have_the_fix") +
          named("doors/test_proctor_tasks", "an_agent_works_with_git_at_the_base_commit")),
    limited("a seccomp monitor records `open`, `openat`, `openat2` of forbidden paths and direct connects",
            "Tripwires record every call that names a hidden path; the monitor stands in where none can be laid, "
            "with a race that is reported. A check alone (`stat`) is a probe and not a violation "
            "([findings](reference/proctor/findings.md)).", Name("ringfence.kernel.tripwire"), adr=(12, 26, 83),
            proof=named(_FINDINGS, "every_route_is_graded_by_what_it_asks_for",
                        "what_honest_tools_do_is_no_violation") +
            named("escape/test_watched_paths")),
    works("isolation never depends on the monitor; a record with gaps is not a clean run",
          Name("ringfence.attest.health"),
          proof=named("unit/attest/test_attest_health", "lost_records_are_counted_and_told") +
          named(_RUN, "an_agent_that_fills_or_floods_what_it_can_brings_about_no_error",
                "an_attempt_behind_a_flood_of_probes_is_not_clean")),
    works("the grader in a second sandbox, against the true oracle",
          Name("ringfence.proctor.grading"),
          proof=named("doors/test_proctor_grading", "honest_work_passes_and_leaves_the_submission_as_it_is",
                      "a_reward_that_the_code_under_test_wrote_too_is_forged") +
          named(_RUN, "a_link_to_the_oracle_is_no_answer")),
    works("the exploit corpus, with a table of results",
          Command("ringfence corpus", "--only --runner --list"), File("corpus/RESULTS.md"),
          proof=named("doors/test_corpus_cheats", "one_of_each_class_is_as_expected",
                      "the_cheat_wins_against_a_careless_grader")),
    limited("Linux 5.11 or later, user namespaces for ordinary users",
            "No kernel older than Debian's own was tried. Without user namespaces a run is refused, with the fix. "
            "libseccomp is not needed.", Command("ringfence setup", "apparmor"), adr=(13,),
            proof=named("contract/test_without_user_namespaces",
                        "strict_is_refused_and_says_what_is_missing_and_the_fix") +
            named("hosts/test_cgroup_v2_guest")),
))  # fmt: skip

_AROUND = Group(title="Around it, and the road map", rows=(
    limited("the GitHub Action (`action.yml`)",
            "The tests run its steps in a shell; no run on GitHub is on record.", File("action.yml"),
            proof=named("doors/test_github_action", "the_action_has_the_inputs_and_outputs_that_workflows_know",
                        "a_run_from_its_installation_to_its_outputs",
                        "hostile_inputs_of_the_run_are_words_and_nothing_more")),
    limited("a prebuilt binary for Linux on x86_64; from source",
            "A Python package: `pip install .`, or wheels for x86_64 and aarch64 by `make dist`. No release is "
            "published yet.", File("docs/release.md"), Command("ringfence verify-release"), adr=(128, 129),
            proof=named("release/test_dist") + named("release/test_smoke")),
    works("«verify it yourself»: an example bundle, and the bundle's specification",
          File("docs/how-to/verify-somebodys-result.md"), File("docs/explanation/bundle.md"),
          Command("proctor verify-page"),
          proof=named("doors/test_readme", "a_page_can_be_followed_from_top_to_bottom") +
          named("doors/test_verify_page", "a_vector_gives_the_state_step_and_words_of_python")),
    works("why, usage, design, FAQ, honest scope",
          File("docs/explanation/proctored-runs.md"), File("docs/reference/proctor.md"),
          File("docs/explanation/faq.md"), File("THREAT-MODEL.md"),
          proof=named("unit/test_site", "every_link_of_a_page_that_is_laid_out_leads_to_a_page")),
    limited("v0.2: a signed manifest of everything that is handed in",
            "An answer that is carried in is found in plain form and in common disguises, not in all.",
            Command("proctor manifest", "create verify"),
            Command("proctor run", "--manifest --scaffold --instructions --agent-binary"), adr=(89,),
            proof=named("doors/test_proctor_manifest",
                        "a_manifest_is_bound_into_the_bundle_and_a_carried_answer_compromises")),
    limited("later: graders against printed passes, hard-coded outputs and mocks",
            "Counter-tests detect forged results; answers that an agent knows by heart pass.",
            Name("ringfence.proctor.counter_tests"), adr=(81, 91),
            proof=named("doors/test_proctor_pytest", "forgeries_are_told_apart", "honest_submissions_pass")),
    limited("later: more adapters",
            "Terminal-Bench 1 and whole suites; others are rows of a loader.", Command("proctor bench", "--jobs --out"),
            proof=named("doors/test_proctor_bench", "tasks_of_public_formats_run_side_by_side")),
))  # fmt: skip

BUNDLES = Specification(
    title="3. Proctored runs and signed bundles",
    about="«Proctor: Signed Isolation Bundles for AI Coding-Agent Benchmarks».",
    groups=(_COMMANDS, _WRITTEN, _ISOLATION, _AROUND),
)
