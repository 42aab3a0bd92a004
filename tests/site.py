"""The site of the documents: lays its pages out in build/docs, where MkDocs finds them (``make docs``).

Some pages lie elsewhere in the repository, where people look for them. Links are made to fit; a link to a file that
the site does not have, such as a module, becomes plain text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGED, BUILT = ROOT / "build" / "docs", ROOT / "build" / "site"
ELSEWHERE: Mapping[str, str] = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "explanation/architecture.md",
    "THREAT-MODEL.md": "explanation/threat-model.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "bench/README.md": "project/benchmarks.md",
    "corpus/RESULTS.md": "reference/corpus-results.md",
}
"""Page in the repository, page of the site."""
_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_OUTSIDE = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']?(https?:)?//""")


def pages() -> dict[str, str]:
    """Every page and picture of the site by its path in the repository."""
    own = (path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".svg"))
    return {str(path): str(path.relative_to("docs")) for path in own} | ELSEWHERE


def fitted(text: str, source: str, known: Mapping[str, str]) -> str:
    """The text of a page with links that fit the site; what stands in blocks of code stays."""
    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _relinked(part, source, known) for part in parts)


def _relinked(text: str, source: str, known: Mapping[str, str]) -> str:
    here = os.path.dirname(known[source])

    def one(match: re.Match[str]) -> str:
        mark, words, aim, anchor = match.groups(default="")
        target = os.path.normpath(os.path.join(os.path.dirname(source), aim))
        target = f"{target}/README.md" if f"{target}/README.md" in known else target
        if target not in known:
            return words
        return f"{mark}[{words}]({os.path.relpath(known[target], here)}{anchor})"

    return _LINK.sub(one, text)


def stage(folder: Path = STAGED) -> None:
    """Lay all pages out."""
    shutil.rmtree(folder, ignore_errors=True)
    known = pages()
    for source, page in known.items():
        target = folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            target.write_text(fitted((ROOT / source).read_text("utf-8"), source, known), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / source, target)


def requests_outside(folder: Path = BUILT) -> list[str]:
    """Pages that would load something from another host."""
    found = (page for page in folder.rglob("*.html") if _OUTSIDE.search(page.read_text("utf-8")))
    return [str(page.relative_to(folder)) for page in found]


def main(python: str) -> int:
    """Build it with the MkDocs of this interpreter; a warning is an error."""
    stage()
    # Not --quiet: what it does not print, it does not count as a warning.
    command = [python, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    code = done.returncode
    if code:
        print(done.stdout, done.stderr, file=sys.stderr)
    outside = [] if code else requests_outside()
    if outside:
        print(f"these pages load something from another host: {', '.join(outside)}", file=sys.stderr)
    elif not code:
        print(f"the site is in {BUILT.relative_to(ROOT)}; open {BUILT.relative_to(ROOT)}/index.html")
    return code or bool(outside)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else sys.executable))
