"""The flags that make a policy, shared by every command that runs something."""

from __future__ import annotations

import os
from _collections_abc import Mapping, Sequence

from ringfence.engine.run import BACKENDS, traits_of
from ringfence.errors import PolicyError, UsageError
from ringfence.model.limits import LIMITS, STRICT_DISK_BYTES, UNLIMITED_OUTPUT, IsolationLevel, Limit, Unit, format_size
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import absolute

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from types import SimpleNamespace

# flag: name in the parsed arguments
VALUE_FLAGS = {limit.flag: limit.field for limit in LIMITS} | {
    "--policy": "policy",
    "--isolation": "isolation",
    "--network": "network",
    "--root": "root",
    "--image": "image",
}
_NETWORK = "write --network none, --network host or --network api.example.com:443; a name without a dot needs its port"
_DEFAULT_NETWORK = "default: none at strict and container, else host; hosts need strict, or container as root"
_DEFAULT_NETWORK_ON_HOST = "default: none at strict, else host; hosts need strict"
ENVIRONMENT_FIELDS = ("environment", "pass_environment")
# field of the policy: (name in the parsed arguments, help)
PATH_FLAGS = {
    "readable_paths": ("readable", "a path that the job may read"),
    "writable_paths": ("writable", "a path that the job may write, on the host itself"),
    "hidden_paths": ("hidden", "a path that the job must not see"),
}
LIST_FLAGS = {"--env": "env"} | {f"--{name}": name for name, _ in PATH_FLAGS.values()}


def add_policy_flags(
    parser: argparse.ArgumentParser, level: str, defaults: Mapping[str, int] | None = None,
    helps: Mapping[str, str] | None = None, *, other_roots: bool = True,
) -> None:  # fmt: skip
    """Add one flag per limit of the table, and the switches. ``level``: the default isolation, in words. ``defaults``:
    fields for which the command has its own default, used where there is no policy file. ``helps``: fields that mean
    something else there. Without ``other_roots``: the command needs the host's files, and takes no image or root."""
    parser.add_argument("--policy", metavar="FILE", help="a policy file (YAML); flags override it")
    for limit in LIMITS:
        told = (helps or {}).get(limit.field) or _help(limit, defaults or {}, other_roots)
        parser.add_argument(limit.flag, metavar=limit.unit.upper(), dest=limit.field, help=told)
    levels = ",".join(str(each) for each in BACKENDS if other_roots or not traits_of(each).by_engine)
    parser.add_argument("--isolation", metavar=f"{{{levels}}}",
                        help=f"how the job is isolated (default: {level}); none needs --allow-partial")  # fmt: skip
    parser.add_argument("--strict", action="store_const", const="strict", dest="isolation",
                        help="the same as --isolation strict")  # fmt: skip
    parser.add_argument("--network", metavar="RULE",
                        help="none, host, or the hosts to reach, separated by commas: api.example.com (ports 80 "
                             "and 443), '*.example.org:443' (sub-domains), 10.1.2.0/24:5432, '[2001:db8::1]:1-99' "
                             f"({_DEFAULT_NETWORK if other_roots else _DEFAULT_NETWORK_ON_HOST}). Replaces the network "
                             "list of a policy file")  # fmt: skip
    for name, text in PATH_FLAGS.values():
        parser.add_argument(f"--{name}", action="append", default=[], metavar="PATH", help=f"{text} (repeatable)")
    if other_roots:
        _add_other_roots(parser)
    else:
        parser.set_defaults(root=None, image=None)
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=TEXT]",
                        help="set a variable, or pass on one of yours (repeatable)")  # fmt: skip
    parser.add_argument("--allow-partial", action="store_true", default=None,
                        help="run even if a part of the policy can't be enforced here")  # fmt: skip


def _add_other_roots(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", metavar="DIR",
                        help="a directory to use as / inside, such as an image's files, instead of the host's system "
                             "and the current directory (strict)")  # fmt: skip
    parser.add_argument("--image", metavar="NAME",
                        help="the image for isolation container (default: python:3.10-slim)")  # fmt: skip


def _help(limit: Limit, defaults: Mapping[str, int], other_roots: bool) -> str:
    """With the default."""
    if limit.capability == "disk":
        container = " half of --memory at container," if other_roots else ""
        return f"{limit.help} (default: {format_size(STRICT_DISK_BYTES)} at strict,{container} else not limited)"
    default = defaults.get(limit.field, getattr(SandboxPolicy(), limit.field))
    if default is None:
        return f"{limit.help} (default: not limited)"
    return f"{limit.help} (default: {format_size(default) if limit.unit is Unit.BYTES else default})"


def policy_from(
    arguments: argparse.Namespace | SimpleNamespace, level: IsolationLevel = IsolationLevel.PROCESS
) -> SandboxPolicy:
    """The policy file, if any, with the flags over it. ``level``: the isolation if neither sets one."""
    policy = policy_of(arguments.policy, level)
    changes = {limit.field: getattr(arguments, limit.field) for limit in LIMITS}
    changes |= {"isolation": arguments.isolation, "allow_partial": arguments.allow_partial}
    changes["image"] = arguments.image
    changes["network"] = _network(arguments.network)
    changes["root"] = None if arguments.root is None else _path("--root", arguments.root)
    given = {name: _number(value) for name, value in changes.items() if value is not None}
    given |= _environment(policy, arguments.env) | _paths(policy, arguments)
    try:
        policy = SandboxPolicy.from_dict(policy.to_dict() | given) if given else policy
    except PolicyError as error:
        raise _by_flags(error, given) from None
    if arguments.json and policy.output_bytes >= UNLIMITED_OUTPUT:
        raise UsageError("with --json all output is kept in memory: it can't be unlimited", hint="give --output a size")
    return policy


def policy_of(path: str | None, level: IsolationLevel) -> SandboxPolicy:
    """Read a policy file, or use the defaults; ``level``: the isolation if the file sets none."""
    if not path:
        return SandboxPolicy(isolation=level)
    from ringfence.model.policy_file import read_policy

    return read_policy(path, SandboxPolicy.from_dict, {"isolation": str(level)})


def _paths(policy: SandboxPolicy, arguments: argparse.Namespace | SimpleNamespace) -> dict[str, object]:
    """The paths of the flags and of the file; relative ones start at the current directory."""
    given = {field: [_path(f"--{name}", path) for path in getattr(arguments, name)]
             for field, (name, _) in PATH_FLAGS.items()}  # fmt: skip
    return {field: [*getattr(policy, field), *paths] for field, paths in given.items() if paths}


def _path(flag: str, word: str) -> str:
    path = absolute(word) if word else ""
    if not path or (flag != "--hidden" and not os.path.lexists(path)):
        raise UsageError(f"{flag} {word}: no such file or directory", hint=_nearest(path))
    return path


def _nearest(path: str) -> str:
    """A name in the same directory that may have been meant."""
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    try:
        near: Sequence[str] = get_close_matches(name, os.listdir(folder or "/"), n=1)
    except OSError:
        near = ()
    return f"did you mean {os.path.join(folder, near[0])}?" if near else "name an existing path"


def _by_flags(error: PolicyError, given: Mapping[str, object]) -> PolicyError:
    """The same error in terms of the flags."""
    flag_of = {field: flag for flag, field in VALUE_FLAGS.items()} | dict.fromkeys(ENVIRONMENT_FIELDS, "--env")
    flag_of |= {field: f"--{name}" for field, (name, _) in PATH_FLAGS.items()}
    fields = [flag_of[each.field] if each.field in given else each.field for each in (error, *error.more)]
    first, *more = map(PolicyError, fields, [each.problem for each in (error, *error.more)])
    return PolicyError(first.field, first.problem, more=tuple(more))


def _network(text: str | None) -> object:
    if text is None or text in ("none", "host"):
        return text
    hosts = text.split(",")
    for host in hosts:
        if not host:
            raise UsageError(f"--network {text}: an entry is empty", hint=_NETWORK)
        if host.isdecimal():
            raise UsageError(f"--network {text}: {host} is a port without a host",
                             hint="give each port its host: --network name:80,name:443")  # fmt: skip
        if not set(host) & set(".:"):  # a name of a host has a dot, an address one or a colon
            raise UsageError(f"--network {text}: {host} is not none, host or the name of a host", hint=_NETWORK)
    return hosts


def _number(value: object) -> object:
    """Counts and cores have no unit, so plain digits become a number; the policy judges the rest."""
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
