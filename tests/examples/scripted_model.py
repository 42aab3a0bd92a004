"""A model behind OpenAI's two interfaces, with TLS: it says what a file tells it, and notes what it was asked.

``python -m tests.examples.scripted_model FOLDER`` serves until Ctrl-C, with ``model.pem`` and ``model.key`` of the
folder. ``script.json`` has its turns: a text, or a tool and its arguments. After them it says what the last tool
answered. ``asked.jsonl`` gets the body of each request.
"""

from __future__ import annotations

import json
import ssl
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Turn = str | tuple[str, dict[str, Any]]
ADDRESS = ("127.0.0.1", 443)
PEM, KEY, SCRIPT, ASKED = "model.pem", "model.key", "script.json", "asked.jsonl"


def turns_so_far(asked: dict[str, Any]) -> int:
    """How often the model has spoken in this conversation: by text or by a call."""
    said = asked.get("messages") or asked["input"]
    return sum(each.get("role") == "assistant" or each.get("type") == "function_call" for each in said)


def answers(asked: dict[str, Any]) -> list[str]:
    """What the tools answered in this conversation."""
    if "messages" in asked:
        return [_text(each["content"]) for each in asked["messages"] if each["role"] == "tool"]
    return [_text(each["output"]) for each in asked["input"] if each.get("type") == "function_call_output"]


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def turn(script: list[Turn], asked: dict[str, Any]) -> Turn:
    number = turns_so_far(asked)
    return script[number] if number < len(script) else (answers(asked) or ["done"])[-1]


def completion(model: str, number: int, said: Turn) -> dict[str, Any]:
    """An answer of ``/v1/chat/completions``."""
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if not isinstance(said, str):
        call = {"name": said[0], "arguments": json.dumps(said[1])}
        message = {"role": "assistant", "content": None,
                   "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}]}  # fmt: skip
    reason = "stop" if isinstance(said, str) else "tool_calls"
    return {"id": f"chat_{number}", "object": "chat.completion", "created": 0, "model": model,
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}  # fmt: skip


def response(model: str, number: int, said: Turn) -> dict[str, Any]:
    """An answer of ``/v1/responses``."""
    if isinstance(said, str):
        text = {"type": "output_text", "text": said, "annotations": []}
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [text]}
    else:
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": said[0],
                "arguments": json.dumps(said[1]), "status": "completed"}  # fmt: skip
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": {"cached_tokens": 0},
             "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
    return {"id": f"resp_{number}", "object": "response", "created_at": 0, "status": "completed", "model": model,
            "output": [item], "usage": usage, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True,
            "error": None, "incomplete_details": None, "instructions": None, "metadata": {}}  # fmt: skip


MADE = {"/v1/chat/completions": completion, "/v1/responses": response}


class _Model(BaseHTTPRequestHandler):
    folder = Path()

    def do_GET(self) -> None:
        self._send({})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with (self.folder / ASKED).open("a") as file:
            file.write(json.dumps(asked) + "\n")
        script = json.loads((self.folder / SCRIPT).read_text())
        self._send(MADE[self.path](asked["model"], turns_so_far(asked), turn(script, asked)))

    def _send(self, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(folder: Path) -> None:
    _Model.folder = folder
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / PEM, folder / KEY)
    with ThreadingHTTPServer(ADDRESS, _Model) as server, suppress(KeyboardInterrupt):
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
