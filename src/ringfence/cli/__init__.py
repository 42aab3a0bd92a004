"""The command line: a table of commands, each a module of its own that is loaded when it is used."""

from __future__ import annotations

import errno
import os
import sys
from _collections_abc import Mapping, Sequence

# command: (module in this package, one line of help)
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "run a command under a policy"),
    "commit": ("commit", "carry over what a kept sandbox changed"),
    "discard": ("discard", "throw away what a kept sandbox changed"),
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
# Of an output that can't be written; any other OSError that comes up to here is a mistake of ours.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

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
    _hold_standard_streams()
    # As stderr has it: a sign, or a name of somebody else's, that can't be shown is no reason to fail.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code: object = dispatch(program, commands, sys.argv[1:], own_process=True)
    except SystemExit as end:  # argparse, after help or a mistake
        code = end.code
    _flush()
    # The interpreter's own farewell takes some milliseconds and has nothing left to do here.
    os._exit(code if isinstance(code, int) else 0)


def _hold_standard_streams() -> None:
    """Where 0, 1 or 2 is closed, what is opened next takes its place: the door to the spawner, which the job would
    then get as its input and could ask for anything on the host.
    """
    closed = [number for number in (0, 1, 2) if not _is_open(number)]
    for _ in closed:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if closed:
        from ringfence.posix import standard_streams

        standard_streams.renew()  # Python has None for them, and what is printed to None goes to stdout


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # nobody reads it any more


def dispatch(
    program: str, commands: Mapping[str, tuple[str, str]], argv: list[str], *, own_process: bool = False
) -> int:
    """Carry out what is asked for, and turn errors into words and an exit code.

    ``own_process``: this process is the command line and nothing else. Only then is the spawner forked from it: every
    sandbox would have the memory of another program.
    """
    from ringfence.errors import SandboxError

    try:
        code = _carry_out(program, commands, argv, own_process)
        sys.stdout.flush()
        return code
    except SandboxError as error:
        return _report(program, error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 141  # whoever read our output has gone; there is nobody left to tell
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print(f"{program}: can't write: {error.strerror}", file=sys.stderr)
        return 1


def _carry_out(program: str, commands: Mapping[str, tuple[str, str]], argv: list[str], own_process: bool) -> int:
    """Find the command, load its module, parse its arguments, run it."""
    name = argv[0] if argv else "--help"
    if name in ("-V", "--version"):
        from ringfence import __version__

        print(f"{program} {__version__}")
        return 0
    if name not in commands:
        return _top_level_help(program, commands, name)
    if own_process and name in FORK_EARLY:
        from ringfence.posix import spawner

        spawner.fork_early()
    from importlib import import_module

    module = import_module(f"ringfence.cli.{commands[name][0]}")
    code: int = module.execute(_parse(f"{program} {name}", module, argv[1:]))
    return code


def _parse(program: str, module: ModuleType, rest: list[str]) -> object:
    """By the command's own quick reader where it has one and understands everything, else by argparse."""
    quick: object = module.parse_quickly(rest) if hasattr(module, "parse_quickly") else None
    if quick is not None:
        return quick
    from ringfence.cli.parser import Parser

    parser = Parser(program, module)
    module.configure(parser)
    return parser.read(rest)


def _report(program: str, error: Exception) -> int:
    """Say what went wrong and what to do; the exit code comes from one table.

    Names in it may be a hostile program's, and a terminal obeys control characters.
    """
    from ringfence import errors
    from ringfence.cli.blocks import spelled_out

    for each in (error, *getattr(error, "more", ())):
        prefix = "" if getattr(each, "where", "") else f"{program}: "
        print(spelled_out(f"{prefix}{each}", keep="\n\t"), file=sys.stderr)
    hints = getattr(error, "fixes", ()) or (getattr(error, "hint", ""),)
    for hint in filter(None, hints):
        print(spelled_out(f"  {hint}", keep="\n\t"), file=sys.stderr)
    codes = {errors.UsageError: 2, errors.UnavailableError: 2}
    found = (code for kind, code in codes.items() if isinstance(error, kind))
    return next(found, getattr(error, "exit_code", 1))


def _top_level_help(program: str, commands: Mapping[str, tuple[str, str]], name: str) -> int:
    if name not in ("-h", "--help", "help"):
        from ringfence.cli.parser import did_you_mean

        kind = "option" if name.startswith("-") else "command"
        near = did_you_mean(name, (*commands, "--help", "--version"))
        print(f"{program}: there is no {kind} {name!r}{near}\n  {program} --help lists them", file=sys.stderr)
        return 2
    width = max(map(len, commands))
    lines = [f"usage: {program} COMMAND …", "", "commands:"]
    lines += [f"  {command:<{width}}  {help_line}" for command, (_, help_line) in commands.items()]
    print("\n".join([*lines, "", f"{program} COMMAND --help tells more."]))
    return 0
