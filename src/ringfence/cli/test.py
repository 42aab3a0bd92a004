"""Run pytest under a policy, in a working folder of its own, with each test's outcome in the result."""

from __future__ import annotations

import argparse
import sys

from ringfence.cli.policy_flags import add_policy_flags, policy_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.pytest_runner.result import SandboxResultV2

EXAMPLES = """\
examples:
  ringfence test tests/
  ringfence test tests/test_a.py::test_b --memory 1G --wall 120
  ringfence test tests/ --json | jq .counts
  ringfence test tests/ --here -- -x -n 2      (what follows -- goes to pytest)

The exit code is pytest's own (0 when all passed), that of the limit that was hit, or 2 where the policy can't be
held here.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", default=[], metavar="PATH",
                        help="files, folders or node ids (the current folder)")  # fmt: skip
    add_policy_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON, nothing else")
    parser.add_argument("--here", action="store_true",
                        help="run the tests in the current folder in place of a private one")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.passthrough import write_through
    from ringfence.engine.run import backend_for, refuse
    from ringfence.pytest_runner.runner import run_pytests_v2

    paths, extra = _split(arguments.paths)
    policy = policy_from(arguments)
    if not arguments.json:
        refuse(backend_for(policy.isolation), policy)  # told as by every command; as data it is an INTERNAL_ERROR
    result = run_pytests_v2(
        paths,
        policy,
        here=arguments.here,
        arguments=extra,
        on_output=None if arguments.json else write_through,
    )
    if arguments.json:
        from ringfence.cli.json_text import print_json

        print_json(result)
    else:
        from ringfence.cli.blocks import spelled_out

        print("".join(f"{spelled_out(line)}\n" for line in _explained(result)), end="", file=sys.stderr)
    return result["rc"]


def _explained(result: SandboxResultV2) -> list[str]:
    from ringfence.cli.run import ending, lacking

    missing = lacking(name for name, entry in result["enforced"].items() if not entry["applied"])
    return ending(result["status"], result["reason"], result["limits_hit"]) + missing


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Paths, and what goes to pytest: everything from the first option on."""
    for place, word in enumerate(words):
        if word.startswith("-"):
            return words[:place], words[place:]
    return words, []
