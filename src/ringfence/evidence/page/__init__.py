"""The verifier as one web page: the files of this folder in one, with a policy that allows nothing else.

Owns: the order of the scripts and the page's Content-Security-Policy. The checks are in the scripts, one
file a subject, named after the Python module that does the same.
Does not: verify anything here, or write files.
"""

from __future__ import annotations

import base64
import hashlib
import pkgutil

SCRIPTS = (
    *("text.js", "strictjson.js", "canonical.js", "sha256.js", "ed25519.js", "shape.js", "schema.js"),
    *("trust.js", "steps.js", "claims.js", "files.js", "worker.js", "meaning.js", "view.js", "page.js"),
)
# worker-src blob: the page starts its own script as a worker, which inherits this policy.
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; worker-src blob:; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types ringfence-worker"
)


def verify_page() -> str:
    """The whole page as one HTML document that needs nothing else, not even a network."""
    from ringfence import __version__

    script = '"use strict";\n' + "\n".join(_read(name) for name in SCRIPTS)
    style = _read("style.css")
    parts = {
        "@POLICY@": _POLICY.format(script=_source_hash(script), style=_source_hash(style)),
        "@VERSION@": __version__,
        "@STYLE@": style,
        "@SCRIPT@": script,
    }
    page = _read("page.html")
    for place, text in parts.items():
        head, found, tail = page.partition(place)
        page = f"{head}{text}{tail}" if found else page
    return page


def _read(name: str) -> str:
    data = pkgutil.get_data(__name__, name)
    # Browsers read CRLF as LF before they hash, so a checkout with CRLF must be read so too.
    return (data or b"").decode("utf-8").replace("\r\n", "\n")


def _source_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
