"""``@NAME`` instead of an agent's command: the command of the table, and a task whose agent may reach its model.

The key is injected at the gateway: the agent's variable holds a placeholder, not a key. Naming an agent this way adds
the hosts of its models to the task's network list, and the evidence says so.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ringfence.errors import UnavailableError, UsageError
from ringfence.model.network_rule import Injection, NetworkRule
from ringfence.model.record import record, replace
from ringfence.model.ways.walk import absolute
from ringfence.proctor.agents.table import AGENTS, Credential, ReadyAgent
from ringfence.proctor.task import Task

MARK = "@"
SCRIPT = "@script:"
DOCUMENT = "agent.json"
PLACEHOLDER = "injected-at-the-gateway"
_SCRIPTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripted.sh")
_HTTPS = ((443, 443),)


@record
class Resolved:
    """What runs for an agent."""

    command: str
    task: Task
    documents: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """The part of this that the evidence tells."""


def resolve(agent: str, task: Task, variables: Mapping[str, str] | None = None) -> Resolved:
    """Return a plain command as it is. ``variables``: the caller's, whose names decide which model is reached."""
    if not agent.startswith(MARK):
        return Resolved(command=agent, task=task)
    if agent.startswith(SCRIPT):
        return Resolved(command=_scripted(agent.removeprefix(SCRIPT)), task=task)
    name = agent.removeprefix(MARK)
    row = ready_agent(name)
    have = os.environ if variables is None else variables
    used = _used(name, row, have)
    rules = (*map(_rule, used), *(NetworkRule(host=host, ports=_HTTPS) for host in row.hosts))
    passed = tuple(each for each in row.settings if each in have)
    command = _command(row, used)
    allowed = tuple(dict.fromkeys((*task.policy.env_allow, *passed)))
    policy = replace(task.policy, network=(*task.policy.network, *rules), env_allow=allowed)
    told = {"agent": name, "command": command, "network": [rule.plain() for rule in rules], "variables": list(passed)}
    return Resolved(command=command, task=replace(task, policy=policy), documents={DOCUMENT: told})


def ready_agent(name: str) -> ReadyAgent:
    """The row of a name; UsageError, which lists the known ones, if there is none."""
    if name not in AGENTS:
        raise UsageError(f"{MARK}{name} is not a ready-made agent{_near(name)}",
                         hint=f"there are {', '.join(map(MARK.__add__, AGENTS))}")  # fmt: skip
    return AGENTS[name]


def _near(name: str) -> str:
    """The agent that was probably meant: its name, or the name's first word, is similar."""
    from difflib import get_close_matches

    known = {each.partition("-")[0]: each for each in AGENTS} | {each: each for each in AGENTS}
    near = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {MARK}{known[near[0]]}?" if near else ""


def _used(name: str, row: ReadyAgent, have: Mapping[str, str]) -> list[Credential]:
    """The models whose key the caller has; of two variables for one host, the first."""
    found: dict[str, Credential] = {}
    for each in row.credentials:
        if have.get(each.variable, "").strip():
            found.setdefault(each.host, each)
    if not found:
        names = " or ".join(each.variable for each in row.credentials)
        raise UnavailableError(f"{MARK}{name} needs a key, but none of {names} is set", missing=("credential",),
                               hint=f"export {names}; the agent gets none of them, the gateway does")  # fmt: skip
    return [*found.values()]


def _rule(credential: Credential) -> NetworkRule:
    inject = Injection(header=credential.header, from_env=credential.variable, scheme=credential.scheme)
    return NetworkRule(host=credential.host, ports=_HTTPS, inject=inject)


def _command(row: ReadyAgent, used: list[Credential]) -> str:
    """With the variables that the agent wants to see, for a shell."""
    wanted = row.placeholders or tuple(each.variable for each in used)
    values = {**row.environment, **dict.fromkeys(wanted, PLACEHOLDER)}
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in values.items()), row.command])


def _scripted(file: str) -> str:
    """A file of commands that are run one by one, each by a shell of its own."""
    if not os.path.isfile(file):
        raise UsageError(f"{SCRIPT}{file}: no such file", hint="name a file with one command a line")
    words = ("/bin/sh", _SCRIPTED, absolute(file))
    if " ".join(words) != shlex.join(words):  # a shell would read it, and files in a shell's text are not shown
        raise UsageError(f"{SCRIPT}{file}: a path with spaces or quotes", hint="name a file with a plain path")
    return " ".join(words)
