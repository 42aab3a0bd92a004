"""What a node checks before it runs anything for a caller."""

from __future__ import annotations

from importlib import import_module

from ringfence import __version__
from ringfence.errors import UnavailableError


def check_node(version: str) -> None:
    """UnavailableError where this node has another version, or asks nobody for a token."""
    if version != __version__:
        raise UnavailableError(f"a node runs ringfence {__version__}, the caller {version}", missing=("ringfence",),
                               hint="install the same version everywhere")  # fmt: skip
    authentication = import_module("ray._private.authentication.authentication_utils")
    if not authentication.is_token_auth_enabled():
        raise UnavailableError("a node of the cluster does not ask for a token", missing=("authentication",),
                               hint="export RAY_AUTH_MODE=token there, before ray start")  # fmt: skip
