"""The command line: a table of commands, each a module of its own that is loaded when it is used."""

from __future__ import annotations

import os
import sys
from _collections_abc import Mapping, Sequence

# command: (module in this package, one line of help)
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "run a command under a policy"),
    "commit": ("commit", "carry over what a kept sandbox changed"),
    "discard": ("discard", "throw it away"),
    "diff": ("diff", "show what a kept sandbox changed"),
    "sandboxes": ("sandboxes", "list the kept sandboxes, or remove old ones"),
    "checkpoints": ("checkpoints", "list the checkpoints of a kept sandbox"),
    "rollback": ("rollback", "take a kept sandbox back to a checkpoint"),
    "test": ("test", "run pytest under a policy"),
    "top": ("top", "watch the sandboxes that run now"),
    "usage": ("usage", "draw what a run used over time"),
    "probe": ("probe", "what this host can enforce, and how to enable what is missing"),
    "policy": ("policy", "show or check a policy file"),
    "selfcheck": ("selfcheck", "attack the sandbox on this host and see each promise hold"),
    "demo": ("demo", "watch a hostile script run into its limits"),
    "keygen": ("keygen", "make a signing key"),
    "verify": ("verify", "check a signed verdict"),
    "verify-bundle": ("verify_bundle", "check a signed bundle and all that it binds"),
    "verify-page": ("verify_page", "print a web page that checks bundles in the browser, without a network"),
}
PROCTOR_COMMANDS: Mapping[str, tuple[str, str]] = {
    name: COMMANDS[name] for name in ("keygen", "verify", "verify-bundle", "verify-page", "probe")
}

# Commands that will run a job for certain.
FORK_EARLY = frozenset({"run"})
INTERRUPTED = 130

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``ringfence``."""
    return _enter("ringfence", COMMANDS, argv)


def proctor_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``proctor``."""
    return _enter("proctor", PROCTOR_COMMANDS, argv)


def _enter(program: str, commands: Mapping[str, tuple[str, str]], argv: Sequence[str] | None) -> int:
    if argv is not None:
        return dispatch(program, commands, list(argv))
    code = dispatch(program, commands, sys.argv[1:])
    _flush()
    # The interpreter's own farewell takes some milliseconds and has nothing left to do here.
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, AttributeError):
            continue  # nobody reads it any more


def dispatch(program: str, commands: Mapping[str, tuple[str, str]], argv: list[str]) -> int:
    """Find the command, load its module, parse its arguments, run it, and turn errors into words."""
    name = argv[0] if argv else "--help"
    if name in ("-V", "--version"):
        from ringfence import __version__

        print(f"{program} {__version__}")
        return 0
    if name not in commands:
        return _top_level_help(program, commands, name)
    if name in FORK_EARLY:
        from ringfence.posix import spawner

        spawner.fork_early()
    return _execute(program, name, commands[name], argv[1:])


def _execute(program: str, name: str, entry: tuple[str, str], rest: list[str]) -> int:
    from importlib import import_module

    from ringfence.errors import SandboxError

    module = import_module(f"ringfence.cli.{entry[0]}")
    try:
        code: int = module.execute(_parse(f"{program} {name}", module, rest))
        return code
    except SandboxError as error:
        return _report(program, error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 141  # whoever read our output has gone; there is nobody left to tell


def _parse(program: str, module: ModuleType, rest: list[str]) -> object:
    """By the command's own quick reader where it has one and understands everything, else by argparse."""
    quick: object = module.parse_quickly(rest) if hasattr(module, "parse_quickly") else None
    if quick is not None:
        return quick
    import argparse

    parser = argparse.ArgumentParser(
        prog=program,
        description=module.__doc__,
        epilog=getattr(module, "EXAMPLES", None),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_width()),
        allow_abbrev=False,
    )
    module.configure(parser)
    return parser.parse_args(rest)


def _width() -> int:
    """Asked here because argparse would load shutil, with all its archive formats, to ask."""
    try:
        return min(os.get_terminal_size().columns, 110) - 2
    except OSError:
        return 98


def _report(program: str, error: Exception) -> int:
    """Say what went wrong and what to do; the exit code comes from one table."""
    from ringfence import errors

    for each in (error, *getattr(error, "more", ())):
        prefix = "" if getattr(each, "where", "") else f"{program}: "
        print(f"{prefix}{each}", file=sys.stderr)
    hint = getattr(error, "hint", "")
    if hint:
        print(f"  {hint}", file=sys.stderr)
    codes = {errors.UsageError: 2, errors.UnavailableError: 2}
    found = (code for kind, code in codes.items() if isinstance(error, kind))
    return next(found, getattr(error, "exit_code", 1))


def _top_level_help(program: str, commands: Mapping[str, tuple[str, str]], name: str) -> int:
    asked = name in ("-h", "--help", "help")
    lines = [f"usage: {program} COMMAND …", "", "commands:"]
    lines += [f"  {command:<12} {help_line}" for command, (_, help_line) in commands.items()]
    lines += ["", f"{program} COMMAND --help tells more."]
    if not asked:
        lines = [f"{program}: there is no command {name!r}", "", *lines]
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2
