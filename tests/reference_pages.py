"""docs/reference/command-line.md and python-api.md, from the code: ``python -m tests.reference_pages`` writes both.

The command line is read off the parsers, not off ``--help``, whose layout is another with each version of Python; the
API is read off the source of the public names and of the client's classes.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import ringfence
from ringfence.cli import COMMANDS, PROCTOR_COMMANDS
from ringfence.cli.parser import Parser
from ringfence.client.box import RemoteBox, RemoteHandle
from ringfence.client.client import Client, RemotePool

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
COMMAND_LINE, PYTHON_API = FOLDER / "command-line.md", FOLDER / "python-api.md"
_HEAD = "<!-- Written by python -m tests.reference_pages. A test holds it to the code. -->\n"


def command_line() -> str:
    """The page about both programs."""
    parts = [_HEAD, "# Command line\n", "Each command has the same text as `COMMAND --help`.\n"]
    for program, commands in (("ringfence", COMMANDS), ("proctor", PROCTOR_COMMANDS)):
        parts += [f"## {program}\n", "| command | what it does |\n|---|---|"]
        parts += [f"| [`{program} {name}`](#{program}-{name}) | {line} |" for name, (_, line) in commands.items()]
        parts.append("")
        for name, (module, _) in commands.items():
            parts += _command(program, name, module)
    return "\n".join(parts).rstrip() + "\n"


def _command(program: str, name: str, module_name: str) -> Iterator[str]:
    module = importlib.import_module(f"ringfence.cli.{module_name}")
    parser = Parser(f"{program} {name}", module)
    module.configure(parser)
    yield f"### {program} {name}\n"
    yield f"{inspect.cleandoc(module.__doc__ or '')}\n"
    rows = [*_rows(parser)]
    if rows:
        yield "| argument | meaning |\n|---|---|"
        yield from rows
        yield ""
    if parser.epilog:
        yield f"```text\n{(parser.epilog % {'prog': parser.prog}).rstrip()}\n```\n"


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield f"| `{word} …` | {_cell(inner.description or '')} |"
                yield from _rows(inner)
            continue
        value = _value(action)
        words = [f"{option}{' ' + value if value else ''}" for option in action.option_strings] or [value]
        told = (action.help or "") % {**vars(action), "prog": parser.prog}
        yield f"| {', '.join(f'`{_cell(word)}`' for word in words)} | {_cell(told)} |"


def _value(action: argparse.Action) -> str:
    """What stands behind the option, or the name of an argument without one."""
    if action.option_strings and action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar:
        return action.metavar
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python_api() -> str:
    """The page about the public names."""
    names = sorted(name for name in ringfence._PUBLIC if not name.startswith("_"))
    parts = [_HEAD, "# Python API\n", "Every name of `import ringfence`. Each is loaded when it is first used.\n"]
    parts += [*(f"[`{name}`](#{name.lower()}) ·" for name in names), "[`ringfence.client`](#ringfenceclient)"]
    parts.append("")
    for name in names:
        parts += _public(name)
    parts += _client()
    return "\n".join(parts).rstrip() + "\n"


def _client() -> Iterator[str]:
    yield "## ringfence.client\n"
    yield "The same over HTTP, for [a service](service.md). You make a `Client`; its methods return the others.\n"
    yield "`Command` is a `Job` or a list of words, `Policy` a name, a mapping or a `SandboxPolicy`.\n"
    for value in (Client, RemoteBox, RemoteHandle, RemotePool):
        yield f"### {value.__name__}\n"
        if value is Client:
            yield "`from ringfence.client import Client`.\n"
        node = _source(value)
        assert isinstance(node, ast.ClassDef)
        yield from _class(node, constructor=value is Client)


def _public(name: str) -> Iterator[str]:
    value = getattr(ringfence, name)
    yield f"## {name}\n"
    node = _source(value)
    yield f"`from ringfence import {name}`, defined in `{value.__module__}`.\n"
    if isinstance(node, ast.ClassDef):
        yield from _class(node)
    elif isinstance(node, ast.FunctionDef):
        yield from _function(node, name)


def _source(value: object) -> ast.stmt:
    module = inspect.getmodule(value)
    path = Path(inspect.getsourcefile(module) or "")  # type: ignore[arg-type]
    own: str = value.__name__  # type: ignore[attr-defined]
    found = [each for each in _tree(path).body if getattr(each, "name", "") == own]
    return found[-1]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _class(node: ast.ClassDef, *, constructor: bool = True) -> Iterator[str]:
    bases = ", ".join(map(ast.unparse, node.bases))
    yield f"```text\nclass {node.name}{f'({bases})' if bases else ''}\n```\n"
    yield f"{_doc(node)}\n"
    fields = [*_fields(node.body)]
    if fields:
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        yield from fields
        yield ""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and (
            not each.name.startswith("_") or (constructor and each.name == "__init__")
        ):
            yield from _function(each, f"{node.name}.{each.name}")


def _fields(body: list[ast.stmt]) -> Iterator[str]:
    for place, each in enumerate(body):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id[0] != "_":
            kind, default = ast.unparse(each.annotation), ast.unparse(each.value) if each.value else ""
            name = each.target.id
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id.isupper():
            kind, default, name = "", ast.unparse(each.value), each.targets[0].id
        else:
            continue
        code = [f"`{_cell(text)}`" if text else "" for text in (name, kind, default)]
        yield f"| {' | '.join(code)} | {_cell(_below(body, place))} |"


def _below(body: list[ast.stmt], place: int) -> str:
    """The text in the line under a field."""
    after = body[place + 1] if place + 1 < len(body) else None
    found = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
    return found if isinstance(found, str) else ""


def _function(node: ast.FunctionDef, shown: str) -> Iterator[str]:
    words = {ast.unparse(each).partition(".")[0] for each in node.decorator_list}
    if "overload" in words:
        return
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("cls, ")
    arguments = "" if arguments in ("self", "cls") else arguments
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    name = shown.removesuffix(".__init__")
    yield f"```text\n{name}{'' if 'property' in words else f'({arguments})'}{returns}\n```\n"
    if node.name != "__init__" and _doc(node):
        yield f"{_doc(node)}\n"


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The docstring, with its examples as blocks."""
    text, out, inside = ast.get_docstring(node) or "", [], False
    for line in text.split("\n"):
        begins = line.strip().startswith(">>> ")
        if begins and not inside:
            out.append("```pycon")
            inside = True
        if inside and not line.strip():
            out.append("```")
            inside = False
        out.append(line.replace("``", "`") if not inside else line)
    return "\n".join([*out, "```"] if inside else out)


if __name__ == "__main__":
    COMMAND_LINE.write_text(command_line(), encoding="utf-8")
    PYTHON_API.write_text(python_api(), encoding="utf-8")
