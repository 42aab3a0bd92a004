"""Check a bundle: signature, signer, violations, artifacts, environment and claims."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  %(prog)s --bundle out/bundle.json --pubkey 3f1c…             pinned to one signer
  %(prog)s --bundle out/bundle.json --trust trust.json         keys, roles, revocation, required anchors
  %(prog)s --bundle out/bundle.json --pubkey 3f1c… --artifacts out      the files on disk too
  %(prog)s --bundle out/bundle.json --pubkey 3f1c… --nonce 9a0b…        only the run of that challenge

Without --pubkey or --trust the best result is «intact, signer unknown»: anybody could have made it.
Exit code 0 when the bundle is valid and its signer is known, 2 when not. docs/reference/formats.md lists the steps,
docs/explanation/bundle.md says what a verified bundle proves and what it does not.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", metavar="FILE", required=True, help="the bundle.json")
    signer = parser.add_mutually_exclusive_group()
    signer.add_argument("--pubkey", metavar="KEY", help="the signer's public key: hex, PEM or OpenSSH")
    signer.add_argument("--trust", metavar="FILE", help="a trust file (docs/reference/formats.md, section 7)")
    parser.add_argument("--artifacts", metavar="DIR", help="also check the artifacts in this directory")
    parser.add_argument("--nonce", metavar="HEX", help="the challenge that the run must carry")
    parser.add_argument(
        "--allow-unknown-signer", action="store_true", help="exit 0 even if the signer is not trusted"
    )
    parser.add_argument(
        "--allow-missing-environment", action="store_true", help="accept Proctor's bundle_version 1"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.evidence_report import read_file, refuse_absent, tell, trust_from
    from ringfence.evidence.verify import Verification, verify_bundle

    trust, data = trust_from(arguments.pubkey, arguments.trust), read_file(arguments.bundle)
    if arguments.artifacts is not None:
        refuse_absent(arguments.artifacts)

    def verify() -> Verification:
        return verify_bundle(
            data,
            trust=trust,
            artifacts_folder=arguments.artifacts,
            nonce=arguments.nonce,
            allow_missing_environment=arguments.allow_missing_environment,
        )

    return tell(
        "bundle", verify, as_json=arguments.json, allow_unknown_signer=arguments.allow_unknown_signer
    )
