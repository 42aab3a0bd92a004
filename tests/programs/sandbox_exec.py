"""Stands for ``sandbox-exec``, which only macOS has: notes its words in a file beside it, and becomes the program.

It holds nothing. By the name ``holds`` it says of the program with which Seatbelt is tried what a kernel would say that
holds the profile; as ``takes`` it lets that one run, as a system would that takes a profile and does not hold it; as
``refuses`` it knows none of the language.
"""

import json
import os
import sys


def attempts(profile: str, secret: str, beside: str) -> list[str]:
    rules = profile.splitlines()
    hidden = any(rule.startswith("(deny file* ") and secret in rule for rule in rules)
    written = any(rule.startswith("(allow file-write* ") and os.path.dirname(beside) in rule for rule in rules)
    told = {"read": not hidden, "wrote": written, "connected": "(deny network*)" not in rules, "done": True}
    return [name for name, done in told.items() if done]


def main(name: str, option: str, profile: str, *command: str) -> int:
    folder = os.path.dirname(os.path.abspath(sys.argv[0]))
    with open(os.path.join(folder, f"{name}.json"), "a", encoding="utf-8") as file:
        file.write(json.dumps([option, profile, *command]) + "\n")
    if name == "refuses":
        print("unbound variable", file=sys.stderr)
        return 65
    if name == "holds" and any("attempt(" in word for word in command):
        print("\n".join(attempts(profile, *command[5:7])))
        return 0
    return os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main(os.path.basename(sys.argv[0]), *sys.argv[1:]))
