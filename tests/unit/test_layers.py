"""Who may import whom, what loads what at run time, and what must not exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.unit import path_texts
from tests.unit.source import nodes_of, text_of, tree_of

import ringfence

pytestmark = pytest.mark.unmeasured
PACKAGE = Path(__file__).resolve().parent.parent.parent / "src" / "ringfence"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Low to high; a layer may import those below it and itself, never its neighbours.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"model"}),
    frozenset({"transport"}),
    frozenset({"kernel", "python_jobs", "windows", "macos", "validation", "evidence", "checkpoint", "cluster",
               "metrics"}),
    frozenset({"egress"}),
    frozenset({"sandbox"}),
    frozenset({"steps"}),
    frozenset({"roles"}),
    frozenset({"monitor", "container"}),
    frozenset({"backends"}),
    frozenset({"engine"}),
    frozenset({"attest"}),
    frozenset({"client"}),
    frozenset({"pytest_runner", "docker_sandbox", "manager", "proctor"}),
    frozenset({"corpus"}),
    frozenset({"integrations"}),
    frozenset({"service"}),
    frozenset({"cli"}),
)
FORBIDDEN_NAMES = {"utils", "helpers", "common", "core", "base", "misc"}


def _layer(name: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if name in names)


def _package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported(path: Path) -> set[str]:
    """The ringfence packages that a module imports anywhere, type checking included."""
    found = set()
    for node in nodes_of(path):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "ringfence":
            names = [f"ringfence.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("ringfence.")}
    return found - {"__version__"}


def test_every_layer_exists_and_the_document_has_the_same_order() -> None:
    names = {_package_of(path) for path in MODULES} - {"__init__", "__main__"}
    assert frozenset().union(*LAYERS) == names
    text = (PACKAGE.parent.parent / "ARCHITECTURE.md").read_text("utf-8")
    order = re.search(r"^Low to high: (.*?)\. A module", text, re.MULTILINE | re.DOTALL)
    assert order is not None
    written = [frozenset(re.findall(r"`(\w+)`", step)) for step in order[1].split("→")]
    assert written == list(LAYERS)


def test_no_module_imports_upwards_or_sideways() -> None:
    inner = [path for path in MODULES if _package_of(path) not in ("__init__", "__main__")]
    assert not [
        f"{path.relative_to(PACKAGE)} imports ringfence.{other}" for path in inner for other in _imported(path)
        if other != _package_of(path) and _layer(other) >= _layer(_package_of(path))
    ]  # fmt: skip


def test_the_gateway_needs_of_the_kernel_what_is_read_of_processes_alone() -> None:
    """It parses what attackers send: no mount and no filter of ours is at hand there, and of system calls only how it
    gives all up and how a socket forgets whom it was connected to."""
    names = {name for path in MODULES if _package_of(path) == "egress" for name in _names(path)}
    rooms = {name.split(".")[1] for name in names if name.startswith("ringfence.")}
    assert rooms <= {"errors", "model", "transport", "egress", "kernel"}
    allowed = ("ringfence.kernel.proc", "ringfence.kernel.mount.privileges", "ringfence.kernel.listening")
    assert all(name.startswith(allowed) for name in names if name.startswith("ringfence.kernel."))


PURE_EGRESS = ("addresses", "dns", "rules")


@pytest.mark.system
@pytest.mark.parametrize("module", PURE_EGRESS)
def test_what_decides_and_parses_for_the_gateway_opens_nothing(module: str) -> None:
    loaded = _loaded_by(f"import ringfence.egress.{module}")
    assert not loaded & {"socket", "_socket", "ssl", "asyncio", "subprocess", "threading", "ctypes", "select"}


def test_the_layer_check_sees_an_import_upwards(tmp_path: Path) -> None:
    module = tmp_path / "bad.py"
    module.write_text("def f():\n    from ringfence.engine.run import run\n")
    assert _imported(module) == {"engine"}


def _names(path: Path) -> set[str]:
    """The ringfence modules that a module imports when it runs, at once or later."""
    found: set[str] = set()
    for node in _imports(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif (node.module or "").startswith("ringfence"):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    nodes = nodes_of(path)
    unseen = {id(each) for node in nodes if _is_for_types(node) for each in ast.walk(node)}
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in unseen]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _module(path: Path) -> str:
    return ".".join(("ringfence", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def _circles(imports: dict[str, set[str]]) -> set[str]:
    """Take away what imports none of the others, or none of them imports, again and again; return what is left."""
    left = dict(imports)
    while True:
        wanted = {name for names in left.values() for name in names}
        ends = {name for name, names in left.items() if not names & left.keys() or name not in wanted}
        if not ends:
            return set(left)
        left = {name: names for name, names in left.items() if name not in ends}


def _needed(path: Path, modules: set[str]) -> set[str]:
    """The modules that it needs something of. Of a package from which it takes modules alone, it needs nothing."""
    found: set[str] = set()
    for node in _imports(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        taken = {f"{node.module}.{alias.name}" for alias in node.names}
        found |= taken | (set() if taken <= modules else {node.module or ""})
    return found & modules - {_module(path)}


def test_no_imports_form_a_circle() -> None:
    """Lazy ones and those of packages included."""
    modules = {_module(path) for path in MODULES}
    assert _circles({_module(path): _needed(path, modules) for path in MODULES}) == set()


def test_the_circle_check_sees_one() -> None:
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b", "c"}


def _clashes(classes: list[tuple[str, str, str]]) -> set[str]:
    """Names that two classes in one package or in adjacent layers have; of each: name, package, module."""
    return {f"{name}: {one}, {other}" for number, (name, package, one) in enumerate(classes)
            for same, its, other in classes[:number]
            if name == same and (package == its or abs(_layer(package) - _layer(its)) == 1)}  # fmt: skip


def test_no_two_classes_of_one_name_are_neighbours() -> None:
    """Who reads a name at its use must not have to ask which of two it is."""
    nodes = ((path, node) for path in MODULES for node in nodes_of(path) if isinstance(node, ast.ClassDef))
    classes = [(node.name, _package_of(path), path.relative_to(PACKAGE).as_posix())
               for path, node in nodes if not node.name.startswith("_")]  # fmt: skip
    assert len(classes) > 500 and _clashes(classes) == set()


def test_the_check_of_class_names_sees_both_kinds_of_neighbours() -> None:
    rows = [("Box", "engine", "a"), ("Box", "backends", "b"), ("Box", "cli", "c"), ("Box", "cli", "d"),
            ("Box", "kernel", "e"), ("Box", "evidence", "f")]  # fmt: skip
    assert _clashes(rows) == {"Box: b, a", "Box: d, c"}


def test_no_folder_has_too_many_modules() -> None:
    folders = {path.parent for path in MODULES if path.parent != PACKAGE / "cli"}
    crowded = {folder: count for folder in folders if (count := len(list(folder.glob("*.py")))) > 26}
    assert not crowded


def test_no_module_is_named_after_nothing() -> None:
    assert not [path for path in MODULES if path.stem in FORBIDDEN_NAMES]


def test_every_module_says_what_it_owns() -> None:
    assert not [str(path.relative_to(PACKAGE)) for path in MODULES if not ast.get_docstring(tree_of(path))]


def test_no_file_and_no_function_is_too_long_to_read() -> None:
    assert not [str(path.relative_to(PACKAGE)) for path in MODULES if text_of(path).count("\n") > 400]
    functions = [(path, node) for path in MODULES for node in nodes_of(path) if isinstance(node, ast.FunctionDef)]
    assert not [(str(path.relative_to(PACKAGE)), node.name) for path, node in functions
                if (node.end_lineno or 0) - node.lineno >= 60]  # fmt: skip


def _path_texts(path: Path) -> Counter[str]:
    """``function`` by how often a module names it: as ``os.path.abspath`` or imported by name."""
    found: Counter[str] = Counter()
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute):
            found[node.attr] += 1
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "os.path", "posixpath", "ntpath"):
            found.update(alias.name for alias in node.names)
    return Counter({name: count for name, count in found.items() if name in path_texts.FUNCTIONS})


def _allowed_path_texts() -> Counter[tuple[str, str]]:
    allowed: Counter[tuple[str, str]] = Counter()
    for file, function, *count in (row.split(":") for _, rows in path_texts.ALLOWED for row in rows.split()):
        allowed[file, function] += int(count[0]) if count else 1
    return allowed


def test_whoever_reads_a_path_as_text_says_why() -> None:
    allowed = _allowed_path_texts()
    found = Counter({(path.relative_to(PACKAGE).as_posix(), function): count for path in MODULES
                     for function, count in _path_texts(path).items()})  # fmt: skip
    added, gone = found - allowed, allowed - found
    assert not added, "ask model/ways where a path leads, or say in tests/unit/path_texts.py why text will do"
    assert not gone, "take them out of tests/unit/path_texts.py"


def test_the_check_of_path_texts_sees_each_way_to_name_one(tmp_path: Path) -> None:
    module = tmp_path / "bad.py"
    module.write_text("import os\nfrom posixpath import normpath as plain\nos.path.join(a, os.readlink(b))\n"
                      "p = map(os.path.abspath, c)\nPath(d).resolve()\nos.path.join(e, absolute(f))\n")  # fmt: skip
    assert _path_texts(module) == Counter(("normpath", "readlink", "abspath", "resolve"))


# Rooms that read what the kernel writes, with names in it that anybody chooses: any byte but a line end, which the
# kernel writes in another way. Listed is what has no such names: figures of control groups, logs, files of Python.
_KERNELS_READERS = ("kernel", "sandbox", "steps", "roles", "backends", "monitor", "egress", "model")
_LINES_WITHOUT_NAMES = {"kernel/cgroup/limits.py", "kernel/cgroup/tree.py", "kernel/cgroup/twin.py",
                        "kernel/criu/criu.py", "model/policy_file.py", "roles/process_table.py", "sandbox/image.py",
                        "sandbox/programs.py"}  # fmt: skip
_TABLE_AS_TEXT = re.compile(r'open\(f?"/proc/[^"]*/(status|maps|smaps|mountinfo|cgroup|stat|comm)"'
                            r'(?![^)]*("rb"|newline=))')  # fmt: skip


def test_tables_of_the_kernel_are_cut_at_line_ends_alone() -> None:
    """``splitlines`` and files opened as text also cut at a carriage return, and so does who gave himself that name."""
    readers = [path for path in MODULES if _package_of(path) in _KERNELS_READERS]
    cutting = {str(path.relative_to(PACKAGE)) for path in readers if ".splitlines(" in text_of(path)}
    assert cutting == _LINES_WITHOUT_NAMES
    assert not [str(path.relative_to(PACKAGE)) for path in readers if _TABLE_AS_TEXT.search(text_of(path))]
    assert _TABLE_AS_TEXT.search('with open(f"/proc/{pid}/status", encoding="ascii") as file:')


def _loaded_by(code: str) -> set[str]:
    report = "; import sys; print('\\n'.join(sys.modules))"
    start = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); "
    command = [sys.executable, "-I", "-S", "-c", start + code + report]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


THE_SPAWNERS = """
errors model model.memo transport transport.passing transport.plain_json transport.wire
kernel kernel.rlimits kernel.syscalls kernel.syscall_numbers kernel.proc kernel.proc.memory kernel.proc.processes
kernel.seccomp kernel.seccomp.bpf kernel.seccomp.compile kernel.seccomp.notify kernel.seccomp.witness
steps steps.executor steps.observe steps.step steps.wakeup
roles roles.endings roles.fork_server roles.job_start roles.job_tree roles.layer_room roles.leader roles.loop
roles.observed roles.pace roles.processor_time roles.spawner_main roles.standby roles.watchdog
"""


@pytest.mark.system
def test_the_spawner_loads_only_what_it_forks_with() -> None:
    loaded = _loaded_by("import ringfence.roles.spawner_main")
    ours = {name.removeprefix("ringfence.") for name in loaded if name.startswith("ringfence.")}
    assert ours == set(THE_SPAWNERS.split())
    assert not loaded & {"dataclasses", "typing", "json", "subprocess", "threading", "asyncio", "yaml"}
    assert not loaded & {"re", "enum", "functools", "collections", "contextlib", "importlib"}


@pytest.mark.system
@pytest.mark.parametrize("boxes", [True, False])
def test_a_zygote_loads_nothing_that_is_slow_to_load(boxes: bool) -> None:
    loaded = _loaded_by(f"from ringfence.roles import zygote; zygote.furnish(boxes={boxes})")
    assert not loaded & {"json", "re", "enum", "functools", "collections", "contextlib", "importlib", "signal"}
    assert ("ringfence.roles.box_pid1" in loaded) is boxes


def test_a_star_import_leaves_the_open_of_python_alone() -> None:
    names: dict[str, object] = {}
    exec("from ringfence import *", names)
    assert "Pool" in names and "open" not in names
    assert "open" in dir(ringfence) and callable(ringfence.open)


@pytest.mark.system
def test_importing_ringfence_loads_nothing_else_of_it() -> None:
    assert {name for name in _loaded_by("import ringfence") if name.startswith("ringfence.")} == set()


@pytest.mark.system
@pytest.mark.parametrize(("network", "loaded_for_it"), [
    ("'none'", set()),
    ("['a.example', '*.b.example:443']", {"host_text", "network_list", "network_rule"}),
])  # fmt: skip
def test_a_policy_loads_what_reads_its_network_and_no_more(network: str, loaded_for_it: set[str]) -> None:
    loaded = _loaded_by(f"from ringfence.model.policy import SandboxPolicy; SandboxPolicy(network={network})")
    assert not loaded & {"ipaddress", "encodings.idna", "stringprep", "functools", "re", "socket", "_socket", "difflib"}
    ours = {name.removeprefix("ringfence.model.") for name in loaded if name.startswith("ringfence.model.")}
    assert ours & {"host_text", "network_list", "network_rule"} == loaded_for_it


@pytest.mark.system
def test_the_main_path_does_not_load_what_is_slow_to_load() -> None:
    backends = "ringfence.backends.process, ringfence.backends.strict, ringfence.kernel.cgroup.group"
    loaded = _loaded_by(f"import ringfence.cli.run, {backends}")
    slow = {"dataclasses", "inspect", "typing", "json", "subprocess", "asyncio", "yaml", "tempfile", "ntpath"}
    assert not loaded & {*slow, "re", "enum", "functools", "collections", "contextlib", "threading", "importlib"}


@pytest.mark.system
def test_a_sandbox_without_a_network_list_loads_nothing_of_the_gateway() -> None:
    loaded = _loaded_by("import ringfence; policy = ringfence.SandboxPolicy(isolation='strict'); "
                        "ringfence.run(['true'], policy)")  # fmt: skip
    assert "ringfence.backends.strict" in loaded
    ours = {name for name in loaded if name.startswith("ringfence.")}
    assert not [name for name in ours if ".egress" in name or "egress_link" in name or "network_rule" in name]
    assert "ringfence.kernel.listening" not in loaded
