"""Real programs work in STRICT, unchanged: as they would in an ordinary account without a network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import packages
from tests.programs.workshop import inside, python, script, succeeded

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured, pytest.mark.long]

IDENTITY = "export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b\n"

GIT = {
    "commit": "git add notes && git commit -qm third && git log --format=%s && git status --short",
    "branch": "git checkout -qb side && echo x > f && git add f && git commit -qm side && git branch --list | sort",
    "worktree": "git worktree add -q tree -b side && cd tree && echo w > w && git add w && git commit -qm third &&"
    " git -C .. log side --format=%s && git -C .. worktree list | wc -l && git worktree remove ../tree",
    "clone": "git clone -q --no-hardlinks . copy && cd copy && git log --format=%s && git fsck --strict",
    "clone by address": "git clone -q file://$PWD copy && git -C copy log --format=%s",
    "clone of what was made inside": "git init -q x && git -C x commit -q --allow-empty -m x && git clone -q x y &&"
    " git -C y log --format=%s",
    "stash": "git add -A && git stash -q && test ! -e notes/a && git stash pop -q && cat notes/a",
    "rebase": "git checkout -qb one && echo 1 > 1 && git add 1 && git commit -qm one && git checkout -qb two main &&"
    " echo 2 > 2 && git add 2 && git commit -qm two && git rebase -q one && git log --format=%s",
    "gc": "git add -A && git commit -qm third && git gc -q --prune=now && git fsck &&"
    " git count-objects -v | grep packs",
    "move": "git add -A && git commit -qm third && git mv notes/a b && git commit -qm moved && cat b",
    "reset": "git add -A && git commit -qm third && git rm -rq notes && git reset -q --hard && cat notes/a",
}
GIT_SAYS = {
    "commit": "third\nsecond\nfirst\n", "branch": "  main\n* side\n", "worktree": "third\nsecond\nfirst\n2\n",
    "clone": "second\nfirst\n", "clone by address": "second\nfirst\n", "clone of what was made inside": "x\n",
    "stash": "a\n", "rebase": "two\none\nsecond\nfirst\n", "gc": "packs: 1\n",
    "move": "a\n", "reset": "a\n",
}  # fmt: skip


@pytest.mark.parametrize("what", GIT)
def test_git_works_in_the_workspace(what: str, repository: Path) -> None:
    assert script(IDENTITY + GIT[what], repository) == GIT_SAYS[what]


LIMITS = {
    "a directory of the base is renamed": ("git add -A && git mv notes noted", b"cross-device link"),
    "a file of the base is linked": ("git clone -q . copy", b"hardlink different from source"),
}


@pytest.mark.parametrize("what", LIMITS)
def test_what_an_overlay_without_privileges_cannot_do_fails_with_a_clear_word(what: str, repository: Path) -> None:
    """redirect_dir and index need real privileges. mv, cp and git clone --no-hardlinks do the same another way."""
    text, word = LIMITS[what]
    outcome = inside("bash", "-ec", IDENTITY + text, cwd=repository)
    assert outcome.rc == 128
    assert word in outcome.stderr


def test_git_starts_a_repository_in_a_private_folder() -> None:
    text = "git init -q -b main . && echo x > x && git add x && git commit -qm x && git log --oneline"
    told = script(IDENTITY + text)
    assert told.endswith(" x\n")


C_PROGRAM = r"""
#include <stdio.h>
#include <pthread.h>
static void *work(void *given) { return given; }
int main(void) { pthread_t t; void *r; pthread_create(&t, 0, work, "from a thread");
                 pthread_join(t, &r); puts(r); return 0; }
"""
SHELL = {
    "gcc": (f"cat > p.c <<'END'\n{C_PROGRAM}\nEND\ngcc -O2 -Wall -pthread -o p p.c && ./p", "from a thread\n"),
    "static gcc": (f"cat > p.c <<'END'\n{C_PROGRAM}\nEND\ngcc -static -pthread -o p p.c && ./p", "from a thread\n"),
    "make": ("printf 'all: a b\\na b:\\n\\t@echo made $@ > $@\\n' > Makefile; make -sj4 && cat a b",
             "made a\nmade b\n"),
    "perl": ("perl -MFile::Temp -e 'print scalar(reverse(\"lrep\")), \"\\n\"'", "perl\n"),
    "tar and xz": ("tar cJf a.txz src && mkdir out && tar xJf a.txz -C out && diff -r src out/src && echo same",
                   "same\n"),
    "find and grep": ("find . -type f | sort | xargs grep -l 'content of src' | wc -l", "3\n"),
    "job control": ("set -m; sleep 100 & sleep 100 & jobs | wc -l; kill %1 %2; wait || true", "2\n"),
    "pipes": ("seq 1 1000 | sort -rn | head -1; mkfifo p; (echo through > p &); cat p", "1000\nthrough\n"),
    "process list": ("ps -e -o comm= | head -1; ps -o pid= -p $$ | tr -d ' '", None),
    "signals": ("trap 'echo caught' USR1; kill -USR1 $$; (trap - TERM; kill -TERM $BASHPID) || echo $?",
                "caught\n143\n"),
    "names in UTF-8": ("echo ü > 'naïve ☃'; ls | grep ☃; cat na*; locale charmap", "naïve ☃\nü\nUTF-8\n"),
    "who am i": ('test "$(id -un)" = "$USER" && touch mine && test -O mine && cd && test -w . && pwd', "/home/user\n"),
    "terminal": ("script -qec 'tty; test -t 0 && echo yes' /dev/null | tail -1 | tr -d '\\r'", "yes\n"),
    "links": ("ln -s README l && ln README h && cat l h | sort -u && readlink l", "content of README\nREADME\n"),
    "temporary files": ('f=$(mktemp) && d=$(mktemp -d) && echo t > "$f" && cp "$f" "$d" && cat "$d"/*', "t\n"),
    "locks": ("exec 9> lock; flock -n 9 && (flock -n lock true || echo held)", "held\n"),
    "devices": ("head -c4 /dev/urandom | wc -c; echo x > /dev/null; head -c2 /dev/zero | od -An -tx1; ls /dev/shm",
                "4\n 00 00\n"),
    "diff and patch": ("cp -r src new && echo more >> new/one.c && (diff -ru src new > p || true) && patch -sp0 < p &&"
                       " diff -r src new && echo same", "same\n"),
}  # fmt: skip


@pytest.mark.parametrize("what", SHELL)
def test_the_programs_of_every_day_work(what: str, workspace: Path) -> None:
    text, expected = SHELL[what]
    told = script(text, workspace)
    assert told.strip() if expected is None else told == expected


TREES = {
    "removed and made again": "rm -r src && mkdir -p src/deep && echo new > src/deep/n && find src -type f",
    "removed for good": "rm -r src docs README && ls -A | wc -l",
    "renamed": "mv src moved && cat moved/deep/er/three.txt && ! test -e src && mv moved src && ls src",
    "renamed over": "rm -r docs && mv src docs && cat docs/one.c",
    "file for a directory": "rm -r src && echo now a file > src && cat src",
    "directory for a file": "rm README && mkdir README && touch README/inside && ls README",
    "modes": "chmod 755 src && chmod 644 README && stat -c %a src README",
    "written": "echo more >> README && cat README && : > docs/page && wc -c < docs/page",
    "copied": "cp -a src copy && diff -r src copy && stat -c %a copy copy/one.c",
}
TREES_SAY = {
    "removed and made again": "src/deep/n\n", "removed for good": "0\n",
    "renamed": "content of src/deep/er/three.txt\ndeep\none.c\n", "renamed over": "content of src/one.c\n",
    "file for a directory": "now a file\n", "directory for a file": "inside\n", "modes": "755\n644\n",
    "written": "content of README\nmore\n0\n", "copied": "700\n600\n",
}  # fmt: skip


@pytest.mark.parametrize("what", TREES)
def test_the_owners_closed_files_can_be_changed_in_any_way(what: str, workspace: Path) -> None:
    assert script(TREES[what], workspace) == TREES_SAY[what]


def test_everything_in_the_workspace_is_the_jobs_own(workspace: Path) -> None:
    told = script("touch new && find . ! -uid $(id -u) -o ! -gid $(id -g) | wc -l", workspace)
    assert told == "0\n"


def test_pythons_own_rename_of_a_lower_folder_says_cross_device_and_shutil_goes_on(workspace: Path) -> None:
    """An overlay without redirect_dir gives EXDEV, as between two disks; programs that move know it."""
    told = python(
        "import errno, os, shutil\n"
        "try: os.rename('src', 'moved')\n"
        "except OSError as error: print(errno.errorcode[error.errno])\n"
        "shutil.move('src', 'moved'); print(sorted(os.listdir('moved')))",
        workspace,
    )
    assert told == "EXDEV\n['deep', 'one.c']\n"


NODE = """
const { Worker, isMainThread, parentPort } = require('worker_threads');
if (!isMainThread) { parentPort.postMessage('worker'); } else {
  const child = require('child_process').spawnSync(process.execPath, ['-e', 'console.log("child")']);
  process.stdout.write(child.stdout);
  const server = require('net').createServer(s => s.end('net\\n')).listen(0, '127.0.0.1', () =>
    require('net').connect(server.address().port, '127.0.0.1').on('data', d => process.stdout.write(d))
    .on('end', () => {
      server.close();
      new Worker(__filename).on('message', m => console.log(m));
    }));
}
"""


@pytest.fixture(scope="session")
def node() -> str:
    return packages.program("node")


def test_node_runs_child_processes_workers_and_sockets(node: str) -> None:
    outcome = inside(node, "main.js", files={"main.js": NODE.encode()})
    assert succeeded(outcome) == "child\nnet\nworker\n"


def test_a_root_callers_files_made_inside_do_not_belong_to_root(workspace: Path) -> None:
    """In the sandbox nobody is root, whoever asked for it."""
    told = python("import os; open('f', 'w'); print(os.getuid(), os.stat('f').st_uid, os.stat('.').st_uid)", workspace)
    uid = 1000 if os.geteuid() == 0 else os.getuid()
    assert told.split() == [str(uid)] * 3
