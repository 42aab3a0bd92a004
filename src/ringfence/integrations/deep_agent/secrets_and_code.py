"""What secrets, code and ways out look like: tables, and the few functions that search a text by them.

Owns patterns of secret files, secret values and network use, and undoes the cheap ways around them (quotes, globs,
base64, hex, percent signs). It is a heuristic: a program can spell any name so that no pattern finds it.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator
from fnmatch import fnmatchcase
from urllib.parse import unquote

from ringfence.integrations.deep_agent.confusables import fold

SECRET_NAMES = (
    ".env", ".envrc", ".netrc", ".pgpass", ".npmrc", ".pypirc", ".htpasswd", ".git-credentials", ".vault-token",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "credentials.json", "credentials", "shadow",
)  # fmt: skip
_WORDS_TOO = (".env", "credentials", "shadow")  # these also stand in prose, and have rules of their own
_EXACT = "|".join(re.escape(name) for name in SECRET_NAMES if name not in _WORDS_TOO)
_SECRET_FILE = re.compile(
    r"""(?x)(?:^|(?<=[\s/"'`=:@(,;|<>&\[{]))(?:
        \.env(?:\.(?!example|sample|template|dist)[\w-]{1,40}){0,4}(?![\w-]|\.\w)
      | ^credentials\s*\Z | (?<=/)credentials(?![\w-]|\.\w) | (?:EXACT)(?![\w-]|\.\w)
      | \.ssh(?![\w-]|\.\w) | \.gnupg(?![\w-]|\.\w) | \.aws/\w{1,30} | \.kube/config
      | \.docker/config\.json | \.config/gcloud
      | [\w.-]{0,200}\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk)(?![\w-]|\.\w)
      | (?:[\w-]{0,60}[-_])?(?:credentials?|secrets?|tokens?|passwords?|passwd|service[-_]account|client[-_]secret)
        (?:[-_]\w{1,60})?\.(?:json|ya?ml|toml|ini|cfg|conf|txt|csv|env|db|xml|properties)(?![\w-]|\.\w)
      | etc/(?:g?shadow|sudoers)(?![\w-]|\.\w) | proc/[\w*]{1,20}/(?:environ|mem) | (?:var/)?run/secrets
    )""".replace("EXACT", _EXACT)
)
# A pattern of unbounded length must not start right after a character of its own kind: else a text full of beginnings
# takes quadratic time, and code in the sandbox chooses the text.
SECRET_VALUE = re.compile(
    r"""(?x)
    (?-i:A[KS]IA[0-9A-Z]{16}) | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w-]{20,}
  | sk-[\w-]{20,} | [rs]k_live_\w{16,} | xox[abprs]-[\w-]{10,} | AIza[\w-]{30,} | ya29\.[\w-]{20,}
  | hf_[A-Za-z0-9]{20,} | npm_[A-Za-z0-9]{30,} | pypi-[\w-]{20,}
  | (?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*
  | -----BEGIN[ ][A-Z ]{0,30}PRIVATE[ ]KEY-----[\s\S]*?(?:-----END[ A-Z]{0,40}-----|\Z)
  | (?i:\b(?:bearer|basic)\s+[\w.~+/=-]{12,})
  | (?<=://)[^\s/:@]{1,256}:[^\s/@]{1,256}(?=@)
  | (?i:password|passwd|pwd|passphrase|(?<![a-z])pass|secret|token|credentials?|(?:api|access|private)[_-]?key)
    ["']?\s{0,8}[=:]\s{0,8}["']?[^\s"',;]{6,}
    """
)
# Bare names only under endings that files seldom have: notes.txt is no host.
_ADDRESS = re.compile(
    r"""(?x)
    (?:[a-z][a-z0-9+.-]{1,20}://|www\.|mailto:)\S[^\n]* | [\w.+-]+@[\w-]+\.[\w.-]+
  | (?://[\w.-]{1,253}
      | (?:\d{1,3}\.){3}\d{1,3} | \[[0-9a-f:.]{2,60}\]
      | (?:[\w-]{1,63}\.){1,8}(?:com|net|org|io|dev|app|info|biz|xyz|ai|cloud|site|online|top|onion)
    )(?::\d{1,5})?(?:/\S*)?
  | (?=[0-9a-f]{0,4}(?::[0-9a-f]{1,4}){0,6}::|(?:[0-9a-f]{1,4}:){7})[0-9a-f:.]{2,45}
    """
)
_MENTIONED = re.compile(
    r"\b(?:https?|ftp|wss?)://|^\s*(?:curl|wget|ncat|netcat|nc|socat|telnet|ssh|scp|sftp|rsync)\s"
)
_NETWORK_CODE = re.compile(
    r"""(?x)
    (?<![\w-])(?:curl|wget|ncat|netcat|nc|socat|telnet|ftp|sftp|scp|rsync|ssh|nslookup|dig|sendmail)(?![\w=(])
  | /dev/(?:tcp|udp)/ | \b(?:https?|ftp|wss?)://
  | \b(?:socket|requests|urllib\d?|httpx|aiohttp|smtplib|ftplib|paramiko|telnetlib|websockets?)\b
  | \bhttp\.client\b | \bgetaddrinfo\b | \bgethostbyname\b | \bfetch\s*\( | \bxmlhttprequest\b | \binvoke-webrequest\b
    """
)
_SHELL_SPACE = re.compile(r"\$ifs\b|\$\{ifs[^}]{0,20}\}")
_SHELL_NOISE = re.compile(r"""["'`\\]|\$@|\$\*""")
_ENCODED = re.compile(r"(?<![\w+/=-])(?:[0-9A-Fa-f]{8,}|[A-Za-z0-9+/_-]{6,}={0,2})(?![\w+/=-])")
_WILD = re.compile(r"[*?]|\[[^]]*\]")
_MAX_GLOB = 64


def secret_files(text: str) -> tuple[str, ...]:
    """The secret files that a text names, each once, as they look."""
    found = {match.group() for form in forms(text) for match in _SECRET_FILE.finditer(form)}
    found |= {name for word in _globs(text) for name in SECRET_NAMES if fnmatchcase(name, word)}
    return tuple(sorted(found))


def is_address(text: str) -> bool:
    """Whether a text is an address on a network, and nothing more."""
    return _ADDRESS.fullmatch(fold(text.strip()).replace("\\", "/")) is not None


def mentions_address(text: str) -> bool:
    """Whether there is one in it, or it begins with a command that needs one."""
    return any(_MENTIONED.search(form) for form in forms(text))


def is_command(text: str) -> bool:
    """Whether a text that should be a name contains several words or shell syntax."""
    return re.search(r"[\s;|&`$]", text.strip()) is not None


def uses_network(code: str) -> bool:
    return any(_NETWORK_CODE.search(form) for form in forms(code))


def forms(text: str) -> Iterator[str]:
    """A text as it stands, as a shell would read it, and what is encoded in it."""
    plain = fold(text).replace("\\", "/")
    yield plain
    stripped = _SHELL_NOISE.sub("", _SHELL_SPACE.sub(" ", fold(text)))
    if stripped != plain:
        yield stripped
    if "%" in text:
        yield fold(unquote(text))
    yield from map(fold, _decoded(text))


def _decoded(text: str) -> Iterator[str]:
    for match in _ENCODED.finditer(text):
        yield from _readings(match.group())


def _readings(word: str) -> Iterator[str]:
    padded = word.rstrip("=").replace("-", "+").replace("_", "/")
    for decode, encoded in ((bytes.fromhex, word), (b64decode, padded + "=" * (-len(padded) % 4))):
        try:
            reading = decode(encoded).decode("ascii")
        except (ValueError, binascii.Error):
            continue
        if reading.isprintable():
            yield reading


def _globs(text: str) -> Iterator[str]:
    """Words with wildcards that say enough to mean something: not ``*`` or ``*.py``."""
    for word in re.split(r"""[\s/"'`=(),;|<>&]+""", fold(text)):
        if len(word) <= _MAX_GLOB and not word.startswith("*") and 2 <= len(_WILD.sub("", word)) < len(word):
            yield word
