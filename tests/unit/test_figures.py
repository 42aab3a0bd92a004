"""Figures in the documents against the code: a sentence that names a bound names the one that holds.

Each sentence is written here around the constant. Where a page has a table of its own, another test holds it:
test_policy_doc, test_statuses_doc, test_documents_of_containers, test_service_parts (settings), test_reference_pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import measured, second_runs
from tests import run as passes

from ringfence.checkpoint import lock, scan
from ringfence.checkpoint.commit import originals
from ringfence.cluster import blobs, dispatch
from ringfence.container import job_spec, visits
from ringfence.docker_sandbox import one_run, removal, told
from ringfence.egress import addresses, gateway, upstream
from ringfence.engine import box, pool
from ringfence.evidence import schema, strictjson
from ringfence.integrations.deep_agent import call, risk
from ringfence.integrations.living import checkpoints, session
from ringfence.integrations.rewards import grading as rewards
from ringfence.kernel import recorder, rlimits
from ringfence.kernel.cgroup import limits as cgroup_limits
from ringfence.manager import rollback
from ringfence.model import limits, network_list, policy_file, policy_paths
from ringfence.model.policy import SandboxPolicy
from ringfence.monitor import meter
from ringfence.monitor.violations import OVER_FOR_S
from ringfence.proctor import agent_run, import_filter, reward, staging, submission, task, watching
from ringfence.proctor.foreign import harbor, repositories, terminal_bench
from ringfence.proctor.report import texts, timeline
from ringfence.proctor.submission_manifest import known_answers, search
from ringfence.proctor.suite import local_executor
from ringfence.proctor.task_policy import TaskPolicy
from ringfence.python_jobs import encode, preload
from ringfence.roles import layer_room, watchdog, zygote_client
from ringfence.roles.warden import warden
from ringfence.sandbox import root
from ringfence.service import admission, boxes, pools, run, runs
from ringfence.service.bodies import decoding
from ringfence.service.bodies import texts as body_texts

ROOT = Path(__file__).resolve().parents[2]
MS, KIB, MIB, GIB = 1_000_000, 1 << 10, 1 << 20, 1 << 30
_WORDS = {2: "two", 4: "four", 5: "five", 6: "six", 8: "eight", 9: "nine", 10: "ten", 12: "twelve", 16: "sixteen"}


def word(number: float) -> str:
    return _WORDS[int(number)]


POLICY, TASK, CHECK, SHARES = SandboxPolicy(), TaskPolicy(), watchdog.TICK_NS // MS, dict(rlimits.SHARES)

FIGURES: dict[str, tuple[str, ...]] = {
    "THREAT-MODEL.md": (
        f"at `strict` ({limits.STRICT_DISK_BYTES // GIB} GiB written)",
        f"checks every {CHECK} ms |",
        f"(«checked every {CHECK} ms»)",
        f"`pids_max` plus {rlimits.NAMESPACE_SLACK} tasks",
        f"the {word(len(root.DEVICES))} devices in `/dev`",
        f"an {word(cgroup_limits.SOCKET_SHARE)}h of `mem_bytes`",
        f"resolves {word(upstream.RESOLVERS)} names at a time, {word(upstream.OF_EACH)} for each sandbox.",
        f"If {word(upstream.RESOLVERS // upstream.OF_EACH)} sandboxes",
        f"can wait {word(upstream.RESOLVE_S)} seconds",
        f"a turn takes {watchdog._MEMORY_TURN_NS // MS} ms",
        f"beyond {watchdog._WALKED_BYTES // GIB} GiB (or beyond",
        f"{word(watchdog._WALKED_LIMITS)} times",
        f"{word(layer_room._TRIES)} times in a row",
        f"take turns (up to {lock._TURN_S:g} s each",
        f"at most {SHARES['RLIMIT_SIGPENDING']:,} signals",
        f"{SHARES['RLIMIT_MSGQUEUE'] // KIB} KiB of message queues",
    ),
    "CONTRIBUTING.md": (
        f"Up to {word(second_runs.MOST)} leave the gate green",
        f"have {word(int(passes.HANGS_S) / 60)} minutes",
        f"({measured.OVERALL_PERCENT} %, for enforcement code {measured.ENFORCEMENT_PERCENT} %)",
    ),
    "docs/reference/policy.md": (
        f"SIGKILL {word(rlimits.CPU_GRACE_S)} seconds of processor time later",
        f"at most {network_list.MAX_RULES:,} entries, names at most {network_list.MAX_PORTS} different ports",
        f"at most {network_list.MAX_LISTENERS:,} listening sockets",
        f"{word(network_list.WILDCARD_ADDRESSES)} for a wildcard",
        f"`connections` at once ({network_list.UNNAMED['connections']:,})",
        f"`idle_s` ({network_list.UNNAMED['idle_s']:.0f})",
        f"carries about a {word(gateway._DESCRIPTORS_EACH)}th of the hard limit of open files",
        f"at most {gateway._MOST_CONNECTIONS:,} connections. A sandbox has at most {word(gateway._SHARE)} times",
        f"`{addresses.PROXY_ADDRESS}:{addresses.PROXY_PORT}`",
        f"at most {policy_file.MAX_FILE_BYTES // KIB} KiB and {policy_file.MAX_ENTRIES:,} entries",
        f"more than {policy_paths.MOST_PATH_BYTES:,} bytes, or with a component",
        f"of more than {policy_paths.MOST_NAME_BYTES}, is refused too",
        f"and so are more than {policy_paths.MOST_PATHS:,} paths",
        *(
            f"2^{int(limits.LIMIT_OF[name].largest).bit_length() - 1} {what}"
            for name, what in (("disk", "bytes"), ("pids", "processes"), ("nofile", "descriptors"))
        ),
    ),
    "docs/reference/pool.md": (
        f"at least two and at most {word(warden._MOST_ZYGOTES)}",
        f"{word(zygote_client._MOST_OF_ONE)} at most",
        f"bytes, up to {encode.MAX_BYTES // MIB} MiB",
        f"at most {encode.MAX_PLAIN_KEYS:,} keys",
        f"numbers from {preload._NUMBERS} on (if the caller may have fewer than {2 * preload._NUMBERS} descriptors",
    ),
    "docs/how-to/run-ten-thousand-snippets.md": (f"takes {word(pool._DESCRIPTORS_EACH)} descriptors",),
    "docs/reference/programs.md": (
        f"count as tasks, {POLICY.pids_max} unless",
        f"eight busy cores use up the {POLICY.cpu_time_s} s of the default in {POLICY.cpu_time_s / 8} s",
        f"which is bytes (up to {encode.MAX_BYTES // MIB} MiB)",
        f"`box.get` (up to {box.MAX_FILE_BYTES // MIB} MiB",
    ),
    "docs/reference/monitor.md": (
        "more than about sixty processes" if 60 < 0.1 / meter.REST_S < 70 else "another number of processes",
        f"it is {word(OVER_FOR_S['max_cpu_percent'])} seconds unless",
    ),
    "docs/reference/manager.md": (
        f"newest {rollback.KEPT_AUTOMATIC} to {2 * rollback.KEPT_AUTOMATIC}",
        f"more than {scan.MAX_DEPTH} deep",
    ),
    "docs/reference/undo.md": (
        f"up to {lock._TURN_S:g} seconds",
        f"at most {originals.MAX_BYTES // MIB} MiB",
        f"({originals.MAX_FILES} files, {originals.MAX_TOTAL_BYTES // MIB} MiB)",
        f"more than {scan.MAX_ENTRIES:,} paths, or with a path of more than {scan.MAX_DEPTH} directories",
        f"directories or {scan.MAX_PATH_CHARS:,} characters",
    ),
    "docs/reference/safe-agent.md": (
        f"more than {call.MAX_PARAMETER_BYTES // MIB} MiB are refused",
        f"more than {risk._MAX_LOOKED_THROUGH // KIB} KiB of text",
    ),
    "docs/reference/container-level.md": (
        f"at most {visits.MOST_VISITS} visits",
        f"{job_spec._SHM_BYTES // MIB} MiB at most",
        f"{job_spec.GVISOR_TASKS} more are allowed",
    ),
    "docs/reference/service.md": (
        f"{decoding.MOST_VALUES:,} values",
        f"{body_texts.MOST_REST_BYTES // MIB} MiB of everything but long texts",
        f"At most {boxes.MOST_BOXES} boxes",
        f"the boxes of one token may take {boxes.MOST_BOXES} × {1 + checkpoints.MOST_CHECKPOINT_DISKS} × "
        f"{limits.STRICT_DISK_BYTES // GIB} GiB",
        f"at most {checkpoints.MOST_CHECKPOINTS} checkpoints",
        f"take {word(checkpoints.MOST_CHECKPOINT_DISKS)} times the `disk_bytes`",
        f"A tenant has at most {word(pools.MOST_EACH)} such pools",
        f"its last {runs._MOST_KEPT} runs, within its equal part of {runs._MOST_KEPT_BYTES // MIB} MiB",
        f"but at least {runs._LEAST_KEPT_BYTES // MIB} MiB",
        "a million keys" if run._MOST_KEYS == 10**6 else "another number of keys",
        f"{admission._MOST_BODY_BYTES // MIB} MiB of your request bodies",
        f"{admission._MOST_ANSWER_BYTES // MIB} MiB of answers",
    ),
    "docs/reference/formats.md": (
        f"nesting deeper than {strictjson.MAX_DEPTH} arrays",
        f"larger than {strictjson.MAX_DOCUMENT_BYTES // MIB} MiB",
        f"more than {strictjson.MAX_COMMAS:,}",
        f"At most {schema.MAX_SIGNATURES}, sorted by",
    ),
    "docs/reference/proctor.md": (
        f"(up to {agent_run._LONGEST_VARIABLE:,} bytes)",
        f"{watching.MOST_GRAVE} attempts its phase is ended",
    ),
    "docs/reference/proctor/tasks.md": (
        f"up to {task.INSTRUCTION_BYTES:,} bytes",
        f"`limits.wall_time_secs` | `{TASK.wall_time_s}`",
        f"`limits.pids` | `{TASK.pids}`",
        f"`limits.memory_bytes` | `{TASK.memory_bytes}`",
        f"`limits.disk_bytes` + | `{TASK.disk_bytes // GIB}G`",
        f"`limits.output_bytes` + | `{TASK.output_bytes // MIB}M`",
        f"`limits.open_files` + | `{TASK.open_files}`",
        f"more than {staging.MAX_ENTRIES:,} entries",
        f"more than {staging.MAX_DEPTH} levels",
    ),
    "docs/reference/proctor/terminal-bench.md": (
        f"{harbor._AGENT_S:g}, {harbor._VERIFIER_S:g} and {harbor._BUILD_S:g} where absent",
        f"{TASK.memory_bytes // GIB} GiB and {TASK.disk_bytes // GIB} GiB where absent",
        f"`max_agent_timeout_sec` ({terminal_bench._AGENT_S:g}), `max_test_timeout_sec` ({terminal_bench._TEST_S:g})",
    ),
    "docs/reference/proctor/grading.md": (
        f"a file of more than {import_filter.MAX_FILE_BYTES // GIB} GiB",
        f"more than {import_filter._MOST_LINKS} other links or more than {import_filter._DEEPEST} directories deep",
        f"targets have more than {import_filter._MOST_PARTS:,} parts",
        f"{submission.SPARE_BYTES // MIB} MiB even without",
        f"more than {import_filter.MAX_ENTRIES:,} changed paths",
        f"a path more than {import_filter.MAX_DEPTH} directories",
        f"or longer than {import_filter.MAX_PATH_BYTES:,} bytes",
        f"more than {import_filter.MAX_BYTES // GIB} GiB of files",
        f"an import of more than {word(submission.IMPORT_S // 60)} minutes",
        f"at most {reward.MAX_BYTES // KIB} KiB",
    ),
    "docs/reference/proctor/findings.md": (f"names {recorder.BUDGETS[recorder.OUTWARD].names} different addresses",),
    "docs/reference/proctor/manifest.md": (
        f"at most {known_answers.MAX_ANSWERS:,} answers",
        f"up to {known_answers.MAX_TEXT_BYTES // MIB} MiB",
        f"at most {search.MAX_UNPACKED_BYTES // MIB} MiB of a file",
    ),
    "docs/reference/proctor/report.md": (
        f"{timeline.MOST_SHOWN} findings and {timeline.MOST_SHOWN} connections, {2 * texts.MOST_BYTES // KIB} KiB of",
        f"of each log (both ends), {texts.MOST_DIFF_BYTES // KIB} KiB or {texts.MOST_DIFF_LINES:,} lines of diff",
    ),
    "docs/reference/proctor/suites.md": (f"more than {word(local_executor.HANGS_S / 3600)} hours",),
    "docs/reference/proctor/swebench.md": (f"the {word(len(repositories.REPOSITORIES))} of the data set",),
    "docs/how-to/rewards.md": (
        f"{rewards.MOST_ROUNDS} times at most, and for at most {rewards._TIMES} times the wall time",
        f"At most {rewards.MOST_CALLS:,} different calls",
    ),
    "docs/how-to/ray.md": (
        f"more than {blobs.INLINE_BYTES // KIB} KiB",
        f"up to {word(dispatch.RETRIES)} times",
        "twice as many tasks" if dispatch._AHEAD == 2 else "another number of tasks",
    ),
    "docs/how-to/mcp.md": (
        f"up to {session.MAX_FILE_BYTES // MIB} MiB of UTF-8",
        f"at most {session.MOST_CHARS} characters",
    ),
    "docs/how-to/containers/errors.md": (
        f"at least {one_run._BUSY:.0%} of its cores".replace("%", " %"),
        f"from {removal.FIRST_S:g} s to {removal.LONGEST_S:g} s apart",
    ),
    "docs/how-to/containers/quick-start.md": (f"The last {told.LOG_CHARS:,} characters",),
}


@pytest.mark.parametrize(("page", "sentence"), [(page, each) for page, all_ in FIGURES.items() for each in all_])
def test_a_page_says_the_bound_that_the_code_has(page: str, sentence: str) -> None:
    assert sentence in re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
