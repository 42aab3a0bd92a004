"""Print a web page that verifies bundles in the browser, without any network."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  %(prog)s > verify.html          then open it and drop a bundle.json on it

The page does what verify-bundle does, step by step, and sends nothing anywhere: give it to whoever
should be able to check a bundle without installing anything. It needs Chrome 137, Firefox 129, Safari 17
or later.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="write to a file instead of standard output")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.evidence.page import verify_page

    page = verify_page().encode("utf-8")
    if arguments.out is not None:
        from ringfence.evidence.bundle import write_beside

        write_beside(arguments.out, page)
        return 0
    import sys

    # As bytes: the hashes in the page hold for UTF-8 and LF, whatever the terminal speaks.
    sys.stdout.flush()
    sys.stdout.buffer.write(page)
    return 0
