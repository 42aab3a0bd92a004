import pytest
from bpf_machine import decode, run

from ringfence.kernel.seccomp import bpf


def accumulator(value: int) -> bytes:
    return value.to_bytes(4, "little")


@pytest.mark.parametrize("gap", [0, 1, 250, 251, 252, 253, 254, 255, 256, 257, 1000])
@pytest.mark.parametrize(("value", "expected"), [(7, 1), (8, 2)])
def test_a_jump_reaches_its_label_over_any_distance(gap: int, value: int, expected: int) -> None:
    program = [bpf.load(0), bpf.if_equal(7, then="far", otherwise="farther")]
    program += [bpf.mask(0)] * gap + [bpf.give(3)]
    program += [bpf.label("far"), bpf.give(1), bpf.label("farther"), bpf.give(2)]
    assert run(decode(bpf.assemble(program)), accumulator(value)) == expected


@pytest.mark.parametrize("near_first", [True, False])
@pytest.mark.parametrize(("value", "expected"), [(6, 2), (7, 1), (8, 1)])
def test_one_branch_far_and_the_other_next(near_first: bool, value: int, expected: int) -> None:
    if near_first:
        program = [bpf.load(0), bpf.if_at_least(7, otherwise="far"), bpf.give(1)]
        program += [bpf.mask(0)] * 400 + [bpf.label("far"), bpf.give(2)]
    else:
        program = [bpf.load(0), bpf.if_at_least(7, then="far"), bpf.give(2)]
        program += [bpf.mask(0)] * 400 + [bpf.label("far"), bpf.give(1)]
    assert run(decode(bpf.assemble(program)), accumulator(value)) == expected


def test_a_backward_jump_is_refused() -> None:
    with pytest.raises(ValueError, match="not ahead"):
        bpf.assemble([bpf.label("back"), bpf.load(0), bpf.jump("back")])


def test_a_label_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        bpf.assemble([bpf.label("here"), bpf.label("here"), bpf.give(0)])


def test_a_program_longer_than_the_kernel_takes_is_refused() -> None:
    assert len(bpf.assemble([bpf.give(0)] * bpf.MAX_INSTRUCTIONS)) == 8 * bpf.MAX_INSTRUCTIONS
    with pytest.raises(ValueError, match="4097"):
        bpf.assemble([bpf.give(0)] * (bpf.MAX_INSTRUCTIONS + 1))
