"""Print a script that makes a shell complete the commands and options of ringfence and proctor."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.cli.command_words import Command, Word

EXAMPLES = """\
examples:
  ringfence completion bash > ~/.local/share/bash-completion/completions/ringfence
  ringfence completion zsh > ~/.zfunc/_ringfence               with fpath+=~/.zfunc before compinit in ~/.zshrc
  ringfence completion fish > ~/.config/fish/completions/ringfence.fish
  eval "$(ringfence completion bash)"                          for this shell alone

The script is fixed text: completing a word starts nothing. Print it again after an update. For proctor:
ringfence completion SHELL --program proctor.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    parser.add_argument("--program", choices=("ringfence", "proctor"), default="ringfence",
                        help="the program (default: ringfence)")  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.cli.command_words import commands_of

    written = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]
    print(written(arguments.program, commands_of(arguments.program)))
    return 0


# bash 3.2, which macOS has, knows no mapfile; compopt, which it does not know either, lets readline read quoted words.
_BASH = """\
_%(program)s_offer() {
    local found
    while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen "$@")
}
_%(program)s_offer_files() {
    compopt -o default 2>/dev/null
    _%(program)s_offer -f -- "$1"
}
_%(program)s_complete() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" each words="" first="" files=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        _%(program)s_offer -W "%(commands)s --help --version" -- "$word"
        return
    fi
    for each in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
        if [ "$each" = -- ]; then
            _%(program)s_offer -c -- "$word"
            _%(program)s_offer_files "$word"
            return
        fi
    done
    case "${COMP_WORDS[1]} $before" in
%(values)s
    esac
    if [ -n "$words" ]; then
        _%(program)s_offer -W "$words" -- "$word"
        return
    elif [ -n "$files" ]; then
        _%(program)s_offer_files "$word"
        return
    fi
    case "${COMP_WORDS[1]}" in
%(options)s
    esac
    for each in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
        case " $first " in *" $each "*) first="" ;; esac
    done
    _%(program)s_offer -W "$words $first" -- "$word"
    if [ -n "$files" ] && [ -z "$first" ]; then _%(program)s_offer_files "$word"; fi
}
complete -o filenames -F _%(program)s_complete %(program)s"""


def _bash(program: str, commands: list[Command]) -> str:
    names = " ".join(each.name for each in commands)
    options = [f"        {each.name}) words='{' '.join(_names(each))}' first='{' '.join(_first(each))}' "
               f"files={'yes' if _takes_files(each) else ''} ;;" for each in commands]  # fmt: skip
    values = [f"        '{each.name} {name}') words='{' '.join(word.choices)}' files=yes ;;"
              for each in commands for word in each.words if word.value for name in word.names]  # fmt: skip
    return _BASH % {"program": program, "commands": names, "options": "\n".join(options), "values": "\n".join(values)}


def _names(command: Command) -> list[str]:
    return [name for word in command.words for name in word.names]


def _first(command: Command) -> list[str]:
    """The allowed words of an argument that takes only some; it is the command's first."""
    return [choice for word in command.words if not word.names for choice in word.choices]


def _takes_files(command: Command) -> bool:
    """Whether an argument can be any word."""
    return any(not word.names and not word.choices for word in command.words)


def _zsh(program: str, commands: list[Command]) -> str:
    listed = "\n".join(f"    {_quoted(f'{each.name}:{each.line}')}" for each in commands)
    cases = "\n".join(f"    {each.name}) _arguments {' '.join(_zsh_word(word) for word in each.words)} ;;"
                      for each in commands)  # fmt: skip
    return (f"#compdef {program}\n_{program}() {{\n  local -a commands=(\n{listed}\n  )\n"
            f"  if (( CURRENT == 2 )); then _describe command commands; return; fi\n  shift words; (( CURRENT-- ))\n"
            f"  case $words[1] in\n{cases}\n  esac\n}}\ncompdef _{program} {program}")  # fmt: skip


def _zsh_word(word: Word) -> str:
    value = word.value.replace(":", " ").replace("[", "").replace("]", "")
    kind = f"({' '.join(word.choices)})" if word.choices else "_files"
    if not word.names:
        return _quoted(f"{'1' if word.choices else '*'}:{value}:{kind}")
    told = word.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    return " ".join(_quoted(f"*{name}[{told}]" + (f":{value}:{kind}" if word.value else "")) for name in word.names)


def _fish(program: str, commands: list[Command]) -> str:
    lines = [f"complete -c {program} -n __fish_use_subcommand -f -a {each.name} -d {_quoted(each.line)}"
             for each in commands]  # fmt: skip
    for each in commands:
        seen = f"complete -c {program} -n '__fish_seen_subcommand_from {each.name}'"
        lines += [f"{seen} {_fish_word(word)}" for word in each.words if word.names]
        first = " ".join(_first(each))
        due = f"__fish_seen_subcommand_from {each.name}; and not __fish_seen_subcommand_from {first}"
        if first:
            lines.append(f"complete -c {program} -n '{due}' -f -a '{first}'")
        if not _takes_files(each):
            lines.append(f"{seen} -f")
    return "\n".join(lines)


def _fish_word(word: Word) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in word.names]
    choices = f"-x -a {_quoted(' '.join(word.choices))}" if word.choices else "-r" if word.value else ""
    return " ".join(filter(None, (*names, choices, f"-d {_quoted(word.help)}" if word.help else "")))


def _quoted(text: str) -> str:
    """Quote for a shell, in single quotes; bash and zsh close and reopen them around a quote, and fish accepts that."""
    return "'" + text.replace("'", "'\\''") + "'"
