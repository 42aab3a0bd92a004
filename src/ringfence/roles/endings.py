"""How a plan can end other than by an exec: what its process then becomes for good.

Part of: job, standby, pid 1 of a box

Endings need the roles, which are a layer above the steps. So the process that executes a plan hands them to the
executor.
"""

from __future__ import annotations

import os

from ringfence.roles import standby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _serve_visits() -> None:
    """pid 1 of a box: other plans are carried out below it."""
    import _signal as signal  # type: ignore[import-not-found]

    from ringfence.roles import box_pid1

    signal.set_wakeup_fd(-1)
    try:
        box_pid1.serve(ENDINGS)
    finally:
        os._exit(0)


def _load_transfers() -> None:
    """Loaded now for the endings below, since nothing can be loaded later."""
    from ringfence.roles import file_transfer  # noqa: F401


def _put_file(name: str) -> None:
    from ringfence.roles import file_transfer

    file_transfer.put(name)


def _get_file(name: str, most_bytes: int) -> None:
    from ringfence.roles import file_transfer

    file_transfer.get(name, most_bytes)


ENDINGS: dict[str, Callable[..., None]] = {
    "await job": standby.await_job,
    "serve visits": _serve_visits,
    "load transfers": _load_transfers,
    "put file": _put_file,
    "get file": _get_file,
}
