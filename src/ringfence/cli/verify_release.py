"""Check that the files of a release are those that were signed."""

from __future__ import annotations

import argparse
import os

from ringfence.cli.signer_option import add_signer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.evidence.release import Release
    from ringfence.evidence.trust import Trust

EXAMPLES = """\
examples:
  %(prog)s dist --pubkey 3f1c…                         a directory: all files of the release, and no other
  %(prog)s ringfence-0.1.0-py3-none-any.whl --pubkey 3f1c…          release.dsse.json is beside it
  %(prog)s *.whl --attestation release.dsse.json --pubkey 3f1c… --json

A file that is altered, missing, or not part of the release is named, and the check fails. Take the public key from a
place that is not where the files came from. Exit code 0 when all is valid, 2 when not. docs/release.md has the details.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="DIR|FILE", nargs="+", help="a directory with a release, or some of its files")
    add_signer(parser)
    parser.add_argument("--attestation", metavar="FILE", help="the signed statement (default: release.dsse.json there)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.evidence_report import EXIT_NOT_OK, EXIT_OK, read_file, refuse_absent, tell_failure, trust_from
    from ringfence.errors import SandboxError

    for path in arguments.paths:
        refuse_absent(path)
    place = _place(arguments.paths)
    trust, data = trust_from(arguments.pubkey, arguments.trust), read_file(arguments.attestation or place)
    try:
        found = _check(data, arguments.paths, trust)
    except SandboxError as error:
        tell_failure("release", error, as_json=arguments.json)
        return EXIT_NOT_OK
    _tell(found, as_json=arguments.json)
    return EXIT_OK


def _place(paths: list[str]) -> str:
    """Where the attestation is: in the directory, or beside the first file."""
    from ringfence.errors import UsageError
    from ringfence.evidence.release import NAME

    folders = [path for path in paths if os.path.isdir(path)]
    if folders and len(paths) > 1:
        raise UsageError(f"{folders[0]} is a directory, and other paths were given with it",
                         hint="give one directory, or only files")  # fmt: skip
    return os.path.join(folders[0] if folders else os.path.dirname(paths[0]), NAME)


def _check(data: bytes, paths: list[str], trust: Trust) -> Release:
    from ringfence.evidence.release import check_files, check_folder

    return check_folder(data, paths[0], trust) if os.path.isdir(paths[0]) else check_files(data, paths, trust)


def _tell(found: Release, *, as_json: bool) -> None:
    from ringfence.cli.json_text import print_json
    from ringfence.model.system_text import escape_controls

    if as_json:
        told = {"version": found.version, "commit": found.commit, "files": found.files, "signers": found.signers}
        print_json({"state": "ok", **told}, indent=None)
        return
    about = escape_controls(f"ringfence {found.version}, commit {found.commit}")
    print(f"release OK: {about} · {len(found.files)} files · signed by {' and '.join(found.signers)}")
