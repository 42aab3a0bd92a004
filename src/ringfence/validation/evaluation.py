"""What an expression is: names followed through scopes, attributes of modules, calls that give something known.

None of the code runs. Each answer is computed once and kept; the depth of one evaluation is bounded, and anything
deeper is unknown.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from itertools import islice, product

from ringfence.validation import folding
from ringfence.validation.rule_words import THROUGH, UNBOUND
from ringfence.validation.scopes import CLASS, COMPREHENSION, MODULE, Binding, Gatherer, Scope
from ringfence.validation.values import (
    Const,
    Items,
    Many,
    Pairs,
    PathOf,
    Ref,
    Value,
    each,
    one_of,
    strings,
)

_OWNER = "__self__"
"""Of a function that is built in, the module that has all of them."""
_DEPTH = 40
_CONSTANTS = {"os.sep": "/", "os.pardir": "..", "os.curdir": ".", "os.extsep": ".", "os.linesep": "\n",
              "os.devnull": "/dev/null"}  # fmt: skip
_PATH_TEXTS = frozenset({"builtins.str", "os.fspath", "builtins.repr", "os.fsdecode", "os.fsencode", "os.path.abspath",
                         "os.path.realpath", "os.path.normpath"})  # fmt: skip
_MANY_ITEMS = 256
_REPEATS = 20_000
"""How many expressions are evaluated again for iterations of loops."""
_ROOM = 4 << 20
"""How many characters are worked with, for one tree."""
_BUILTINS = frozenset(dir(builtins)) | {"__builtins__", "execfile", "reload", "unicode", "raw_input", "unichr"}
_PATHS = frozenset({"pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath", "pathlib.PurePosixPath",
                    "pathlib.WindowsPath", "pathlib.PureWindowsPath"})  # fmt: skip
_SAME = {"io.open": "builtins.open", "_io.open": "builtins.open", "importlib.__import__": "builtins.__import__",
         "pathlib._local.Path": "pathlib.Path", "os.environb": "os.environ", "builtins.file": "builtins.open",
         "builtins.unichr": "builtins.chr", "_io.FileIO": "io.FileIO", "_io.open_code": "io.open_code"}  # fmt: skip
_PATH_STEPS = frozenset({"joinpath", "with_name", "with_suffix", "resolve", "absolute", "expanduser", "with_stem"})


class Evaluator:
    """Answers ``value(node, scope)`` for one tree."""

    def __init__(self, gathered: Gatherer) -> None:
        self._gathered = gathered
        self._repeats = _REPEATS
        self.room = _ROOM
        """What is left of it; below zero, something that could be known is taken as unknown."""
        self._memo: dict[int, Value | None] = {}
        self._depth = 0
        self.unbound: set[str] = set()
        """Things that are used and that nothing imports."""
        self._overlays: list[dict[str, Value | None]] = []

    # ---- names

    def lookup(self, name: str, scope: Scope) -> Value | None:
        """What a name means where it is mentioned. Code inside a class's functions does not see the class's names."""
        for overlay in self._overlays:
            if name in overlay:
                return overlay[name]
        known = scope.known
        if name in known:
            return known[name]
        known[name] = None  # while it is being evaluated: a name that is bound to itself is unknown
        value = self._found(name, scope)
        if self._overlays:
            del known[name]  # this holds for one item of a loop
        else:
            known[name] = value
        return value

    def _found(self, name: str, scope: Scope) -> Value | None:
        home: Scope | None = scope
        while home is not None:
            seen = home is scope or home.kind != CLASS or (scope.kind == COMPREHENSION and scope.parent is home)
            if seen and name in home.names:  # what is bound elsewhere is worked out once, for all who mention it
                return self._bound(name, home, home.names[name]) if home is scope else self.lookup(name, home)
            home = home.parent
        if name == "__file__":
            return Ref(name)
        if name in UNBOUND:
            self.unbound.add(UNBOUND[name])
            return Ref(UNBOUND[name])
        return Ref(f"builtins.{name}") if name in _BUILTINS else None

    def _bound(self, name: str, home: Scope, bindings: list[Binding]) -> Value | None:
        """Everything that it is bound to anywhere in its scope. At module level and in a class it means the built-in
        until it is bound: so the built-in counts too, unless the name is certainly bound before its first mention."""
        values: list[Value | None] = []
        self._repeats -= len(bindings) if self._overlays else 0
        for binding in bindings[:_MANY_ITEMS]:
            value = self._of_binding(binding)
            values += self._appended(values, value) if binding.added else (value,)
        if name in _BUILTINS and home.kind in (MODULE, CLASS) and not self._shadows(name, home):
            values.append(Ref(f"builtins.{name}"))
        return one_of(values)

    def _shadows(self, name: str, home: Scope) -> bool:
        line = home.firm.get(name)
        if line is None or self._gathered.is_deleted(name):
            return False
        return self._gathered.first_mention(name) > line

    def _appended(self, before: list[Value | None], value: Value | None) -> list[Value | None]:
        return [self._folded(folding.binary, ast.Add(), each, value) for each in before[:8]]

    def _folded(self, work: Callable[..., Value | None], how: object, *values: Value | None) -> Value | None:
        """What ``work`` makes of values, while there is room for it."""
        self.room -= folding.cost(values)
        return work(how, *values) if self.room >= 0 else None

    def _of_binding(self, binding: Binding) -> Value | None:
        if binding.expression is not None and binding.scope is not None:
            return self.value(binding.expression, binding.scope)
        if not isinstance(binding.value, Ref):
            return binding.value
        module, _, name = binding.value.name.partition(".")
        if module == "__main__" and name in (top := self._gathered.scopes[0]).names:
            return self.lookup(name, top)
        return self._named(binding.value.name)

    # ---- expressions

    def value(self, node: ast.expr, scope: Scope) -> Value | None:
        if self._overlays:
            self._repeats -= 1
            if self._repeats <= 0:
                return None
        kind = type(node)
        if kind is ast.Name:
            return self.lookup(node.id, scope)  # type: ignore[attr-defined]
        if kind is ast.Constant:
            return Const(node.value)  # type: ignore[attr-defined]
        work = _WORK.get(kind)
        if work is None:
            return None
        key = id(node)
        if key in self._memo and not self._overlays:
            return self._memo[key]
        return self._worked_out(work, node, scope, key)

    def _worked_out(
        self, work: Callable[[Evaluator, ast.expr, Scope], Value | None], node: ast.expr, scope: Scope, key: int
    ) -> Value | None:
        if self._depth >= _DEPTH:
            return None
        self._memo[key] = None
        self._depth += 1
        try:
            value = work(self, node, scope)
        finally:
            self._depth -= 1
        if self._overlays:
            self._memo.pop(key, None)
        else:
            self._memo[key] = value
        return value

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value | None:
        base = self.value(node.value, scope)
        if base is None:
            return Ref(_OWNER) if node.attr == _OWNER else None
        return self.attribute(base, node.attr)

    def attribute(self, base: Value | None, name: str) -> Value | None:
        """An attribute of something known; of several, all that are known."""
        if isinstance(base, Many):
            return one_of(self.attribute(value, name) for value in base.values)
        if isinstance(base, Ref):
            return self._named(f"{base.name}.{name}")
        if isinstance(base, PathOf):
            return folding.path_attribute(base, name)
        return None

    def _named(self, name: str) -> Value:
        known = _CONSTANTS.get(name.replace("os.path.", "os."))
        return self.reference(name) if known is None else Const(known)

    @staticmethod
    def reference(name: str) -> Ref:
        """Something by its full name, by the one that is in the rules."""
        base, _, last = name.rpartition(".")
        if last == "__call__":
            return Evaluator.reference(base)
        if last == _OWNER:
            return Ref("builtins" if base.startswith("builtins.") else last)
        if base == _OWNER and last in _BUILTINS:
            return Ref(f"builtins.{last}")
        bare = last.lstrip("_")
        if base and bare in THROUGH and base not in ("copyreg", last):  # socket.socket is a class of socket's own
            return Ref(bare)
        return Ref(_SAME.get(name, name))

    def _inner(self, node: ast.NamedExpr | ast.Await, scope: Scope) -> Value | None:
        return self.value(node.value, scope)

    def _chosen(self, node: ast.IfExp | ast.BoolOp, scope: Scope) -> Value | None:
        parts = (node.body, node.orelse) if isinstance(node, ast.IfExp) else node.values
        return one_of(self.value(part, scope) for part in parts)

    def _binary(self, node: ast.BinOp, scope: Scope) -> Value | None:
        """Nested left operands are unwound in a loop: a sum of a thousand parts is that deep."""
        spine: list[ast.BinOp] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            spine.append(left)
            left = left.left
        value = self.value(left, scope)
        for step in reversed(spine):
            value = self._combined(step.op, value, self.value(step.right, scope))
        return value

    def _combined(self, operator: ast.operator, left: Value | None, right: Value | None) -> Value | None:
        if not isinstance(left, Many) and not isinstance(right, Many):
            return self._folded(folding.binary, operator, left, right)
        pairs = islice(product(each(left), each(right)), 32)
        return one_of(self._folded(folding.binary, operator, a, b) for a, b in pairs)

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Value | None:
        number = folding.plain(self.value(node.operand, scope))
        if not isinstance(number, int):
            return None
        signs: dict[type[ast.unaryop], int] = {ast.USub: -number, ast.Invert: ~number, ast.UAdd: number}
        return Const(signs[type(node.op)]) if type(node.op) in signs else None

    def _formatted(self, node: ast.JoinedStr, scope: Scope) -> Value | None:
        value: Value | None = Const("")
        for part in node.values[:_MANY_ITEMS]:
            piece = self.value(part.value if isinstance(part, ast.FormattedValue) else part, scope)
            text = self._folded(folding.called, "builtins.str", piece) if isinstance(piece, Const) else piece
            if isinstance(part, ast.FormattedValue) and (part.format_spec is not None or isinstance(piece, PathOf)):
                text = piece.at if isinstance(piece, PathOf) else None
            value = self._combined(ast.Add(), value, text)
        return value

    def _items(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Value | None:
        if len(node.elts) > _MANY_ITEMS or any(type(each) is ast.Starred for each in node.elts):
            return None
        return Items(tuple(self.value(each, scope) for each in node.elts))

    def _pairs(self, node: ast.Dict, scope: Scope) -> Value | None:
        if len(node.keys) > _MANY_ITEMS:
            return None
        pairs = ((key, value) for key, value in zip(node.keys, node.values, strict=True) if type(key) is ast.Constant)
        return Pairs({key.value: self.value(value, scope) for key, value in pairs})

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value | None:
        base = self.value(node.value, scope)
        if base is None:
            return None
        if isinstance(node.slice, ast.Slice):
            part = self._slice(node.slice, scope)
            return one_of(self._folded(folding.subscript, part, value) for value in each(base))
        keys = [folding.plain(key) for key in each(self.value(node.slice, scope))]
        return one_of(self.item(value, key, scope) for value in each(base) for key in keys)

    def _slice(self, node: ast.Slice, scope: Scope) -> object:
        parts = (node.lower, node.upper, node.step)
        values = [None if part is None else folding.plain(self.value(part, scope)) for part in parts]
        return slice(*values) if all(value is None or isinstance(value, int) for value in values) else None

    def item(self, value: Value | None, key: object, scope: Scope) -> Value | None:
        """``value[key]``; of a namespace that is the name itself."""
        if isinstance(value, Pairs):
            return value.values.get(key) if isinstance(key, str | int | bytes) else None
        if isinstance(value, Ref) and value.name == "sys.argv":
            return Ref("__file__") if key == 0 and isinstance(key, int) else None
        if isinstance(value, Ref):
            return self._namespace_item(value.name, key, scope)
        return self._folded(folding.subscript, key, value)

    def _namespace_item(self, namespace: str, key: object, scope: Scope) -> Value | None:
        if not isinstance(key, str):
            return None
        if namespace in ("globals()", "locals()"):
            return self.lookup(key, scope)
        if namespace == "sys.modules":
            return Ref(key)
        return Ref(f"builtins.{key}") if namespace == "builtins.__builtins__" else None

    # ---- calls

    def _call(self, node: ast.Call, scope: Scope) -> Value | None:
        if type(node.func) is ast.Attribute:
            found = self._method(node, node.func, scope)
            if found is not None:
                return found
        func = self.value(node.func, scope)
        return one_of(self._called(value, node, scope) for value in each(func)) if func is not None else None

    def _called(self, func: Value | None, node: ast.Call, scope: Scope) -> Value | None:
        if not isinstance(func, Ref):
            return None
        name = func.name
        if name in ("builtins.globals", "builtins.locals", "builtins.vars") and not node.args:
            return Ref("globals()" if name.endswith("globals") else "locals()")
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, node, scope)
        args = [value for arg in node.args[:_MANY_ITEMS] for value in self._given(arg, scope)]
        if name in _PATHS:
            return self._folded(folding.joined_path, None, *(args or [Const(".")]))
        if name in ("pathlib.Path.home", "pathlib.Path.cwd"):
            return PathOf(Const("~") if name.endswith("home") else None)
        if name in _PATH_TEXTS and args and isinstance(args[0], PathOf):
            return args[0].at
        return self._folded(folding.called, name, *args)

    def _given(self, node: ast.expr, scope: Scope) -> tuple[Value | None, ...]:
        if not isinstance(node, ast.Starred):
            return (self.value(node, scope),)
        items = self.value(node.value, scope)
        return items.values if isinstance(items, Items) else (None,)

    def _method(self, node: ast.Call, func: ast.Attribute, scope: Scope) -> Value | None:
        base = self.value(func.value, scope)
        if base is None:
            return None
        args = [self.value(arg, scope) for arg in node.args[:8]]
        found = [self._method_of(value, func.attr, args, scope) for value in each(base)]
        return one_of(found)

    def _method_of(self, base: Value | None, name: str, args: list[Value | None], scope: Scope) -> Value | None:
        if isinstance(base, PathOf):
            if name in ("as_posix", "__str__", "__fspath__"):
                return base.at
            return self._folded(folding.joined_path, name, base, *args) if name in _PATH_STEPS else None
        if isinstance(base, Const):
            choices = islice(product(*map(each, args)), 16)
            return one_of(self._folded(folding.method, name, base, *choice) for choice in choices)
        if name in ("get", "pop", "__getitem__", "setdefault") and args and isinstance(base, Ref | Pairs):
            return one_of(self.item(base, folding.plain(key), scope) for key in each(args[0]))
        return None

    def _imported(self, node: ast.Call, scope: Scope) -> Value | None:
        """``__import__`` returns the outermost package unless names in it are requested."""
        names = strings(self.value(node.args[0], scope)) if node.args else ()
        return one_of([Ref(name.strip(".")) for name in names])

    def _got(self, node: ast.Call, scope: Scope) -> Value | None:
        if len(node.args) < 2:
            return None
        base = self.value(node.args[0], scope)
        return one_of(self.attribute(base, name) for name in strings(self.value(node.args[1], scope)))

    def _partial(self, node: ast.Call, scope: Scope) -> Value | None:
        return self.value(node.args[0], scope) if node.args else None

    def _comprehended(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Value | None:
        """One loop over known items, for what spells a name character by character."""
        generator = node.generators[0]
        target = generator.target
        if len(node.generators) != 1 or generator.ifs or type(target) is not ast.Name or self._overlays:
            return None
        items = folding.elements(self.value(generator.iter, scope))
        return Items(tuple(self._with(target.id, item, node.elt, scope) for item in items)) if items else None

    def _with(self, name: str, item: Value | None, node: ast.expr, scope: Scope) -> Value | None:
        self._overlays.append({name: item})
        try:
            return self.value(node, scope)
        finally:
            self._overlays.pop()


_SPECIAL: dict[str, Callable[[Evaluator, ast.Call, Scope], Value | None]] = {
    "builtins.__import__": Evaluator._imported,
    "importlib.import_module": Evaluator._imported,
    "builtins.getattr": Evaluator._got,
    "functools.partial": Evaluator._partial,
    "builtins.staticmethod": Evaluator._partial,
}
_WORK: dict[type[ast.expr], Callable[..., Value | None]] = {
    ast.Attribute: Evaluator._attribute, ast.Call: Evaluator._call, ast.BinOp: Evaluator._binary,
    ast.UnaryOp: Evaluator._unary, ast.JoinedStr: Evaluator._formatted, ast.Subscript: Evaluator._subscript,
    ast.IfExp: Evaluator._chosen, ast.BoolOp: Evaluator._chosen, ast.List: Evaluator._items,
    ast.Tuple: Evaluator._items, ast.Set: Evaluator._items, ast.Dict: Evaluator._pairs,
    ast.ListComp: Evaluator._comprehended, ast.GeneratorExp: Evaluator._comprehended,
    ast.NamedExpr: Evaluator._inner, ast.Await: Evaluator._inner,
}  # fmt: skip
