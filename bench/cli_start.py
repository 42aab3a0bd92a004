"""What does it cost to type ``ringfence run -- /bin/true``, against starting a bare interpreter?"""

from __future__ import annotations

import compileall
import subprocess
import sys
from pathlib import Path

from bench.harness import measure, report

QUESTION = "ringfence run -- /bin/true against python -I -S -c pass"


def main() -> None:
    source = Path(__file__).resolve().parent.parent / "src"
    compileall.compile_dir(source, quiet=2)  # as an installation from a wheel has it
    script = Path(sys.executable).parent / "ringfence"

    def command(*words: str) -> None:
        subprocess.run(words, stdin=subprocess.DEVNULL, check=True)

    rows = measure(
        {
            "python -I -S -c pass": lambda: command(sys.executable, "-I", "-S", "-c", "pass"),
            "python -c pass": lambda: command(sys.executable, "-c", "pass"),
            "ringfence run -- /bin/true": lambda: command(str(script), "run", "--", "/bin/true"),
        },
        turns=40,
    )
    report("cli_start", QUESTION, rows)


if __name__ == "__main__":
    main()
