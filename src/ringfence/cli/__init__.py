"""The command line: a table of commands, each a module of its own that is loaded when it is used."""

from __future__ import annotations

import errno
import os
import sys
from _collections_abc import Mapping, Sequence

# command: (module in this package, one line of help)
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run", "run a command under a policy"),
    "commit": ("commit", "apply the changes of a kept sandbox"),
    "discard": ("discard", "discard the changes of a kept sandbox"),
    "diff": ("diff", "show what a kept sandbox changed"),
    "sandboxes": ("sandboxes", "list the kept sandboxes, or remove old ones"),
    "checkpoints": ("checkpoints", "list the checkpoints of a kept sandbox"),
    "rollback": ("rollback", "take a kept sandbox back to a checkpoint"),
    "test": ("test", "run pytest under a policy"),
    "top": ("top", "watch the sandboxes that run now"),
    "usage": ("usage", "draw what a run used over time"),
    "mcp": ("mcp", "serve a sandbox to an MCP application"),
    "jupyter": ("jupyter", "install a kernel for Jupyter whose cells run in a sandbox"),
    "probe": ("probe", "show what this host can enforce, and how to enable what is missing"),
    "policy": ("policy", "show or check a policy file"),
    "validate": ("validate", "check Python code for what does not belong in a sandbox"),
    "serve": ("serve", "serve runs and boxes over HTTP, with a live page"),
    "metrics": ("metrics", "serve metrics to Prometheus"),
    "strategy": ("strategy", "run a strategy in a container"),
    "config": ("config", "show the configuration of containers and where each value comes from"),
    "selfcheck": ("selfcheck", "attack the sandbox on this host and see each promise hold"),
    "cleanup": ("cleanup", "remove containers whose owner is gone"),
    "corpus": ("corpus", "test a sandbox for agents: run cheats and their honest twins in it"),
    "demo": ("demo", "watch a hostile script run into its limits"),
    "keygen": ("keygen", "make a signing key"),
    "verify": ("verify", "check a signed verdict"),
    "verify-bundle": ("verify_bundle", "check a signed bundle and everything it binds"),
    "verify-page": ("verify_page", "print a web page that checks bundles in the browser, without a network"),
    "verify-release": ("verify_release", "check that the files of a release are those that were signed"),
    "completion": ("completion", "print a completion script for bash, zsh or fish"),
    "setup": ("setup", "allow user namespaces on a host where AppArmor restricts them"),
    "man": ("man", "print the manual page"),
}
PROCTOR_COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("proctor_init", "write a task to start from"),
    "run": ("proctor_run", "run an agent on a task and sign what happened"),
    "manifest": ("proctor_manifest", "record the digests of what is submitted with an agent, or check them"),
    "bench": ("proctor_bench", "run an agent on all tasks of a suite and sign all results"),
    "verify-suite": ("verify_suite", "check the manifest of a suite and every bundle that it signs"),
    "run-tb": ("proctor_run_tb", "run an agent on a task of Terminal-Bench or Harbor"),
    "run-swebench": ("proctor_run_swebench", "run an agent on an instance of SWE-bench, or grade a prediction"),
    **{name: COMMANDS[name] for name in ("keygen", "verify", "verify-bundle", "verify-page", "probe")},
}

# Commands that will run a job for certain.
FORK_EARLY = frozenset({"run"})
INTERRUPTED = 130
_GARBAGE = 100_000
"""So many more objects than before are worth a look for garbage."""
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
    _look_for_garbage_rarely()
    from ringfence.cli import quick_import

    quick_import.install()
    # As stderr has it: a sign, or a name of somebody else's, that can't be shown is no reason to fail.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code: object = dispatch(program, commands, sys.argv[1:], own_process=True)
    except SystemExit as end:  # argparse, after help or a mistake
        code = end.code
    _flush()
    # The interpreter's own farewell takes some milliseconds and has nothing left to do here.
    os._exit(code if isinstance(code, int) else 0)


def _look_for_garbage_rarely() -> None:
    """What is loaded at the start lives to the end: to look through it again and again takes a tenth of the start."""
    import gc

    gc.set_threshold(_GARBAGE)


def _hold_standard_streams() -> None:
    """Where 0, 1 or 2 is closed, what is opened next takes its place: the door to the spawner, which the job would
    then get as its input and could ask for anything on the host.
    """
    closed = [number for number in (0, 1, 2) if not _is_open(number)]
    for _ in closed:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if closed:
        from ringfence.python_jobs import standard_streams

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
    try:
        code = _code_of(program, commands, argv, own_process)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 141  # whoever read our output has gone; there is nobody left to tell
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print(f"{program}: can't write: {error.strerror}", file=sys.stderr)
        return 1


def _code_of(program: str, commands: Mapping[str, tuple[str, str]], argv: list[str], own_process: bool) -> int:
    from ringfence.errors import SandboxError

    try:
        return _carry_out(program, commands, argv, own_process)
    except SandboxError as error:
        return _report(program, error)


def _carry_out(program: str, commands: Mapping[str, tuple[str, str]], argv: list[str], own_process: bool) -> int:
    """Find the command, load its module, parse its arguments, run it."""
    name = argv[0] if argv else ""
    if name in ("-V", "--version"):
        from ringfence import __version__

        print(f"{program} {__version__}")
        return 0
    if name not in commands:
        return _top_level_help(program, commands, name)
    if own_process and name in FORK_EARLY and os.name == "posix":
        from ringfence.roles import spawner

        spawner.fork_early(for_run=_is_strict(argv))
    path = f"ringfence.cli.{commands[name][0]}"
    __import__(path)  # importlib would load much more than this one
    module = sys.modules[path]
    return _execute(module, _parse(f"{program} {name}", module, argv[1:]))


def _is_strict(words: Sequence[str]) -> bool:
    """Whether a run seems to ask for a sandbox: what is got ready early is decided by it, and nothing else."""
    own = words[: words.index("--")] if "--" in words else words
    return "--isolation" not in own or "strict" in own


def _execute(module: ModuleType, arguments: object) -> int:
    from ringfence.errors import SandboxError

    try:
        code: int = module.execute(arguments)
    except SandboxError as error:
        error.as_json = getattr(arguments, "json", False)  # type: ignore[attr-defined]
        raise
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
    """Say what went wrong and what to do, in words or as data; the exit code comes from one table."""
    from ringfence import errors

    codes = {errors.UsageError: 2, errors.UnavailableError: 2}
    found = (code for kind, code in codes.items() if isinstance(error, kind))
    code: int = next(found, getattr(error, "exit_code", 1))
    if getattr(error, "as_json", False):
        from ringfence.cli.json_text import error_object, print_json

        print_json(error_object(error, code))
    else:
        _say(program, error)
    return code


def _say(program: str, error: Exception) -> None:
    """Names in it may be a hostile program's, and a terminal obeys control characters."""
    from ringfence.model.system_text import escape_controls

    for each in (error, *getattr(error, "more", ())):
        prefix = "" if getattr(each, "where", "") else f"{program}: "
        print(escape_controls(f"{prefix}{each}", keep="\n\t"), file=sys.stderr)
    hints = getattr(error, "fixes", ()) or (getattr(error, "hint", ""),)
    for hint in filter(None, hints):
        print(escape_controls(f"  {hint}", keep="\n\t"), file=sys.stderr)


def _top_level_help(program: str, commands: Mapping[str, tuple[str, str]], name: str) -> int:
    """Without a word it is a mistake, e.g. of a script whose variable is empty, and is told as one."""
    if name not in ("-h", "--help", "help", ""):
        from ringfence.cli.parser import did_you_mean

        kind = "option" if name.startswith("-") else "command"
        near = did_you_mean(name, (*commands, "--help", "--version"))
        print(f"{program}: there is no {kind} {name!r}{near}\n  {program} --help lists them", file=sys.stderr)
        return 2
    width = max(map(len, commands))
    lines = [f"usage: {program} COMMAND …", "", "commands:"]
    lines += [f"  {command:<{width}}  {help_line}" for command, (_, help_line) in commands.items()]
    lines += ["", f"{program} COMMAND --help has the details."]
    print("\n".join(lines), file=sys.stdout if name else sys.stderr)
    return 0 if name else 2
