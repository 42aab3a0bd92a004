"""Agents of other people's frameworks, with scripted models, over our sandboxes; prints what they came to as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ringfence import SandboxPolicy
from ringfence.integrations.living.session import Session

REACH = "import socket\nsocket.create_connection(('127.0.0.1', %d), 5)\nprint('reached')"


def smolagents(workspace):
    from smolagents import CodeAgent, tool
    from smolagents.models import ChatMessage, MessageRole, Model

    from ringfence.integrations.smolagents import RingfenceExecutor

    @tool
    def double(n: int) -> int:
        """Doubles.

        Args:
            n: a number
        """
        return 2 * n

    steps = ["x = double(given['n'])\nprint('x is', x)",
             "raise ValueError('odd')",
             f"import os\nseen = os.path.exists({str(workspace)!r})",
             "try:\n    final_answer({'x': x, 'seen': seen, 'root': math.sqrt(16)})\nexcept Exception: print('late')"]

    class Scripted(Model):
        def __init__(self):
            super().__init__(model_id="scripted")
            self.heard = []

        def generate(self, messages, **_):
            self.heard.append(str(messages[-1].content))
            code = steps[len(self.heard) - 1]
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: on\n<code>\n{code}\n</code>")

    model = Scripted()
    with RingfenceExecutor(additional_authorized_imports=["math"]) as executor:
        agent = CodeAgent(tools=[double], model=model, executor=executor, verbosity_level=0, max_steps=6)
        answer = agent.run("go on", additional_args={"given": {"n": 21}})
        direct = executor("[x, (1, {2})]")
        odd = executor("object()")
    return {"answer": answer, "heard": model.heard, "direct": repr(direct.output), "final": direct.is_final_answer,
            "odd": str(odd.output)}  # fmt: skip


def _scripted_chat(calls):
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, *_, **__):
            return self

    said = [AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": f"call{number}", "type": "tool_call"}])
            for number, (name, args) in enumerate(calls)]  # fmt: skip
    return Scripted(messages=iter([*said, AIMessage(content="done")]))


def langchain(workspace):
    from langchain_core.messages import ToolMessage

    from ringfence.integrations.langchain import tools

    (workspace / "a.txt").write_text("one\n")
    with Session.opened(workspace=workspace) as session:
        made = {tool.name: tool for tool in tools(session)}
        call = {"name": "run_command", "args": {"command": "cat a.txt; echo two > b.txt; exit 4"}, "id": "1",
                "type": "tool_call"}  # fmt: skip
        message = made["run_command"].invoke(call)
        assert isinstance(message, ToolMessage)
        told = {"names": sorted(made), "content": message.content, "rc": message.artifact.rc,
                "python": [made["run_python"].invoke({"code": "x = 20"}), made["run_python"].invoke({"code": "x + 1"})],
                "diff": made["diff"].invoke({}), "refused": made["rollback"].invoke({"checkpoint_id": "zz"}),
                "schema": sorted(made["run_command"].args)}  # fmt: skip
        told["committed"] = session.commit(session.to_commit())
    return told | {"file": (workspace / "b.txt").read_text()}


def deepagents(workspace):
    from deepagents import create_deep_agent

    from ringfence.integrations.deepagents import DeepAgentSandbox

    (workspace / "a.txt").write_text("one\n")
    with Session.opened(workspace=workspace) as session:
        backend = DeepAgentSandbox(session)
        folder = session.folder
        calls = [("write_file", {"file_path": f"{folder}/new/b.txt", "content": "hello\nworld\n"}),
                 ("edit_file", {"file_path": f"{folder}/new/b.txt", "old_string": "world", "new_string": "moon"}),
                 ("read_file", {"file_path": f"{folder}/new/b.txt"}),
                 ("ls", {"path": folder}),
                 ("grep", {"pattern": "moon", "path": folder}),
                 ("glob", {"pattern": "**/*.txt", "path": folder}),
                 ("execute", {"command": f"cat {folder}/new/b.txt; id -u; ls /root/.ssh"}),
                 ("write_file", {"file_path": "/etc/evil", "content": "x"})]  # fmt: skip
        agent = create_deep_agent(model=_scripted_chat(calls), backend=backend)
        ended = agent.invoke({"messages": [{"role": "user", "content": "go"}]}, {"recursion_limit": 100})
        said = [str(message.content) for message in ended["messages"] if message.type == "tool"]
        missing = backend.download_files([f"{folder}/none", f"{folder}/a.txt"])
    return {"said": said, "last": ended["messages"][-1].content, "untouched": not (workspace / "new").exists(),
            "missing": [missing[0].error, (missing[1].content or b"").decode()]}  # fmt: skip


def openai_agents(workspace):
    import asyncio

    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from ringfence.integrations.openai_agents import tools

    set_tracing_disabled(True)
    calls = [("run_command", {"command": "echo one > a.txt; exit 4"}), ("run_python", {"code": "x = 20"}),
             ("run_python", {"code": "x + 1"}), ("read_file", {"path": "a.txt"}), ("read_file", {"path": "none"}),
             ("run_command", {"command": "sleep 1000", "timeout_s": 1})]  # fmt: skip

    class Scripted(Model):
        def __init__(self):
            self.heard = []

        async def get_response(self, system_instructions, input, *_, **__):
            self.heard = input
            number = sum(1 for item in input if isinstance(item, dict) and item.get("type") == "function_call_output")
            if number < len(calls):
                name, arguments = calls[number]
                said = ResponseFunctionToolCall(arguments=json.dumps(arguments), call_id=f"c{number}", name=name,
                                                type="function_call")  # fmt: skip
            else:
                text = ResponseOutputText(annotations=[], text="done", type="output_text")
                said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed",
                                             type="message")  # fmt: skip
            return ModelResponse(output=[said], usage=Usage(), response_id=None)

        def stream_response(self, *_, **__):
            raise NotImplementedError

    model = Scripted()
    with Session.opened(SandboxPolicy(isolation="strict", wall_time_s=60, cpu_time_s=60)) as session:
        agent = Agent(name="tester", instructions="go", tools=tools(session), model=model)
        ended = asyncio.run(Runner.run(agent, "go", max_turns=20, run_config=RunConfig(tracing_disabled=True)))
    heard = [item for item in model.heard if isinstance(item, dict)]
    said = [item["output"] for item in heard if item.get("type") == "function_call_output"]
    return {"said": said, "last": ended.final_output}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
