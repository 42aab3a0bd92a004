"""Make a fresh Ed25519 key for signing verdicts and bundles."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  %(prog)s                                  print seed=… and pubkey=… (the seed is the secret)
  %(prog)s --out ops.key                    write the secret to ops.key (mode 0600), print pubkey=…
  %(prog)s --out ops.pem --format pem       the same as PKCS #8 PEM; openssh is a third format

Give the public key to those who verify: verify-bundle --pubkey HEX. Keep the secret where only its owner can
read it; in Python it signs with ringfence.evidence (docs/bundle.md).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="write the secret to this new file, do not print it")
    parser.add_argument(
        "--format", choices=("hex", "pem", "openssh"), default="hex", help="of the file (default: hex seed)"
    )


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.errors import UsageError
    from ringfence.evidence.keyfile import write_key
    from ringfence.evidence.keys import KeyFormat, SigningKey

    form = KeyFormat(arguments.format)
    if arguments.out is None and form is not KeyFormat.HEX:
        raise UsageError(f"--format {form} needs --out FILE", hint="only the hex seed is printed")
    key = SigningKey.generate()
    if arguments.out is None:
        print(f"seed={key.secret_bytes().decode('ascii').strip()}")
    else:
        write_key(arguments.out, key, form)
    print(f"pubkey={key.public_hex}")
    return 0
