"""The table of ready agents: how to run each one unattended, with the pages of its documentation to compare with.

It is data alone: nothing is started, and nothing is looked up. No row was tried against a model's real service.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.model.record import record
from ringfence.proctor.agent_run import INSTRUCTION


@record
class Credential:
    """Who serves a model, and what it asks for. The value of the variable never enters a sandbox."""

    variable: str
    """Of the caller."""
    host: str
    header: str
    scheme: str = ""
    """A word before the value in the header, such as Bearer."""


@record
class ReadyAgent:
    """How one agent is started so that it works alone and asks nobody."""

    title: str
    command: str
    """For a shell in the sandbox; the instruction is on standard input, and a file too."""
    credentials: tuple[Credential, ...]
    """Those whose variable the caller has are used."""
    documents: tuple[str, ...]
    """Where this is written."""
    environment: Mapping[str, str] = MappingProxyType({})
    placeholders: tuple[str, ...] = ()
    """Variables that the agent insists on; the gateway replaces what it sends for them."""
    settings: tuple[str, ...] = ()
    """Variables of the caller that are passed on where they are set: which model, how many turns."""
    hosts: tuple[str, ...] = ()
    """Hosts that it has to reach besides the models."""


ANTHROPIC = Credential(variable="ANTHROPIC_API_KEY", host="api.anthropic.com", header="x-api-key")
OPENAI = Credential(variable="OPENAI_API_KEY", host="api.openai.com", header="authorization", scheme="Bearer")
CODEX = Credential(variable="CODEX_API_KEY", host="api.openai.com", header="authorization", scheme="Bearer")
GEMINI = Credential(variable="GEMINI_API_KEY", host="generativelanguage.googleapis.com", header="x-goog-api-key")
OPENROUTER = Credential(variable="OPENROUTER_API_KEY", host="openrouter.ai", header="authorization", scheme="Bearer")

_TEXT = f'"$(cat {INSTRUCTION})"'

AGENTS: Mapping[str, ReadyAgent] = MappingProxyType({
    "claude-code": ReadyAgent(
        title="Claude Code",
        command="claude -p --permission-mode bypassPermissions",
        credentials=(ANTHROPIC,),
        placeholders=("ANTHROPIC_API_KEY",),
        environment={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        settings=("ANTHROPIC_MODEL",),
        documents=("https://code.claude.com/docs/en/headless", "https://code.claude.com/docs/en/env-vars"),
    ),
    "codex": ReadyAgent(
        title="Codex CLI",
        command="codex exec --skip-git-repo-check --sandbox danger-full-access -",
        credentials=(CODEX, OPENAI),
        placeholders=("CODEX_API_KEY",),
        documents=("https://developers.openai.com/codex/noninteractive", "https://github.com/openai/codex"),
    ),
    "gemini-cli": ReadyAgent(
        title="Gemini CLI",
        command=f"gemini --approval-mode yolo -p {_TEXT} < /dev/null",
        credentials=(GEMINI,),
        placeholders=("GEMINI_API_KEY",),
        settings=("GEMINI_MODEL",),
        documents=("https://geminicli.com/docs/cli/headless", "https://ai.google.dev/gemini-api/docs/api-key"),
    ),
    "aider": ReadyAgent(
        title="aider",
        command=f"aider --yes-always --no-auto-commits --no-check-update --message-file {INSTRUCTION}",
        credentials=(ANTHROPIC, OPENAI, OPENROUTER),
        settings=("AIDER_MODEL", "AIDER_WEAK_MODEL", "AIDER_EDITOR_MODEL"),
        documents=("https://aider.chat/docs/scripting.html", "https://aider.chat/docs/config/options.html"),
    ),
    "goose": ReadyAgent(
        title="goose",
        command=f"goose run --no-session --with-builtin developer -i {INSTRUCTION}",
        credentials=(ANTHROPIC, OPENAI, OPENROUTER),
        environment={"GOOSE_MODE": "auto", "GOOSE_DISABLE_KEYRING": "1"},
        settings=("GOOSE_PROVIDER", "GOOSE_MODEL", "GOOSE_MAX_TURNS"),
        documents=("https://block.github.io/goose/docs/tutorials/headless-goose",
                   "https://block.github.io/goose/docs/guides/environment-variables"),
    ),
    "opencode": ReadyAgent(
        title="opencode",
        command=f"opencode run {_TEXT}",
        credentials=(ANTHROPIC, OPENAI, OPENROUTER),
        hosts=("models.dev",),
        documents=("https://opencode.ai/docs/cli", "https://opencode.ai/docs/providers"),
    ),
    "mini-swe-agent": ReadyAgent(
        title="mini-SWE-agent",
        command=f"mini --yolo --exit-immediately -t {_TEXT}",
        credentials=(ANTHROPIC, OPENAI, OPENROUTER),
        settings=("MSWEA_MODEL_NAME", "MSWEA_COST_TRACKING"),
        documents=("https://mini-swe-agent.com/latest/usage/mini/",
                   "https://mini-swe-agent.com/latest/advanced/global_configuration/"),
    ),
    "openhands": ReadyAgent(
        title="OpenHands CLI",
        command=f"openhands --headless --override-with-envs -f {INSTRUCTION}",
        credentials=(ANTHROPIC, OPENAI, OPENROUTER),
        placeholders=("LLM_API_KEY",),
        settings=("LLM_MODEL",),
        documents=("https://docs.openhands.dev/openhands/usage/cli/headless", "https://pypi.org/project/openhands/"),
    ),
})  # fmt: skip
