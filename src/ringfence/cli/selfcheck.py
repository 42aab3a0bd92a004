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
The exit code is 0 when every promise held, else 1. A probe that fails without the sandbox too is
«unproven»: it counts as held, and the last line names how many there are.
docs/explanation/guarantees.md lists the probes. The attack corpus is not among them.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    from ringfence.engine.run import isolating_levels

    levels = [*map(str, isolating_levels())]
    parser.add_argument("--level", choices=levels, default="process", help="the isolation level (default: process)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.backends.conformance import CHECKS, ON_WINDOWS, perform
    from ringfence.engine.run import run, traits_of

    findings = []
    level = IsolationLevel(arguments.level)
    for finding in perform(run, level, traits=traits_of(level)):
        findings.append(finding)
        if not arguments.json:
            because = f": {finding.problem}" if finding.problem else ""
            print(f"{_word(finding):<8}  {finding.check.promise}{because}", flush=True)
    broken = sum(not finding.held for finding in findings)
    if arguments.json:
        from ringfence.cli.json_text import print_json

        rows = [{"name": f.check.name, "promise": f.check.promise, "held": f.held, "proven": f.proven,
                 "problem": f.problem} for f in findings]  # fmt: skip
        print_json({"level": arguments.level, "checks": rows})
    else:
        left_out = {check.name for check in CHECKS} - {finding.check.name for finding in findings}
        for name in (name for name in ON_WINDOWS if name in left_out):
            print(f"{'left out':<8}  {name}: {ON_WINDOWS[name][0]}")
        unproven = sum(_word(finding) == "unproven" for finding in findings)
        but = f", {unproven} of them unproven" if unproven else ""
        print(f"\n{len(findings) - broken} of {len(findings)} promises held on level {arguments.level}{but}")
    return 1 if broken else 0


def _word(finding: Finding) -> str:
    if not finding.held:
        return "BROKEN"
    return "held" if finding.proven else "unproven"
