"""The verifier as one web page: the files of this directory in one, with a policy that allows nothing else.

Owns: the order of the scripts and the Content-Security-Policy of pages that have them. The checks are in the
scripts, one file a subject, named after the Python module that does the same.
Does not: verify anything here, or write files.
"""

from __future__ import annotations

import base64
import hashlib
import pkgutil
import re

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

    parts = {"style": verifier_style(), "script": verifier_script(), "VERSION": __version__}
    return document(_read("page.html"), title="Verify a bundle · ringfence", **parts)


def verifier_script() -> str:
    """All scripts as one. It finds its places in the page by their ids, those of ``verifier_body``."""
    return '"use strict";\n' + "\n".join(_read(name) for name in SCRIPTS)


def verifier_style() -> str:
    """What the verifier looks like, and the colours of every page of ours."""
    return _read("style.css")


def verifier_body() -> str:
    """What the script needs to be in a page: where a bundle is taken, and where the answer is shown."""
    return _read("page.html").partition("<main>")[2].partition("</main>")[0]


def document(template: str, *, title: str, style: str, script: str, **parts: str) -> str:
    """Fill the ``@NAMES@`` of a page's body, once: inserted text is not scanned again. ``title``: escaped."""
    policy = _POLICY.format(script=_source_hash(script), style=_source_hash(style))
    known = {**parts, "PAGE": title, "POLICY": policy, "STYLE": style, "SCRIPT": script}
    pieces = re.split("@([A-Z]+)@", f"{_read('head.html')}{template}</body>\n</html>\n")
    return "".join(known[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _read(name: str) -> str:
    return asset(__name__, name)


def asset(package: str, name: str) -> str:
    """Return a text file that a package brings along."""
    data = pkgutil.get_data(package, name)
    # Browsers read CRLF as LF before they hash, so a checkout with CRLF must be read so too.
    if data is None:
        raise FileNotFoundError(f"{package} comes without {name}")  # an empty page would pass for a page
    return data.decode("utf-8").replace("\r\n", "\n")


def _source_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
