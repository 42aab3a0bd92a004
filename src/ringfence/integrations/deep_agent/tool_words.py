"""What the words in the names of tools and parameters say: tables, and how parameters' names are asked.

``…_WORDS`` must be whole words of the name; ``…_PARTS`` are long enough to be looked for inside, also where the name
is written with digits for letters or something between them.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


EXECUTING_WORDS = _words(
    "run exec eval shell bash sh zsh python node script terminal command cmd sudo root admin call invoke"
)
EXECUTING_PARTS = ("execut", "subprocess", "interpreter", "powershell", "administ")
DESTROYING_WORDS = _words(
    "delete remove rm unlink drop wipe purge erase kill reset revoke shred format overwrite clear"
)
DESTROYING_PARTS = ("delete", "remove", "destroy", "truncat", "terminat", "uninstall", "overwrit")
NETWORK_WORDS = _words(
    "net network http https url web fetch download upload post send email mail smtp ftp ssh scp curl wget api "
    "request webhook publish push browse browser crawl scrape dns socket slack sms notify share transmit deliver "
    "forward tweet telegram discord whatsapp ping beacon gist pastebin tcp udp rpc sftp rsync"
)
NETWORK_PARTS = ("network", "http", "upload", "download", "webhook", "sendmail", "request", "exfiltrat")
CHANGING_WORDS = _words(
    "write modify update edit create make add append insert set put move rename copy mkdir touch save store patch "
    "apply install chmod chown commit merge replace change configure sync"
)
CHANGING_PARTS = ("modif", "install", "configur")
LOOKING_WORDS = _words(
    "read list get search find grep show view look lookup count stat head tail cat calculate compute sum parse "
    "describe explain summarize summarise translate check compare time date weather help echo"
)
TELLING_WORDS = EXECUTING_WORDS | DESTROYING_WORDS | NETWORK_WORDS | CHANGING_WORDS | LOOKING_WORDS

CODE_KEYS = _words("code script source command cmd shell program snippet expression query sql argv args stdin")
CODE_TOOLS = _words("exec execute run eval shell bash sh python script command terminal code interpreter sql")
ADDRESS_KEYS = _words(
    "url uri href endpoint webhook host hostname domain ip address recipient recipients email remote server"
)
PATH_KEYS = _words("path paths file files filename filepath directory directory dir src dst target cwd")
ONE_PATH_KEYS = _words("path file filename filepath")
SECRET_KEYS = _words(
    "password passwd pwd pass passphrase secret secrets token tokens apikey credential credentials authorization auth "
    "bearer cookie cookies otp privatekey"
)
_SECRET_PAIRS = ({"api", "key"}, {"access", "key"}, {"private", "key"}, {"secret", "key"}, {"session", "id"})


def is_secret_key(words: frozenset[str]) -> bool:
    """Whether a parameter with these words in its name carries a secret."""
    return not words.isdisjoint(SECRET_KEYS) or any(pair <= words for pair in _SECRET_PAIRS)
