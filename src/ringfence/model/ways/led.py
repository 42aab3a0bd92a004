"""Paths of a policy that lead elsewhere through a link that a job made. For every system."""

from __future__ import annotations

from _collections_abc import Iterable

from ringfence.errors import PolicyError
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import Look

SHOWING = ("readable_paths", "writable_paths", "shown_at")
"""The fields of a policy that show something of the host."""


def refuse(policy: SandboxPolicy, workspaces: Iterable[str], look: Look) -> None:
    """PolicyError if a path of the policy goes through a link in a directory that jobs work on or write, to a place
    that the policy does not name: a repository, or an earlier job, would choose what this job sees."""
    named = {path: name for name in SHOWING for path in getattr(policy, name)}
    tops = dict.fromkeys(map(look.real, (*workspaces, *policy.writable_paths))) if named else {}
    ways = {path: link for path in named for link in look.way(path).links if any(within(link, top) for top in tops)}
    meant = [*workspaces, *(look.real(path) for path in named if path not in ways)] if ways else []
    for path, link in ways.items():
        end = look.real(path)
        if not any(within(end, top) for top in meant):
            problem = f"{path} points to {end} through the link {link}, which a job may have made; "
            raise PolicyError(named[path], f"{problem}name {end} if you mean that")
