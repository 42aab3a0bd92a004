"""Attacks on hidden paths: every route to a name that must be absent, and every trick to bring it back.

Part of the family of the file system. A hidden name lies in the workspace or below a readable directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from tests.escape.attack import Attack, Stage, in_workspace
from tests.escape.raw_calls import calling

Prepare = Callable[[Stage], Mapping[str, object]]
SECRET = "the answer"


def _tree(stage: Stage) -> Mapping[str, object]:
    """A directory with an oracle in it: a secret, a program and a link."""
    place = stage.folder / "tree"
    oracle = place / "oracle"
    oracle.mkdir(parents=True)
    (place / "beside.txt").write_text("harmless")
    (oracle / "secret.txt").write_text(SECRET)
    os.symlink("secret.txt", oracle / "link")
    program = oracle / "program"
    program.write_text("#!/bin/sh\necho ESCAPED\n")
    program.chmod(0o755)
    return {"tree": str(place), "oracle": str(oracle), "path": str(oracle / "secret.txt"), "folder": str(stage.folder)}


@in_workspace
def _in_workspace(stage: Stage) -> Mapping[str, object]:
    given = _tree(stage)
    stage.cwd = stage.folder / "tree"
    stage.policy["hidden_paths"] = [given["oracle"]]
    return given


@in_workspace
def _single_files(stage: Stage) -> Mapping[str, object]:
    given = _tree(stage)
    stage.cwd = stage.folder / "tree"
    stage.policy["hidden_paths"] = [f"{given['oracle']}/{name}" for name in ("secret.txt", "link", "program")]
    return given


def _below_readable(stage: Stage) -> Mapping[str, object]:
    given = _tree(stage)
    stage.policy |= {"readable_paths": [given["tree"]], "hidden_paths": [given["oracle"]]}
    return given


@in_workspace
def _named_by_a_link(stage: Stage) -> Mapping[str, object]:
    """The policy names the hidden path through a link on the host."""
    given = _in_workspace(stage)
    os.symlink("tree", stage.folder / "alias")
    stage.policy["hidden_paths"] = [str(stage.folder / "alias" / "oracle")]
    return given


@in_workspace
def _link_is_hidden(stage: Stage) -> Mapping[str, object]:
    """The policy names a link; what it leads to is meant."""
    given = _in_workspace(stage)
    os.symlink("oracle", stage.folder / "tree" / "alias")
    stage.policy["hidden_paths"] = [f"{given['tree']}/alias"]
    return given


def _system(_: Stage) -> Mapping[str, object]:
    return {"path": "/usr/share/doc"}


def _hidden_system(stage: Stage) -> Mapping[str, object]:
    stage.policy["hidden_paths"] = ["/usr/share/doc"]
    return _system(stage)


def _read(path: str) -> str:
    return f"found = open({path}).read() == {SECRET!r}"


_HANDLE = "found = call('name_to_handle_at', -100, GIVEN['path'].encode(), b'\\x80' + bytes(200), ctypes.create_string_buffer(8), 0)[0] == 0"
_STATX = "found = call('statx', -100, GIVEN['path'].encode(), 0, 0x7FF, ctypes.create_string_buffer(256))[0] == 0"
_INOTIFY = "found = call('inotify_add_watch', call('inotify_init1', 0)[0], GIVEN['path'].encode(), 0xFFF)[0] > 0"

# route: a statement that sets ``found``, or fails
ROUTES = {
    "open": _read("GIVEN['path']"),
    "relative open": "os.chdir(GIVEN['tree']); " + _read("'oracle/secret.txt'"),
    "dirfd": "place = os.open(GIVEN['tree'], os.O_RDONLY); found = os.open('oracle/secret.txt', 0, dir_fd=place) > 0",
    "dots": _read("GIVEN['tree'] + '/../tree/./oracle//secret.txt'"),
    "/proc/self/root": _read("'/proc/self/root' + GIVEN['path']"),
    "/proc/self/cwd": "os.chdir(GIVEN['tree']); " + _read("'/proc/self/cwd/oracle/secret.txt'"),
    "/proc/thread-self/root": _read("'/proc/thread-self/root' + GIVEN['path']"),
    "symlink": "os.symlink(GIVEN['oracle'], '/tmp/rf-link'); " + _read("'/tmp/rf-link/secret.txt'"),
    "O_PATH": "found = os.open(GIVEN['path'], os.O_PATH) > 0",
    "chdir": "os.chdir(GIVEN['oracle']); found = True",
    "list": "found = 'secret.txt' in os.listdir(GIVEN['oracle']) and 'oracle' in os.listdir(GIVEN['tree'])",
    "exec": "import subprocess; "
            "found = subprocess.run([GIVEN['oracle'] + '/program'], capture_output=True).stdout != b''",
    "stat": "os.stat(GIVEN['path']); found = True",
    "lstat": "os.lstat(GIVEN['oracle'] + '/link'); found = True",
    "access": "found = os.access(GIVEN['path'], os.F_OK)",
    "readlink": "found = os.readlink(GIVEN['oracle'] + '/link') == 'secret.txt'",
    "statx": _STATX,
    "name_to_handle_at": _HANDLE,
    "inotify": _INOTIFY,
    "getxattr": "os.listxattr(GIVEN['path']); found = True",
    "statvfs": "os.statvfs(GIVEN['path']); found = True",
}
WRITING = {
    "hard link": "os.link(GIVEN['path'], 'copy'); " + _read("'copy'"),
    "rename": "os.rename(GIVEN['path'], 'copy'); " + _read("'copy'"),
    "rename of the directory above": "os.rename(GIVEN['oracle'], 'copy'); " + _read("'copy/secret.txt'"),
    "unlink": "os.unlink(GIVEN['path']); found = True",
    "truncate": "os.truncate(GIVEN['path'], 3); found = True",
    "chmod": "os.chmod(GIVEN['path'], 0o666); found = True",
    "chown": "os.chown(GIVEN['path'], os.getuid(), -1); found = True",
    "utime": "os.utime(GIVEN['path']); found = True",
    "setxattr": "os.setxattr(GIVEN['path'], 'user.x', b'y'); found = True",
}
# A trick makes something at the hidden name, plays with it, and looks whether the lower one shows through.
_MAKE = "os.path.isdir(GIVEN['oracle']) or os.mkdir(GIVEN['oracle']); "
TRICKS = {
    "mkdir over it": _MAKE + _read("GIVEN['path']"),
    "mkdir and rmdir": "os.path.isdir(GIVEN['oracle']) or (os.mkdir(GIVEN['oracle']), os.rmdir(GIVEN['oracle'])); "
                       + _read("GIVEN['path']"),
    "rename a directory over it": "os.path.isdir('oracle') or (os.mkdir('new'), os.rename('new', GIVEN['oracle'])); "
                               + _read("GIVEN['path']"),
    "rename away and back": _MAKE + "os.rename('oracle', 'away'); os.rename('away', 'oracle'); "
                            + _read("GIVEN['path']"),
    "exchange": _MAKE + "os.makedirs('other', exist_ok=True); call('renameat2', -100, b'oracle', -100, b'other', 2); "
                        "call('renameat2', -100, b'oracle', -100, b'other', 2); " + _read("GIVEN['path']"),
    "take the opaque mark off": _MAKE + "[call('removexattr', b'oracle', n) for n in (b'user.overlay.opaque',"
                                " b'trusted.overlay.opaque')]; " + _read("GIVEN['path']"),
    "forge an opaque mark": _MAKE + "[call('setxattr', b'oracle', n, b'n', 1, 0) for n in (b'user.overlay.opaque',"
                            " b'trusted.overlay.opaque')]; " + _read("GIVEN['path']"),
    "forge a redirect": "os.mkdir('new'); [call('setxattr', b'new', n, b'/oracle', 7, 0) for n in"
                        " (b'user.overlay.redirect', b'trusted.overlay.redirect')]; os.rename('new', 'newer'); "
                        + _read("'newer/secret.txt' if not os.path.exists(GIVEN['path']) else GIVEN['path']"),
    "forge a metacopy": "open('new', 'w').close(); [call('setxattr', b'new', n, v, len(v), 0) for n, v in"
                        " ((b'user.overlay.metacopy', b'x'), (b'user.overlay.redirect', b'/oracle/secret.txt'))]; "
                        + _read("'new' if not os.path.exists(GIVEN['path']) else GIVEN['path']"),
}  # fmt: skip


def _probe(statement: str) -> str:
    calls = calling("name_to_handle_at", "statx", "inotify_add_watch", "inotify_init1", "renameat2", "setxattr",
                    "removexattr")  # fmt: skip
    steps = "".join(f"  {part}\n" for part in statement.split("; "))
    clean = "for path in ('/tmp/rf-link',):\n  if os.path.islink(path): os.unlink(path)\n"
    return calls + "found = False\n" + clean + "try:\n" + steps + "except OSError as e: print(e)\n" \
        + clean + "if found: print('ESCAPED')\n"  # fmt: skip


def _attack(where: str, route: str, statement: str, prepare: Prepare) -> Attack:
    return Attack(name=f"hidden in {where} by {route}", family="filesystem", what="a hidden path is reached",
                  prepare=prepare, probe=_probe(statement))  # fmt: skip


_LEAST = ("open", "dirfd", "/proc/self/root", "stat", "readlink", "exec", "list", "O_PATH")

ATTACKS = [
    *(_attack("the workspace", *row, _in_workspace) for row in (ROUTES | WRITING | TRICKS).items()),
    *(_attack("a readable directory", route, ROUTES[route], _below_readable) for route in _LEAST),
    *(_attack("a workspace file by file", route, ROUTES[route], _single_files) for route in _LEAST[:-2]),
    *(_attack("the system", route, source, _hidden_system) for route, source in (
        ("list", "os.listdir(GIVEN['path']); found = True"), ("stat", "os.stat(GIVEN['path']); found = True"))),
    _attack("a directory that the policy names by a link", "open", ROUTES["open"], _named_by_a_link),
    _attack("a directory that a hidden link leads to", "open", ROUTES["open"], _link_is_hidden),
]  # fmt: skip
