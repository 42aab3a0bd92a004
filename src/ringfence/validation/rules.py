"""``Rules``: a set of rules as the tables that the pass over the code looks up, and how much code is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ringfence.model.record import record, replace
from ringfence.validation.rule import Rule
from ringfence.validation.rule_table import RULES

MAX_CODE_BYTES = 1024 * 1024
MAX_NESTING = 100
MAX_CHAIN = 3000
_MOST_PARTS = 16
"""Of a module's name; no rule names a module with as many."""


@record
class Limits:
    """How much code is looked at."""

    code_bytes: int = MAX_CODE_BYTES
    nesting: int = MAX_NESTING
    chain: int = MAX_CHAIN
    """Operators, dots and calls in one expression."""
    findings: int = 200
    """More are not told."""


class Rules:
    """A set of rules, ready to be looked up. Without arguments: those that come with ringfence.

    >>> Rules().by_id["dynamic-code"].category
    'dangerous_imports'
    """

    def __init__(
        self,
        rules: Iterable[Rule] | None = None,
        *,
        limits: Limits | None = None,
        paths: Iterable[str] = ("/tmp",),
        silenced: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.limits = limits or Limits()
        self.paths = tuple(paths)
        self.silenced = dict(silenced)
        self.all = RULES if rules is None else tuple(rules)
        self.by_id = {rule.id: rule for rule in self.all if rule.id not in self.silenced}
        wanted = (rule.names if rule.id in self.silenced else rule.allow for rule in self.all)
        self.let_through = {word for words in wanted for word in words}
        """Names that a project allows: no other rule reports them either."""
        self.modules = self._index("modules")
        self.names = self._index("names")
        self.calls = self._index("calls")
        self.attributes = self._index("attributes")
        self.methods = self._index("methods")
        self.closed = {
            module: (rule, frozenset((*allowed, *rule.allow)))
            for rule in self.by_id.values()
            for module, allowed in rule.only.items()
        }

    def _index(self, field: str) -> dict[str, Rule]:
        """The first rule that names a word owns it, unless that rule allows it."""
        found: dict[str, Rule] = {}
        for rule in self.by_id.values():
            for word in getattr(rule, field):
                if word not in rule.allow:
                    found.setdefault(word, rule)
        return found

    def with_paths(self, *paths: str) -> Rules:
        """The same rules where files may be used below these paths, e.g. ``/tmp`` and ``/output``."""
        return Rules(self.all, limits=self.limits, paths=paths, silenced=self.silenced)

    def module_rule(self, module: str) -> Rule | None:
        """The rule that forbids a module or one above it; one that is allowed by name ends the search."""
        name = ".".join(module.split(".", _MOST_PARTS)[:_MOST_PARTS])
        while name:
            rule = self.modules.get(name)
            if rule is not None:
                return None if _allows(rule, module) else rule
            name = name.rpartition(".")[0]
        return None


def _allows(rule: Rule, module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in rule.allow)


def changed(rule: Rule, **fields: object) -> Rule:
    return replace(rule, **fields)  # type: ignore[arg-type]
