"""Steps 15 to 17 of docs/reference/formats.md: what run.json and inputs.json say, and that it agrees with the rest.

Owns: reading the two embedded documents and their rules. They are bound by then; here they must be consistent.
"""

from __future__ import annotations

from typing import Any, cast

from ringfence.errors import EvidenceError
from ringfence.evidence.case import OURS, UNGRADED, Case
from ringfence.evidence.schema import (
    INPUTS,
    INPUTS_NAME,
    RUN,
    RUN_NAME,
    UNGRADED_INPUTS,
    UNGRADED_RUN,
    parse_time,
)
from ringfence.evidence.shape import Record, problems
from ringfence.evidence.strictjson import parse


def check_run(case: Case) -> None:
    if case.format not in OURS:
        return _require_no_nonce(case)
    case.run = run = _document(case, RUN_NAME, UNGRADED_RUN if case.format == UNGRADED else RUN)
    for holds, complaint in _run_rules(case, run):
        if not holds:
            raise EvidenceError(f"{RUN_NAME}: {complaint}")
    return None


def check_sizes(case: Case) -> None:
    stated = {artifact["name"]: artifact["bytes"] for artifact in case.artifacts}
    signed = dict(case.run["artifact_bytes"])
    if RUN_NAME in signed:
        raise EvidenceError(f"{RUN_NAME} cannot state its own size")
    signed[RUN_NAME] = len(case.document["contents"][RUN_NAME].encode("utf-8"))
    for name in sorted(stated.keys() | signed.keys()):
        if stated.get(name) != signed.get(name):
            raise EvidenceError(
                f"{name!a} has {stated.get(name)} bytes in the list, signed {signed.get(name)}"
            )


def check_inputs(case: Case) -> None:
    inputs = _document(case, INPUTS_NAME, UNGRADED_INPUTS if case.format == UNGRADED else INPUTS)
    for holds, complaint in _input_rules(case, inputs["inputs"]):
        if not holds:
            raise EvidenceError(f"{INPUTS_NAME}: {complaint}")
    case.inputs = inputs


def _require_no_nonce(case: Case) -> None:
    """A nonce that the format cannot have counts as a mismatch."""
    if case.nonce is not None:
        raise EvidenceError("a nonce is expected, and this format has none")


def _run_rules(case: Case, run: dict[str, Any]) -> tuple[tuple[bool, str], ...]:
    verdict, recorder = case.verdict, run["recorder"]
    graders = [phase for phase in run["phases"] if phase["name"] == "grader"]
    graded = any(not phase["timed_out"] for phase in graders)
    embedded = {RUN_NAME, *run["embedded"]}
    sound = recorder["healthy"] and recorder["dropped"] == 0
    return (
        (run["task_id"] == verdict["task_id"], "another task than the verdict's"),
        (embedded == set(case.document["contents"]), "contents are not what it says is embedded"),
        (
            case.nonce is None or run["nonce"] == case.nonce,
            "not the expected nonce: another or a replayed run",
        ),
        (parse_time(run["started_at"]) <= parse_time(run["ended_at"]), "it ended before it started"),
        (verdict["status"] != "clean" or sound, "clean, but the recorder was not healthy all the time"),
        (not verdict["pass"] or graded, "pass, but no grader that came to an end"),
        (
            verdict["status"] == "clean" or verdict["violations_count"] > 0 or not sound,
            "compromised, but nothing was recorded and the recorder was healthy",
        ),
    )


def _input_rules(case: Case, inputs: list[dict[str, Any]]) -> tuple[tuple[bool, str], ...]:
    environment = case.document["environment"]
    policies = [(entry["kind"], entry["sha256"]) for entry in inputs if entry["role"] == "policy"]
    images = ["sha256:" + entry["sha256"] for entry in inputs if entry["role"] == "image"]
    from_image = environment["rootfs_kind"] == "image"
    return (
        (policies == [("file", environment["policy_sha256"])], "not exactly the policy of the environment"),
        (not from_image or environment.get("image_digest") in images, "not the image of the environment"),
    )


def _document(case: Case, name: str, shape: Record) -> dict[str, Any]:
    try:
        document = parse(case.document["contents"][name].encode("utf-8"))
    except EvidenceError as error:
        raise EvidenceError(f"{name}: {error}") from None
    problem = next(problems(document, shape), None)
    if problem is not None:
        raise EvidenceError(f"{name}: {problem}")
    return cast(dict[str, Any], document)
