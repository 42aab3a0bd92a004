"""What an installed wheel must do on a machine that nobody prepared; ``python smoke.py native|pure`` with its Python.

It needs nothing but the package and the standard library, so any root and any workflow can run it. It prints one line
for each thing that holds and ends with an error at the first that does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile


def main(kind: str) -> None:
    import ringfence
    from ringfence.kernel.calls import native

    assert "site-packages" in ringfence.__file__, ringfence.__file__
    assert (native.library() is not None) is (kind == "native"), f"the wheel is not {kind}"
    told = ringfence.__version__, sys.version.split()[0], os.uname().machine, f"uid {os.getuid()}"
    print("ok: installed,", *told, kind)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside, tempfile.TemporaryDirectory(dir="/var/tmp") as here:
        os.chdir(here)
        _is_closed(outside)
        _is_undone(here)
        _is_limited()
        _is_proven(outside)


def _is_closed(outside: str) -> None:
    secret = os.path.join(outside, "secret")
    with open(secret, "w") as file:
        file.write("of the host")
    assert _sh(["cat", secret]).stdout == "of the host"  # the control
    done = _ringfence("run", "--discard", "--", "echo", "inside")
    assert done.stdout == "inside\n", done
    done = _ringfence("run", "--discard", "--", "sh", "-c", f"echo begun; cat {secret}; echo $?")
    assert done.stdout == "begun\n1\n", done
    print("ok: a strict sandbox runs and does not see the host")


def _is_undone(here: str) -> None:
    with open("kept", "w") as file:
        file.write("before")
    done = _ringfence("run", "--discard", "--", "sh", "-c", "echo after > kept; cat kept")
    assert done.stdout == "after\n", done
    with open(os.path.join(here, "kept")) as file:
        assert file.read() == "before"
    print("ok: changes are undone")


def _is_limited() -> None:
    done = _ringfence("run", "--discard", "--json", "--wall", "1", "--", "sleep", "60")
    assert json.loads(done.stdout)["status"] == "TIMEOUT", done.stdout
    print("ok: a deadline holds")


def _is_proven(outside: str) -> None:
    key, proof = os.path.join(outside, "key"), os.path.join(outside, "bundle.json")
    public = _ringfence("keygen", "--out", key).stdout.strip().removeprefix("pubkey=")
    done = _ringfence("run", "--discard", "--quiet", "--bundle", proof, "--key", key, "--", "true")
    assert done.returncode == 0, done
    checked = _ringfence("verify-bundle", "--bundle", proof, "--pubkey", public)
    assert checked.returncode == 0 and "bundle OK" in checked.stdout, checked
    print("ok: evidence is signed and verified")


def _ringfence(*words: str) -> subprocess.CompletedProcess[str]:
    return _sh([os.path.join(os.path.dirname(sys.executable), "ringfence"), *words])


def _sh(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main(sys.argv[1])
    print("ALL OK")
