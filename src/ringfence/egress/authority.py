"""The authority of one sandbox: certificates for the names that are inspected. Its keys never leave this process.

Only programs in the sandbox trust it, through a bundle that is shown there. Where the inspected names are known
beforehand, it may sign for those alone. Nobody but this gateway can use it.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import time
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ringfence.model.host_text import is_address

AUTHORITY_DAYS, LEAF_HOURS = 90, 48
_RENEWED_S = 3600.0
_MAX_LEAVES = 1024
_SLACK = datetime.timedelta(hours=1)
"""A clock inside may be behind."""


class Authority:
    """Signs certificates for names; makes each once, and anew before it ends."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """``names`` are all that may be signed for, ``*.name`` for sub-domains; empty: no restriction."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key_pem = self._leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ringfence, for one sandbox")])
        self._certificate = self._signed_by_itself(sorted(set(names)))
        self._leaves: dict[str, tuple[float, ssl.SSLContext]] = {}

    def pem(self) -> str:
        """Return the certificate of the authority, without its key."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    def context_for(self, name: str) -> ssl.SSLContext:
        """Return what ends TLS as ``name``, with HTTP/1.1 as the only protocol."""
        made = self._leaves.get(name)
        if made is not None and time.monotonic() < made[0]:
            return made[1]
        if len(self._leaves) >= _MAX_LEAVES:  # a wildcard has any number of names
            del self._leaves[next(iter(self._leaves))]
        context = _server_context(self.leaf(name).public_bytes(serialization.Encoding.PEM), self._leaf_key_pem)
        self._leaves[name] = (time.monotonic() + LEAF_HOURS * 3600 - _RENEWED_S, context)
        return context

    def leaf(self, name: str) -> x509.Certificate:
        """Return a fresh certificate for a name or an address."""
        now = datetime.datetime.now(datetime.UTC)
        end = min(now + datetime.timedelta(hours=LEAF_HOURS), self._certificate.not_valid_after_utc)
        return (
            _begun(x509.Name([]), self._subject, self._leaf_key.public_key(), now - _SLACK, end)
            .add_extension(x509.SubjectAlternativeName([_general_name(name)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _signed_by_itself(self, names: list[str]) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        end = now + datetime.timedelta(days=AUTHORITY_DAYS)
        builder = (
            _begun(self._subject, self._subject, self._key.public_key(), now - _SLACK, end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signature=False), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(_constraints(names), critical=True)
        return builder.sign(self._key, hashes.SHA256())


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    start: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)


def _key_usage(*, signature: bool) -> x509.KeyUsage:
    """What a leaf's key is for; without ``signature`` that of an authority."""
    return x509.KeyUsage(
        digital_signature=signature, key_cert_sign=not signature, crl_sign=not signature, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general_name(name: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(name)) if is_address(name) else x509.DNSName(name)


def _constraints(names: list[str]) -> x509.NameConstraints:
    """Return what may be signed for. Where no name is listed, no name may be; the same holds for addresses."""
    hosts: list[x509.GeneralName] = [x509.DNSName(name.removeprefix("*.")) for name in names if not _is_network(name)]
    addresses = (ipaddress.ip_network(name) for name in names if _is_network(name))
    networks: list[x509.GeneralName] = [x509.IPAddress(network) for network in addresses]
    none: list[x509.GeneralName] = []
    if not hosts:
        none.append(x509.DNSName(""))
    if not networks:
        none += [x509.IPAddress(ipaddress.ip_network("0.0.0.0/0")), x509.IPAddress(ipaddress.ip_network("::/0"))]
    return x509.NameConstraints(permitted_subtrees=hosts + networks or None, excluded_subtrees=none or None)


def _is_network(name: str) -> bool:
    return is_address(name)


def _server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """``ssl`` reads keys from files only, and opens them by name. These files are pipes, so no key is on a disk."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    files = [_pipe_with(certificate), _pipe_with(key)]
    try:
        context.load_cert_chain(*(f"/proc/self/fd/{file}" for file in files))
    finally:
        for file in files:
            os.close(file)
    return context


def _pipe_with(data: bytes) -> int:
    """Return the end of a pipe that these bytes are read from; they are fewer than any pipe holds."""
    source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.write(sink, data)
    finally:
        os.close(sink)
    return source
