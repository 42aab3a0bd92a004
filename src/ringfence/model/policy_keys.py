"""What is wrong with the keys of a policy, and in which order that is reported. Knows no field."""

from __future__ import annotations

from _collections_abc import Collection, Iterable

from ringfence.model.system_text import cut

Problem = tuple[str, str]
"""(field, what is wrong with it)."""


_NOT_BUILT = dict.fromkeys(
    ("gpu", "gpus", "device", "devices"),
    "no level gives a job a GPU or another device; run that part outside and pass plain data in",
)
"""Keys that people look for, each with what to use instead."""


def unknown(key: object, known: Collection[str], otherwise: str = "ringfence policy show lists them all") -> Problem:
    """Names the nearest existing key; ``otherwise``: the advice if there is none."""
    from difflib import get_close_matches

    near = get_close_matches(cut(str(key)), sorted(known), n=1)
    advice = _NOT_BUILT.get(str(key)) or (f'did you mean "{near[0]}"?' if near else otherwise)
    return cut(str(key)), f"unknown key; {advice}"


def in_order(problems: list[Problem], keys: Iterable[object]) -> list[Problem]:
    """In the order in which the keys were written; errors that belong to no key come last."""
    place = {str(key): number for number, key in enumerate(keys)}
    return sorted(problems, key=lambda problem: place.get(problem[0], len(place)))
