"""Goes through a tree once: which names each scope binds to what, and which nodes are worth a look.

The pass keeps a list of nodes and no stack, so its depth does not matter. A name before a dot, or one that is called,
is left to the node around it; all other mentions are examined themselves, because there something can be passed on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from ringfence.validation.values import Ref, Value

MODULE, FUNCTION, CLASS, COMPREHENSION = "module", "function", "class", "comprehension"
_LONG = 400
_NEVER = 10**9
_OBJECT_FIRST = frozenset({"getattr", "hasattr", "setattr", "delattr"})


class Scope:
    """A module, function, lambda, class or comprehension, with what its names are bound to."""

    __slots__ = ("deleted", "firm", "found", "globals", "kind", "known", "names", "nodes", "nonlocals", "parent")

    def __init__(self, kind: str, parent: Scope | None, nodes: list[ast.AST]) -> None:
        self.kind = kind
        self.parent = parent
        self.nodes = nodes
        self.found: list[ast.AST] = []
        """What is worth a look, the outer before the inner."""
        self.names: dict[str, list[Binding]] = {}
        self.known: dict[str, Value | None] = {}
        """The results for names that were looked up already."""
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.deleted: set[str] = set()
        self.firm = _firm(nodes) if kind in (MODULE, CLASS) else {}
        """Names that its own statements bind unconditionally, and in which line."""


def _firm(body: list[ast.AST]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in body:
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
        for name in names:
            found.setdefault(name, getattr(node, "lineno", 0))
    return found


class Binding:
    """What a name is bound to: an expression in a scope, something imported, or neither, which is unknown."""

    __slots__ = ("added", "expression", "line", "scope", "value")

    def __init__(
        self, line: int, *, expression: ast.expr | None = None, scope: Scope | None = None, value: Value | None = None,
        added: bool = False,
    ) -> None:  # fmt: skip
        self.line = line
        self.expression = expression
        self.scope = scope
        self.value = value
        self.added = added
        """It is appended to what the name was."""


# The fields of each kind of node that hold a node, and those that hold a list of nodes.
_CHILDREN: dict[type[ast.AST], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ast.Expr: (("value",), ()), ast.Return: (("value",), ()), ast.If: (("test",), ("body", "orelse")),
    ast.While: (("test",), ("body", "orelse")), ast.For: (("target", "iter"), ("body", "orelse")),
    ast.AsyncFor: (("target", "iter"), ("body", "orelse")), ast.With: ((), ("items", "body")),
    ast.AsyncWith: ((), ("items", "body")), ast.withitem: (("context_expr", "optional_vars"), ()),
    ast.Raise: (("exc", "cause"), ()), ast.Try: ((), ("body", "handlers", "orelse", "finalbody")),
    ast.Assert: (("test", "msg"), ()), ast.Delete: ((), ("targets",)), ast.BoolOp: ((), ("values",)),
    ast.UnaryOp: (("operand",), ()), ast.IfExp: (("test", "body", "orelse"), ()),
    ast.Set: ((), ("elts",)), ast.List: ((), ("elts",)), ast.Tuple: ((), ("elts",)), ast.Await: (("value",), ()),
    ast.Yield: (("value",), ()), ast.YieldFrom: (("value",), ()),
    ast.FormattedValue: (("value", "format_spec"), ()), ast.JoinedStr: ((), ("values",)),
    ast.Starred: (("value",), ()), ast.Slice: (("lower", "upper", "step"), ()), ast.keyword: (("value",), ()),
 ast.Match: (("subject",), ("cases",)),
    ast.match_case: (("pattern", "guard"), ("body",)), ast.arg: (("annotation",), ()),
}  # fmt: skip
_LEAVES = frozenset({ast.Pass, ast.Break, ast.Continue})


class Gatherer:
    """``scopes``: all of them, the outer before the inner. ``long_texts``: constants that may be packed data."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.long_texts: list[ast.Constant] = []
        self.annotations: list[tuple[str, ast.AST]] = []
        """Those that are strings and call something."""
        self.based: set[int] = set()
        """The attribute nodes that are subscripted, as in ``os.environ["HOME"]``."""
        self._mentions: dict[str, int] = {}
        """By name, the first line in which it is read, as far as ``_looked_at`` scopes go."""
        self._deleted: set[str] = set()
        self._looked_at = 0

    def gather(self, body: list[ast.AST], parent: Scope | None = None) -> Scope:
        """Go through the statements of a module, or of a source inside one."""
        first = self._open(MODULE if parent is None else FUNCTION, parent, body)
        done = len(self.scopes) - 1
        while done < len(self.scopes):
            self._through(self.scopes[done])
            done += 1
        return first

    def _open(self, kind: str, parent: Scope | None, nodes: list[ast.AST]) -> Scope:
        scope = Scope(kind, parent, nodes)
        self.scopes.append(scope)
        return scope

    def _through(self, scope: Scope) -> None:
        nodes = scope.nodes
        for node in nodes:  # grows while it is read
            kind = type(node)
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, node, scope)
                continue
            fields = _CHILDREN.get(kind)
            if fields is None:
                if kind not in _LEAVES:
                    nodes += ast.iter_child_nodes(node)
                continue
            for name in fields[0]:
                child = getattr(node, name)
                if child is not None:
                    nodes.append(child)
            for name in fields[1]:
                nodes += getattr(node, name)
        self._move(scope)

    @staticmethod
    def _move(scope: Scope) -> None:
        """Names that are declared global or nonlocal are bound elsewhere."""
        for name in (scope.globals | scope.nonlocals) & scope.names.keys():
            home = scope.parent
            while home is not None and home.parent is not None and (name in scope.globals or home.kind != FUNCTION):
                home = home.parent
            if home is not None:
                home.names.setdefault(name, []).extend(scope.names.pop(name))

    def first_mention(self, name: str) -> int:
        """The first line in which a name is read. Asked for the few that are both built in and bound."""
        self._look()
        return self._mentions.get(name, _NEVER)

    def is_deleted(self, name: str) -> bool:
        """Whether any scope deletes it."""
        self._look()
        return name in self._deleted

    def _look(self) -> None:
        """Go through scopes that have come since the last question: each is gone through once, however many ask."""
        for scope in self.scopes[self._looked_at :]:
            self._deleted |= scope.deleted
            for node in scope.found:
                name, line = _mentioned(node)
                self._mentions[name] = min(line, self._mentions.get(name, _NEVER))
        self._looked_at = len(self.scopes)

    # ---- leaves

    def name(self, node: ast.Name, scope: Scope) -> None:
        if type(node.ctx) is ast.Load:
            scope.found.append(node)
        else:
            bind(scope, node.id, node.lineno)
            if type(node.ctx) is ast.Del:
                scope.deleted.add(node.id)

    def constant(self, node: ast.Constant, scope: Scope) -> None:
        value = node.value
        if type(value) is str and ("_" in value or "://" in value or value[:1] in "/~"):
            scope.found.append(node)
        if isinstance(value, str | bytes) and len(value) > _LONG:
            self.long_texts.append(node)

    # ---- expressions

    def attribute(self, node: ast.Attribute, scope: Scope) -> None:
        scope.found.append(node)
        self._base(node.value, scope)

    def _base(self, value: ast.expr, scope: Scope) -> None:
        kind = type(value)
        if kind is ast.Attribute:
            self.based.add(id(value))
        if kind is not ast.Name:
            scope.nodes.append(value)

    def compared(self, node: ast.Compare, scope: Scope) -> None:
        scope.nodes.append(node.left)
        for each in node.comparators:
            if type(each) is ast.Attribute:
                self.based.add(id(each))
        scope.nodes += node.comparators

    def call(self, node: ast.Call, scope: Scope) -> None:
        scope.found.append(node)
        nodes, func = scope.nodes, node.func
        args = node.args
        if type(func) is ast.Name:
            if func.id in _OBJECT_FIRST and args and type(args[0]) is ast.Name:
                args = args[1:]
        elif type(func) is ast.Attribute:
            self._base(func.value, scope)
        else:
            nodes.append(func)
        nodes += args
        nodes += [keyword.value for keyword in node.keywords]

    def binary(self, node: ast.BinOp, scope: Scope) -> None:
        if type(node.left) is ast.Constant and type(node.left.value) is str:
            scope.found.append(node)
        scope.nodes += (node.left, node.right)

    def subscript(self, node: ast.Subscript, scope: Scope) -> None:
        scope.found.append(node)
        self._base(node.value, scope)
        scope.nodes.append(node.slice)

    def dictionary(self, node: ast.Dict, scope: Scope) -> None:
        scope.nodes += [key for key in node.keys if key is not None]
        scope.nodes += node.values

    def walrus(self, node: ast.NamedExpr, scope: Scope) -> None:
        home = scope
        while home.kind == COMPREHENSION and home.parent is not None:
            home = home.parent
        bind(home, node.target.id, node.lineno, expression=node.value, within=scope)
        scope.nodes.append(node.value)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> None:
        heads: list[ast.AST] = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for generator in node.generators:
            heads += (generator.target, generator.iter, *generator.ifs)
        self._open(COMPREHENSION, scope, heads)

    # ---- statements

    def assign(self, node: ast.Assign, scope: Scope) -> None:
        scope.nodes.append(node.value)
        for target in node.targets:
            if type(target) is ast.Name:
                bind(scope, target.id, node.lineno, expression=node.value, within=scope)
            elif type(target) is ast.Tuple and type(node.value) is ast.Tuple:
                self._pairs(target, node.value, scope)
            else:
                scope.nodes.append(target)

    @staticmethod
    def _pairs(target: ast.Tuple, value: ast.Tuple, scope: Scope) -> None:
        starred = any(type(each) is ast.Starred for each in (*target.elts, *value.elts))
        for place, each in enumerate(target.elts):
            if type(each) is ast.Name and not starred and place < len(value.elts):
                bind(scope, each.id, each.lineno, expression=value.elts[place], within=scope)
            else:
                scope.nodes.append(each)

    def annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        self._annotation(node.annotation, scope)
        if node.value is None or type(node.target) is not ast.Name:
            scope.nodes += [each for each in (node.target, node.value) if each is not None]
            return
        scope.nodes.append(node.value)
        bind(scope, node.target.id, node.lineno, expression=node.value, within=scope)

    def augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        scope.nodes.append(node.value)
        if type(node.target) is ast.Name:
            added = type(node.op) is ast.Add
            expression = node.value if added else None
            bind(scope, node.target.id, node.lineno, expression=expression, within=scope, added=added)
        else:
            scope.nodes.append(node.target)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        bind(scope, node.name, node.lineno)
        scope.nodes += node.decorator_list
        if node.returns is not None:
            self._annotation(node.returns, scope)
        scope.nodes += getattr(node, "type_params", ())
        self._arguments(node.args, scope, self._open(FUNCTION, scope, list(node.body)))

    def function_of_one_line(self, node: ast.Lambda, scope: Scope) -> None:
        self._arguments(node.args, scope, self._open(FUNCTION, scope, [node.body]))

    def _annotation(self, node: ast.expr, scope: Scope) -> None:
        """An annotation that is a string becomes code when somebody evaluates it."""
        scope.nodes.append(node)
        if type(node) is ast.Constant and type(node.value) is str and "(" in node.value:
            self.annotations.append((node.value, node))

    def _arguments(self, args: ast.arguments, outer: Scope, inner: Scope) -> None:
        plain = [*args.posonlyargs, *args.args]
        defaults = [*args.defaults, *(each for each in args.kw_defaults if each is not None)]
        outer.nodes += defaults
        for each in (*plain, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))):
            bind(inner, each.arg, each.lineno)
            if each.annotation is not None:
                self._annotation(each.annotation, outer)
        given = [*zip(plain[len(plain) - len(args.defaults):], args.defaults, strict=False),
                 *zip(args.kwonlyargs, args.kw_defaults, strict=False)]  # fmt: skip
        for each, default in given:
            if default is not None:
                bind(inner, each.arg, each.lineno, expression=default, within=outer)

    def class_(self, node: ast.ClassDef, scope: Scope) -> None:
        bind(scope, node.name, node.lineno)
        scope.nodes += (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords))
        scope.nodes += getattr(node, "type_params", ())
        self._open(CLASS, scope, list(node.body))

    def import_(self, node: ast.Import, scope: Scope) -> None:
        scope.found.append(node)
        for alias in node.names:
            name, path = (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
            bind(scope, name, node.lineno, value=Ref(path))

    def import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        scope.found.append(node)
        for alias in node.names:
            value = None if node.level else Ref(f"{node.module}.{alias.name}")
            bind(scope, alias.asname or alias.name, node.lineno, value=value)

    def handler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        if node.name:
            bind(scope, node.name, node.lineno)
        scope.nodes += node.body if node.type is None else (node.type, *node.body)

    def declared_global(self, node: ast.Global, scope: Scope) -> None:
        scope.globals.update(node.names)

    def declared_nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope.nonlocals.update(node.names)

    def pattern(self, node: ast.AST, scope: Scope) -> None:
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name:
            bind(scope, name, getattr(node, "lineno", 0))
        if type(node) is ast.MatchClass:
            scope.found.append(node)
        scope.nodes += ast.iter_child_nodes(node)


def _mentioned(node: ast.AST) -> tuple[str, int]:
    """The name that is read, and in which line; an empty one if it is something else."""
    inner = node.func if isinstance(node, ast.Call) else node
    inner = inner.value if isinstance(inner, ast.Attribute) else inner
    return (inner.id, inner.lineno) if isinstance(inner, ast.Name) else ("", _NEVER)


def bind(
    scope: Scope, name: str, line: int, *, expression: ast.expr | None = None, within: Scope | None = None,
    value: Value | None = None, added: bool = False,
) -> None:  # fmt: skip
    binding = Binding(line, expression=expression, scope=within, value=value, added=added)
    scope.names.setdefault(name, []).append(binding)


_HANDLERS: dict[type[ast.AST], Callable[..., None]] = {
    ast.Name: Gatherer.name, ast.Constant: Gatherer.constant, ast.Attribute: Gatherer.attribute,
    ast.Call: Gatherer.call, ast.Compare: Gatherer.compared,
    ast.Subscript: Gatherer.subscript, ast.Dict: Gatherer.dictionary,
    ast.BinOp: Gatherer.binary, ast.NamedExpr: Gatherer.walrus, ast.ListComp: Gatherer.comprehension,
    ast.SetComp: Gatherer.comprehension, ast.GeneratorExp: Gatherer.comprehension,
    ast.DictComp: Gatherer.comprehension, ast.Assign: Gatherer.assign, ast.AnnAssign: Gatherer.annotated,
    ast.AugAssign: Gatherer.augmented, ast.FunctionDef: Gatherer.function, ast.AsyncFunctionDef: Gatherer.function,
    ast.Lambda: Gatherer.function_of_one_line, ast.ClassDef: Gatherer.class_, ast.Import: Gatherer.import_,
    ast.ImportFrom: Gatherer.import_from, ast.ExceptHandler: Gatherer.handler, ast.Global: Gatherer.declared_global,
    ast.Nonlocal: Gatherer.declared_nonlocal, ast.MatchAs: Gatherer.pattern, ast.MatchStar: Gatherer.pattern,
    ast.MatchMapping: Gatherer.pattern, ast.MatchClass: Gatherer.pattern,
}  # fmt: skip
