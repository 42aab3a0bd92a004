"""Check that a verdict.json was signed by a key and does not contradict itself."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  %(prog)s --verdict out/verdict.json --pubkey 3f1c…     exit code 0: signed by that key and consistent
  %(prog)s --verdict out/verdict.json --pubkey 3f1c… --json

A verdict contains digests of records, artifacts and environment. verify-bundle checks those too.
Exit code 0 when it is valid, 2 when not.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verdict", metavar="FILE", required=True, help="the verdict.json")
    parser.add_argument("--pubkey", metavar="KEY", required=True, help="the signer's public key: hex, PEM or OpenSSH")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.evidence_report import read_file, tell, trust_from
    from ringfence.evidence.verify import Verification, verify_verdict

    trust, data = trust_from(arguments.pubkey, None), read_file(arguments.verdict)

    def verify() -> Verification:
        return verify_verdict(data, trust=trust)

    return tell("verdict", verify, as_json=arguments.json)
