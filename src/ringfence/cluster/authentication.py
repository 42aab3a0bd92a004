"""Whether a cluster is closed to strangers: without a token, whoever reaches its port runs any code on all nodes.

Pure, except that it checks the token's file, which is never read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from ringfence.errors import UnavailableError

MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def token_file(environment: Mapping[str, str]) -> str:
    """Where Ray looks for the token; empty: it has it in a variable."""
    if environment.get(TOKEN):
        return ""
    return environment.get(TOKEN_FILE) or os.path.join(os.path.expanduser("~"), ".ray", "auth_token")


def check_authentication(environment: Mapping[str, str]) -> None:
    """UnavailableError where the token is not demanded, or others on this machine can read it."""
    if environment.get(MODE, "").lower() != "token":
        raise UnavailableError("the cluster's authentication is off", missing=("authentication",),
                               hint=f"export {MODE}=token on every node, before ray start and here")  # fmt: skip
    path = token_file(environment)
    if path:
        _check_file(path)


def _check_file(path: str) -> None:
    try:
        status = os.lstat(path)
    except OSError as error:
        raise _unsafe(path, error.strerror or "can't be looked at", "ray get-auth-token --generate") from error
    if not stat.S_ISREG(status.st_mode):
        raise _unsafe(path, "is not a regular file", "put the token itself there")
    if status.st_uid != os.geteuid():
        raise _unsafe(path, "belongs to another user", f"chown it, or name another with {TOKEN_FILE}")
    if stat.S_IMODE(status.st_mode) & _OTHERS:
        raise _unsafe(path, f"has the mode {stat.S_IMODE(status.st_mode):04o}: others can read it", f"chmod 600 {path}")
    if not status.st_size:
        raise _unsafe(path, "is empty", "ray get-auth-token --generate")


def _unsafe(path: str, problem: str, hint: str) -> UnavailableError:
    return UnavailableError(f"the cluster's token, {path}, {problem}", missing=("token",), hint=hint)
