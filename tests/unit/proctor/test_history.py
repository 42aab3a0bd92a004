"""A repository at its base commit. Shortcoming 15: true ancestors, and nothing later, however it was kept.

The sources here are hostile where they can be; each attack has a control that shows it works against plain git.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.errors import SandboxError, UsageError
from ringfence.proctor import git_plumbing, history, staging
from ringfence.proctor.task import Task
from ringfence.proctor.task_policy import TaskPolicy

pytestmark = [pytest.mark.system, pytest.mark.privileges]

_PERSON = {"NAME": "A U Thor", "EMAIL": "author@example.com", "DATE": "2026-01-02T03:04:05Z"}
WHO = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _PERSON.items()}


def git(folder: Path, *arguments: str, data: str | bytes = "", status: int | None = 0, **variables: str) -> str:
    """Plain git, as anybody would run it there; ``status`` None: whatever it is."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    text = data.encode() if isinstance(data, str) else data
    command, every = ["git", "-c", "protocol.file.allow=always", *arguments], clean | WHO | variables
    done = subprocess.run(command, cwd=folder, env=every, input=text, capture_output=True, check=False)
    assert status is None or done.returncode == status, done.stderr.decode()
    return done.stdout.decode().strip()


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", "-A", "--force")
    git(folder, "commit", "-q", "--no-verify", "-m", f"{name}: {text[:20]!r}")
    return git(folder, "rev-parse", "HEAD")


def new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "trunk", "--template=")
    return folder


class Source:
    """A repository with a base commit that has two parents, and with later things in every place that git has."""

    def __init__(self, folder: Path) -> None:
        self.folder = new(folder)
        self.first = commit(folder, "a.txt", "one")
        git(folder, "checkout", "-q", "-b", "side")
        self.side = commit(folder, "side/b.txt", "two")
        git(folder, "checkout", "-q", "trunk")
        commit(folder, "a.txt", "three")
        git(folder, "merge", "-q", "--no-ff", "-m", "merged", "side")
        (folder / "link").symlink_to("side/b.txt")
        (folder / "tool").write_text("#!/bin/sh\n")
        (folder / "tool").chmod(0o755)
        self.base = commit(folder, "c.txt", "base")
        self.fix = commit(folder, "a.txt", "the fix")
        git(folder, "commit-graph", "write", "--reachable")
        self.other = git(folder, "commit-tree", "-m", "a hint", git(folder, "mktree"))
        self._keep_it_everywhere()

    def _keep_it_everywhere(self) -> None:
        folder = self.folder
        git(folder, "tag", "-a", "-m", "later", "v2")
        git(folder, "update-ref", "refs/remotes/origin/main", self.fix)
        git(folder, "notes", "add", "-m", "the fix is three lines long", self.base)
        (folder / "a.txt").write_text("stashed fix")
        git(folder, "stash")
        git(folder, "replace", "--graft", self.base, self.other)
        git(folder, "pack-refs", "--all")
        git(folder, "bundle", "create", "-q", ".git/fix.bundle", "--all")
        (folder / ".git" / "info").mkdir(exist_ok=True)
        (folder / ".git" / "info" / "grafts").write_text(f"{self.base} {self.other}\n")
        git(folder, "config", "user.email", "operator@example.com")
        git(folder, "config", "remote.origin.url", "https://token@example.com/private")
        self.loose = git(folder, "hash-object", "-w", "--stdin", data="dangling answer")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("source") / "it")


@pytest.fixture(scope="module")
def made(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("made") / "repository"
    history.materialise(str(source.folder), source.base, str(target))
    return target


def _objects(folder: Path) -> set[str]:
    return set(git(folder, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())


def _true_objects(source: Source, commit_id: str) -> set[str]:
    """With neither replacements nor grafts."""
    (source.folder / ".git" / "info" / "grafts").rename(source.folder / ".git" / "grafts-away")
    try:
        text = git(source.folder, "--no-replace-objects", "rev-list", "--objects", "--no-object-names", commit_id)
    finally:
        (source.folder / ".git" / "grafts-away").rename(source.folder / ".git" / "info" / "grafts")
    return set(text.split())


def test_it_has_the_true_ancestors_and_no_other_object(source: Source, made: Path) -> None:
    wanted = _true_objects(source, source.base)
    assert _objects(made) == wanted
    assert {source.first, source.side, source.base} <= wanted
    later = {source.fix, source.loose, source.other}
    assert not wanted & later and later < _objects(source.folder)  # control


def test_a_copy_without_references_would_still_have_the_fix(source: Source, tmp_path: Path) -> None:
    """The control of how it is not done: what no name leads to any more lies there all the same."""
    copy = Path(shutil.copytree(source.folder, tmp_path / "copy", symlinks=True))
    for name in ("packed-refs", "logs", "refs"):
        path = copy / ".git" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (copy / ".git" / "refs").mkdir()
    git(copy, "update-ref", "refs/heads/trunk", source.base)
    assert source.fix in _objects(copy)


def test_its_git_folder_has_nothing_else(source: Source, made: Path) -> None:
    found = {str(path.relative_to(made / ".git")) for path in (made / ".git").rglob("*") if not path.is_dir()}
    packs = {name for name in found if name.startswith("objects/pack/pack-")}
    assert {Path(name).suffix for name in packs} <= {".pack", ".idx", ".rev"} and len(packs) in (2, 3)
    assert found - packs == {"HEAD", "config", "index", "refs/heads/main"}
    settings = git(made, "config", "--local", "--list").split()
    assert sorted(settings) == ["core.bare=false", "core.filemode=true", "core.repositoryformatversion=0"]


def test_git_in_it_works_and_sees_the_base(source: Source, made: Path) -> None:
    assert git(made, "rev-parse", "HEAD") == source.base and git(made, "status", "--porcelain") == ""
    assert git(made, "fsck", "--full", "--strict") == ""
    assert git(made, "log", "--format=%s", "--first-parent").splitlines()[0] == "c.txt: 'base'"
    assert len(git(made, "rev-list", "HEAD").split()) == 5
    assert (made / "a.txt").read_text() == "three" and os.readlink(made / "link") == "side/b.txt"
    assert os.access(made / "tool", os.X_OK) and (made / "side" / "b.txt").read_text() == "two"
    assert git(made, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(made, "reflog") == "" and git(made, "stash", "list") == "" and git(made, "remote") == ""


def test_a_replaced_or_grafted_parent_does_not_replace_the_true_one(source: Source, made: Path) -> None:
    assert source.other in git(source.folder, "rev-list", source.base)  # control
    assert source.other not in git(made, "rev-list", "HEAD")


def test_the_callers_own_git_variables_have_no_effect(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    hooks = _hooks(tmp_path / "hooks", marker)
    other = new(tmp_path / "other")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = touch {marker}\n")
    for name, value in {
        "GIT_DIR": str(other / ".git"), "GIT_INDEX_FILE": str(tmp_path / "index"), "GIT_WORK_TREE": str(other),
        "GIT_OBJECT_DIRECTORY": str(other / ".git" / "objects"), "GIT_TEMPLATE_DIR": str(hooks.parent),
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": str(hooks),
        "HOME": str(tmp_path / "home"), "GIT_EXEC_PATH": str(hooks), "GIT_TRACE": str(tmp_path / "trace"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    history.materialise(str(source.folder), source.base, str(tmp_path / "target"))
    monkeypatch.undo()
    assert not marker.exists() and not (tmp_path / "trace").exists() and not (tmp_path / "index").exists()
    assert _objects(tmp_path / "target") == _true_objects(source, source.base) and _objects(other) == set()


# ---- hostile sources


def _hooks(folder: Path, marker: Path) -> Path:
    folder.mkdir()
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "post-rewrite",
                 "post-update", "update", "pre-receive", "post-merge", "fsmonitor-watchman"):  # fmt: skip
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {marker}\n")
        (folder / name).chmod(0o755)
    return folder


def _configure(folder: Path, settings: dict[str, str]) -> None:
    with open(folder / ".git" / "config", "a") as file:
        for key, value in settings.items():
            section, *below, name = key.split(".")
            told = value.replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'[{section} "{below[0]}"]\n' if below else f"[{section}]\n")
            file.write(f'\t{name} = "{told}"\n')


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[tuple[Path, str, Path]]:
    """(repository, commit, what exists once any command of it has run)."""
    folder, marker = new(tmp_path / "hostile"), tmp_path / "ran"
    (folder / ".gitattributes").write_text("* filter=evil diff=evil merge=evil ident\n")
    (folder / ".gitmodules").write_text(
        f'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c "echo sub >> {marker}"\n\tupdate = !echo up >> {marker}\n'
    )
    base = commit(folder, "a.txt", "one")
    later = commit(folder, "a.txt", "two")
    git(folder, "update-ref", "refs/heads/later", later)
    run = f"echo ran >> {marker}; cat"
    hooks = _hooks(tmp_path / "hooks", marker)
    (folder / ".git" / "extra").write_text(f"[alias]\n\tcheckout-index = !{run}\n\tpack-objects = !{run}\n")
    _configure(folder, {
        "include.path": "extra", "core.fsmonitor": f"echo fsmonitor >> {marker}; false", "core.hooksPath": str(hooks),
        "core.sshCommand": run, "core.gitProxy": run, "core.pager": run, "core.editor": run, "core.askPass": run,
        "core.alternateRefsCommand": run, "core.worktree": str(tmp_path / "stolen"), "uploadpack.packObjectsHook": run,
        "filter.evil.smudge": run, "filter.evil.clean": run, "filter.evil.process": run, "filter.evil.required": "true",
        "diff.evil.textconv": run, "diff.external": run, "merge.evil.driver": run, "gpg.program": run,
        "credential.helper": f"!{run}", "remote.origin.promisor": "true", "remote.origin.url": f"ext::sh -c '{run}'",
        "extensions.partialClone": "origin", "core.repositoryFormatVersion": "1", "protocol.ext.allow": "always",
        "core.commitGraph": "true", "submodule.x.update": f"!{run}", "submodule.recurse": "true",
    })  # fmt: skip
    shutil.copytree(hooks, folder / ".git" / "hooks")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    marker.unlink(missing_ok=True)
    yield folder, base, marker


def test_nothing_of_a_hostile_repository_runs_on_the_host(hostile: tuple[Path, str, Path], tmp_path: Path) -> None:
    folder, base, marker = hostile
    target = tmp_path / "target"
    history.materialise(str(folder), base, str(target))
    assert not marker.exists() and not (tmp_path / "stolen").exists()
    assert (target / "a.txt").read_text() == "one"
    assert not (target / ".git" / "hooks").exists() and "evil" not in (target / ".git" / "config").read_text()
    git(target, "status")
    assert not marker.exists()  # what arrives is harmless too


@pytest.mark.parametrize("command", [
    ("status",), ("checkout", "-f", "later"), ("read-tree", "HEAD"), ("checkout-index", "-a", "-f"),
])  # fmt: skip
def test_plain_git_there_would_run_it(
    hostile: tuple[Path, str, Path], tmp_path: Path, command: tuple[str, ...]
) -> None:
    """The control."""
    folder, _, marker = hostile
    (tmp_path / "stolen").mkdir()
    git(folder, *command, status=None)
    assert marker.exists()


def test_an_object_under_the_name_of_another_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ancestor's file has the later answer in it: git copies such an object without a look at its name."""
    folder = new(tmp_path / "source")
    commit(folder, "a.txt", "old")
    base = commit(folder, "a.txt", "base")
    commit(folder, "a.txt", "the answer")
    old, answer = (git(folder, "rev-parse", f"{name}:a.txt") for name in (f"{base}~1", "HEAD"))
    place = folder / ".git" / "objects" / old[:2] / old[2:]
    place.chmod(0o644)
    shutil.copyfile(folder / ".git" / "objects" / answer[:2] / answer[2:], place)
    with pytest.raises(SandboxError):
        history.materialise(str(folder), base, str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()
    monkeypatch.setattr(history, "_check_whole", lambda *_: None)
    history.materialise(str(folder), base, str(tmp_path / "unchecked"))
    assert answer in _objects(tmp_path / "unchecked")  # control


def test_a_commit_graph_that_lies_adds_no_ancestor(tmp_path: Path) -> None:
    folder = new(tmp_path / "source")
    commit(folder, "a.txt", "one")
    base = commit(folder, "a.txt", "base")
    fix = commit(folder, "a.txt", "the fix")
    git(folder, "commit-graph", "write", "--reachable")
    graph = folder / ".git" / "objects" / "info" / "commit-graph"
    graph.chmod(0o644)
    graph.write_bytes(_with_parent(graph.read_bytes(), base, fix))
    assert fix in git(folder, "rev-list", base)  # control
    history.materialise(str(folder), base, str(tmp_path / "target"))
    assert len(git(tmp_path / "target", "rev-list", "HEAD").split()) == 2 and fix not in _objects(tmp_path / "target")


def _with_parent(graph: bytes, child: str, parent: str) -> bytes:
    """A commit graph in which one commit has another parent: its rows are 36 bytes, with the parent's number at 20."""
    table = {graph[at : at + 4]: int.from_bytes(graph[at + 4 : at + 12]) for at in range(8, 8 + 12 * graph[6], 12)}
    names = graph[table[b"OIDL"] :]
    row_of, row_of_parent = (names.index(bytes.fromhex(name)) // 20 for name in (child, parent))
    at = table[b"CDAT"] + 36 * row_of + 20
    return graph[:at] + row_of_parent.to_bytes(4) + graph[at + 4 :]


@pytest.mark.parametrize("name", [f"pack/pack-{'0' * 40}.idx", "info/alternates", "{loose}"])
def test_a_fifo_in_the_place_of_an_object_is_refused(tmp_path: Path, name: str) -> None:
    folder = new(tmp_path / "source")
    base = commit(folder, "a.txt", "one")
    place = folder / ".git" / "objects" / name.format(loose=f"{base[:2]}/{base[2:]}")
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    with pytest.raises(UsageError, match="is not a file"):
        history.materialise(str(folder), base, str(tmp_path / "target"))


def test_a_fifo_that_nobody_looks_for_holds_git_until_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = new(tmp_path / "source"), tmp_path / "other"
    base = commit(folder, "a.txt", "one")
    (other / "pack").mkdir(parents=True)
    os.mkfifo(other / "pack" / f"pack-{'0' * 40}.idx")
    (other / "pack" / f"pack-{'0' * 40}.pack").write_bytes(b"")
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{other}\n")
    (folder / ".git" / "objects" / base[:2]).rename(folder / "away")  # git asks packs for what is nowhere else
    monkeypatch.setattr(git_plumbing, "DEADLINE_S", 1)
    with pytest.raises(SandboxError):
        history.materialise(str(folder), base, str(tmp_path / "target"))


@pytest.mark.root
def test_a_repository_of_another_user_is_data_too(tmp_path: Path) -> None:
    """Root has no reason to trust it, and needs not to: git itself would refuse it."""
    folder = new(tmp_path / "source")
    base = commit(folder, "a.txt", "one")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 12345, 12345)
    git(folder, "status", status=128)  # control
    history.materialise(str(folder), base, str(tmp_path / "target"))
    assert {path.stat().st_uid for path in (tmp_path / "target").rglob("*")} == {os.geteuid()}


def _tree(folder: Path, *rows: tuple[str, str, str]) -> str:
    """Any tree, also one that git would not make."""
    data = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(each) for mode, name, each in rows)
    return git(folder, "hash-object", "-t", "tree", "-w", "--stdin", "--literally", data=data)


def test_trees_that_stand_for_more_than_any_disk_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_FILES", 5000)
    folder = new(tmp_path / "source")
    blob = git(folder, "hash-object", "-w", "--stdin", data="x")
    tree = _tree(folder, *(("100644", f"f{number}", blob) for number in range(10)))
    for _ in range(9):
        tree = _tree(folder, *(("40000", f"d{number}", tree) for number in range(10)))
    base = git(folder, "commit-tree", "-m", "bomb", tree)
    with pytest.raises(UsageError, match="more than 5,000 files"):
        history.materialise(str(folder), base, str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", [".git", ".GIT", ".."])
def test_a_tree_with_names_that_no_checkout_has_is_refused(tmp_path: Path, name: str) -> None:
    folder = new(tmp_path / "source")
    blob = git(folder, "hash-object", "-w", "--stdin", data="#!/bin/sh\n")
    inner = _tree(folder, ("100755", "post-checkout", blob))
    tree = _tree(folder, ("40000", name, _tree(folder, ("40000", "hooks", inner))))
    base = git(folder, "commit-tree", "-m", "bad", tree)
    with pytest.raises(SandboxError):
        history.materialise(str(folder), base, str(tmp_path / "target"))
    assert sorted(os.listdir(tmp_path)) == ["source"]


def test_a_link_and_a_folder_of_one_name_write_nothing_outside(tmp_path: Path) -> None:
    folder, outside = new(tmp_path / "source"), tmp_path / "outside"
    outside.mkdir()
    blob = git(folder, "hash-object", "-w", "--stdin", data="mine")
    link = git(folder, "hash-object", "-w", "--stdin", data=str(outside))
    tree = _tree(folder, ("120000", "a", link), ("40000", "a", _tree(folder, ("100644", "b", blob))))
    base = git(folder, "commit-tree", "-m", "bad", tree)
    try:
        history.materialise(str(folder), base, str(tmp_path / "target"))
    except SandboxError:
        pass
    assert os.listdir(outside) == []


# ---- kinds of sources


@pytest.mark.parametrize("kind", ["bare", "worktree", "shared", "packed", "odd: \"name'\\ñ"])
def test_every_kind_of_clone_gives_the_same(source: Source, tmp_path: Path, kind: str) -> None:
    clone = tmp_path / kind
    options = {"bare": ["--bare"], "shared": ["--shared"]}.get(kind, [])
    if kind == "worktree":
        git(source.folder, "worktree", "add", "-f", "--detach", str(clone), source.first)
    else:
        git(tmp_path, "clone", "-q", *options, str(source.folder), str(clone))
    if kind == "packed":
        git(clone, "repack", "-q", "-a", "-d", "--write-bitmap-index", "--write-midx", status=None)
    history.materialise(str(clone), source.base, str(tmp_path / "target"))
    assert _objects(tmp_path / "target") == _true_objects(source, source.base)
    assert not (tmp_path / "target" / ".git" / "objects" / "info" / "alternates").exists()


@pytest.mark.parametrize(("options", "words"), [
    (["--depth=1"], "it is a shallow clone; git fetch --unshallow"),
    (["--filter=blob:none", "--no-checkout"], "it is a partial clone; git fetch --refetch"),
])  # fmt: skip
def test_a_clone_that_lacks_something_is_refused_with_a_word(tmp_path: Path, options: list[str], words: str) -> None:
    folder = new(tmp_path / "source")
    commit(folder, "a.txt", "one")
    base = commit(folder, "a.txt", "two")
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", *options, folder.as_uri(), str(tmp_path / "clone"))
    with pytest.raises(UsageError, match="has not all that") as caught:
        history.materialise(str(tmp_path / "clone"), base, str(tmp_path / "target"))
    assert words in caught.value.hint and not (tmp_path / "target").exists()


def test_files_that_git_lfs_keeps_are_refused_with_a_word(tmp_path: Path) -> None:
    folder = new(tmp_path / "source")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"
    plain = commit(folder, "fixture.bin", pointer)  # a program's own test may have one
    history.materialise(str(folder), plain, str(tmp_path / "plain"))
    (folder / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    base = commit(folder, "model.bin", pointer)
    with pytest.raises(UsageError, match=r"Git LFS keeps fixture.bin, 2 files in all"):
        history.materialise(str(folder), base, str(tmp_path / "target"))


def test_submodules_arrive_at_their_own_commits(tmp_path: Path) -> None:
    library, folder = new(tmp_path / "library"), new(tmp_path / "source")
    then = commit(library, "lib.txt", "then")
    git(folder, "submodule", "--quiet", "add", str(library), "deps/lib")
    git(folder, "submodule", "--quiet", "add", str(library), "empty")
    base = commit(folder, "a.txt", "base")
    later = commit(library, "lib.txt", "the fix")
    git(folder / "deps" / "lib", "pull", "-q", str(library), "trunk")
    commit(folder, "a.txt", "later")
    git(folder, "submodule", "--quiet", "deinit", "-f", "empty")
    history.materialise(str(folder), base, str(tmp_path / "target"))
    module = tmp_path / "target" / "deps" / "lib"
    assert git(module, "rev-parse", "HEAD") == then and (module / "lib.txt").read_text() == "then"
    assert later in _objects(folder / "deps" / "lib") and later not in _objects(module)
    assert os.listdir(tmp_path / "target" / "empty") == []
    assert git(tmp_path / "target", "status", "--porcelain") == ""


def _tree(folder: Path, *rows: tuple[str, str, str]) -> str:
    """A tree that git's own commands would not write."""
    data = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(what) for mode, name, what in rows)
    return git(folder, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", data=data)


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_that_is_a_link_and_a_folder_writes_nothing_outside(tmp_path: Path, order: int) -> None:
    """Git writes the link, and a submodule below the directory of the same name would follow it."""
    source = new(tmp_path / "source")
    inner = commit(new(source / "a" / "sub"), "planted", "x")
    victim = tmp_path / "victim"
    (victim / "sub").mkdir(parents=True)
    link = git(source, "hash-object", "-w", "--stdin", data=str(victim))
    rows = [("120000", "a", link), ("40000", "a", _tree(source, ("160000", "sub", inner)))]
    base = git(source, "commit-tree", "-m", "tangled", _tree(source, *rows[::order]))
    with pytest.raises(UsageError, match="two entries with the same name"):
        history.materialise(str(source), base, str(tmp_path / "target"))
    assert list(victim.rglob("*")) == [victim / "sub"] and not (tmp_path / "target").exists()


def test_a_name_that_is_a_file_and_a_link_to_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    source = new(tmp_path / "source")
    os.mkfifo(tmp_path / "fifo")
    text, link = (git(source, "hash-object", "-w", "--stdin", data=data) for data in ("x" * 500, f"{tmp_path}/fifo"))
    base = git(source, "commit-tree", "-m", "x", _tree(source, ("100644", "x", text), ("120000", "x", link)))
    with pytest.raises(UsageError, match="two entries with the same name"):
        history.materialise(str(source), base, str(tmp_path / "target"))


def test_a_submodule_behind_a_link_is_refused(tmp_path: Path) -> None:
    private, folder = new(tmp_path / "private"), new(tmp_path / "source")
    secret = commit(private, "key", "secret")
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{secret},sub")
    git(folder, "commit", "-q", "-m", "sub")
    (folder / "sub").symlink_to(private)
    with pytest.raises(UsageError, match="a link is in the way"):
        history.materialise(str(folder), git(folder, "rev-parse", "HEAD"), str(tmp_path / "target"))


def test_what_is_no_commit_is_refused(source: Source, tmp_path: Path) -> None:
    for what, words in ((f"{source.base}^{{tree}}", "is a tree, not a commit"),
                        ("refs/tags/v2", "is a tag, not a commit")):
        with pytest.raises(UsageError, match=words):
            history.materialise(str(source.folder), git(source.folder, "rev-parse", what), str(tmp_path / "target"))
    with pytest.raises(UsageError, match="has no commit 0000"):
        history.materialise(str(source.folder), "0" * 40, str(tmp_path / "target"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["nothing", "file", "fifo", "text"])
def test_what_is_no_repository_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "source").mkdir()
    place = tmp_path / "source" / ".git"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind != "nothing":
        place.write_text("gitdir: /nonexistent\n" if kind == "file" else "hello\0")
    with pytest.raises(UsageError):
        history.materialise(str(tmp_path / "source"), "0" * 40, str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_a_target_that_is_there_is_not_written_into(source: Source, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        history.materialise(str(source.folder), source.base, str(tmp_path))
    assert os.listdir(tmp_path) == ["mine"]


# ---- shortcoming 15: the base commit of a generic task is obeyed


def _task(source: Source) -> Task:
    policy = TaskPolicy(base_commit=source.base)
    return Task(id="t", workspace=str(source.folder), grader=None, policy=policy)


def test_a_task_with_a_base_commit_is_staged_at_it(source: Source, tmp_path: Path) -> None:
    """Shortcoming 15. What the workspace has beside the commit stays out: it may be the fix."""
    (source.folder / "untracked-fix.txt").write_text("the fix")
    try:
        staged = Path(staging.stage(_task(source), str(tmp_path)))
    finally:
        (source.folder / "untracked-fix.txt").unlink()
    assert sorted(os.listdir(staged)) == [".git", "a.txt", "c.txt", "link", "side", "tool"]
    assert (staged / "a.txt").read_text() == "three" and source.fix not in _objects(staged)
    assert git(staged, "status", "--porcelain") == ""


@pytest.mark.parametrize(("path", "told"), [
    ("/workspace/side/b.txt", True), ("/workspace/side", True), ("/workspace/gone.txt", True), ("/workspace/no", False),
    ("/workspaces/side", False), ("/workspace/*", False),
])  # fmt: skip
def test_what_git_would_show_can_not_be_forbidden(tmp_path: Path, path: str, told: bool) -> None:
    """Hiding the file alone would be a promise that ``git show`` breaks."""
    folder = new(tmp_path / "source")
    commit(folder, "side/b.txt", "two")
    commit(folder, "gone.txt", "once")
    (folder / "gone.txt").unlink()
    base = commit(folder, "a.txt", "x")
    policy = TaskPolicy(base_commit=base, forbidden_reads=(path,))
    task = Task(id="t", workspace=str(folder), grader=None, policy=policy)
    (tmp_path / "out").mkdir()
    if not told:
        assert os.listdir(staging.stage(task, str(tmp_path / "out")))
        return
    with pytest.raises(UsageError, match="git would show it"):
        staging.stage(task, str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == []


def _with_submodule(tmp_path: Path) -> tuple[Path, str]:
    """A repository and its commit. Both histories have ``answer.txt``; no commit of a branch has it any more."""
    library, folder = new(tmp_path / "library"), new(tmp_path / "source")
    for each in (library, folder):
        commit(each, "answer.txt", "4711")
        (each / "answer.txt").unlink()
        commit(each, "a.txt", "x")
    git(folder, "submodule", "--quiet", "add", str(library), "deps/lib")
    return folder, commit(folder, "b.txt", "y")


@pytest.mark.parametrize("kept", [True, False], ids=["keep", "base commit"])
@pytest.mark.parametrize(("path", "repository"), [("answer.txt", "."), ("deps/lib/answer.txt", "deps/lib")])
def test_the_histories_of_kept_repositories_and_of_submodules_are_looked_at(
    tmp_path: Path, kept: bool, path: str, repository: str
) -> None:
    folder, base = _with_submodule(tmp_path)
    (tmp_path / "out").mkdir()

    def staged(*forbidden: str) -> str:
        policy = TaskPolicy(keep_git=kept, base_commit="" if kept else base, forbidden_reads=forbidden)
        return staging.stage(Task(id="t", workspace=str(folder), grader=None, policy=policy), str(tmp_path / "out"))

    with pytest.raises(UsageError, match="git would show it"):
        staged(f"/workspace/{path}")
    assert os.listdir(tmp_path / "out") == []
    place = Path(staged("/workspace/no", f"/workspace/{path}s")) / repository  # control: the agent would read it
    assert git(place, "show", "HEAD~1:answer.txt" if repository != "." else "HEAD~2:answer.txt") == "4711"


def test_a_history_that_the_agent_cannot_read_shows_nothing(tmp_path: Path) -> None:
    folder, _ = _with_submodule(tmp_path)
    (tmp_path / "out").mkdir()
    hidden = TaskPolicy(keep_git=True, forbidden_reads=("/workspace/.git", "/workspace/answer.txt"))
    assert staging.stage(Task(id="t", workspace=str(folder), grader=None, policy=hidden), str(tmp_path / "out"))


def test_a_kept_history_is_looked_at_whatever_leads_to_it(tmp_path: Path) -> None:
    """Commits that no branch has, and those of a shallow clone; nothing of its settings runs."""
    folder = new(tmp_path / "full")
    for text in ("once", "twice"):
        commit(folder, "answer.txt", text)
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{folder}", "source")
    source, ran = tmp_path / "source", tmp_path / "ran"
    git(source, "checkout", "-q", "--orphan", "new")
    git(source, "rm", "-q", "-f", "answer.txt")
    commit(source, "a.txt", "x")
    git(source, "branch", "-q", "-D", "trunk")
    git(source, "config", "core.fsmonitor", f"touch {ran}")
    (tmp_path / "out").mkdir()
    policy = TaskPolicy(keep_git=True, forbidden_reads=("/workspace/answer.txt",))
    with pytest.raises(UsageError, match="git would show it"):
        staging.stage(Task(id="t", workspace=str(source), grader=None, policy=policy), str(tmp_path / "out"))
    assert not ran.exists()


def test_a_link_in_the_commit_to_the_oracle_is_refused(tmp_path: Path) -> None:
    folder = new(tmp_path / "task" / "workspace")
    (tmp_path / "task" / "oracle").mkdir()
    (tmp_path / "out").mkdir()
    (folder / "link").symlink_to("../oracle/answer")
    base = commit(folder, "a.txt", "x")
    task = Task(id="t", workspace=str(folder), grader=None, oracle=str(tmp_path / "task" / "oracle"),
                policy=TaskPolicy(base_commit=base))  # fmt: skip
    with pytest.raises(UsageError, match="is a link to the task's own files"):
        staging.stage(task, str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == []
