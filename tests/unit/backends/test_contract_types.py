"""mypy reads this with the package: every backend keeps the contract, and every box can be used in each of its ways."""

from __future__ import annotations

from ringfence.backends.container import ContainerBackend, ContainerBox
from ringfence.backends.contract import Backend, LivingBox, StandbyBox
from ringfence.backends.on_windows.process import WindowsBackend, WindowsBox, WindowsUnsafeBackend
from ringfence.backends.process import ProcessBackend, ProcessBox
from ringfence.backends.strict import StrictBackend, StrictBox
from ringfence.backends.unsafe import UnsafeBackend
from ringfence.engine.run import BACKENDS


def backends() -> tuple[Backend, ...]:
    plain: tuple[Backend, ...] = (ProcessBackend(), UnsafeBackend(), WindowsBackend(), WindowsUnsafeBackend())
    return (*plain, ContainerBackend(), StrictBackend())


def living(one: StrictBox, two: ProcessBox, three: ContainerBox, four: WindowsBox) -> tuple[LivingBox, ...]:
    return one, two, three, four


def standing_by(one: StrictBox, two: ProcessBox, three: ContainerBox, four: WindowsBox) -> tuple[StandbyBox, ...]:
    return one, two, three, four


def test_every_backend_of_the_table_is_read_here() -> None:
    assert {name for _, name in BACKENDS.values()} <= {type(each).__name__ for each in backends()}
