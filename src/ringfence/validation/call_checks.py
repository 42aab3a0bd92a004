"""Checks calls against the rules: calls that take a path, a name, a module, a source or something encoded."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from ringfence.validation import folding
from ringfence.validation.appearance import (
    PROGRAMS,
    is_address,
    is_of_programs,
    is_packed,
    is_plain_encoding,
    looks_like_a_path,
    shown_path,
)
from ringfence.validation.paths import Lead, lead
from ringfence.validation.scopes import Scope
from ringfence.validation.sinks import (
    CHANGE,
    FUNCTIONS,
    LIST,
    METHODS,
    PATH_METHODS,
)
from ringfence.validation.values import Const, Items, Pairs, PathOf, Ref, Start, Value, each, strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.validation.checks import Checker

_PAYLOAD = re.compile(
    r"\b(?:import\s+\w|from\s+\w+\s+import|exec\s*\(|eval\s*\(|__\w+__|os\.system|subprocess|socket)|https?://|/bin/"
    r"|powershell|cmd\.exe|^(?:os|sys|subprocess|system|popen|eval|exec|builtins|importlib|socket|ctypes)$"
)
_SOURCES = frozenset({"timeit.timeit", "timeit.repeat", "timeit.Timer", "timeit.main", "cProfile.run", "profile.run",
                      "cProfile.runctx", "profile.runctx", "cProfile.Profile.run"})  # fmt: skip
_DOCTESTS = frozenset({"doctest.testmod", "doctest.run_docstring_examples", "doctest.DocTestSuite"})
_READING = frozenset({"builtins.getattr", "inspect.getattr_static"})
_DUMPING = frozenset({"items", "values", "copy", "keys", "__iter__", "__repr__", "__str__"})


class CallChecks:
    """Belongs to a ``Checker``, and shares its evaluator and report."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._value = checker.evaluator.value
        self._add = checker.report.add
        self._decodes: ast.AST | None = None
        self._dynamic: list[ast.AST] = []
        self._lookups: list[ast.AST] = []
        self._opens_unknown = False
        self.secret_paths: list[ast.AST] = []
        """Constants that name what no program should read; they count if it opens a path known only at run time."""
        self.sources: list[tuple[str, ast.AST]] = []
        self.runs: list[tuple[str, ast.AST]] = []
        """The same, if a profiler runs them."""
        self.tests: ast.AST | None = None

    def call(self, node: ast.Call, scope: Scope) -> None:
        func = node.func
        if type(func) is ast.Attribute:
            self._checker.attribute(func, scope, called=True)
            self._method(node, func, scope)
        elif type(func) is ast.Call:
            self._call_of_a_call(func, node)
        self._namespaces_in(node)
        value = self._value(func, scope)
        if value is None:
            return
        for known in each(value):
            if isinstance(known, Ref):
                self._checker.mention(known.name, node)
                if known.name in self._checker.evaluator.unbound:
                    self._checker.module(known.name, node)
                self._called(known.name, node, scope)

    def _called(self, name: str, node: ast.Call, scope: Scope) -> None:
        rule = self._checker.rules.calls.get(name)
        if rule is not None:
            self._add(rule, node, name)
        if name in FUNCTIONS:
            self._sink(name, node, scope)
        if name in folding.DECODERS:
            self._decoded(node, scope)
        if name in _SOURCES:
            self._source(node, scope)
        if name.startswith("pathlib.Path.") and name.rpartition(".")[2] in PATH_METHODS and node.args:
            self._judge_each(node.args[0], PATH_METHODS[name.rpartition(".")[2]], node, name, scope)
        if name in _DOCTESTS:
            self.tests = node
        special = _SPECIAL.get(name)
        if special is not None:
            special(self, name, node, scope)

    def _namespaces_in(self, node: ast.Call) -> None:
        """``f(globals())``: the callee can look up anything."""
        for argument in node.args:
            if type(argument) is ast.Call and type(argument.func) is ast.Name and argument.func.id == "globals":
                self._add("namespace-lookup", argument, "globals()")

    def _call_of_a_call(self, func: ast.Call, node: ast.Call) -> None:
        """``type(lambda: 0)(code, names)`` turns code into a function."""
        inner = func.func
        if type(inner) is not ast.Name or inner.id != "type" or len(func.args) != 1:
            return
        kind = func.args[0]
        if isinstance(kind, ast.Lambda) or (isinstance(kind, ast.Attribute) and kind.attr == "__code__"):
            self._add("code-object", node, "type(…)(…)")

    # ---- methods

    def _method(self, node: ast.Call, func: ast.Attribute, scope: Scope) -> None:
        name = func.attr
        rule = self._checker.rules.methods.get(name)
        base = self._value(func.value, scope)
        if rule is not None and not isinstance(base, Const):
            self._add(rule, node, f".{name}()")
        if base is None:
            self._method_of_unknown(name, node, scope)
        for known in each(base):
            self._method_of(known, name, node, scope)
        if name == "replace" and isinstance(func.value, ast.Attribute) and func.value.attr == "__code__":
            self._add("code-object", node, ".__code__.replace")
        if name == "decode":
            self._decoded(node, scope, sure=bool(node.args) and not is_plain_encoding(node.args[0]))

    def _method_of(self, base: Value | None, name: str, node: ast.Call, scope: Scope) -> None:
        if isinstance(base, PathOf) and name in PATH_METHODS:
            action = PATH_METHODS[name]
            self._judge(base, action, node, f"Path.{name}", writes=action == "writes")
            for pattern in node.args[:1] if name in ("glob", "rglob") else ():
                if any(map(is_of_programs, strings(self._value(pattern, scope)))):
                    self._add("program-files", node, f"Path.{name}")
            for argument in node.args[:1] if name in ("rename", "replace", "symlink_to", "hardlink_to") else ():
                self._judge_each(argument, CHANGE, node, f"Path.{name}", scope)
        elif isinstance(base, Ref) and base.name in ("globals()", "locals()"):
            self._namespace_method(base.name, name, node, scope)
        elif isinstance(base, Ref) and base.name == "os.environ":
            self._environment_method(name, node, scope)
        if name in ("__getattribute__", "__getattr__") and not isinstance(base, PathOf):
            self._attribute_by_name(base, node.args[-1:], node, scope)

    def _method_of_unknown(self, name: str, node: ast.Call, scope: Scope) -> None:
        if name in METHODS and node.args:
            for known in each(self._value(node.args[0], scope)):
                if isinstance(known, PathOf) or (isinstance(known, Const | Start) and looks_like_a_path(known.value)):
                    self._judge(known, "reads", node, name, told=False)
        if name in ("eval", "query", "run", "runctx") and node.args:
            self._expression(name, node, scope)
        if name in ("connect", "connect_ex", "bind") and node.args and is_address(node.args[0]):
            self._add("network-call", node, f".{name}()")

    def _expression(self, name: str, node: ast.Call, scope: Scope) -> None:
        """What ``df.eval`` and the like take is code of a kind, ``Profile().run`` takes statements."""
        texts = list(strings(self._value(node.args[0], scope)))
        if name.startswith("run"):
            self.runs += [(text, node) for text in texts]
        elif any("__" in text or ("@" in text and "(" in text) for text in texts):
            self._add("dynamic-code", node, f".{name}")

    def _namespace_method(self, base: str, name: str, node: ast.Call, scope: Scope) -> None:
        key = self._value(node.args[0], scope) if node.args else None
        if name in ("get", "pop", "__getitem__", "setdefault") and any(strings(key)):
            for found in each(self._value(node, scope)):
                if isinstance(found, Ref):
                    self._checker.mention(found.name, node)
        elif name in ("items", "values", "__iter__"):
            self._add("namespace-lookup", node, f"{base}.{name}")
        elif name not in ("update", "clear"):
            self.unknown_name(f"{base}.{name}", node.args[0] if node.args else node.func, node)

    def _environment_method(self, name: str, node: ast.Call, scope: Scope) -> None:
        if name in _DUMPING:
            self._add("environment-dump", node, f"os.environ.{name}")
        elif node.args:
            self._checker.secret(list(strings(self._value(node.args[0], scope))), node)

    def unknown_name(self, namespace: str, key: ast.expr, node: ast.AST) -> None:
        """A name is looked up that is known only at run time. A name computed on the spot has no honest reason."""
        if isinstance(key, ast.Call):
            self._add("namespace-lookup", node, namespace)
        else:
            self._lookups.append(node)
            self._add("namespace-lookup-of-unknown", node, namespace)

    # ---- files

    def _sink(self, name: str, node: ast.Call, scope: Scope) -> None:
        action, places, keywords = FUNCTIONS[name]
        shown = name.removeprefix("builtins.")
        given = [node.args[place] for place in places if place < len(node.args)]
        given += [keyword.value for keyword in node.keywords if keyword.arg in keywords]
        self._checker.report.uses.add("files")
        if not given and action == LIST:
            self._add("file-unproven", node, f"{shown}()")
        if name in ("io.FileIO", "builtins.open") and not given and node.keywords:
            self._add("file-unknown", node, shown)
        for argument in given:
            if type(argument) is not ast.Starred:
                self._judge_each(argument, action, node, shown, scope)
                self._look_for_programs(name, argument, node, scope)
        for known in self._spread(node, keywords, scope):
            self._judge(known, action, node, shown)

    def _spread(self, node: ast.Call, keywords: tuple[str, ...], scope: Scope) -> Iterator[Value | None]:
        """The paths in ``open(*["/etc/passwd"])`` and ``open(**{"file": …})``."""
        for argument in node.args:
            items = self._value(argument.value, scope) if isinstance(argument, ast.Starred) else None
            yield from items.values[:1] if isinstance(items, Items) else (None,) if items is not None else ()
        for keyword in node.keywords:
            pairs = self._value(keyword.value, scope) if keyword.arg is None else None
            if isinstance(pairs, Pairs):
                yield from (pairs.values[name] for name in keywords if name in pairs.values)

    def _look_for_programs(self, name: str, argument: ast.expr, node: ast.Call, scope: Scope) -> None:
        texts = list(strings(self._value(argument, scope)))
        if name.startswith("glob.") and any(map(is_of_programs, texts)):
            self._add("program-files", node, name)
        mode = node.args[1] if len(node.args) > 1 else node
        writes = isinstance(mode, ast.Constant) and bool(set(str(mode.value)) & set("wax+"))
        if writes and any(text.endswith(PROGRAMS) for text in texts):
            self._add("program-files", node, f"{name}({texts[0]!a})")

    def _judge_each(self, argument: ast.expr, action: str, node: ast.Call, shown: str, scope: Scope) -> None:
        for known in each(self._value(argument, scope)):
            self._judge(known, action, node, shown)

    def _judge(
        self, path: Value | None, action: str, node: ast.Call, shown: str, *, told: bool = True, writes: bool = False
    ) -> None:
        """``told``: also report a path that is unknown or relative."""
        self._checker.report.uses.add("files")
        leads = lead(path, self._checker.rules.paths)
        rule = _RULE_OF[leads]
        if leads in (Lead.RELATIVE, Lead.UNKNOWN):
            if action in (LIST, CHANGE):
                rule = "file-unproven"
            elif not told:
                return
            self._opens_unknown = self._opens_unknown or leads is Lead.UNKNOWN
            if shown.startswith(("pandas.", "polars.")) and leads is Lead.UNKNOWN:
                self._checker.report.uses.add("network")
        if rule:
            self._add(rule, node, f"{shown}({shown_path(path)})")

    # ---- attributes by name

    def _getattr(self, name: str, node: ast.Call, scope: Scope) -> None:
        if len(node.args) >= 2:
            base = self._value(node.args[0], scope)
            literal = isinstance(node.args[0], ast.Constant | ast.Tuple | ast.List | ast.Dict)
            self._attribute_by_name(base, node.args[1:2], node, scope, literal=literal, reads=name in _READING)

    def _attribute_by_name(
        self, base: Value | None, names: list[ast.expr], node: ast.Call, scope: Scope, *, literal: bool = False,
        reads: bool = True,
    ) -> None:  # fmt: skip
        for argument in names:
            value = self._value(argument, scope)
            for known in each(value):
                if isinstance(known, Const) and isinstance(known.value, str):
                    if reads or any(isinstance(choice, Ref) for choice in each(base)):
                        self._named(base, known.value, node, literal)
                elif reads and not isinstance(known, Start):
                    self._unnamed(base, node, literal)

    def _named(self, base: Value | None, name: str, node: ast.Call, literal: bool) -> None:
        rule = self._checker.rules.attributes.get(name)
        if rule is not None:
            self._add(rule, node, f"getattr(…, {name!r})")
        elif literal and name.startswith("__"):
            self._add("attribute-walk", node, f"getattr(…, {name!r})")
        for known in each(base):
            if isinstance(known, Ref):
                self._checker.looked_up(known, name, node)

    def _unnamed(self, base: Value | None, node: ast.Call, literal: bool) -> None:
        closed = self._checker.rules.closed
        known = [each_.name for each_ in each(base) if isinstance(each_, Ref)]
        if literal or any(name in closed or name == "builtins.__builtins__" for name in known):
            self._add("dynamic-attribute", node, f"getattr({known[0] if known else '…'}, …)")
        else:
            self._dynamic.append(node)
            self._add("dynamic-attribute-of-unknown", node, "getattr")

    def _getter(self, name: str, node: ast.Call, scope: Scope) -> None:
        """``operator.attrgetter("a.b")``."""
        for argument in node.args if name.endswith("attrgetter") else node.args[:1]:
            value = self._value(argument, scope)
            if not any(strings(value)):
                self._dynamic.append(node)
            for text in strings(value):
                for part in text.split("."):
                    self._checker.attribute_name(part, node)

    # ---- imports by name

    def _import_call(self, name: str, node: ast.Call, scope: Scope) -> None:
        names = list(strings(self._value(node.args[0], scope))) if node.args else []
        shown = name.removeprefix("builtins.")
        if not names:
            self._add("dynamic-import", node, f"{shown}(…)")
        for module in names:
            known = self._checker.module(module.strip("."), node)
            if known or module.partition(".")[0] in self._checker.rules.closed:
                self._add("dynamic-import", node, f"{shown}({module!r})")

    # ---- code and data inside

    def _source(self, node: ast.Call, scope: Scope) -> None:
        given = [*node.args[:2], *(each_.value for each_ in node.keywords if each_.arg in ("stmt", "setup"))]
        for argument in given:
            self.sources += [(text, node) for text in strings(self._value(argument, scope))]

    def _decoded(self, node: ast.Call, scope: Scope, *, sure: bool = True) -> None:
        """``sure``: it is more than a change from bytes to text."""
        if sure:
            self._decodes = self._decodes or node
        for text in strings(self._value(node, scope)):
            self._checker.text(text, node)
            if _PAYLOAD.search(text[:4096]):
                self._add("encoded-payload", node, text[:40])

    def _chr(self, name: str, node: ast.Call, scope: Scope) -> None:
        if not node.args or not isinstance(node.args[0], ast.Constant):
            self._decodes = self._decodes or node

    def _numpy_load(self, name: str, node: ast.Call, scope: Scope) -> None:
        given = [*node.args[2:3], *(each_.value for each_ in node.keywords if each_.arg == "allow_pickle")]
        if any(folding.plain(self._value(argument, scope)) is not False for argument in given):
            self._add("deserialization", node, "numpy.load(allow_pickle=…)")

    def _vars(self, name: str, node: ast.Call, scope: Scope) -> None:
        for argument in node.args:
            if any(isinstance(known, Ref) for known in each(self._value(argument, scope))):
                self._add("namespace-lookup", node, "vars")

    def _yaml_load(self, name: str, node: ast.Call, scope: Scope) -> None:
        loaders = [*node.args[1:2], *(each_.value for each_ in node.keywords if each_.arg == "Loader")]
        names = [getattr(each_, "attr", getattr(each_, "id", "")) for each_ in loaders]
        if not any(each_ in ("SafeLoader", "CSafeLoader", "BaseLoader") for each_ in names):
            self._add("deserialization", node, name)

    def _getenv(self, name: str, node: ast.Call, scope: Scope) -> None:
        if node.args:
            self._checker.secret(list(strings(self._value(node.args[0], scope))), node)

    def finish(self) -> None:
        """Report what is suspicious only in combination."""
        for node in self.secret_paths if self._opens_unknown else ():
            self._add("file-outside", node, str(getattr(node, "value", "")))
        if self._decodes is None:
            return
        for node in self._dynamic:
            self._add("dynamic-attribute", node, "getattr with a name that may be decoded")
        for node in self._lookups:
            self._add("namespace-lookup", node, "a name that may be decoded")
        for node in self._checker.gathered.long_texts:
            for text in strings(Const(node.value)):
                if is_packed(text):
                    self._add("packed-data", node, text[:24])


_RULE_OF = {
    Lead.INSIDE: "", Lead.OUTSIDE: "file-outside", Lead.RELATIVE: "file-relative", Lead.NETWORK: "network-address",
    Lead.OWN: "own-source", Lead.UNKNOWN: "file-unknown",
}  # fmt: skip
_SPECIAL: dict[str, Callable[[CallChecks, str, ast.Call, Scope], None]] = {
    **dict.fromkeys(("builtins.getattr", "builtins.setattr", "builtins.delattr", "builtins.hasattr",
                     "inspect.getattr_static"), CallChecks._getattr),
    **dict.fromkeys(("builtins.__import__", "importlib.import_module"), CallChecks._import_call),
    **dict.fromkeys(("operator.attrgetter", "operator.methodcaller", "operator.itemgetter"), CallChecks._getter),
    "builtins.vars": CallChecks._vars, "builtins.chr": CallChecks._chr,
    "numpy.load": CallChecks._numpy_load, "yaml.load": CallChecks._yaml_load,
    "yaml.load_all": CallChecks._yaml_load, "os.getenv": CallChecks._getenv,
}  # fmt: skip
