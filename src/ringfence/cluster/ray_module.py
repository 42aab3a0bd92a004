"""The parts of Ray that are used, as types, and the connection to a cluster. Ray is an extra: it is loaded late."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from ringfence.cluster.authentication import check_authentication
from ringfence.errors import UnavailableError, hint_for_extra

SLOTS = "sandbox_slots"
"""The resource of a node that says how many sandboxes may run there at once."""
AUTO = "auto"

_REACH_S = 10.0

Ref = object
"""What Ray knows a result by."""


class Remote(Protocol):
    """A function that runs on some node."""

    def remote(self, *arguments: object) -> Ref: ...


class RayModule(Protocol):
    """The functions of ``ray`` that are used."""

    def is_initialized(self) -> bool: ...
    def init(self, *, address: str, log_to_driver: bool, namespace: str) -> object: ...
    def put(self, value: object) -> Ref: ...
    def get(self, ref: Ref) -> object: ...
    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout: float | None
    ) -> tuple[list[Ref], list[Ref]]: ...
    def cancel(self, ref: Ref, *, force: bool, recursive: bool) -> None: ...
    def remote(self, **options: object) -> Callable[[Callable[..., object]], Remote]: ...
    def cluster_resources(self) -> Mapping[str, float]: ...
    def nodes(self) -> Sequence[Mapping[str, object]]: ...


def ray_module() -> RayModule:
    """Load Ray; UnavailableError with the way to get it."""
    from importlib import import_module

    try:
        return cast(RayModule, import_module("ray"))
    except ImportError as error:
        raise UnavailableError(f"Ray can't be loaded: {error}", missing=("ray",),
                               hint=f"on every node, {hint_for_extra('ray')}") from error  # fmt: skip


def connect(address: str = AUTO) -> RayModule:
    """Join a cluster that requires its token and has slots; an existing connection is used.

    ``address``: ``host:port`` of the cluster's head; absent: the one of this machine.
    """
    check_authentication(os.environ)
    ray = ray_module()
    if not ray.is_initialized():
        try:
            _reach(address)
            ray.init(address=address, log_to_driver=False, namespace="ringfence")
        except (OSError, RuntimeError, ValueError) as error:
            said = str(error).strip().splitlines() or ["it said nothing"]
            raise UnavailableError(f"no Ray cluster at {address}: {said[0]}", missing=("cluster",),
                                   hint=f"ray start --head --resources='{{\"{SLOTS}\": 4}}'") from error  # fmt: skip
    if slots_of(ray) < 1:
        raise UnavailableError("no node of the cluster has room for sandboxes", missing=(SLOTS,),
                               hint=f"ray start … --resources='{{\"{SLOTS}\": 4}}'")  # fmt: skip
    return ray


def _reach(address: str) -> None:
    """OSError if nobody listens at ``host:port``: Ray itself would try for minutes before it says so."""
    import socket

    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()


def keep_stdout() -> None:
    """Have Ray tell of lost nodes on stderr: by itself it prints that to stdout, where a command's own output goes."""
    from importlib import import_module

    module = import_module("ray._private.worker")
    plain: Callable[..., None] | None = getattr(module, "print_to_stdstream", None)
    if plain is not None and not getattr(plain, "to_stderr", False):

        def told(data: Mapping[str, object], *more: object, **named: object) -> None:
            plain({**data, "is_err": True}, *more, **named)

        told.to_stderr = True  # type: ignore[attr-defined]
        module.print_to_stdstream = told  # type: ignore[attr-defined]


def slots_of(ray: RayModule) -> int:
    """How many sandboxes may run at once, on all nodes that live."""
    return int(ray.cluster_resources().get(SLOTS, 0))


def addresses_of(ray: RayModule) -> frozenset[str]:
    """Those of all nodes."""
    return frozenset(str(node["NodeManagerAddress"]) for node in ray.nodes() if node.get("NodeManagerAddress"))
