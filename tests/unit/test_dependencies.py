"""What the package asks for is what it uses: the base has no dependency that only an extra needs, and none unused."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.unit.source import nodes_of

from ringfence.cli import mcp, serve
from ringfence.cluster import ray_module
from ringfence.container import sdk
from ringfence.errors import UnavailableError, hint_for_extra
from ringfence.evidence import timestamp
from ringfence.metrics import recorder

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MODULES = {"pyyaml": "yaml"}
# Doors of other people's libraries, and what comes with those: whoever uses such a door has it by its extra.
_BY_EXTRA = {
    "agents", "anyio", "cloudpickle", "deepagents", "docker", "harbor", "httptools", "inspect_ai", "ipykernel",
    "jupyter_client", "langchain_core", "mcp", "mcp_types", "prometheus_client", "pydantic", "ray", "requests",
    "rfc3161_client", "smolagents", "starlette", "tornado", "urllib3", "uvicorn", "zmq",
}  # fmt: skip
_LIBRARIES_OF_USERS = {"pytest", "_pytest", "pluggy", "numpy", "matplotlib", "IPython"}


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!;~ ]", requirement)[0].lower().replace("-", "_")


def _imported() -> dict[str, set[str]]:
    """Which modules of others are imported anywhere in the package, and by which files."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src" / "ringfence").rglob("*.py")):
        for node in nodes_of(path):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in {each.partition(".")[0] for each in names}:
                found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return {name: files for name, files in found.items() if name not in sys.stdlib_module_names and name != "ringfence"}


def test_every_dependency_of_the_base_is_used_by_what_is_no_door_of_an_extra() -> None:
    used = _imported()
    for requirement in PROJECT["dependencies"]:
        module = MODULES.get(_name(requirement), _name(requirement))
        files = {file for file in used.get(module, ()) if "/integrations/" not in file and "/service/" not in file}
        assert files, f"{requirement} is in the base, and nothing there imports {module}"


def test_nothing_is_imported_that_nobody_asks_for() -> None:
    base = {MODULES.get(_name(each), _name(each)) for each in PROJECT["dependencies"]}
    unknown = {name: files for name, files in _imported().items()
               if name not in base | _BY_EXTRA | _LIBRARIES_OF_USERS}  # fmt: skip
    assert not unknown


def test_all_extras_are_in_the_one_for_all() -> None:
    extras = PROJECT["optional-dependencies"]
    (listed,) = extras["all"]
    assert set(listed.removeprefix("ringfence[").removesuffix("]").split(",")) == set(extras) - {"all", "dev", "docs"}


def test_the_classifiers_name_what_is_promised_and_no_license_twice() -> None:
    classifiers = PROJECT["classifiers"]
    versions = re.findall(r"^Programming Language :: Python :: 3\.(\d+)$", "\n".join(classifiers), re.MULTILINE)
    (promised,) = set(re.findall(r"3\.(\d+) to 3\.(\d+)", (ROOT / "docs" / "release.md").read_text("utf-8")))
    first, last = map(int, promised)
    assert [*map(int, versions)] == [*range(first, last + 1)]
    assert PROJECT["requires-python"] == f">=3.{first}"
    assert ("Typing :: Typed" in classifiers) == (ROOT / "src" / "ringfence" / "py.typed").exists()
    assert PROJECT["license"] and not any(each.startswith("License") for each in classifiers)
    assert classifiers == sorted(classifiers) and PROJECT["keywords"]


def test_the_workflows_test_every_python_that_is_promised_and_compare_and_verify_what_they_release() -> None:
    flows = {path.stem: yaml.safe_load(path.read_text("utf-8"))["jobs"]
             for path in (ROOT / ".github" / "workflows").glob("*.yml")}  # fmt: skip
    promised = [each.split()[-1] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert [flows["ci"][job]["strategy"]["matrix"]["python"] for job in ("linux", "elsewhere")] == [promised] * 2
    built = "\n".join(step.get("run", "") for step in flows["release"]["build"]["steps"])
    assert len(re.findall(r"^make .*\bdist\b", built, re.MULTILINE)) == 2
    assert "\ndiff -r dist " in built and "ringfence verify-release dist --pubkey" in built


def test_every_hint_names_an_extra_that_there_is_and_one_place_words_it() -> None:
    named, elsewhere = set(), []
    for path in sorted((ROOT / "src" / "ringfence").rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "hint_for_extra":
                named |= {getattr(each, "value", None) for each in node.args}
            elif isinstance(node, ast.Constant) and "pip install 'ringfence" in str(node.value):
                elsewhere.append(f"{path}: {node.value}")
    assert named >= {"docker", "mcp", "service"} and named <= set(PROJECT["optional-dependencies"]), named
    assert not elsewhere, "ringfence is on no index: what pip found there would be somebody else's"


def test_the_hint_holds_for_a_clone_and_for_a_wheel() -> None:
    hint = hint_for_extra("mcp")
    assert "pip install '.[mcp]' in a clone" in hint and "pip install './WHEEL[mcp]' with the file of the wheel" in hint
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "pip install '.[mcp]'" in readme and ".whl[mcp]'" in readme, "README says it in full"


@pytest.mark.parametrize(("module", "ask", "extra"), [
    ("prometheus_client", recorder._new_registry, "metrics"),
    ("rfc3161_client", timestamp._client, "timestamp"),
    ("ray", ray_module.ray_module, "ray"),
    ("docker", lambda: sdk.load("unix:///nowhere", "docker"), "docker"),
    ("uvicorn", serve._loaded, "service"),
    ("mcp", mcp._modules, "mcp"),
])  # fmt: skip
def test_a_missing_extra_is_named(
    module: str, ask: Callable[[], object], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ringfence.service.server", "ringfence.integrations.mcp.server"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # loaded anew, it asks for the module again
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnavailableError) as error:
        ask()
    assert hint_for_extra(extra) in error.value.hint


def test_harbor_asks_for_the_python_that_it_needs() -> None:
    assert all("python_version" in each for each in PROJECT["optional-dependencies"]["harbor"])
