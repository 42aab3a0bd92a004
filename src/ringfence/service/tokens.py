"""Who asks: tokens, what each may do, and how much. The file has only their hashes.

A token is 32 random bytes, so one SHA-256 is enough to keep it. All hashes are compared with the given one, each in
constant time: timing reveals neither how much of a guess was right nor whose token was close.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from typing import Any

from ringfence.errors import PolicyError, UsageError
from ringfence.model.files import read_file
from ringfence.model.own_files import write_whole
from ringfence.model.policy_file import parse_policy
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute
from ringfence.service.settings import NAME, size, texts, whole

SCOPES = {
    "read": "see its own runs, boxes and pools",
    "run": "run programs, and keep pools",
    "box": "open boxes, and use their files, changes and checkpoints",
    "commit": "apply changes of a box to a workspace of the operator",
    "bundle": "have bundles signed and verified",
    "operator": "see everybody's runs and boxes, and the metrics",
}
PREFIX = "rf_"
_MAX_FILE_BYTES = 1 << 20
_MOST = 2**31


@record
class Tenant:
    """One who may ask."""

    name: str
    scopes: frozenset[str]
    policies: frozenset[str] | None = None
    """Absent: all of them."""
    workspaces: frozenset[str] | None = None
    sandboxes: int = _MOST
    memory_bytes: int = 2**62
    runs_per_minute: int = _MOST
    digest: bytes = b""

    def may_pick(self, policy: str) -> bool:
        return self.policies is None or policy in self.policies

    def may_work_on(self, workspace: str) -> bool:
        return self.workspaces is None or workspace in self.workspaces


LOCAL = Tenant(name="local", scopes=frozenset(SCOPES))
"""Everybody, where there are no tokens."""


class Tokens:
    """All tenants; without any, everybody is LOCAL."""

    def __init__(self, tenants: tuple[Tenant, ...] = ()) -> None:
        self._tenants = tenants

    def __len__(self) -> int:
        """How many tenants there are."""
        return len(self._tenants) or 1

    @property
    def needed(self) -> bool:
        return bool(self._tenants)

    def named(self, name: str) -> Tenant:
        """A tenant by its name; one that is no longer known may do nothing."""
        known = self._tenants or (LOCAL,)
        return next((tenant for tenant in known if tenant.name == name), Tenant(name=name, scopes=frozenset()))

    def tenant_of(self, authorization: str) -> Tenant | None:
        """Who sent this header; None: nobody known."""
        if not self._tenants:
            return LOCAL
        scheme, _, token = authorization.partition(" ")
        given = digest_of(token.strip())
        found = None
        for tenant in self._tenants:  # compare all of them, even after a match
            if hmac.compare_digest(tenant.digest, given):
                found = tenant
        return found if scheme.lower() == "bearer" else None


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: str) -> Tokens:
    """Read the file; UsageError if others could have put a token of their own into it."""
    _refuse_others(path)
    hint = f"the service runs as user {os.geteuid()}, who must be able to read it"
    data = read_file(path, _MAX_FILE_BYTES, hint=hint)
    tenants = parse_policy(path, data, _tenants, texts=("[].sha256",))
    if not tenants:
        raise UsageError(f"{path} has no token", hint="ringfence serve --new-token NAME --tokens FILE adds one")
    return Tokens(tenants)


def _refuse_others(path: str) -> None:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="ringfence serve --new-token NAME --tokens FILE") from error
    if status.st_uid not in (0, os.geteuid()):
        raise UsageError(f"{path} is writable by others: it belongs to user {status.st_uid}",
                         hint=f"chown {os.geteuid()} {path}")  # fmt: skip
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{path} is writable by others", hint=f"chmod 600 {path}")


def _tenants(values: Mapping[str, object]) -> tuple[Tenant, ...]:
    given = values.get("tokens") if isinstance(values, Mapping) else values
    rows = [] if given is None else given
    if not isinstance(values, Mapping) or set(values) - {"tokens"} or not isinstance(rows, list):
        raise PolicyError("tokens", "the file must have one key, tokens, with a list")
    made = tuple(_tenant(row, place) for place, row in enumerate(rows))
    for field in ("name", "digest"):
        if len({getattr(each, field) for each in made}) < len(made):
            raise PolicyError("tokens", f"two have the same {field}")
    return made


def _tenant(row: object, place: int) -> Tenant:
    try:
        if not isinstance(row, Mapping):
            raise ValueError("must be a mapping with name, sha256 and scopes")
        read: dict[str, Any] = {name: _read(name, value) for name, value in _renamed(row).items()}
        return Tenant(**read)
    except (ValueError, TypeError, KeyError) as wrong:
        raise PolicyError("tokens", f"number {place + 1}: {wrong}") from None


def _renamed(row: Mapping[str, Any]) -> dict[str, Any]:
    more = {"digest": row["sha256"]} if "sha256" in row else {}
    if not {"name", "sha256", "scopes"} <= set(row):
        raise ValueError("each token needs name, sha256 and scopes")
    return {**{name: value for name, value in row.items() if name != "sha256"}, **more}


def _read(name: str, value: Any) -> object:
    if name == "digest":
        try:
            digest = bytes.fromhex(value)
        except (ValueError, TypeError):
            digest = b""
        if len(digest) != 32:
            raise ValueError("sha256 must be 64 hexadecimal digits")
        return digest
    if name == "scopes":
        scopes = frozenset(texts(value))
        if scopes - set(SCOPES):
            raise ValueError(f"{', '.join(sorted(scopes - set(SCOPES)))}: there are {', '.join(SCOPES)}")
        return scopes
    if name in ("policies", "workspaces"):
        return frozenset(texts(value))
    if name == "memory_bytes":
        return size(value)
    if name == "name":
        if not isinstance(value, str) or not NAME.fullmatch(value):
            raise ValueError(f"{value!r} is not a name of lower-case letters, digits, - and _")
        return value
    if name in ("sandboxes", "runs_per_minute"):
        return whole(1, _MOST)(value)
    raise ValueError(f"{name} is not known")


def _begun(found: bytes) -> str:
    """A file without any entry counts as a new one: ``[]`` has no place for the first. Its comments stay."""
    lines = found.decode("utf-8").splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith("#")) + "tokens:\n"


def add_token(path: str, name: str, scopes: tuple[str, ...]) -> str:
    """Write a new token into the file, which is created if missing; the returned token is shown only once."""
    if not NAME.fullmatch(name) or set(scopes) - set(SCOPES):
        raise UsageError(f"{name!r} with {', '.join(scopes)}: a name may only have lower-case letters, digits, - and _",
                         hint=f"scopes are {', '.join(SCOPES)}")  # fmt: skip
    text = "tokens:\n"
    if os.path.lexists(path):
        _refuse_others(path)
        found = read_file(path, _MAX_FILE_BYTES, hint="")
        text = found.decode("utf-8") if parse_policy(path, found, _tenants, texts=("[].sha256",)) else _begun(found)
    token = PREFIX + secrets.token_urlsafe(32)
    words = ", ".join(scopes)
    text = f"{text.rstrip()}\n  - name: {name}\n    sha256: \"{digest_of(token).hex()}\"\n    scopes: [{words}]\n"
    parse_policy(path, text.encode(), _tenants, texts=("[].sha256",))
    write_whole(absolute(path), text.encode())
    return token
