"""The options that say whose signature is expected."""

from __future__ import annotations

import argparse


def add_signer(parser: argparse.ArgumentParser) -> None:
    signer = parser.add_mutually_exclusive_group(required=True)
    signer.add_argument("--pubkey", metavar="KEY", help="the signer's public key: hex, PEM or OpenSSH")
    signer.add_argument("--trust", metavar="FILE", help="a trust file (docs/reference/formats.md, section 7)")
