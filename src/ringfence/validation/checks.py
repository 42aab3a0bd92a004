"""Checks what a tree mentions, calls, looks up and imports against the rules. ``evaluation`` says what names mean."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

from ringfence.model.system_text import escape_controls
from ringfence.validation.call_checks import CallChecks
from ringfence.validation.evaluation import Evaluator
from ringfence.validation.result import ERROR, Finding
from ringfence.validation.rule import Rule
from ringfence.validation.rule_words import (
    DROP_ADDRESSES,
    PURE_LIBRARIES,
    REACHED,
    SECRET_PATHS,
    THROUGH,
    WALK_STRINGS,
)
from ringfence.validation.rules import Rules
from ringfence.validation.scopes import CLASS, Gatherer, Scope
from ringfence.validation.sinks import CHANGE, FUNCTIONS, LIST
from ringfence.validation.values import Many, Ref, Value, each, strings

_MAX_SUBJECT = 100
_SHORT = 200
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "APPDATA", "USERPROFILE", "SSH_", "LD_PRELOAD",
                 "LD_LIBRARY", "PYTHONPATH", "PYTHONSTARTUP")  # fmt: skip
_WALKS_IN_TEXT = (".__globals__", ".__subclasses__", ".__builtins__", "__import__(")
_HANDED_ON = frozenset({"builtins.open", "builtins.getattr", "builtins.setattr", "builtins.delattr", "builtins.globals",
                        "builtins.locals", "builtins.vars", "builtins.__import__", "importlib.import_module",
                        "codecs.open", "io.FileIO", "pathlib.Path.open"})  # fmt: skip
_LITERALS = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.JoinedStr, ast.Lambda, ast.ListComp)
_UPWARDS = frozenset({"__base__", "__bases__"})
_FROM_LITERALS = _UPWARDS | {"__mro__", "mro", "__class__", "__init__", "__dict__", "__doc__", "__new__", "__dir__"}
_PARTS_OF_FIELDS = ("__class__", "__init__", "__globals__", "__builtins__", "__subclasses__", "__mro__", "__base__",
                    "__func__", "__self__", "__dict__", "__code__")  # fmt: skip


class Report:
    """Collects findings in order, each once, up to a limit."""

    def __init__(self, rules: Rules, code: str) -> None:
        self._rules = rules
        self._lines: list[str] | None = None
        self._code = code
        self._found: dict[tuple[str, int, int], Finding] = {}
        self._columns: dict[tuple[int, int], int] = {}
        self.uses: set[str] = set()

    @property
    def findings(self) -> list[Finding]:
        return list(self._found.values())

    def add(self, rule: Rule | str, node: ast.AST, subject: str) -> None:
        """Add a finding; a silenced rule has no entry, and finds nothing."""
        known = self._rules.by_id.get(rule) if isinstance(rule, str) else rule
        if known is None or self.is_full:
            return
        line = getattr(node, "lineno", 1)
        column = self._column(line, getattr(node, "col_offset", 0))
        self.place(known, line, column, subject)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken."""
        return len(self._found) > self._rules.limits.findings

    def place(self, rule: Rule, line: int, column: int, subject: str) -> None:
        if self.is_full:
            return
        most = self._rules.limits.findings
        if len(self._found) == most:
            rule, line, column, subject = self._rules.by_id.get("too-many", rule), 1, 1, f"more than {most} findings"
        shown = escape_controls(subject if len(subject) <= _MAX_SUBJECT else subject[:_MAX_SUBJECT] + "…")
        finding = Finding(rule=rule.id, category=rule.category, level=rule.level, line=line, column=column,
                          subject=shown, reason=rule.reason)  # fmt: skip
        self._found.setdefault((rule.id, line, column), finding)

    def _column(self, line: int, offset: int) -> int:
        """The tree counts bytes; readers count characters. Code inside of code has one place, counted once."""
        if self._code.isascii():
            return offset + 1
        if (line, offset) not in self._columns:
            self._columns[line, offset] = self._counted(line, offset)
        return self._columns[line, offset]

    def _counted(self, line: int, offset: int) -> int:
        if self._lines is None:
            self._lines = self._code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        text = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        return len(text.encode("utf-8", "replace")[:offset].decode("utf-8", "replace")) + 1


class Checker:
    """One tree against one set of rules."""

    def __init__(self, rules: Rules, report: Report, gathered: Gatherer) -> None:
        self.rules = rules
        self.report = report
        self.gathered = gathered
        self.evaluator = Evaluator(gathered)
        self.imports: set[str] = set()
        self._verdicts: dict[str, Rule | None] = {}
        self.calls = CallChecks(self)

    def check(self, scopes: list[Scope]) -> None:
        """Check inner nodes before outer ones, so no evaluation goes deep."""
        for scope in scopes:
            for node in reversed(scope.found):
                _CHECKS[type(node)](self, node, scope)

    def finish(self) -> None:
        self.calls.finish()
        if self.evaluator.room < 0:
            self.report.add("work", ast.Pass(), "this code")

    # ---- names

    def mention(self, name: str, node: ast.AST) -> None:
        """Something is mentioned here by its full name."""
        if name in self._verdicts:
            rule = self._verdicts[name]
        else:
            rule = self._verdicts[name] = self._verdict(name)
        if rule is not None:
            self.report.add(rule, node, name.removeprefix("builtins."))

    def _verdict(self, name: str) -> Rule | None:
        rule = self.rules.names.get(name) or (self.rules.modules.get(name) if "." in name else None)
        if rule is not None:
            return rule
        module, _, attribute = name.rpartition(".")
        closed = self.rules.closed.get(module)
        if closed is None or module == "builtins" or name in self.rules.let_through:
            return None
        return None if attribute in closed[1] else closed[0]

    def handed_on(self, name: str, node: ast.AST) -> None:
        sink = FUNCTIONS.get(name)
        if name in self.rules.closed or name in _HANDED_ON or (sink is not None and sink[0] in (CHANGE, LIST)):
            self.report.add("handed-on", node, name.removeprefix("builtins."))
        elif name == "os.environ":
            self.report.add("environment-dump", node, name)

    def name(self, node: ast.Name, scope: Scope) -> None:
        value = self.evaluator.lookup(node.id, scope)
        if value is None:
            return
        for known in each(value):
            if isinstance(known, Ref):
                self.mention(known.name, node)
                self.handed_on(known.name, node)
                if known.name in self.evaluator.unbound:
                    self._module(known.name, node)

    # ---- attributes

    def attribute(self, node: ast.Attribute, scope: Scope, *, called: bool = False) -> None:
        rule = self.rules.attributes.get(node.attr)
        if rule is not None and not (called and node.attr == "__getattribute__"):
            self.report.add(rule, node, f".{node.attr}")
        if node.attr == "__code__" and not isinstance(node.ctx, ast.Load):
            self.report.add("code-object", node, ".__code__")
        if (node.attr in _FROM_LITERALS and isinstance(node.value, _LITERALS)) or _leads_upwards(node):
            self.report.add("attribute-walk", node, f".{node.attr}")
        base = self.evaluator.value(node.value, scope)
        if base is not None:
            self._attribute_of(base, node, called or id(node) in self.gathered.based)
        elif type(node.value) is ast.Attribute:
            self._reached(node.value.attr, node)

    def _reached(self, above: str, node: ast.Attribute) -> None:
        """``x.sys.modules`` of an unknown ``x``: one attribute may mean anything, the two together tell."""
        name = f"{above.lstrip('_')}.{node.attr}"
        rule = self.rules.names.get(name)
        if (name in REACHED or (rule is not None and rule.level == ERROR)) and name not in self.rules.let_through:
            self.report.add("through-module", node, f".{above}.{node.attr}")

    def _attribute_of(self, base: Value, node: ast.Attribute, used: bool) -> None:
        for known in base.values if isinstance(base, Many) else (base,):
            if not isinstance(known, Ref):
                continue
            self.looked_up(known, node.attr, node)
            if not used:
                self.handed_on(self.evaluator.reference(f"{known.name}.{node.attr}").name, node)

    def looked_up(self, base: Ref, attribute: str, node: ast.AST) -> None:
        """``base.attribute``, by a dot or by getattr."""
        self.mention(base.name, node)
        if base.name in _HANDED_ON and attribute not in ("__call__", "__name__", "__doc__"):
            self.handed_on(base.name, node)
        full = self.evaluator.reference(f"{base.name}.{attribute}")
        if full.name in THROUGH:
            self.report.add("through-module", node, f"{base.name}.{attribute}")
        if attribute == "__dict__" and not base.name.startswith("builtins.") and "__class__" not in base.name:
            self.report.add("namespace-lookup", node, f"{base.name}.__dict__")
        self.mention(full.name, node)
        closed = self.rules.closed.get(base.name)
        if base.name == "builtins" and closed is not None and attribute not in closed[1]:
            self.report.add(closed[0], node, f"builtins.{attribute}")
        if base.name == "urllib" or base.name.startswith("http") or base.name in self.evaluator.unbound:
            self._module(full.name, node)

    # ---- texts and lookups

    def constant(self, node: ast.Constant, scope: Scope) -> None:
        if isinstance(node.value, str):
            self.text(node.value, node)

    def text(self, text: str, node: ast.AST) -> None:
        """A string that is a name of the interpreter, or a format that walks to it."""
        if text in WALK_STRINGS or (len(text) < _SHORT and any(part in text for part in _WALKS_IN_TEXT)):
            self.report.add("hidden-name", node, text)
        elif text.startswith(SECRET_PATHS):
            self.calls.secret_paths.append(node)
        elif "://" in text and any(part in text for part in DROP_ADDRESSES):
            self.report.add("network-address", node, text[:60])
        elif "__" in text and "{" in text and _walks(text):
            self.report.add("hidden-name", node, text[:60])

    def binary(self, node: ast.BinOp, scope: Scope) -> None:
        for text in strings(self.evaluator.value(node, scope)):
            self.text(text, node)

    def subscript(self, node: ast.Subscript, scope: Scope) -> None:
        key = node.slice
        if not isinstance(key, ast.Constant | ast.Name | ast.Slice | ast.Tuple):
            for text in strings(self.evaluator.value(key, scope)):
                self.text(text, key)
        base = self.evaluator.value(node.value, scope)
        if base is None:
            return
        for known in each(base):
            if isinstance(known, Ref):
                self._looked_up_by_key(known, node, scope)
        for found in each(self.evaluator.value(node, scope)):
            if isinstance(found, Ref):
                self.mention(found.name, node)

    def _looked_up_by_key(self, base: Ref, node: ast.Subscript, scope: Scope) -> None:
        self.mention(base.name, node)
        keys = list(strings(self.evaluator.value(node.slice, scope)))
        if base.name in ("globals()", "locals()") and not keys and isinstance(node.ctx, ast.Load):
            self.calls.unknown_name(base.name, node.slice, node)
        if base.name == "os.environ":
            self.secret(keys, node)

    def secret(self, keys: list[str], node: ast.AST) -> None:
        """A variable of the environment whose name says that it is secret."""
        for key in keys:
            name = key.upper()
            if any(word in name for word in _SECRET_WORDS):
                self.report.add("environment-dump", node, key)

    def pattern(self, node: ast.MatchClass, scope: Scope) -> None:
        for name in node.kwd_attrs:
            self.attribute_name(name, node)

    def attribute_name(self, name: str, node: ast.AST) -> None:
        """An attribute of an unknown object, by its name alone."""
        rule = self.rules.attributes.get(name)
        if rule is not None:
            self.report.add(rule, node, f".{name}")
        elif name.startswith("_") and name.lstrip("_") in THROUGH:
            self.report.add("through-module", node, f".{name}")

    # ---- imports

    def import_(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            self._module(alias.name, node)
            top = alias.name.partition(".")[0]
            if scope.kind == CLASS and top in THROUGH:
                self.report.add("handed-on", node, alias.name)

    def import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        if node.level or node.module is None:
            return
        if node.module != "__main__" and self._module(node.module, node):
            return
        for alias in node.names:
            self._imported_name(node.module, alias.name, node)

    def _imported_name(self, module: str, name: str, node: ast.AST) -> None:
        if name == "*":
            closed = self.rules.closed.get(module)
            if closed is not None:
                self.report.add(closed[0], node, f"{module}.*")
            return
        full = f"{module}.{name}"
        if module != "__main__" and self._module(full, node):
            return
        known = self.evaluator.reference(full).name
        if known in THROUGH:
            self.report.add("through-module", node, full)
        self.mention(known, node)
        if (rule := self.rules.attributes.get(name)) is not None:
            self.report.add(rule, node, full)

    def _module(self, name: str, node: ast.AST) -> bool:
        """Whether the import of a module is a finding."""
        top = name.partition(".")[0]
        self.imports.add(top)
        if top not in sys.stdlib_module_names and top not in PURE_LIBRARIES:
            self.report.uses.add("unknown")
        rule = self.rules.module_rule(name)
        if rule is not None:
            self.report.add(rule, node, name)
        return rule is not None

    def module(self, name: str, node: ast.AST) -> bool:
        return self._module(name, node)

    def call(self, node: ast.Call, scope: Scope) -> None:
        self.calls.call(node, scope)


def _leads_upwards(node: ast.Attribute) -> bool:
    """``x.__class__.__base__`` or ``type(x).mro``: from any object to the base of all objects."""
    if node.attr not in _UPWARDS:
        return False
    below = node.value.func if isinstance(node.value, ast.Call) else node.value
    return getattr(below, "attr", getattr(below, "id", "")) in ("__class__", "__base__", "type")


def _walks(text: str) -> bool:
    """Whether a field of a format string goes through such an attribute; the name of a class does not count."""
    fields = (piece.partition("}")[0].replace(".__class__.__name__", "") for piece in text.split("{")[1:])
    return any(f"{sign}{part}" in field for field in fields for part in _PARTS_OF_FIELDS for sign in ".[")


_CHECKS: dict[type[ast.AST], Callable[..., None]] = {
    ast.Name: Checker.name, ast.Attribute: Checker.attribute, ast.Call: Checker.call, ast.Constant: Checker.constant,
    ast.BinOp: Checker.binary, ast.Subscript: Checker.subscript, ast.Import: Checker.import_,
    ast.ImportFrom: Checker.import_from, ast.MatchClass: Checker.pattern,
}  # fmt: skip
