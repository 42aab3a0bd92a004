"""The examples of docs/how-to/integrations.md with a model, and those of the pages about Inspect and LangChain.

Each runs as it is written, by the real framework and the vendor's client; the host of the model is a scripted one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import filled, written
from tests.examples.model_network import ModelNetwork, model_network
from tests.examples.scripted_model import Turn
from tests.framework_environment import entry_points

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.long]
LANGCHAIN, INSPECT = ("openai", "langchain"), ("openai", "inspect")
TOOLS = {"run_command", "run_python", "write_file", "read_file", "list_files", "diff", "checkpoint", "rollback",
         "read_output"}  # fmt: skip
LOOK = "env | grep key_of_nobody"  # and find none: the key of the model is not in the sandbox
TEST = ("run_command", {"command": f"{LOOK}; sh test.sh"})
FIX: list[Turn] = [TEST, ("write_file", {"path": "answer.txt", "content": "42\n"}), TEST]
FIXED = ["exit code 1", "wrote 3 bytes to answer.txt", "exit code 0"]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelNetwork]:
    """And a project beside the example, with a test that fails."""
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    (project / "test.sh").write_text("grep -qx 42 answer.txt\n")
    (project / "answer.txt").write_text("41\n")
    with model_network(tmp_path) as network:
        yield network


def _answer(model: ModelNetwork) -> str:
    """What the project has afterwards."""
    return (model.work / "project" / "answer.txt").read_text()


def _tools(model: ModelNetwork) -> set[str]:
    """What the model was offered."""
    return {tool["name"] if "name" in tool else tool["function"]["name"] for tool in model.asked()["tools"]}


def _programs() -> str:
    """How many files the question is about."""
    return str(sum(not name.startswith(".") for name in os.listdir("/usr/bin")))


def _eval(model: ModelNetwork, example: str) -> tuple[list[str], list[str]]:
    """What Inspect printed of an eval in which the model counts and says what it found; and what it was told."""
    count: Turn = ("bash", {"command": f"{LOOK}; ls /usr/bin | wc -l; ulimit -t"})
    code = filled(example, **{"…": _programs()})
    printed = model.run(code, [*INSPECT, entry_points(model.folder, "inspect_ai")], [count])
    assert model.asked()["model"] == "gpt-5"
    return printed.split(), model.answers()


def test_inspect_gives_each_sample_a_sandbox_with_the_policy_of_the_file(model: ModelNetwork) -> None:
    (model.work / "policy.yaml").write_text("cpu_time_s: 600\n")
    printed, told = _eval(model, written("docs/how-to/integrations.md", "from inspect"))
    assert [answer.split() for answer in told] == [[_programs(), "600"]]
    assert printed[printed.index("accuracy") + 1] == "1.000"


def test_inspect_finds_the_provider_by_its_name(model: ModelNetwork) -> None:
    printed, told = _eval(model, written("docs/how-to/use-it-from-inspect.md", "from inspect"))
    four_hours = str(4 * 3600)
    assert [answer.split() for answer in told] == [[_programs(), four_hours]]
    assert printed[printed.index("accuracy") + 1] == "1.000"


PRIMES = """
Thought: on
<code>
import os
assert "key_of_nobody" not in str(os.environ)
found = numpy.ones(10000, dtype=bool)
for n in range(2, 100):
    found[n * n::n] = False
final_answer(int(found[2:].sum()))
</code>
"""


def test_a_code_agent_of_smolagents_computes_inside(model: ModelNetwork) -> None:
    # numpy comes with the environment of the tests of Jupyter.
    example = written("docs/how-to/integrations.md", "from smolagents")
    printed = model.run(example, ["smolagents", "jupyter"], [PRIMES])
    assert "Final answer: 1229" in printed
    assert "below 10000?" in str(model.asked()["messages"])


def test_an_agent_of_langchain_fixes_the_test_and_the_operator_commits(model: ModelNetwork) -> None:
    printed = model.run(written("docs/how-to/integrations.md", "from langchain"), LANGCHAIN, FIX)
    assert model.answers() == FIXED and _tools(model) == TOOLS and model.asked()["model"] == "gpt-5"
    assert "-41\n+42\n" in printed
    assert _answer(model) == "42\n"


def test_the_page_about_langchain_hands_the_tools_to_an_agent(model: ModelNetwork) -> None:
    model.run(written("docs/how-to/use-it-from-langchain.md", "from langchain"), LANGCHAIN, FIX)
    assert model.answers() == FIXED and _tools(model) == TOOLS
    assert _answer(model) == "42\n"


def test_a_deep_agent_fixes_the_test_where_the_prompt_says(model: ModelNetwork) -> None:
    project = str(model.work / "project")
    change = {"file_path": f"{project}/answer.txt", "old_string": "41", "new_string": "42"}
    test: Turn = ("execute", {"command": f"{LOOK}; sh test.sh"})
    model.run(written("docs/how-to/integrations.md", "from deepagents"), LANGCHAIN, [test, ("edit_file", change), test])
    failed, _, passed = model.answers()
    assert "exit code 1" in failed and "exit code 0" in passed and "key_of_nobody" not in failed
    assert f"Work in {project}." in str(model.asked())
    assert _answer(model) == "42\n"


def test_an_agent_of_openais_sdk_fixes_the_test(model: ModelNetwork) -> None:
    model.run(written("docs/how-to/integrations.md", "from agents"), ["openai-agents"], FIX)
    assert model.answers() == FIXED and _tools(model) == TOOLS
    assert "Fix the failing test." in str(model.asked())
    assert _answer(model) == "42\n"
