"""Run pytest under a policy, in a working directory of its own, with each test's outcome in the result."""

from __future__ import annotations

import argparse
import sys

from ringfence.cli import INTERRUPTED
from ringfence.cli.interpreter import HELP as INTERPRETER_HELP
from ringfence.cli.interpreter import chosen
from ringfence.cli.policy_flags import add_policy_flags, policy_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.policy import SandboxPolicy
    from ringfence.pytest_runner.result import SandboxResultV2

EXAMPLES = """\
examples:
  ringfence test tests/
  ringfence test tests/test_a.py::test_b --memory 1G --wall 120
  ringfence test tests/ --json | jq .counts
  ringfence test tests/ --here -- -x -n 2      (what follows -- goes to pytest)
  ringfence test tests/ --interpreter .venv/bin/python

Without --interpreter, tests run in the active environment's Python (VIRTUAL_ENV, CONDA_PREFIX or pyenv's), else in
ringfence's own. pytest must be installed there, so isolation container and another root are not supported.
The exit code is pytest's own (0 when all passed), that of the limit that was hit, 2 where the policy can't be
enforced here, or 130 after Ctrl-C: pytest then prints its summary so far, and a second Ctrl-C ends it at once.
"""
PASSES_ON = True
UNHELD = 2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", default=[], metavar="PATH",
                        help="files, directories or node IDs (default: the current directory)")  # fmt: skip
    add_policy_flags(parser, "process", other_roots=False)
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")
    parser.add_argument("--here", action="store_true",
                        help="run the tests in the current directory instead of a private one")  # fmt: skip
    parser.add_argument("--interpreter", metavar="PYTHON", help=INTERPRETER_HELP)


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.passthrough import AT_ONCE, Passthrough, write_through
    from ringfence.pytest_runner.runner import refuse_images, run_pytests_v2

    policy = policy_from(arguments)
    refuse_images(policy)
    held = _is_held(policy, as_data=arguments.json)
    with Passthrough(escalation=AT_ONCE) as passthrough:
        result = run_pytests_v2(
            arguments.paths,
            policy,
            here=arguments.here,
            arguments=arguments.passed_on,
            interpreter=chosen(arguments.interpreter),
            on_output=None if arguments.json else write_through,
            attach=passthrough.attach,
        )
    _tell(result, as_data=arguments.json)
    if passthrough.interrupts:
        return INTERRUPTED
    return result["rc"] if held else UNHELD


def _is_held(policy: SandboxPolicy, *, as_data: bool) -> bool:
    """A policy that can't be enforced is an error as for every command; as data it is an INTERNAL_ERROR."""
    from ringfence.engine.run import backend_for, refuse
    from ringfence.errors import UnavailableError

    try:
        refuse(backend_for(policy.isolation), policy)
    except UnavailableError:
        if as_data:
            return False
        raise
    return True


def _tell(result: SandboxResultV2, *, as_data: bool) -> None:
    if as_data:
        from ringfence.cli.json_text import print_json

        print_json(result)
        return
    from ringfence.model.system_text import escape_controls

    print("".join(f"{escape_controls(line)}\n" for line in _explained(result)), end="", file=sys.stderr)


def _explained(result: SandboxResultV2) -> list[str]:
    from ringfence.cli.attached import ending, lacking

    ran = result["status"] != "INTERNAL_ERROR"
    missing = lacking(name for name, entry in result["enforced"].items() if ran and not entry["applied"])
    hints = [f"ringfence: {hint}" for hint in result["hints"]]
    return ending(result["status"], result["reason"], result["limits_hit"]) + _doubts(result) + hints + missing


def _doubts(result: SandboxResultV2) -> list[str]:
    """Why pytest's claim that all is well is not believed."""
    return [f"ringfence: FAILED: {result['reason']}"] if result["doubt"] else []
