"""Show the effective policy, or check a policy file: every error names file, line, column and field."""

from __future__ import annotations

import argparse

from ringfence.model.policy import SandboxPolicy

EXAMPLES = """\
examples:
  ringfence policy show                (the defaults)
  ringfence policy show policy.yaml    (the file over the defaults)
  ringfence policy check policy.yaml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show", "check"])
    parser.add_argument("file", nargs="?", help="a policy file (YAML)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.errors import UsageError

    if arguments.action == "check" and not arguments.file:
        raise UsageError("no file was given", hint="ringfence policy check FILE")
    policy = SandboxPolicy.from_yaml(arguments.file) if arguments.file else SandboxPolicy()
    if arguments.action == "check":
        print(f"{arguments.file}: a sound policy")
    elif arguments.json:
        from ringfence.cli.json_text import print_json

        print_json(policy.to_dict())
    else:
        print(_as_yaml(policy), end="")
    return 0


def _as_yaml(policy: SandboxPolicy) -> str:
    """A policy file that says the same: what is shown can be saved and read again."""
    import yaml

    values = {name: value for name, value in policy.to_dict().items() if value is not None}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
