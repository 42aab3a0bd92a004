"""docs/reference/command-line.md and python-api.md, from the code: ``python -m tests.reference_pages`` writes both, and
docs/reference/system-calls.md (tests/system_calls_page.py).

The command line is read off the parsers, not off ``--help``, whose layout is another with each version of Python; the
API is read off the source of the public names and of the client's classes.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import ringfence
from ringfence.cli import COMMANDS, PROCTOR_COMMANDS
from ringfence.cli.parser import Parser
from ringfence.client.box import RemoteBox, RemoteHandle
from ringfence.client.client import Client, RemotePool
from tests import system_calls_page

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
COMMAND_LINE, PYTHON_API = FOLDER / "command-line.md", FOLDER / "python-api.md"
SOURCE = Path(ringfence.__file__).resolve().parent.parent
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_ALSO = (("ringfence.integrations.rewards.grading", "Reward"),)
"""What other doors return, and pages of the documents name."""
_OF_OURS = (("ringfence.backends.process_images", "Confinement"),)
"""What only other parts of the package have a use for."""
_CLOSED_SET = "StrEnum"
_CLIENT = "ringfence.client"
_INTEGRATIONS = "ringfence.integrations"
_POOLS = (
    ("ray", "ringfence.integrations.ray.pool", "RayPool", "the extra `ray` ([Ray](../how-to/ray.md))"),
    ("rewards", "ringfence.integrations.rewards.grading", "Rewards", "no extra ([rewards](../how-to/rewards.md))"),
)
"""The doors over pools that programs use by class: what to import from, where the class stands, and what it needs."""
_NO_ENUM = ("A closed set of texts. `StrEnum` is ringfence's own class, not `enum.StrEnum` "
            "([ADR 0059](../adr/0059-closed-sets-are-no-enums.md)).\n")  # fmt: skip
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
    """The page about the public names, and about the classes whose objects they return."""
    names = sorted(name for name in ringfence._PUBLIC if not name.startswith("_"))
    described = {name: _found(getattr(ringfence, name)) for name in names}
    others = _returned(described.values())
    titles = [*names, *(_title(each, names) for each in others), _CLIENT, _INTEGRATIONS]
    parts = [_HEAD, "# Python API\n", "Every name of `import ringfence`. Each is loaded when it is first used. "
             "[The classes](#classes-that-these-return) whose objects they return come last.\n"]  # fmt: skip
    parts += [f"[`{title}`](#{_anchor(title)})" + (" ·" if title != titles[-1] else "") for title in titles]
    parts.append("")
    for name, found in described.items():
        parts += [f"## {name}\n", f"`from ringfence import {name}`, defined in `{found.module}`.\n"]
        parts += _shown(found, titles)
    told = "`ringfence` does not export them: for an annotation, import them from their module.\n"
    parts += ["## Classes that these return\n", told]
    everything = [*described.values(), *others]
    for each in others:
        parts += [f"### {_title(each, names)}\n", _origin(each, everything), *_shown(each, titles, made=False)]
    parts += [*_client(titles), *_integrations(titles)]
    return "\n".join(parts).rstrip() + "\n"


def _client(titles: list[str]) -> Iterator[str]:
    yield f"## {_CLIENT}\n"
    yield "The same over HTTP, for [a service](service.md). You make a `Client`; its methods return the others.\n"
    yield "`Command` is a `Job` or a list of words, `Policy` a name, a mapping or a `SandboxPolicy`.\n"
    for value in (Client, RemoteBox, RemoteHandle, RemotePool):
        yield f"### {value.__name__}\n"
        if value is Client:
            yield f"`from {_CLIENT} import Client`.\n"
        yield from _shown(_found(value), titles, made=value is Client)


def _integrations(titles: list[str]) -> Iterator[str]:
    yield f"## {_INTEGRATIONS}\n"
    yield "Pools over a cluster, and what grades over a pool. The pages of the other frameworks show what to import.\n"
    for door, module, name, needs in _POOLS:
        yield f"### {name}\n"
        yield f"`from {_INTEGRATIONS}.{door} import {name}`. It needs {needs}.\n"
        yield from _shown(Found(module, name, _defined(module)[name]), titles)


def _title(found: Found, names: list[str]) -> str:
    return f"{found.name} of {found.module}" if found.name in names else found.name


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-").replace(".", "")


class Found(NamedTuple):
    """A class or a function of ours, and where it stands."""

    module: str
    name: str
    node: Definition

    @property
    def members(self) -> Iterator[tuple[str, list[Found]]]:
        """(name, classes of ours in its type) of what it gives: of a class, fields and methods, its bases' too."""
        if not isinstance(self.node, ast.ClassDef):
            yield self.name, _named_in(self.module, self.node.returns)
            return
        for each in self.node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id[0] != "_":
                yield f"{self.name}.{each.target.id}", _named_in(self.module, each.annotation)
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name[0] != "_":
                yield f"{self.name}.{each.name}", _named_in(self.module, each.returns)
        for base in _bases(self):
            yield from base._replace(name=self.name).members


def _found(value: object) -> Found:
    module: str = value.__module__  # type: ignore[attr-defined]
    name: str = value.__name__  # type: ignore[attr-defined]
    return Found(module, name, _defined(module)[name])


@cache
def _defined(module: str) -> dict[str, Definition]:
    """The classes and functions at the top of a module; of overloads, the last."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {each.name: each for each in _tree(module).body if isinstance(each, kinds)}


@cache
def _tree(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _class_named(module: str, name: str) -> Found | None:
    """The class of ours that a name means in a module, by what the module defines or imports."""
    node = _defined(module).get(name)
    if node is not None:
        return Found(module, name, node) if isinstance(node, ast.ClassDef) else None
    for each in ast.walk(_tree(module)):
        if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("ringfence"):
            for alias in each.names:
                if (alias.asname or alias.name) == name and each.module != module:
                    return _class_named(str(each.module), alias.name)
    return None


def _named_in(module: str, annotation: ast.expr | None) -> list[Found]:
    names = [each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)] if annotation else []
    return [found for name in names if (found := _class_named(module, name)) is not None]


def _bases(found: Found) -> list[Found]:
    named = (_class_named(found.module, each.id) for each in found.node.bases if isinstance(each, ast.Name))
    return [each for each in named if each is not None and each.name != _CLOSED_SET]


def _returned(public: Iterable[Found]) -> list[Found]:
    """The classes of ours that the types of the public names lead to, by name."""
    known = {*_OF_OURS, *(each[:2] for each in public)}
    others = [Found(module, name, _defined(module)[name]) for module, name in _ALSO]
    waiting = [*public, *others]
    for each in waiting:
        for found in (one for _, named in each.members for one in named):
            if found[:2] not in known:
                known.add(found[:2])
                others.append(found)
                waiting.append(found)
    return sorted(others, key=lambda each: (each.name, each.module))


def _origin(found: Found, everything: list[Found]) -> str:
    """Where it stands, and what gives it."""
    by = [name for each in everything if each != found for name, named in each.members
          if any(one[:2] == found[:2] for one in named)]  # fmt: skip
    given = f" You get one from {', '.join(f'`{name}`' for name in dict.fromkeys(by))}." if by else ""
    return f"Defined in `{found.module}`.{given}\n"


def _shown(found: Found, titles: list[str], *, made: bool = True) -> Iterator[str]:
    """``made``: by users too, so what it takes is shown."""
    if isinstance(found.node, ast.ClassDef):
        yield from _class(found, titles, made)
    else:
        yield from _function(found.node, found.name)


def _class(found: Found, titles: list[str], made: bool) -> Iterator[str]:
    node = found.node
    bases = ", ".join(map(ast.unparse, node.bases))
    yield f"```text\nclass {node.name}{f'({bases})' if bases else ''}\n```\n"
    yield f"{_doc(node)}\n"
    if bases == _CLOSED_SET:
        yield _NO_ENUM
    fields = [*_fields(node.body)]
    if fields:
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        yield from fields
        yield ""
    for place in (found, *(each for each in _bases(found) if each.name not in titles)):
        for each in place.node.body:
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            ours = any(one[:2] in _OF_OURS for one in _named_in(place.module, each.returns))
            if not ours and (each.name[0] != "_" or (made and each.name == "__init__")):
                yield from _function(each, f"{node.name}.{each.name}")


def _fields(body: list[ast.stmt]) -> Iterator[str]:
    for place, each in enumerate(body):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id[0] != "_":
            kind, default = ast.unparse(each.annotation), _default(each.value)
            name = each.target.id
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id.isupper():
            kind, default, name = "", ast.unparse(each.value), each.targets[0].id
        else:
            continue
        code = [f"`{_cell(text)}`" if text else "" for text in (name, kind, default)]
        yield f"| {' | '.join(code)} | {_cell(_below(body, place))} |"


def _default(value: ast.expr | None) -> str:
    """As a caller would write it; nothing where a function of ours finds it out."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) not in ("made_by", "MappingProxyType"):
        return ast.unparse(value) if value else ""
    if not value.keywords:
        return ast.unparse(value.args[0])
    factory = ast.unparse(value.keywords[0].value)
    return "" if factory.startswith("_") else {"list": "[]", "dict": "{}"}.get(factory, f"{factory}()")


def _below(body: list[ast.stmt], place: int) -> str:
    """The text in the line under a field."""
    after = body[place + 1] if place + 1 < len(body) else None
    found = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
    return found if isinstance(found, str) else ""


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, shown: str) -> Iterator[str]:
    words = {ast.unparse(each).partition(".")[0] for each in node.decorator_list}
    if "overload" in words:
        return
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("cls, ")
    arguments = "" if arguments in ("self", "cls") else arguments
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    name = ("await " if isinstance(node, ast.AsyncFunctionDef) else "") + shown.removesuffix(".__init__")
    yield f"```text\n{name}{'' if 'property' in words else f'({arguments})'}{returns}\n```\n"
    if node.name != "__init__" and _doc(node):
        yield f"{_doc(node)}\n"


def _doc(node: Definition) -> str:
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
    system_calls_page.PAGE.write_text(system_calls_page.page(), encoding="utf-8")
