"""A real eval of Inspect with a scripted model, in our sandbox; prints how it went as JSON."""

from __future__ import annotations

import json
import os
import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, python


def main(policy, folder):
    calls = [("bash", {"command": "cat given.txt; echo hidden > kept.txt; ls /work /home 2>&1 | head -3"}),
             ("python", {"code": "print(open('kept.txt').read() + str(6 * 7))"})]  # fmt: skip
    outputs = [ModelOutput.for_tool_call("mockllm/model", name, arguments) for name, arguments in calls]
    outputs.append(ModelOutput.from_content("mockllm/model", "the answer is 42"))
    for output in outputs:
        # Else tokens are counted by what is downloaded for it.
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    task = Task(dataset=[Sample(input="What?", target="42", files={"given.txt": "a question\n"})],
                solver=[use_tools(bash(timeout=100), python(timeout=100)), generate()], scorer=includes(),
                sandbox=("ringfence", policy) if policy else "ringfence")  # fmt: skip
    (log,) = eval(task, model=get_model("mockllm/model", custom_outputs=outputs), log_dir=folder, display="none")
    messages = log.samples[0].messages if log.samples else []
    said = [str(message.content) for message in messages if message.role == "tool"]
    scores = log.results.scores[0].metrics["accuracy"].value if log.results else None
    return {"status": log.status, "accuracy": scores, "said": said, "error": log.error.message if log.error else ""}


if __name__ == "__main__":
    os.environ["INSPECT_TELEMETRY"] = ""
    print(json.dumps(main(sys.argv[1], sys.argv[2])))
