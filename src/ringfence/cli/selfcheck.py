"""Attack the sandbox on this host: each promise with the probe that would break it, and its control."""

from __future__ import annotations

import argparse

from ringfence.backends.conformance import Finding
from ringfence.model.limits import IsolationLevel

EXAMPLES = """\
examples:
  ringfence selfcheck
  ringfence selfcheck --level process --json

Each probe runs in the sandbox, where it must fail, and without it, where it must succeed.
The exit code is 0 when every promise held, else 1.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    from ringfence.engine.run import BACKENDS

    levels = [str(level) for level in BACKENDS if level is not IsolationLevel.NONE]
    parser.add_argument("--level", choices=levels, default="process", help="which isolation level (process)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.backends.conformance import perform
    from ringfence.engine.run import run

    findings = []
    for finding in perform(run, IsolationLevel(arguments.level)):
        findings.append(finding)
        if not arguments.json:
            print(f"{_word(finding):<8}  {finding.check.promise}{_because(finding)}", flush=True)
    broken = sum(not finding.held for finding in findings)
    if arguments.json:
        from ringfence.cli.json_text import print_json

        rows = [{"name": f.check.name, "promise": f.check.promise, "held": f.held, "proven": f.proven,
                 "problem": f.problem} for f in findings]  # fmt: skip
        print_json({"level": arguments.level, "checks": rows})
    else:
        print(f"\n{len(findings) - broken} of {len(findings)} promises held on level {arguments.level}")
    return 1 if broken else 0


def _word(finding: Finding) -> str:
    if not finding.held:
        return "BROKEN"
    return "held" if finding.proven else "unproven"


def _because(finding: Finding) -> str:
    return f": {finding.problem}" if finding.problem else ""
