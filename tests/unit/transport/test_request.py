"""The declarations of our messages say what is sent: each step has a row and a maker, each frame its fields."""

from __future__ import annotations

import ast
import importlib
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import pytest

import ringfence
from ringfence.kernel.recorder import Attempt, Health
from ringfence.model.record import replace
from ringfence.roles.endings import ENDINGS
from ringfence.roles.warden import order
from ringfence.steps import executor, linux_steps
from ringfence.steps.call_table import CALLS
from ringfence.transport import report, request, wire

SOURCES = Path(ringfence.__file__).parent
MAKERS = ("sandbox", "backends", "roles", "engine", "steps")
ROWS = executor.STEPS | linux_steps.STEPS | ENDINGS


@pytest.fixture(scope="module")
def declared() -> Iterator[dict[str, typing.Any]]:
    """The modules as a type checker sees them."""
    space: dict[str, typing.Any] = {"__name__": "declared"}
    for module in (request, report):
        text = Path(module.__file__).read_text()
        exec(compile(text.replace("TYPE_CHECKING = False", "TYPE_CHECKING = True"), module.__file__, "exec"), space)
    yield space


def _made() -> set[str]:
    """The first words of all tuples that are written down where plans are made."""
    files = (path for name in MAKERS for path in (SOURCES / name).glob("*.py"))
    trees = (ast.parse(path.read_text()) for path in files)
    tuples = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Tuple) and node.elts)
    return {str(node.elts[0].value) for node in tuples if isinstance(node.elts[0], ast.Constant)}


def test_each_step_has_a_row_and_each_row_is_declared(declared: dict[str, typing.Any]) -> None:
    steps = set(typing.get_args(declared["StepName"]))
    assert steps == set(ROWS)
    assert set(CALLS) <= steps


def test_each_row_is_made_by_somebody() -> None:
    made = _made()
    assert sorted(name for name in ROWS if name not in made) == []


def test_no_step_has_two_rows() -> None:
    """Tables are put together: a second row of the same name would silently take the place of the first."""
    modules = ("executor", "linux_steps", "zygote_steps", "wall_steps", "pid1", "image_steps")
    tables = [ast.parse((SOURCES / "steps" / f"{name}.py").read_text()) for name in modules]
    tables.append(ast.parse((SOURCES / "roles" / "endings.py").read_text()))
    names = [key.value for tree in tables for table in _tables(tree) for key in table.keys if key is not None]
    assert sorted(names) == sorted(ROWS)


def _tables(tree: ast.Module) -> Iterator[ast.Dict]:
    for node in tree.body:
        named = isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") in ("STEPS", "ENDINGS")
        if named and isinstance(node.value, ast.Dict):
            yield node.value


def test_the_frames_have_the_fields_that_are_declared(declared: dict[str, typing.Any]) -> None:
    assert tuple(declared["EndedFrame"].__annotations__) == wire.REPORT_FIELDS
    assert set(declared["HealthFrame"].__annotations__) == set(wire.NOTHING_SEEN)
    assert set(Health.__annotations__) < set(wire.NOTHING_SEEN)


def test_a_record_of_an_attempt_has_the_keys_that_are_declared(declared: dict[str, typing.Any]) -> None:
    attempt = Attempt(time_ns=1, wall_ns=2, operation="lookup", path="/secret", errno=2, argv=("cat",), visit=3)
    kinds = typing.get_type_hints(declared["NotedFrame"], declared)
    record = attempt.as_record()
    assert {name: typing.get_origin(kind) or kind for name, kind in kinds.items()} == {
        name: type(value) for name, value in record.items()
    }
    assert "visit" not in replace(attempt, visit=0).as_record()


def test_an_order_lies_in_the_maker_as_the_warden_packs_it() -> None:
    """``native/orders.h`` reads it as ``roles/warden/order.py`` writes it behind the kind and the count of rights."""
    header = (SOURCES / "native" / "orders.h").read_text()
    fields = re.search(r"struct order {(.*?)char text", header, re.DOTALL)
    assert fields is not None
    letters = {"uint8_t": "B", "uint32_t": "I", "uint64_t": "Q"}
    layout = [(letters[kind], name.strip()) for kind, names in re.findall(r"(uint\d+_t) ([^;]+);", fields[1])
              for name in names.split(",")]  # fmt: skip
    assert " ".join(name for _, name in layout) == "kind rights unused[5] new_network ticket draft place texts"
    packed = Struct("=" + "".join("5s" if "[5]" in name else letter for letter, name in layout))
    sent = order.packed(order.SandboxOrder(ticket=7, draft=8, place=9, group="g", maps=("u", "v"), entrances=("e",),
                                           new_network=True))  # fmt: skip
    assert packed.unpack(b"o\6" + sent[: packed.size - 2])[3:] == (1, 7, 8, 9, 4)
    assert f"HEAD_BYTES = {packed.size} " in header and f"MESSAGE_BYTES = {order.BODY_BYTES}," in header


def test_nothing_is_loaded_for_the_declarations() -> None:
    """They are read by processes that must start in a few milliseconds."""
    assert set(vars(importlib.import_module(request.__name__))) & {"TypedDict", "VisitRequest", "Step"} == set()
