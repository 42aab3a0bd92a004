"""What is wrong with the keys of a policy, and in which order it is told. Knows no field."""

from __future__ import annotations

from _collections_abc import Collection, Iterable

Problem = tuple[str, str]
"""(field, what is wrong with it)."""


_NOT_BUILT = dict.fromkeys(
    ("gpu", "gpus", "device", "devices"),
    "no level gives a job a GPU or another device; run that part outside and hand plain data in",
)
"""Keys that people look for, each with what there is in its place."""


def unknown(key: object, known: Collection[str], otherwise: str = "ringfence policy show lists them all") -> Problem:
    """With the nearest one that there is; ``otherwise``: the advice where none is near."""
    from difflib import get_close_matches

    near = get_close_matches(str(key), sorted(known), n=1)
    advice = _NOT_BUILT.get(str(key)) or (f'did you mean "{near[0]}"?' if near else otherwise)
    return str(key), f"unknown key; {advice}"


def in_order(problems: list[Problem], keys: Iterable[object]) -> list[Problem]:
    """As the keys were written; what is wrong with none of them comes last."""
    place = {str(key): number for number, key in enumerate(keys)}
    return sorted(problems, key=lambda problem: place.get(problem[0], len(place)))
