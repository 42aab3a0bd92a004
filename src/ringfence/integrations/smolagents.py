"""An executor for code agents of smolagents: their code runs in a living interpreter in a sandbox.

``CodeAgent(…, executor=RingfenceExecutor())``. Tools are sent by their source and run inside, under the policy; what
comes back is plain data. Authorised imports are loaded beforehand; others are not forbidden, since the sandbox is the
boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smolagents.local_python_executor import CodeOutput, PythonExecutor
from smolagents.tools import Tool, get_tools_definition_code

from ringfence.errors import CallError
from ringfence.integrations.living import words
from ringfence.integrations.living.place import Place
from ringfence.integrations.living.python import Cell, LivingPython
from ringfence.integrations.living.session import ROOMY
from ringfence.model.policy import SandboxPolicy

_FINAL = "RingfenceFinalAnswer"
# Raised, so that nothing of the cell runs after it; ``except Exception`` in an agent's code does not catch it.
_FINAL_ANSWER = f"""\
class {_FINAL}(BaseException):
    pass
def final_answer(answer=None, *rest, **named):
    global _ringfence_final
    _ringfence_final = next(iter(named.values()), None) if answer is None and named else answer
    raise {_FINAL}
"""


class RingfenceExecutor(PythonExecutor):  # type: ignore[misc]  # of a package that need not be here
    """One sandbox and one interpreter; variables stay between steps. ``cleanup`` ends it, as the agent does."""

    def __init__(
        self, policy: SandboxPolicy | None = None, *, additional_authorized_imports: Sequence[str] = (),
        interpreter: str = "",
    ) -> None:  # fmt: skip
        policy = policy or SandboxPolicy.from_dict({"isolation": "strict", **ROOMY})
        self.state: dict[str, Any] = {"_print_outputs": ""}
        """What the last step printed, also where it failed: the agent looks here."""
        self._place = Place(policy)
        self._python = LivingPython(self._place, interpreter=interpreter)
        self._preload = [name.partition(".")[0] for name in additional_authorized_imports if name != "*"]
        self._tools = ""
        self._begun = False

    def send_tools(self, tools: dict[str, Tool]) -> None:
        sent = {name: tool for name, tool in tools.items() if isinstance(tool, Tool) and name != "final_answer"}
        self._tools = get_tools_definition_code(sent) if sent else ""
        self._begin()

    def send_variables(self, variables: dict[str, Any]) -> None:
        if variables:
            self._begin()
            self._checked(self._python.set(variables))

    def __call__(self, code_action: str) -> CodeOutput:
        if not self._begun:
            self._begin()
        cell = self._python.run(code_action)
        logs = self._noted(cell)
        if cell.raised is not None and cell.raised.type_name == f"__main__.{_FINAL}":
            return CodeOutput(output=self._final(), logs=logs, is_final_answer=True)
        self._checked(cell)
        output = cell.value if cell.value is not None or not cell.shown else cell.shown
        return CodeOutput(output=output, logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        self._place.close()

    def __enter__(self) -> RingfenceExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def _begin(self) -> None:
        imports = "\n".join(f"import {name}" for name in self._preload)
        self._checked(self._python.run(f"{imports}\n{_FINAL_ANSWER}\n{self._tools}\nNone"))
        self._begun = True

    def _final(self) -> object:
        kept = self._python.run("_ringfence_final")
        self._checked(kept)
        return kept.value if kept.value is not None or not kept.shown else kept.shown

    def _noted(self, cell: Cell) -> str:
        self.state["_print_outputs"] = "".join(map(words.text_of, (cell.stdout, cell.stderr)))
        return str(self.state["_print_outputs"])

    def _checked(self, cell: Cell) -> None:
        """Raise what went wrong as an exception, which the agent reads."""
        if cell.lost:
            self._begun = False
        if not cell.ok:
            raise CallError(words.cell_end(cell, self._place.policy))
