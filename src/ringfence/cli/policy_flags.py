"""The flags that make a policy, shared by every command that runs something."""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.errors import PolicyError
from ringfence.model.limits import LIMITS, STRICT_DISK_BYTES, IsolationLevel, Limit, Unit, format_size
from ringfence.model.policy import SandboxPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from types import SimpleNamespace

# flag: name in the parsed arguments
VALUE_FLAGS = {limit.flag: limit.field for limit in LIMITS} | {
    "--policy": "policy",
    "--isolation": "isolation",
    "--network": "network",
}
ENVIRONMENT_FIELDS = ("environment", "pass_environment")


def add_policy_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per limit of the table, and the switches."""
    parser.add_argument("--policy", metavar="FILE", help="a policy file (YAML); flags override it")
    for limit in LIMITS:
        parser.add_argument(limit.flag, metavar=limit.unit.upper(), dest=limit.field, help=_help(limit))
    levels = [str(level) for level in IsolationLevel]
    parser.add_argument("--isolation", choices=levels,
                        help="how it is kept apart (process); this version has no container")  # fmt: skip
    parser.add_argument("--strict", action="store_const", const="strict", dest="isolation",
                        help="the same as --isolation strict")  # fmt: skip
    parser.add_argument("--network", metavar="RULE",
                        help="none or host (strict: none, else host); hosts by name are refused yet")  # fmt: skip
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=TEXT]",
                        help="set a variable, or pass on one of yours; may be repeated")  # fmt: skip
    parser.add_argument("--allow-partial", action="store_true", default=None,
                        help="run even where something that was asked for can't be enforced")  # fmt: skip


def _help(limit: Limit) -> str:
    """With the default."""
    if limit.capability == "disk":
        return f"{limit.help} (strict: {format_size(STRICT_DISK_BYTES)}, else not limited)"
    default = getattr(SandboxPolicy(), limit.field)
    if default is None:
        return f"{limit.help} (not limited)"
    return f"{limit.help} ({format_size(default) if limit.unit is Unit.BYTES else default})"


def policy_from(arguments: argparse.Namespace | SimpleNamespace) -> SandboxPolicy:
    """The policy file, if any, with the flags over it."""
    policy = SandboxPolicy.from_yaml(arguments.policy) if arguments.policy else SandboxPolicy()
    changes = {limit.field: getattr(arguments, limit.field) for limit in LIMITS}
    changes |= {"isolation": arguments.isolation, "allow_partial": arguments.allow_partial}
    changes["network"] = _network(arguments.network)
    given = {name: _number(value) for name, value in changes.items() if value is not None}
    given |= _environment(policy, arguments.env)
    try:
        return SandboxPolicy.from_dict(policy.to_dict() | given) if given else policy
    except PolicyError as error:
        raise _by_flags(error, given) from None


def _by_flags(error: PolicyError, given: Mapping[str, object]) -> PolicyError:
    """The same in the words of who wrote flags."""
    flag_of = {field: flag for flag, field in VALUE_FLAGS.items()} | dict.fromkeys(ENVIRONMENT_FIELDS, "--env")
    fields = [flag_of[each.field] if each.field in given else each.field for each in (error, *error.more)]
    first, *more = map(PolicyError, fields, [each.problem for each in (error, *error.more)])
    return PolicyError(first.field, first.problem, more=tuple(more))


def _network(text: str | None) -> object:
    return text.split(",") if text and text not in ("none", "host") else text


def _number(value: object) -> object:
    """Counts and cores have no unit, so a plain number is taken as one; the policy judges the rest."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _environment(policy: SandboxPolicy, entries: list[str]) -> dict[str, object]:
    if not entries:
        return {}
    set_here = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    passed = [entry for entry in entries if "=" not in entry]
    values = dict(policy.environment) | set_here, [*policy.pass_environment, *passed]
    return dict(zip(ENVIRONMENT_FIELDS, values, strict=True))
