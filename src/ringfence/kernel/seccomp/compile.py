"""The system call filter: a profile becomes a program, and a program is installed for good.

``compile`` is pure and runs in the parent, for either architecture; ``install`` runs in the sandbox and takes
the bytes. It deliberately answers no notification (notify) and holds no policy (seccomp_profiles).
"""

from __future__ import annotations

import errno
from struct import pack

from ringfence.errors import SetupError, UnavailableError
from ringfence.kernel import syscalls
from ringfence.kernel.seccomp import bpf
from ringfence.kernel.syscall_numbers import AUDIT_ARCH, NO_CALL, NUMBERS, X32_BIT, X86_64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.kernel.seccomp.rules import Action, Profile, When

    # What the rules of one call come to: answers, each with its conditions, the last without.
    Block = tuple[tuple[int, tuple[When, ...]], ...]

SET_MODE_FILTER = 1


FLAG_NEW_LISTENER = 1 << 3
# Once the supervisor has the notification only a fatal signal interrupts the call (Linux 5.19); without it a
# program with busy timers (Go) can ask for the same call forever.
FLAG_WAIT_KILLABLE = 1 << 5

RET_KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000
RET_USER_NOTIF = 0x7FC00000
RET_ALLOW = 0x7FFF0000

# struct seccomp_data
_NUMBER, _ARCH, _ARGS = 0, 4, 16

# kind of action: (what the kernel does with a listener, and without)
_RETURNS = {
    "allow": (RET_ALLOW, RET_ALLOW),
    "note": (RET_USER_NOTIF, RET_ALLOW),
    "witness": (RET_USER_NOTIF, RET_ALLOW),
    "watch": (RET_USER_NOTIF, RET_ALLOW),
    "watch denied": (RET_USER_NOTIF, RET_ERRNO),
    "report": (RET_USER_NOTIF, RET_ERRNO),
    "forbid": (RET_USER_NOTIF, RET_KILL_PROCESS),
    "deny": (RET_ERRNO, RET_ERRNO),
}


def compile(profile: Profile, arch: str, *, notify: bool = False) -> bytes:
    """The profile as a program for one architecture, with or without a supervisor that is told."""
    blocks, ranges = _layout(profile, arch, notify)
    program = [bpf.load(_ARCH), bpf.if_equal(AUDIT_ARCH[arch], otherwise="foreign"), bpf.load(_NUMBER)]
    if arch == X86_64:
        # x32 shares the architecture's number. -1 is no call at all and fails in the kernel.
        program += [bpf.if_at_least(NO_CALL, then="unknown"), bpf.if_at_least(X32_BIT, then="foreign")]
    _search(ranges, program)
    for block in sorted(blocks, key=len):  # the shortest within reach of most jumps
        _block(block, blocks[block], program)
    program += [bpf.label("foreign"), bpf.give(_answer(profile.foreign.action, notify))]
    return bpf.assemble(program)


def _layout(profile: Profile, arch: str, notify: bool) -> tuple[dict[Block, str], list[tuple[int, str]]]:
    """The distinct blocks with a label each, and where each range of numbers goes."""
    unknown: Block = ((_answer(profile.unknown.action, notify), ()),)
    blocks = {unknown: "unknown"}
    ranges: list[tuple[int, str]] = []
    numbered: dict[int, Block] = {}
    for call, rules in profile.chains().items():
        if call in NUMBERS[arch]:
            numbered[NUMBERS[arch][call]] = tuple((_answer(rule.action, notify), rule.when) for rule in rules)
    for number in range(max(numbered) + 2):
        target = blocks.setdefault(numbered.get(number, unknown), f"block {len(blocks)}")
        if not ranges or target != ranges[-1][1]:
            ranges.append((number, target))
    return blocks, ranges


def _search(ranges: list[tuple[int, str]], program: list[bpf.Instruction]) -> None:
    """A binary search over the numbers: some eight comparisons where a list of rules would take a hundred."""
    if len(ranges) == 1:
        program.append(bpf.jump(ranges[0][1]))
        return
    low, high = ranges[: len(ranges) // 2], ranges[len(ranges) // 2 :]
    first = high[0][0]
    over = high[0][1] if len(high) == 1 else f"from {first}"
    program.append(bpf.if_at_least(first, then=over, otherwise=low[0][1] if len(low) == 1 else bpf.NEXT))
    if len(low) > 1:
        _search(low, program)
    if len(high) > 1:
        program.append(bpf.label(over))
        _search(high, program)


def _block(block: Block, name: str, program: list[bpf.Instruction]) -> None:
    program.append(bpf.label(name))
    for position, (answer, when) in enumerate(block):
        fails = f"{name} rule {position} fails"
        for index, condition in enumerate(when):
            _condition(condition, f"{name} rule {position} condition {index}", fails, program)
        program += [bpf.give(answer), bpf.label(fails)]


def _condition(condition: When, name: str, fails: str, program: list[bpf.Instruction]) -> None:
    """Fall through when the condition holds, go to ``fails`` when not. A word is loaded once for all values: the kernel
    translates each filter anew, so a long one costs every sandbox."""
    holds = f"{name} holds"
    found, missing = (fails, holds) if condition.negate else (holds, fails)
    wanted = [_words(condition, value) for value in condition.values]
    common = [word for word in wanted[0] if all(word in words for words in wanted)]
    for word in common:
        program += [*_loaded(word), bpf.if_equal(word[2], otherwise=missing)]
    rest = [[word for word in words if word not in common] for words in wanted]
    if not any(rest):
        program += [bpf.jump(found)] if condition.negate else []
    elif all(len(words) == 1 for words in rest):
        *earlier, (last,) = rest
        program += [*_loaded(last), *(bpf.if_equal(word[2], then=found) for (word,) in earlier)]
        program.append(bpf.if_equal(last[2], then=found, otherwise=missing))
    else:
        _one_by_one(rest, name, found, missing, program)
    program.append(bpf.label(holds))


def _one_by_one(
    rest: list[list[tuple[int, int, int]]], name: str, found: str, missing: str, program: list[bpf.Instruction]
) -> None:
    for position, words in enumerate(rest):
        other = f"{name} value {position} differs"
        for word in words:
            program += [*_loaded(word), bpf.if_equal(word[2], otherwise=other)]
        program += [bpf.jump(found), bpf.label(other)]
    program.append(bpf.jump(missing))


def _loaded(word: tuple[int, int, int]) -> list[bpf.Instruction]:
    offset, bits, _ = word
    return [bpf.load(offset)] if bits == 0xFFFFFFFF else [bpf.load(offset), bpf.mask(bits)]


def _words(condition: When, value: int) -> list[tuple[int, int, int]]:
    """The 32-bit words to look at: (offset in the data, bits of interest, wanted). Both are little-endian."""
    offset = _ARGS + 8 * condition.arg
    halves = (
        (offset, condition.bits & 0xFFFFFFFF, value & 0xFFFFFFFF),
        (offset + 4, condition.bits >> 32, value >> 32),
    )
    return [half for half in halves if half[1]]


def _answer(action: Action, notify: bool) -> int:
    answer = _RETURNS[action.kind][0 if notify else 1]
    return answer | action.errno if answer == RET_ERRNO else answer


def install(program: bytes, notify: bool = False) -> int | None:
    """Filter the calling thread and its descendants, for good; with notify, return the listener's descriptor.

    Sets no_new_privs. Other threads of the process are not touched: call it while there is only one.
    """
    try:
        syscalls.set_no_new_privs()
        if not notify:
            _set_filter(program, 0)
            return None
        return _listening(program)
    except OSError as error:
        raise _explained(error) from error


def _listening(program: bytes) -> int:
    try:
        return _set_filter(program, FLAG_NEW_LISTENER | FLAG_WAIT_KILLABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _set_filter(program, FLAG_NEW_LISTENER)


def _set_filter(program: bytes, flags: int) -> int:
    import ctypes

    # Where the bytes lie; a buffer would be a new type of array, which takes longer to make than the call.
    code = ctypes.c_void_p.from_buffer(ctypes.c_char_p(program)).value
    length = len(program) // bpf.INSTRUCTION_BYTES
    # struct sock_fprog
    return syscalls.call("seccomp", SET_MODE_FILTER, flags, pack("@HP", length, code))


def _explained(error: OSError) -> SetupError | UnavailableError:
    if error.errno == errno.ENOSYS:
        return UnavailableError(
            "this kernel has no system call filter",
            missing=("seccomp",),
            hint="use a kernel with CONFIG_SECCOMP_FILTER; inside a container, allow the seccomp call",
        )
    if error.errno == errno.EBUSY:
        hint = "an outer sandbox already has a seccomp listener on this process; start it without that listener"
        return SetupError("seccomp", str(error), hint=hint)
    return SetupError("seccomp", str(error))
