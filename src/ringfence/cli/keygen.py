"""Make a fresh Ed25519 key for signing verdicts and bundles."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  %(prog)s                                  print seed=… and pubkey=… (the seed is the secret)
  %(prog)s --out ops.key                    write the secret to ops.key (mode 0600), print pubkey=…
  %(prog)s --out ops.pem --format pem       the same as PKCS #8 PEM; openssh is a third format

Give the public key to those who verify: verify-bundle --pubkey HEX. Keep the secret where only its owner can
read it; in Python it signs with ringfence.evidence (docs/explanation/bundle.md).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="write the secret to this new file instead of printing it")
    parser.add_argument("--format", choices=("hex", "pem", "openssh"), default="hex",
                        help="format of the file (default: hex, the seed)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the keys as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.errors import EvidenceError, UsageError
    from ringfence.evidence.keyfile import write_key
    from ringfence.evidence.keys import KeyFormat, SigningKey

    form = KeyFormat(arguments.format)
    if arguments.out is None and form is not KeyFormat.HEX:
        raise UsageError(f"--format {form} needs --out FILE", hint="only the hex seed is printed")
    key = SigningKey.generate()
    told = {"seed": key.secret_bytes().decode("ascii").strip()} if arguments.out is None else {}
    if arguments.out is not None:
        try:
            write_key(arguments.out, key, form)
        except EvidenceError as error:  # the caller named a file that can't be written, or must not be
            raise UsageError(str(error), hint=error.hint) from error
    told["pubkey"] = key.public_hex
    _print(told, as_json=arguments.json)
    return 0


def _print(told: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        from ringfence.cli.json_text import print_json

        print_json(told)
    else:
        print("\n".join(f"{name}={value}" for name, value in told.items()))
