"""Print a web page that verifies bundles in the browser, without any network."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  %(prog)s > verify.html          then open it and drop a bundle.json on it

The page does what verify-bundle does, step by step, and sends nothing anywhere: give it to anybody who should be able
to check a bundle without installing anything. It needs Chrome 137, Firefox 129, Safari 17 or later.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="write to a file instead of standard output")
    parser.add_argument("--json", action="store_true", help="the page, or the file and its size, as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.evidence.page import verify_page

    page = verify_page()
    if arguments.out is not None:
        _write(arguments.out, page.encode("utf-8"))
    if arguments.json:
        from ringfence.cli.json_text import print_json

        size = len(page.encode("utf-8"))
        print_json({"page": page} if arguments.out is None else {"file": arguments.out, "bytes": size})
    elif arguments.out is None:
        _print(page.encode("utf-8"))
    return 0


def _write(path: str, page: bytes) -> None:
    from ringfence.errors import EvidenceError, UsageError
    from ringfence.evidence.bundle import write_beside

    try:
        write_beside(path, page)
    except EvidenceError as error:  # the caller named it
        raise UsageError(str(error), hint=error.hint) from error


def _print(page: bytes) -> None:
    import sys

    # As bytes: the hashes in the page hold for UTF-8 and LF, whatever the terminal speaks.
    sys.stdout.flush()
    sys.stdout.buffer.write(page)
