"""Show the policy that `ringfence run` uses, or check a policy file: every error names file, line, column and field.

If nothing sets isolation, it is strict; for `ringfence test` and in Python it is process.
"""

from __future__ import annotations

import argparse

from ringfence.cli.json_text import print_json
from ringfence.cli.policy_flags import policy_of
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import field_names
from ringfence.model.system_text import escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.engine.planned import Planned

_SHOWN = 400

EXAMPLES = """\
examples:
  ringfence policy show                (the defaults)
  ringfence policy show policy.yaml    (the file over the defaults)
  ringfence policy check policy.yaml
  ringfence policy plan policy.yaml    (which process makes which system calls, without running anything)
  ringfence policy check policy.yaml --json | jq '.fields[].field'      (which are wrong)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["show", "check", "plan"],
                        help="print the policy, check the file, or list what each process would do")  # fmt: skip
    parser.add_argument("file", nargs="?", help="a policy file (YAML)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.errors import UsageError

    if arguments.action == "check" and not arguments.file:
        raise UsageError("no file was given", hint="name it: ringfence policy check FILE")
    policy = policy_of(arguments.file, IsolationLevel.STRICT)
    if arguments.action == "plan":
        _print_plan(policy, as_json=arguments.json)
    elif arguments.action == "check":
        _tell_sound(arguments.file, policy, as_json=arguments.json)
    elif arguments.json:
        print_json(policy.to_dict())
    else:
        print(_as_yaml(policy), end="")
    return 0


def _print_plan(policy: SandboxPolicy, *, as_json: bool) -> None:
    from ringfence.engine.planned import PROCESSES, planned

    rows = planned(policy)
    if as_json:
        print_json({"policy": policy.to_dict(), "plan": [_row(row) for row in rows]})
        return
    process = ""
    for row in rows:
        if row.process != process:
            process = row.process
            print(f"{process}: {PROCESSES[process]}")
        _print_row(row)


def _row(row: Planned) -> dict[str, object]:
    """A row as data, whole."""
    calls = [{name: getattr(call, name) for name in field_names(call)} for call in row.calls]
    return {"process": row.process, "step": row.step, "arguments": _plain(row.arguments), "calls": calls}


def _plain(value: object) -> object:
    """What JSON can express; bytes are an object: ``text`` where they are UTF-8, else ``hex``."""
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _bytes(value: bytes) -> dict[str, str]:
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _print_row(row: Planned) -> None:
    tables = [each for each in row.arguments if isinstance(each, dict)]
    words = [_shown(each) for each in row.arguments if not isinstance(each, dict)]
    print(" ".join((f"  {escape_controls(row.step)}", *words)))
    for name, value in (item for table in tables for item in table.items()):
        text = ", ".join(value) if isinstance(value, list) else str(value)
        print(f"    {escape_controls(name)}: {escape_controls(text)}")
    for call in row.calls:
        print(f"    {call.text}")


def _shown(argument: object) -> str:
    """Return a value for a reader: without control characters, and of bounded length."""
    text = ascii(argument)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _tell_sound(file: str, policy: SandboxPolicy, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": file, "sound": True, "policy": policy.to_dict()})
    else:
        print(f"{escape_controls(file)}: valid policy")


def _as_yaml(policy: SandboxPolicy) -> str:
    """A policy file with the same meaning: what is shown can be saved and read again."""
    import yaml

    values = {name: value for name, value in policy.to_dict().items() if value is not None}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
