"""Runs one command with everything passed through, and tells people or programs how it ended."""

from __future__ import annotations

import errno
import sys
from _collections_abc import Iterable, Sequence
from types import SimpleNamespace

from ringfence.engine.run import backend_for, isolating_levels, run, traits_of, transaction_kind
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model.events import EventKind
from ringfence.model.job import Job
from ringfence.model.limits import is_weaker
from ringfence.model.outcome import Outcome, Status
from ringfence.model.paths import quoted
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ringfence.checkpoint.transaction import Transaction
    from ringfence.cli.bundling import Bundling
    from ringfence.cli.usage_recording import Recording
    from ringfence.model.limits import IsolationLevel

MOST_REFUSED = 20
"""How many destinations are listed one by one."""
_NAME_SERVICE = ("127.0.0.1:53", "[0000:0000:0000:0000:0000:0000:0000:0001]:53")
"""The name server that a program asks where none is configured."""
CLOSED_PIPE = 141
"""The exit code if nobody reads the output any more: that of a program that SIGPIPE ends."""
LESS = "or, with less protection, where it can read and write what you can: --isolation {}"


def need_layer(policy: SandboxPolicy, flag: str) -> None:
    """UnavailableError where the level has a layer, but this host can't make one."""
    if transaction_kind(policy) == "overlay":
        return
    backend = backend_for(policy.isolation)
    if not backend.traits.has_layer:
        raise UsageError(f"{flag} needs isolation strict: no other level keeps changes in a layer",
                         hint="leave out --isolation, or write --strict")  # fmt: skip
    lack = backend.lacks(policy)[0]  # what the level is built on; --allow-partial would do without a layer too
    raise UnavailableError(f"{flag} needs a layer, and isolation {policy.isolation} has none on this host: "
                           f"{lack.capability} requires {lack.missing}", missing=(lack.capability,), fixes=(lack.fix,))


def run_attached(
    arguments: argparse.Namespace | SimpleNamespace,
    job: Job,
    policy: SandboxPolicy,
    *,
    commit: bool = False,
    keep: str = "",
    transaction: Transaction | None = None,
) -> Outcome:
    """Run it with everything passed through."""
    from ringfence.cli.passthrough import Passthrough

    evidence = _evidence(arguments, job, policy, commit)
    policy = evidence.policy if evidence else policy
    recording = _recording(arguments, job, policy) if arguments.usage or arguments.usage_file else None
    try:
        with Passthrough(job) as passthrough:
            attach = recording.attaching(passthrough.attach) if recording else passthrough.attach
            on_output = None if arguments.json else passthrough.pass_on
            outcome = run(job, policy, on_output=on_output, attach=attach, commit=commit, keep=keep,
                          transaction=transaction)  # fmt: skip
        arguments.reader_gone = passthrough.reader_gone
        if recording:
            recording.finish(outcome, quiet=arguments.quiet)
        return evidence.finish(outcome) if evidence else outcome
    except UnavailableError as error:
        weaker = _weaker_levels(policy)
        if weaker:
            error.fixes = (*(error.fixes or (error.hint,)), *map(LESS.format, weaker))
        raise
    except SetupError as error:
        error.exit_code = _exec_code(error)  # type: ignore[attr-defined]
        raise
    finally:
        if recording:
            recording.close()


def _weaker_levels(policy: SandboxPolicy) -> list[IsolationLevel]:
    """Where jobs have the host's files, never an image's, and this host could hold the whole policy."""
    shared = [level for level in isolating_levels()
              if is_weaker(level, policy.isolation) and not traits_of(level).files_apart]  # fmt: skip
    return [level for level in shared if not policy.image and not policy.root
            and not backend_for(level).lacks(replace(policy, isolation=level))]  # fmt: skip


def _recording(arguments: argparse.Namespace | SimpleNamespace, job: Job, policy: SandboxPolicy) -> Recording:
    from ringfence.cli.usage_recording import Recording, new_file

    return Recording(arguments.usage_file or new_file(), job.argv, policy)


def _evidence(
    arguments: argparse.Namespace | SimpleNamespace, job: Job, policy: SandboxPolicy, commit: bool
) -> Bundling | None:
    if arguments.bundle:
        from ringfence.cli.bundling import Bundling

        return Bundling(arguments, job, policy, commit=commit)
    if arguments.key or arguments.signing_seed:
        flag = "--key" if arguments.key else "--signing-seed"
        raise UsageError(f"{flag} signs a bundle, and no bundle was asked for", hint="add --bundle FILE")
    return None


def exit_code(arguments: argparse.Namespace | SimpleNamespace, outcome: Outcome) -> int:
    """The job's own, unless something else that was asked for could not be done, or nobody reads its output."""
    if arguments.reader_gone:
        return CLOSED_PIPE
    if outcome.bundle_problem:
        return 1
    return outcome.rc or int(bool(outcome.commit_problem or outcome.keep_problem))


def _exec_code(error: SetupError) -> int:
    """The codes of shells: 127 when there is no such program, 126 when it can't be executed."""
    if error.step != "exec":
        return 1
    return 127 if error.errno == errno.ENOENT else 126


def print_result(arguments: argparse.Namespace | SimpleNamespace, outcome: Outcome) -> None:
    if arguments.json:
        from ringfence.cli.json_text import print_json

        print_json(outcome.to_dict())
    elif not arguments.quiet and (lines := _lines(arguments, outcome)):
        from ringfence.model.system_text import escape_controls

        for line in lines:
            print(escape_controls(line), file=sys.stderr)


def _lines(arguments: argparse.Namespace | SimpleNamespace, outcome: Outcome) -> list[str]:
    """If nobody reads the output any more, the end is no news, but where the changes are still is."""
    if arguments.reader_gone:
        return _told_changes(outcome, arguments.discard)
    return explain(outcome, discard=arguments.discard)


def explain(outcome: Outcome, *, discard: bool = False) -> list[str]:
    """One line for people: what ended the job, and which flag raises that limit. No line if there is nothing to say.

    ``discard``: the caller asked to throw the changes away.
    """
    lines = [*ending(outcome.status, outcome.reason, outcome.limits_hit), *_told_changes(outcome, discard)]
    return [*lines, *refused(outcome), *lacking(name for name, entry in outcome.enforced.items() if not entry.applied)]


def _told_changes(outcome: Outcome, discard: bool) -> list[str]:
    lines = [f"ringfence: not applied: {outcome.commit_problem}"] if outcome.commit_problem else []
    if outcome.changes:
        lines.append(f"ringfence: {_changes(outcome)}{' (discarded)' if discard else _fate(outcome)}")
    return lines


def refused(outcome: Outcome) -> list[str]:
    """What the gateway or the sandbox's own kernel refused, each destination once, with what to add to the policy."""
    told: dict[tuple[object, ...], str] = {}
    for event in outcome.events:
        found = event.details
        if event.kind is EventKind.EGRESS and found.get("decision") == "refused":
            where = (found.get("name") or found.get("address"), found.get("port"))
            told.setdefault(where, f"ringfence: refused: {found.get('reason')}")
    for where, reason in _unheard(outcome).items():
        told.setdefault(where, f"ringfence: refused: {reason}")
    lines = list(dict.fromkeys(told.values())) or _without_network(outcome)
    more = len(lines) - MOST_REFUSED
    return lines if more <= 0 else [*lines[:MOST_REFUSED], f"ringfence: {more} more were refused; --json lists all"]


def _without_network(outcome: Outcome) -> list[str]:
    """Where there is no network at all: the first outside address that was asked for, or the fact that a name was."""
    entry = outcome.enforced.get("network")
    if entry is None or not entry.applied or entry.requested != "none":
        return []
    calls = [event.details for event in outcome.events if event.kind is EventKind.EGRESS]
    first = next((call for call in calls if call.get("aim") == "outward"), None)
    outside = first.get("path") if first is not None else ""
    if first is not None and first.get("operation") == "sendto":
        return [f"ringfence: refused: {outside} by UDP: there is no network, and a network list does not carry UDP. "
                "Only --network host does"]  # fmt: skip
    if outside:
        return [f"ringfence: refused: {outside}: there is no network. Allow it with --network {outside}"]
    named = any(call.get("path") in _NAME_SERVICE for call in calls)
    told = "ringfence: refused: a name look-up: there is no network. Allow a host with --network NAME"
    return [told] if named else []


def _unheard(outcome: Outcome) -> dict[tuple[str, int], str]:
    """Ports and addresses that were asked for in vain without reaching the gateway."""
    entry = outcome.enforced.get("network")
    calls = [event.details for event in outcome.events if event.kind is EventKind.EGRESS]
    asked = [str(call.get("path")) for call in calls if call.get("operation") == "connect"]
    sent = [str(call.get("path")) for call in calls
            if call.get("operation") == "sendto" and call.get("aim") == "outward"]  # fmt: skip
    if entry is None or not isinstance(entry.requested, list | tuple) or not asked + sent:
        return {}
    from ringfence.cli.unheard import datagrams, reasons
    from ringfence.model.network_list import read_rules

    return datagrams(sent) | reasons(read_rules(entry.requested), asked)


def ending(status: str, reason: str, limits_hit: Sequence[str]) -> list[str]:
    """Which limit ended the job or cut its output, and what would raise it."""
    from ringfence.model.limits import LIMIT_OF

    plain = status in (Status.OK, Status.FAILED)
    if plain and "output" not in limits_hit:
        return []
    raises = [LIMIT_OF[name].flag for name in limits_hit if name in LIMIT_OF]
    advice = f". Raise it with {' or '.join(raises)}" if raises else ""
    if "output" in limits_hit:
        advice += ", for all of it: --output unlimited"
    return [f"ringfence: {'' if plain else f'{status}: '}{reason}{advice}"]


def lacking(not_applied: Iterable[str]) -> list[str]:
    """What was asked for but not enforced, where the policy allows that."""
    names = ", ".join(not_applied)
    return [f"ringfence: PARTIAL_ENFORCEMENT: not applied: {names}"] if names else []


def _changes(outcome: Outcome) -> str:
    """``2 paths changed: a, b``."""
    from ringfence.model.printed import counted

    names = [quoted(change.path) for change in outcome.changes[:3]]
    more = ", …" if len(outcome.changes) > 3 else ""
    untold = "" if outcome.changes_complete else " and more, too deep or too many to be listed or committed"
    return f"{counted(len(outcome.changes), 'path')} changed: {', '.join(names)}{more}{untold}"


def _fate(outcome: Outcome) -> str:
    """What happened to the changes, and what to do next."""
    kept = outcome.transaction
    if kept:
        return f"; keep: ringfence commit {kept}, drop: ringfence discard {kept}"
    if outcome.committed:
        return " (applied)"
    why = f", because {outcome.keep_problem}" if outcome.keep_problem else ""
    return f" (discarded{why}; apply them with --commit)"
