"""The two functions that run in sandboxes: ``answers`` has the program and no right answer, ``verdicts`` has the tests
and nothing of the program. They are sent by their code, so each stands alone."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def answers(source: str, calls: list[Any]) -> list[Any]:
    """Execute a program, then call its functions: ("value", …) or ("raised", type, message) of each."""
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, "<program>", "exec", dont_inherit=True), space)
    told: list[Any] = []
    for name, args, kwargs in calls:
        try:
            told.append(("value", space[name](*args, **kwargs)))
        except BaseException as error:
            kind = "NameError" if isinstance(error, KeyError) and name not in space else type(error).__name__
            told.append(("raised", kind, str(error)[:300]))
    return told


def verdicts(tests: str, names: list[str], known: list[Any]) -> dict[str, Any]:
    """Run tests whose calls of the program are answered from known values; return what else they need to know.

    The verdict of each statement or test function: "" or why it failed. It counts where nothing is missing.
    """
    import ast
    import copy

    class Missing(BaseException):
        pass

    missing: list[Any] = []
    table = {(name, repr((args, kwargs))): told for (name, args, kwargs), told in known}

    def stand_in(name: str) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            told = table.get((name, repr((args, kwargs))))
            if told is None:
                missing.append((name, args, kwargs))
                raise Missing
            if told[0] == "value":
                return copy.deepcopy(told[1])
            kind = getattr(__import__("builtins"), told[1], Exception)
            # In tests such as all(map(…)) they would end the tests' own loop, as if it had come to its end.
            if kind in (StopIteration, StopAsyncIteration):
                raise RuntimeError(f"the program raised {told[1]}")
            usable = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if usable else Exception)(told[2])

        ask.__name__ = name
        return ask

    def run(label: str, work: Any) -> None:
        try:
            work()
        except Missing:
            ends.append((label, "missing"))
        except BaseException as error:
            ends.append((label, f"{type(error).__name__}: {error}".rstrip(": ")[:300]))
        else:
            ends.append((label, ""))

    ends: list[Any] = []
    space: dict[str, Any] = {"__name__": "tests", **{name: stand_in(name) for name in names}}
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    silent = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, *definitions)
    functions = []
    for statement in ast.parse(tests).body:
        code = compile(ast.Module([statement], []), "<tests>", "exec", dont_inherit=True)
        before = len(ends)
        run(ast.unparse(statement)[:200], lambda code=code: exec(code, space))
        if isinstance(statement, silent) and not ends[before][1]:
            ends.pop()
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test"):
            functions.append(statement.name)
    for name in functions:
        run(name, space[name])
    return {"ends": ends, "missing": missing}
