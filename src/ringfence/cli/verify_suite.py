"""Check a suite: the signature over all bundles, and each bundle that it names."""

from __future__ import annotations

import argparse
import os

from ringfence.cli.signer_option import add_signer
from ringfence.model.ways.walk import absolute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.proctor.suite.manifest import Checked

EXAMPLES = """\
examples:
  %(prog)s --manifest out/manifest.json --pubkey 3f1c…             every bundle in out/tasks
  %(prog)s --manifest out/manifest.json --trust trust.json --json

A bundle that is altered, missing, duplicated, or from another task or run is named, and the check fails. Exit code 0
when all is valid, 2 when not. docs/reference/proctor/suites.md has the details.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--manifest", metavar="FILE", required=True, help="the manifest.json")
    add_signer(parser)
    parser.add_argument("--folder", metavar="DIR", help="where the bundles are (default: that of the manifest)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.evidence_report import EXIT_NOT_OK, EXIT_OK, read_file, refuse_absent, tell_failure, trust_from
    from ringfence.errors import SandboxError
    from ringfence.proctor.suite.manifest import checked

    folder = arguments.folder or os.path.dirname(absolute(arguments.manifest))
    refuse_absent(folder)
    trust, data = trust_from(arguments.pubkey, arguments.trust), read_file(arguments.manifest)
    try:
        found = checked(data, folder, trust)
    except SandboxError as error:
        tell_failure("suite", error, as_json=arguments.json)
        return EXIT_NOT_OK
    _tell(found, as_json=arguments.json)
    return EXIT_OK


def _tell(found: Checked, *, as_json: bool) -> None:
    from ringfence.cli.json_text import print_json
    from ringfence.model.record import field_names
    from ringfence.model.system_text import escape_controls

    if as_json:
        told = {name: getattr(found, name) for name in field_names(found)}
        print_json({"state": "ok", **told}, indent=None)
        return
    shown = ("verdicts", "passed", "failed", "compromised", "without_verdict")
    counts = " · ".join(f"{name.replace('_', ' ')} {found.summary[name]}" for name in shown)
    print(f"suite OK: {counts} · signed by {' and '.join(found.signers)}")
    print(f"agent: {escape_controls(found.agent)}")
