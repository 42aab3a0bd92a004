"""Decides which of an agent's changes to an image's system are not graded. It looks at names and touches no disk.

A grading script of an image runs the image's programs. Those that every script relies on (the shell, its loader and
libc, the small tools, Python and the test runner) come from the original image; everything else is as the agent left
it. New programs stay, because tasks ask for them, unless they would be found in place of one of these. ADR 0085 says
why.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Collection

from ringfence.checkpoint.entry import FOLDER, LINK, Entry, hides_base
from ringfence.proctor.import_filter import TEST_SETTINGS
from ringfence.proctor.pytest_sandbox import RUNNER_PARTS

InBase = Callable[[str], str]
"""What kind of thing the image has at this path, which is relative to its root; empty: none."""

PROGRAM_FOLDERS = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin", "etc/alternatives")
TOOLS = frozenset((
    "sh", "bash", "dash", "ash", "busybox", "env", "cat", "cp", "mv", "rm", "ls", "ln", "mkdir", "rmdir", "touch",
    "chmod", "head", "tail", "tee", "sort", "uniq", "wc", "cut", "tr", "sed", "grep", "egrep", "fgrep", "awk", "gawk",
    "mawk", "find", "xargs", "diff", "cmp", "test", "[", "expr", "printf", "echo", "true", "false", "sleep",
    "timeout", "date", "dirname", "basename", "readlink", "realpath", "stat", "mktemp", "seq", "tar", "gzip",
    "sha256sum", "md5sum", "which", "id", "uname", "pytest", "py.test", "pip", "pip3", "uv", "uvx", "curl", "wget",
    "ldconfig", "sudo", "su",
))  # fmt: skip
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_LIBRARY_FOLDERS = ("lib", "lib32", "lib64", "usr/lib", "usr/lib64", "usr/local/lib")
_LIBRARIES = ("ld-linux", "ld-musl", "ld-2.", "ld.so", "libc.so", "libc-2", "libc.musl", "libm.so", "libm-2",
              "libdl.so", "libdl-2", "libpthread", "librt.so", "librt-2", "libtinfo", "libselinux", "libpcre",
              "libacl", "libattr", "libpython", "libresolv", "libnss_", "libnsl", "libutil.so", "libutil-2",
              "libcrypt.so", "libcrypto", "libssl", "libgcc_s", "libz.so", "libexpat", "libffi", "libbz2", "liblzma",
              "libuuid", "libsqlite3", "libmpdec", "libreadline", "libncurses", "libgmp", "libmpfr", "libsigsegv",
              "libcap.so", "libcurl", "libnghttp", "libidn2", "libunistring", "librtmp", "libssh", "libpsl",
              "libgssapi_krb5", "libkrb5", "libk5crypto", "libcom_err", "libkeyutils", "libldap", "liblber", "libsasl2",
              "libzstd", "libbrotli", "libgnutls", "libhogweed", "libnettle", "libp11-kit", "libtasn1")  # fmt: skip
"""Libraries that the tools load, and those that Python's own modules load."""
_FOR_A_PROCESSOR = re.compile(r"/(?:glibc-hwcaps|tls|haswell|xeon_phi|avx512_1|x86_64|i[3-6]86|sse2|aarch64|atomics)"
                              r"(?:/|$)")  # fmt: skip
"""Directories in directories of libraries, in which glibc looks first, or did before 2.37."""
_OF_A_USER = re.compile(r"(?:^|/)\.(?:local|cargo)/bin/[^/]+$|(?:^|/)\.cargo/env[^/]*$|"
                        r"(?:^|/)\.local/share/uv/(?:tools|python)(?:/|$)")  # fmt: skip
"""Where installers put uv and what scripts read to find it (``. ~/.local/bin/env``), and what uv runs before others."""
_HOMES = re.compile(r"root|home(?:/[^/]+)?|(?:[^/]+/)*?\.(?:local|config|cache|cargo|pip)"
                    r"(?:/(?:bin|lib|share|share/uv|uv|pip))?")  # fmt: skip
"""Directories on the way to such files: a link there would lead to files with other names."""
_LOADING = re.compile(r"etc/(?:nsswitch\.conf|ld-musl-[^/]+\.path)|"
                      r"(?:etc/ssl|usr/lib/ssl|usr/local/ssl|etc/pki/tls)/openssl\.cnf")  # fmt: skip
"""Files that say which libraries are loaded: for user names, by musl, and by everything that uses OpenSSL."""
_STANDARD = re.compile(r"(?:[^/]+/)*?lib(?:64)?/python\d(?:\.\d+)?(?=/(?!site-packages|dist-packages))")
_BUILT = "lib-dynload"
_FOLDERS = rf"(?:(?:site|dist)-packages|{_BUILT})"
_PACKAGES = re.compile(rf"((?:[^/]+/)*?lib(?:64)?/python\d(?:\.\d+)?/{_FOLDERS})/([^/]+)")
"""On the path of the system's Python, and of every other one: in virtual environments, or built by hand."""
_LOOKED_IN = re.compile(r"(?:usr/|usr/local/)?lib(?:32|64)?/[^/]+-linux-[^/]+|"
                        rf"(?:[^/]+/)*?lib(?:64)?/python\d(?:\.\d+)?(?:/{_FOLDERS})?")  # fmt: skip
"""Directories in which loaders and Python look: one that is replaced whole replaces all that is in it."""
_ZIPPED = re.compile(r"(?:[^/]+/)*?lib(?:64)?/python\d+\.zip(?:/|$)")
"""Python looks in it before its standard library."""
_USERS = re.compile(r"(?:[^/]+/)*?\.local/lib/python\d(?:\.\d+)?/site-packages$")
_RUNNER_ALONE = RUNNER_PARTS - {"packaging", "pygments"}
"""Directories with these names are common in an agent's work."""
_ABSENT = frozenset(("org", "java", "vms_lib", "msvcrt", "winreg", "_winreg", "_winapi", "_wmi", "_scproxy", "nt",
                     "_overlapped", "_manylinux"))  # fmt: skip
"""What the standard library and pip try to import, although no Python on Linux has it: parts of other systems, and of
Jython. Whoever brings one is asked by ``copy``, ``pickle``, ``platform`` or ``subprocess``."""
_STEERING = ("pyvenv.cfg", "pybuilddir.txt")
"""Beside a Python, or in the directory above, they say where its standard library is; so does a name with ``._pth``."""
_MODULE_ENDS = (".py", ".so")
_BUILT_FOR = ("x86_64-linux-gnu", "aarch64-linux-gnu", "x86_64-linux-musl", "aarch64-linux-musl")
_SETTINGS = (*TEST_SETTINGS, "setup.py")
"""What pytest reads in every directory above the tests."""
_STRUCTURE = frozenset((*PROGRAM_FOLDERS, *_LIBRARY_FOLDERS, "usr", "usr/local", "etc"))
_CACHES = re.compile(r"(^|/)\.cache/(uv|pip)(/|$)")
_SOURCES = re.compile(r"(?:^|/)\.config/(?:pip|uv)(?:/|$)|(?:^|/)\.pip(?:/|$)|(?:^|/)pip\.conf$|^etc/uv(?:/|$)|"
                      r"(?:^|/)\.(?:curlrc|wgetrc)$|(?:^|/)\.config/(?:curlrc|wgetrc)$|^etc/wgetrc$")  # fmt: skip
"""Files that say where pip, uv, curl and wget fetch from."""
_PRELOAD, LOADER_CACHE = "etc/ld.so.preload", "etc/ld.so.cache"
_OLD_CACHE, _CACHE, _CACHE_HEAD = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1", 48
_CACHE_ROW = struct.Struct("<iIIIQ")
"""Flags, the offsets of a library's name and path, and which system and processor it is for."""
PUT_BACK = "graders have it as the image does"
_BEFORE_OTHERS = "it would be found instead of the image's own"
_OF_ALL = "it would be loaded into every program"
_CACHED = "a cache may hold other content than its names say"
_FETCHED = "it would make the grader fetch something other than it asks for"
_RUNNER = "an agent must not bring the test runner"


def reason(
    path: str, entry: Entry, in_base: InBase, folders: Collection[str] = PROGRAM_FOLDERS,
    imported: Collection[str] = (),
) -> str:  # fmt: skip
    """Why a change is not graded; empty: it is. ``folders``: where programs are looked up. ``imported``: modules that
    the image's Python imports by itself, in small letters."""
    above, _, name = path.rpartition("/")
    if path == _PRELOAD:
        return _OF_ALL
    if _is_structure(path, folders) and _is_other_kind(entry, in_base(path)):
        return PUT_BACK
    if entry.kind == LINK and (_HOMES.fullmatch(path) or _LOOKED_IN.fullmatch(path)):
        return PUT_BACK if in_base(path) else _BEFORE_OTHERS
    if above in folders and is_tool(name):
        return _tool_reason(path, name, in_base, folders)
    if not in_base(path) and _is_found_first(path, entry, in_base, folders, imported):
        return _BEFORE_OTHERS
    if _OF_A_USER.search(path) and (entry.kind != FOLDER or not in_base(path)) and (
            not above.endswith("/bin") or is_tool(name.partition(".")[0])):  # fmt: skip
        return PUT_BACK if in_base(path) else _BEFORE_OTHERS
    if _LOADING.fullmatch(path) and entry.kind != FOLDER:
        return PUT_BACK if in_base(path) else _OF_ALL
    if (_is_library(path, entry, folders) or _STANDARD.match(path)) and entry.kind != FOLDER and in_base(path):
        return PUT_BACK
    if _CACHES.search(path):
        return _CACHED
    if _SOURCES.search(path) and (entry.kind != FOLDER or not in_base(path)):
        return _FETCHED
    return _runner_reason(path, in_base, imported)


def _is_structure(path: str, folders: Collection[str]) -> bool:
    """Whether it contains what scripts rely on, also programs at other places with the libraries beside them."""
    if path in _STRUCTURE or _LOOKED_IN.fullmatch(path):
        return True
    tops = (each.removesuffix("/bin") for each in folders)
    return any(f"{each}/".startswith(f"{path}/") for each in folders) or any(
        path in (f"{top}/lib", f"{top}/lib64") for top in tops)  # fmt: skip


def _is_other_kind(entry: Entry, kind: str) -> bool:
    """Whether it replaces something that must be visible, and can't be laid over it."""
    return bool(kind) and (entry.kind != FOLDER or kind != FOLDER) and (entry.kind == FOLDER or hides_base(entry))


def settings_above(place: str) -> frozenset[str]:
    """Files above a directory with tests that pytest would read for these tests."""
    above = [place[:end].strip("/") for end, letter in enumerate(place) if letter == "/"]
    return frozenset(f"{folder}/{name}".lstrip("/") for folder in above for name in _SETTINGS)


def is_tool(name: str) -> bool:
    return name in TOOLS or bool(_PYTHON.fullmatch(name))


def _tool_reason(path: str, name: str, in_base: InBase, folders: Collection[str]) -> str:
    if in_base(path):
        return PUT_BACK
    return _BEFORE_OTHERS if any(in_base(f"{folder}/{name}") for folder in folders) else ""


def _is_found_first(
    path: str, entry: Entry, in_base: InBase, folders: Collection[str], imported: Collection[str]
) -> bool:
    """Whether a loader would find something new before a library of the image, or Python before its standard library,
    or instead of a part of it. Python looks in a script's own directory first, so modules beside programs count."""
    above, _, name = path.rpartition("/")
    stem, dot, _ = name.partition(".")
    if _ZIPPED.match(path) or _is_loaded_first(path, entry, in_base, folders):
        return True
    if name in _STEERING or name.endswith("._pth"):
        return above in folders or any(folder.rpartition("/")[0] == above for folder in folders)
    if above in folders and ((entry.kind in (FOLDER, LINK) and not dot) or name.endswith(_MODULE_ENDS)):
        return any(stem in names for names in (sys.stdlib_module_names, RUNNER_PARTS, _ABSENT, imported))
    return bool(_STANDARD.match(path)) and any(map(in_base, _twins(path)))


def _twins(path: str) -> list[str]:
    """Which parts of a standard library a new path beside it would replace: a directory is found before a file."""
    above, _, name = path.rpartition("/")
    above, stem = above.removesuffix(f"/{_BUILT}"), name.partition(".")[0]
    found = [f"{above}/{stem}.py", f"{above}/{stem}"]
    version = above.rpartition("/python")[2].replace(".", "")
    found += [f"{above}/{_BUILT}/{stem}.cpython-{version}-{each}.so" for each in _BUILT_FOR]
    return [each for each in found if each != path]


def also_asked(path: str, folders: Collection[str] = PROGRAM_FOLDERS) -> list[str]:
    """Other paths of the image that the decision about this one depends on."""
    return _namesakes(path, folders) + _other_packages(path) + (_twins(path) if _STANDARD.match(path) else [])


def _other_packages(path: str) -> list[str]:
    """Directories of a Python whose packages may lie at another place."""
    packages = _PACKAGES.match(path)
    if not packages or not path.startswith(("usr/lib/", "usr/local/lib/")):
        return []
    name = packages[1].split("/")[-2]
    return [f"{top}/{name}" for top in ("usr/lib", "usr/local/lib")]


def is_core(path: str, entry: Entry) -> bool:
    """Whether a loader would take it for a library that scripts rely on, or for a directory where it looks for them
    first."""
    if entry.kind == LINK and _FOR_A_PROCESSOR.search(path):
        return True
    return entry.kind != FOLDER and path.rpartition("/")[2].startswith(_LIBRARIES)


def _library_folders(folders: Collection[str]) -> list[str]:
    """Those of the system, and those beside programs: many programs look in ``$ORIGIN/../lib`` before all others."""
    beside = (f"{folder.rpartition('/')[0]}/{name}".lstrip("/") for folder in folders for name in ("lib", "lib64"))
    return list(dict.fromkeys((*_LIBRARY_FOLDERS, *beside)))


def _is_library(path: str, entry: Entry, folders: Collection[str]) -> bool:
    return is_core(path, entry) and any(path.startswith(f"{folder}/") for folder in _library_folders(folders))


def _is_loaded_first(path: str, entry: Entry, in_base: InBase, folders: Collection[str]) -> bool:
    """Packages may bring libraries of their own, which only they load."""
    if entry.kind == LINK and path in _library_folders(folders):
        return True
    if _PACKAGES.match(path) or not _is_library(path, entry, folders):
        return False
    return bool(_FOR_A_PROCESSOR.search(path)) or any(map(in_base, _namesakes(path, folders)))


def _namesakes(path: str, folders: Collection[str]) -> list[str]:
    """Where the image may have a library of this name."""
    name = path.rpartition("/")[2]
    if not name.startswith(_LIBRARIES):
        return []
    return [f"{folder}/{each}{name}" for folder in _library_folders(folders)
            for each in ("", *(f"{built}/" for built in _BUILT_FOR))]  # fmt: skip


def _runner_reason(path: str, in_base: InBase, imported: Collection[str]) -> str:
    """For parts of pytest, for what Python imports by itself and for what it asks for in vain, where it finds them: in
    packages, or beside the standard library, before all packages."""
    packages, standard = _PACKAGES.match(path), _STANDARD.match(path)
    folder = packages[1] if packages else standard[0] if standard else ""
    known = folder and (in_base(folder) or _USERS.match(folder) or any(map(in_base, _other_packages(path))))
    if not known:
        return ""
    name = path[len(folder) + 1 :].partition("/")[0].partition("-")[0].partition(".")[0].lower()
    told = _RUNNER if name in RUNNER_PARTS else _BEFORE_OTHERS if name in _ABSENT or name in imported else ""
    return PUT_BACK if told and in_base(path) else told


def is_runner(name: str, entry: Entry, imported: Collection[str] = ()) -> bool:
    """Whether Python would take something of this name for pytest, for something that only pytest needs, for what it
    imports by itself, or for what it has always asked for in vain."""
    stem, dot, _ = name.partition(".")
    is_module = name.endswith(_MODULE_ENDS) if dot else entry.kind in (FOLDER, LINK)
    return is_module and any(stem in names for names in (_RUNNER_ALONE, _ABSENT, imported))


def is_uncovered(path: str, entry: Entry, in_base: InBase, folders: Collection[str] = PROGRAM_FOLDERS) -> bool:
    """Whether an opaque directory hides something of the system that must be visible again."""
    if not entry.opaque or in_base(path) != FOLDER:
        return False
    return _is_structure(path, folders) or bool(_STANDARD.match(f"{path}/"))


def leads_away(before: bytes, after: bytes) -> bool:
    """Whether a loader's cache sends every program to another library than the image's own cache does, or to none. A
    cache that can't be read, or that the image does not have, counts as that."""
    was, now = _core_libraries(before), _core_libraries(after)
    return not was or now is None or any(now.get(name) != places for name, places in was.items())


def _core_libraries(cache: bytes) -> dict[bytes, set[bytes]] | None:
    """Where it finds each of them; None: it is not a cache. A value may begin anywhere in the string table."""
    if cache.startswith(_OLD_CACHE) and len(cache) >= 16:
        cache = cache[(16 + 12 * struct.unpack_from("<I", cache, 12)[0] + 7) // 8 * 8 :]
    if not cache.startswith(_CACHE) or len(cache) < _CACHE_HEAD:
        return None
    count, names = struct.unpack_from("<I", cache, 20)[0], tuple(name.encode() for name in _LIBRARIES)
    if _CACHE_HEAD + count * _CACHE_ROW.size > len(cache):
        return None
    found: dict[bytes, set[bytes]] = {}
    for number in range(count):
        key, value = (_cached_text(cache, place) for place in
                      _CACHE_ROW.unpack_from(cache, _CACHE_HEAD + number * _CACHE_ROW.size)[1:3])  # fmt: skip
        if not key or not value:
            return None
        if key.startswith(names):
            found.setdefault(key, set()).add(value)
    return found


def _cached_text(cache: bytes, place: int) -> bytes:
    """Empty where no string ends."""
    end = cache.find(b"\0", place, place + 4096)
    return cache[place:end] if end > 0 else b""
