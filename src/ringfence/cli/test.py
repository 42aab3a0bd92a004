"""Run pytest under a policy, in a working folder of its own, with each test's outcome in the result."""

from __future__ import annotations

import argparse
import sys

from ringfence.cli.policy_flags import add_policy_flags, policy_from

EXAMPLES = """\
examples:
  ringfence test tests/
  ringfence test tests/test_a.py::test_b --memory 1G --wall 120
  ringfence test tests/ --json | jq .counts
  ringfence test tests/ --here -- -x -n 2      (what follows -- goes to pytest)

The exit code is pytest's own (0 when all passed), or that of the limit that was hit.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", help="files, folders or node ids (the current folder)")
    add_policy_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON, nothing else")
    parser.add_argument("--here", action="store_true",
                        help="run the tests in the current folder in place of a private one")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.passthrough import write_through
    from ringfence.pytest_runner.runner import run_pytests_v2

    paths, extra = _split(arguments.paths)
    result = run_pytests_v2(
        paths,
        policy_from(arguments),
        here=arguments.here,
        arguments=extra,
        on_output=None if arguments.json else write_through,
    )
    if arguments.json:
        import json

        print(json.dumps(result, indent=2))
    elif result["status"] not in ("OK", "FAILED"):
        print(f"ringfence: {result['status']}: {result['reason']}", file=sys.stderr)
    return result["rc"]


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Paths, and what goes to pytest: everything from the first option on."""
    for place, word in enumerate(words):
        if word.startswith("-"):
            return words[:place], words[place:]
    return words, []
