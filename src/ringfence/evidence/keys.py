"""Ed25519 keys: make, read, sign, check.

Owns: the encodings (hex seed as Proctor's, PEM, OpenSSH) and that a private key never shows in a repr.
Does not: touch the file system (keyfile), or decide whom to trust (trust).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, Self

from ringfence.errors import EvidenceError
from ringfence.evidence.digest import sha256_hex

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED_VARIABLE = "PROCTOR_SIGNING_SEED"
_HEX64 = re.compile(r"[0-9a-f]{64}")
_HEX128 = re.compile(r"[0-9a-f]{128}")


class KeyFormat(StrEnum):
    HEX = "hex"
    PEM = "pem"
    OPENSSH = "openssh"


class SigningKey:
    """A private key. Its repr, pickling and copying give nothing away; ask for the secret by name."""

    __slots__ = ("_private", "public_hex")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_hex = private.public_key().public_bytes_raw().hex()

    @classmethod
    def generate(cls) -> Self:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed_hex(cls, seed: str) -> Self:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if not _HEX64.fullmatch(seed):
            # The value stays out of the message: a mistyped seed is still nearly a seed.
            raise EvidenceError("a signing seed must be 64 lower-case hex characters")
        return cls(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a hex seed, a PKCS #8 PEM or an OpenSSH key; told apart by their first line."""
        if data.startswith(b"-----BEGIN"):
            return cls(_load_armoured(data))
        try:
            return cls.from_seed_hex(data.decode("ascii").strip())
        except UnicodeDecodeError:
            raise EvidenceError("not a signing key: neither hex, PEM nor OpenSSH") from None

    @classmethod
    def from_environment(
        cls, variable: str = SEED_VARIABLE, environment: Mapping[str, str] | None = None
    ) -> Self | None:
        """The key in an environment variable, or None when it is not set."""
        seed = (os.environ if environment is None else environment).get(variable)
        return None if seed is None else cls.from_seed_hex(seed.strip())

    @property
    def key_id(self) -> str:
        return key_id(self.public_hex)

    def sign(self, message: bytes) -> str:
        return self._private.sign(message).hex()

    def secret_bytes(self, form: KeyFormat = KeyFormat.HEX) -> bytes:
        """The private key itself, ready for a file. Keep it out of logs."""
        if form is KeyFormat.HEX:
            return self._private.private_bytes_raw().hex().encode() + b"\n"
        from cryptography.hazmat.primitives import serialization as s

        layout = s.PrivateFormat.OpenSSH if form is KeyFormat.OPENSSH else s.PrivateFormat.PKCS8
        return self._private.private_bytes(s.Encoding.PEM, layout, s.NoEncryption())

    def __repr__(self) -> str:
        return f"<SigningKey {self.key_id}>"

    def __reduce__(self) -> NoReturn:
        raise EvidenceError("a signing key is not pickled or copied")


def key_id(public_hex: str) -> str:
    """A short name for people; it never decides anything."""
    return "ed25519:" + sha256_hex(bytes.fromhex(public_hex))[:16]


def signature_holds(public_hex: str, signature_hex: str, message: bytes) -> bool:
    """Pure Ed25519; anything malformed is simply False."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not _HEX64.fullmatch(public_hex) or not _HEX128.fullmatch(signature_hex):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_hex)).verify(
            bytes.fromhex(signature_hex), message
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def parse_public(text: str) -> str:
    """A public key as 64 hex characters, from hex, PEM or an ``ssh-ed25519 …`` line."""
    text = text.strip()
    if _HEX64.fullmatch(text):
        return text
    loader = _public_loader(text)
    if loader is None:
        raise EvidenceError(
            "not a public key: give 64 lower-case hex characters, a PEM or an ssh-ed25519 line"
        )
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = loader(text.encode("utf-8"))
    except (ValueError, UnsupportedAlgorithm):
        raise EvidenceError("a public key that cannot be read") from None
    if not isinstance(public, Ed25519PublicKey):
        raise EvidenceError("not an Ed25519 public key")
    return public.public_bytes_raw().hex()


def _public_loader(text: str) -> Callable[[bytes], object] | None:
    if not text.startswith(("-----BEGIN PUBLIC KEY", "ssh-ed25519 ")):
        return None
    from cryptography.hazmat.primitives import serialization

    return serialization.load_ssh_public_key if text.startswith("ssh") else serialization.load_pem_public_key


def _load_armoured(data: bytes) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    openssh = data.startswith(b"-----BEGIN OPENSSH")
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    try:
        private = load(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise EvidenceError(
            "a signing key that cannot be read",
            hint="a key with a passphrase is not supported: decrypt it first (ssh-keygen -p, openssl pkey)",
        ) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise EvidenceError("not an Ed25519 key")
    return private
