"""Records behave like frozen keyword-only dataclasses, without the cost of one at import."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from ringfence.model.record import field_names, made_by, record, replace


@record
class Point:
    x: int
    y: int = 2
    notes: Mapping[str, str] = MappingProxyType({})


@record
class Even:
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError(self.n)


def test_fields_are_set_by_name_with_defaults() -> None:
    point = Point(x=1)
    assert (point.x, point.y, dict(point.notes)) == (1, 2, {})
    assert repr(Point(x=1, notes={})) == "Point(x=1, y=2, notes={})"
    assert field_names(Point) == field_names(point) == ("x", "y", "notes")


@pytest.mark.parametrize("make", (lambda: Point(), lambda: Point(1), lambda: Point(x=1, z=3)))  # type: ignore[call-arg]
def test_a_missing_unknown_or_positional_field_is_a_type_error(make) -> None:
    with pytest.raises(TypeError):
        make()


def test_a_record_is_frozen() -> None:
    point = Point(x=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert point.x == 1


def test_equal_records_have_equal_hashes_and_types_matter() -> None:
    assert Point(x=1) == Point(x=1, y=2) and hash(Point(x=1)) == hash(Point(x=1))
    assert Point(x=1) != Point(x=2)
    assert Even(n=2) != Point(x=2) and Point(x=1).__eq__(1) is NotImplemented
    assert Point(x=1, notes={"a": "b"}) == Point(x=1, notes=MappingProxyType({"a": "b"}))
    assert hash(Point(x=1, notes={"a": "b"})) == hash(Point(x=1, notes=MappingProxyType({"a": "b"})))


def test_the_check_runs_when_it_is_made_and_when_it_is_changed() -> None:
    assert replace(Even(n=2), n=4).n == 4
    for make in (lambda: Even(n=1), lambda: replace(Even(n=2), n=3)):
        with pytest.raises(ValueError):
            make()


def test_the_tools_of_dataclasses_work_on_it() -> None:
    point = Point(x=1, notes=MappingProxyType({"a": "b"}))
    assert [field.name for field in dataclasses.fields(point)] == ["x", "y", "notes"]  # type: ignore[arg-type]
    assert dataclasses.is_dataclass(Point)
    assert dataclasses.replace(point, y=5) == Point(x=1, y=5, notes={"a": "b"})  # type: ignore[type-var]
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "notes": {"a": "b"}}  # type: ignore[call-overload]


def test_a_record_can_be_copied_and_pickled_and_stays_read_only() -> None:
    point = Point(x=1, notes=MappingProxyType({"a": "b"}))
    for made in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert made == point and type(made.notes) is MappingProxyType


@pytest.mark.system
def test_importing_the_model_does_not_load_dataclasses() -> None:
    code = "import sys, ringfence.model.policy, ringfence.model.outcome; print('dataclasses' in sys.modules)"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain)
    assert done.stdout.strip() == "False"


@record(kw_only=False, eq=False)
class Basket:
    """A record whose fields have no need of names, and one of them a list of its own."""

    owner: str
    things: list[str] = made_by(default_factory=list)


def test_a_default_that_can_be_changed_is_made_anew_for_each() -> None:
    one, other = Basket(owner="a"), Basket(owner="b")
    one.things.append("x")
    assert (one.things, other.things, hasattr(Basket, "things")) == (["x"], [], False)
    assert [field.name for field in dataclasses.fields(Basket)] == ["owner", "things"]
    assert [field.default_factory for field in dataclasses.fields(Basket)] == [dataclasses.MISSING, list]
    assert dataclasses.replace(one, owner="c").things == replace(one, owner="c").things == ["x"]


def test_fields_may_be_given_without_names_only_where_that_is_said() -> None:
    assert (Basket("a", ["x"]).things, Basket("a", things=["y"]).things) == (["x"], ["y"])
    for wrong in (lambda: Basket("a", [], 3), lambda: Basket("a", owner="b")):
        with pytest.raises(TypeError):
            wrong()


def test_a_record_can_be_equal_to_itself_alone() -> None:
    one = Basket(owner="a")
    assert one == one and one != Basket(owner="a") and len({one, Basket(owner="a")}) == 2
