"""The rules that come with ringfence. A new rule needs a case in tests/material/validator/rules.txt."""

from __future__ import annotations

from ringfence.validation import rule_words as words
from ringfence.validation.result import (
    DANGEROUS_IMPORTS,
    FILE_OPERATIONS,
    LIMITS,
    NETWORK_OPERATIONS,
    OBFUSCATION,
    WARNING,
)
from ringfence.validation.rule import Rule

RULES: tuple[Rule, ...] = (
    # ---- dangerous imports, and what is as good as one
    Rule(
        id="process-call", category=DANGEROUS_IMPORTS, names=words.PROCESS_CALLS,
        methods=("subprocess_exec", "subprocess_shell"),
        reason="starts, replaces or ends processes",
    ),
    Rule(
        id="process-module", category=DANGEROUS_IMPORTS, modules=words.PROCESS_MODULES,
        reason="is for starting and steering other processes",
    ),
    Rule(
        id="dynamic-code", category=DANGEROUS_IMPORTS, names=words.CODE_CALLS,
        reason="runs code that nobody has looked at",
    ),
    Rule(
        id="shell-payload", category=DANGEROUS_IMPORTS,
        reason="is a command for a shell that only attacks have",
    ),
    Rule(
        id="dynamic-import", category=DANGEROUS_IMPORTS, methods=("loadTestsFromName", "loadTestsFromNames"),
        reason="imports by a name that is not in the code, or that hides what is imported",
    ),
    Rule(
        id="import-machinery", category=DANGEROUS_IMPORTS, modules=words.IMPORT_MODULES,
        only={"importlib": ("import_module", "invalidate_caches", "metadata", "resources")},
        reason="finds, loads or installs code past the import statement",
    ),
    Rule(
        id="native-code", category=DANGEROUS_IMPORTS, modules=words.NATIVE_MODULES,
        methods=("enable_load_extension", "load_extension"),
        reason="reaches memory and libraries past Python",
    ),
    Rule(
        id="deserialization", category=DANGEROUS_IMPORTS, modules=words.PICKLE_MODULES, names=words.PICKLE_CALLS,
        reason="runs code that is hidden in data",
    ),
    Rule(
        id="os-attribute", category=DANGEROUS_IMPORTS, only={"os": words.OS_ALLOWED},
        reason="is a part of os that computing does not need",
    ),
    Rule(
        id="sys-attribute", category=DANGEROUS_IMPORTS, only={"sys": words.SYS_ALLOWED},
        reason="is a part of sys that reaches into the interpreter",
    ),
    Rule(
        id="interpreter-internals", category=DANGEROUS_IMPORTS, modules=words.INTERPRETER_MODULES,
        only={
            "gc": ("collect", "disable", "enable", "isenabled", "freeze", "get_threshold", "set_threshold"),
            "inspect": words.INSPECT_ALLOWED,
            "builtins": words.BUILTINS_ALLOWED,
        },
        calls=("types.FunctionType", "types.LambdaType", "types.CodeType", "types.ModuleType"),
        reason="reaches frames, code objects or namespaces of the interpreter",
    ),
    Rule(
        id="host-control", category=DANGEROUS_IMPORTS, modules=words.HOST_MODULES,
        names=("getpass.getuser", "platform.node", "tkinter.Tk.clipboard_get"),
        reason="watches or controls the machine or its user",
    ),
    Rule(
        id="environment", category=DANGEROUS_IMPORTS, level=WARNING,
        names=("os.environ", "os.getenv", "sys.path", "getpass.getpass"),
        reason="reads what the surroundings set",
    ),
    Rule(
        id="environment-dump", category=DANGEROUS_IMPORTS,
        reason="takes all of the environment, or what is secret in it",
    ),
    # ---- network
    Rule(
        id="network-module", category=NETWORK_OPERATIONS, modules=words.NETWORK_MODULES,
        reason="is for talking over a network",
    ),
    Rule(
        id="network-call", category=NETWORK_OPERATIONS, names=words.NETWORK_CALLS,
        methods=("urlopen", "urlretrieve", "getaddrinfo", "gethostbyname", "create_connection", "sendto", "recvfrom"),
        reason="talks over a network",
    ),
    Rule(
        id="network-address", category=NETWORK_OPERATIONS,
        reason="names something on a network to be read or written",
    ),
    # ---- files
    Rule(
        id="file-outside", category=FILE_OPERATIONS,
        reason="leads outside of the allowed paths",
    ),
    Rule(
        id="file-unproven", category=FILE_OPERATIONS,
        reason="lists, removes or moves files by a path that is not known to be allowed",
    ),
    Rule(
        id="file-relative", category=FILE_OPERATIONS, level=WARNING,
        reason="is a path below the working directory, wherever that is",
    ),
    Rule(
        id="file-unknown", category=FILE_OPERATIONS, level=WARNING,
        reason="is a path that only the run knows",
    ),
    Rule(
        id="home-directory", category=FILE_OPERATIONS,
        names=("os.path.expanduser", "os.path.expandvars", "pathlib.Path.home", "pathlib.Path.expanduser"),
        reason="leads to the home of a user",
    ),
    Rule(
        id="own-source", category=FILE_OPERATIONS,
        reason="opens the program's own file",
    ),
    Rule(
        id="program-files", category=FILE_OPERATIONS,
        reason="looks for programs, to read or to change them",
    ),
    # ---- what hides something
    Rule(
        id="attribute-walk", category=OBFUSCATION, attributes=words.WALK_ATTRIBUTES,
        reason="leads from any object to the interpreter's own",
    ),
    Rule(
        id="hidden-name", category=OBFUSCATION,
        reason="spells a name of the interpreter as a string",
    ),
    Rule(
        id="code-object", category=OBFUSCATION,
        reason="takes apart or replaces the code of a function",
    ),
    Rule(
        id="namespace-lookup", category=OBFUSCATION,
        names=("builtins.__builtins__", "builtins.__loader__", "builtins.__spec__", "builtins.__build_class__"),
        reason="looks names up where they can't be followed",
    ),
    Rule(
        id="namespace-lookup-of-unknown", category=OBFUSCATION, level=WARNING,
        reason="looks up a name that only the run knows",
    ),
    Rule(
        id="dynamic-attribute", category=OBFUSCATION,
        reason="looks up an attribute whose name is not in the code",
    ),
    Rule(
        id="dynamic-attribute-of-unknown", category=OBFUSCATION, level=WARNING,
        reason="looks up an attribute whose name is not in the code, of an unknown object",
    ),
    Rule(
        id="handed-on", category=OBFUSCATION,
        reason="is handed on to where it can't be followed",
    ),
    Rule(
        id="through-module", category=OBFUSCATION,
        reason="reaches a module through another one that happens to import it",
    ),
    Rule(
        id="encoded-payload", category=OBFUSCATION,
        reason="decodes what is code, an address or a name of the interpreter",
    ),
    Rule(
        id="packed-data", category=OBFUSCATION,
        reason="is a long encoded text in a program that decodes texts",
    ),
    Rule(
        id="disguised-name", category=OBFUSCATION,
        reason="is a name in look-alike letters",
    ),
    Rule(
        id="reordered-text", category=OBFUSCATION,
        reason="reorders what a reader sees",
    ),
    # ---- what is not looked at any further
    Rule(id="syntax", category=LIMITS, reason="is not valid Python for this interpreter"),
    Rule(id="code-size", category=LIMITS, reason="is more than what is looked at"),
    Rule(id="nesting", category=LIMITS, reason="is nested more deeply than what is looked at"),
    Rule(id="null-byte", category=LIMITS, reason="is a null byte, which ends a text elsewhere"),
    Rule(id="encoding", category=LIMITS, reason="is an encoding in which the code may read differently"),
    Rule(id="not-text", category=LIMITS, reason="is not text"),
    Rule(id="unfinished", category=LIMITS, reason="stopped the validator: a mistake of ringfence; please report it"),
    Rule(id="work", category=LIMITS, reason="has more texts put together than are looked at"),
    Rule(id="too-many", category=LIMITS, reason="is where counting ended"),
)  # fmt: skip
