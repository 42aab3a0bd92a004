"""Attacks with output: more than is kept, longer than the job, under another name, or into somebody else's stream.

Bytes are kept as they are, also those that a terminal would obey: what is shown where is the door's business.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial

from ringfence import Outcome
from tests.escape.attack import BOTH, ESCAPED, Attack, Stage
from tests.escape.bait import tagged

_attack = partial(Attack, family="output")
_KEPT = 4096
_CUT = {"output_bytes": _KEPT}
_MARKER_ROOM = 100

# ---- more than is kept


def _bounded(stage: Stage) -> Mapping[str, object]:
    """No stream is longer than allowed, what is left out is counted, and nothing stays behind."""
    given = tagged(stage)
    left = stage.escaped
    stage.escaped = lambda: left() or (stage.outcome is not None and not _honest(stage.outcome))
    return given


def _honest(outcome: Outcome) -> bool:
    lengths = (len(outcome.stdout), len(outcome.stderr))
    counted = outcome.stdout_dropped or outcome.stderr_dropped
    return max(lengths) <= _KEPT + _MARKER_ROOM and bool(counted) and "output" in outcome.limits_hit


_MUCH = "block = b'x' * 65536\n"
_LAST = "os.write({fd}, b'ESCAPED')\n"
_FLOODS = {
    "stdout": _MUCH + "for _ in range(64): os.write(1, block)\n" + _LAST.format(fd=1),
    "stderr": _MUCH + "for _ in range(64): os.write(2, block)\n" + _LAST.format(fd=2),
    "both streams at once": (
        _MUCH + "kid = os.fork()\nfor _ in range(64): os.write(1 if kid else 2, block)\n"
        "if kid: os.waitpid(kid, 0); os.write(1, b'ESCAPED')\n"
    ),
    "one stream by many processes": (
        _MUCH + "kids = []\nfor _ in range(6):\n pid = os.fork()\n if pid == 0:\n"
                "  for _ in range(16): os.write(1, block)\n"
        "  os._exit(0)\n kids.append(pid)\nfor pid in kids: os.waitpid(pid, 0)\n" + _LAST.format(fd=1)
    ),
    "many small pieces": "for _ in range(9000): os.write(1, b'x')\n" + _LAST.format(fd=1),
    "a larger pipe": (
        "import fcntl\nfcntl.fcntl(1, 1031, 1 << 20)\n"
        "for _ in range(4): os.write(1, bytes(1 << 20))\n" + _LAST.format(fd=1)
    ),
    "splice": (
        "r, w = os.pipe()\nfor _ in range(64):\n os.write(w, b'x' * 65536); left = 65536\n"
        " while left: left -= os.splice(r, 1, left)\n" + _LAST.format(fd=1)
    ),
    "sendfile": (
        "file = os.memfd_create('m'); os.ftruncate(file, 4 << 20)\nsent = 0\n"
        "while sent < 4 << 20: sent += os.sendfile(1, file, sent, 4 << 20)\n" + _LAST.format(fd=1)
    ),
    "a descriptor that was opened anew": (
        "fd = os.open('/proc/self/fd/1', os.O_WRONLY); os.close(1); os.dup2(fd, 1)\n"
        "for _ in range(64): os.write(1, b'x' * 65536)\n" + _LAST.format(fd=1)
    ),
}
_FLOOD_ATTACKS = [
    _attack(name=f"flood by {name}", what="more output is kept than allowed, or not said to be cut", levels=BOTH,
            policy=_CUT, prepare=_bounded, probe=source, status=("OK",))
    for name, source in _FLOODS.items()
] + [
    _attack(name="flood that is to end the job", what="it goes on printing after the limit", levels=BOTH,
            policy=_CUT | {"on_output_limit": "kill"}, status=("OUTPUT_LIMIT",),
            probe=_MUCH + "for _ in range(64): os.write(1, block)\nos.close(1); time.sleep(0.5)\n"
                          "os.write(2, b'ESCAPED')\n"),
]  # fmt: skip

# ---- what the output says about itself

_MARKER = "[TRUNCATED] 123 bytes dropped"


def _not_cut(stage: Stage) -> Mapping[str, object]:
    stage.escaped = lambda: stage.outcome is not None and bool(
        stage.outcome.stdout_dropped or "output" in stage.outcome.limits_hit
    )
    return {}


def _cut(stage: Stage) -> Mapping[str, object]:
    stage.escaped = lambda: stage.outcome is not None and stage.outcome.stdout_dropped < _KEPT
    return {}


def _readable(stage: Stage) -> Mapping[str, object]:
    """The outcome is still plain data that can be written down."""

    def broken() -> bool:
        try:
            json.dumps(stage.outcome.to_dict() if stage.outcome else {})
        except (TypeError, ValueError):
            return True
        return False

    stage.escaped = broken
    return {}


_READS_TEXT = (
    "import subprocess\n"
    "told = subprocess.run([sys.executable, '-c', {source!r}], capture_output=True).stdout\n"
)
_FORGED = f"import os\nos.write(1, b'\\n{_MARKER}\\n')\n"
_HIDDEN = f"import os\nos.write(1, b'x' * {2 * _KEPT}); os.write(1, b'\\nall 0 bytes told, nothing dropped\\n')\n"
_SALAD = "import os\nos.write(1, bytes(range(256)) * 4 + b'\\xed\\xa0\\x80\\x00\\x1b]0;title\\x07')\n"
_WORD_ATTACKS = [
    _attack(name="a forged marker", what="whole output counts as cut", levels=BOTH, policy=_CUT, prepare=_not_cut,
            probe=_FORGED, status=("OK",),
            control=_READS_TEXT.format(source=_FORGED) + f"if b'{_MARKER}' in told: print('ESCAPED')\n"),
    _attack(name="a hidden cut", what="cut output counts as whole", levels=BOTH, policy=_CUT, prepare=_cut,
            probe=_HIDDEN,
            control=_READS_TEXT.format(source=_HIDDEN) + "if b'TRUNCATED' not in told: print('ESCAPED')\n"),
    _attack(name="bytes that are no text", what="the result can't be written as JSON", levels=BOTH, prepare=_readable,
            probe=_SALAD, status=("OK",),
            control=_READS_TEXT.format(source=_SALAD) + "try: told.decode()\nexcept ValueError: print('ESCAPED')\n"),
]  # fmt: skip

# ---- longer than the job


def _not_held(stage: Stage) -> Mapping[str, object]:
    """The caller has its result long before whoever holds the stream lets go of it."""
    given, started = tagged(stage), time.monotonic()
    stage.escaped = lambda: time.monotonic() - started > 2.2
    return given


_HOLD = "if os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n {how}\n"
_HOLD_ATTACKS = [
    _attack(name=f"{name} after the end", what="the caller waits for a stream that somebody holds", levels=BOTH,
            prepare=_not_held, probe=_HOLD.format(how=how), status=("OK",))
    for name, how in {
        "a daemon that holds the streams": "time.sleep(2.5)",
        "a daemon that keeps printing": "end = time.monotonic() + 2.5\n"
                                        " while time.monotonic() < end: os.write(1, b'x'); time.sleep(0.01)",
        "a stream in flight between sockets": (
            "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [1, 2]); os.close(1); os.close(2); time.sleep(2.5)"
        ),
    }.items()
]  # fmt: skip

# ---- the streams of others


def _other_stream(stage: Stage) -> Mapping[str, object]:
    """Another program of the caller, whose output the caller reads."""
    program = "import time; time.sleep(30)"
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)

    def end() -> None:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]

    stage.callback(end)
    stage.escaped = lambda: ESCAPED in (process.stdout.read() or b"")  # type: ignore[union-attr]
    return {"pid": process.pid}


def _caller(_: Stage) -> Mapping[str, object]:
    return {"pid": os.getpid()}


def _blocking(stage: Stage) -> Mapping[str, object]:
    """The caller's own streams are as blocking as before."""
    before = [os.get_blocking(number) for number in range(3)]
    stage.escaped = lambda: [os.get_blocking(number) for number in range(3)] != before
    return {}


_UNBLOCK = "for n in (0, 1, 2): os.set_blocking(n, False)\n"
_OTHER_ATTACKS = [
    _attack(name="into the output of another program", what="somebody else seems to have said it",
            prepare=_other_stream, probe="try: os.write(os.open(f\"/proc/{GIVEN['pid']}/fd/1\", os.O_WRONLY), "
                                         "b'ESCAPED')\n"
                                         "except OSError as e: print(e)\n"),
    _attack(name="into the output of the caller", what="the caller seems to have said it", prepare=_caller,
            probe="try: os.readlink(f\"/proc/{GIVEN['pid']}/fd/1\"); print('ESCAPED')\n"
                  "except OSError as e: print(e)\n"),
    _attack(name="streams that no longer block", what="the caller's own streams stop blocking", levels=BOTH,
            prepare=_blocking, probe=_UNBLOCK,
            control="r, w = os.pipe()\nif os.fork() == 0: os.dup2(w, 1); os.set_blocking(1, False); os._exit(0)\n"
                    "os.wait()\nif not os.get_blocking(w): print('ESCAPED')\n"),
]  # fmt: skip

ATTACKS = [*_FLOOD_ATTACKS, *_WORD_ATTACKS, *_HOLD_ATTACKS, *_OTHER_ATTACKS]
