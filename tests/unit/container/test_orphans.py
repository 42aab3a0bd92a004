"""Whose container it is: an owner lives, is gone, or can't be seen from here."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from ringfence.container import group_files, orphans
from ringfence.container.api import Listed
from ringfence.errors import SetupError
from ringfence.model.record import replace


def changed(place: int, value: str) -> str:
    parts = orphans.owner().split(":")
    return ":".join((*parts[:place], value, *parts[place + 1 :]))


@pytest.mark.parametrize(("owner", "state"), [
    (orphans.owner, orphans.ALIVE), (lambda: changed(1, "1"), orphans.GONE), (lambda: changed(2, "x"), orphans.GONE),
    (lambda: changed(0, str(2**22 + 1)), orphans.GONE), (lambda: changed(3, "1"), orphans.UNKNOWN),
    (lambda: changed(1, ""), orphans.GONE), (lambda: "", orphans.UNKNOWN), (lambda: "a:b:c:d", orphans.UNKNOWN),
    (lambda: changed(2, ""), orphans.UNKNOWN), (lambda: changed(4, "0" * 16), orphans.UNKNOWN),
    (lambda: changed(2, "x").rpartition(":")[0] + ":another", orphans.UNKNOWN),
    (lambda: changed(4, ""), orphans.UNKNOWN),
    (lambda: changed(0, "9" * 5000), orphans.UNKNOWN), (lambda: changed(0, "\u00b2"), orphans.UNKNOWN),
])  # fmt: skip
def test_an_owner_is_known_by_more_than_its_number(owner: Callable[[], str], state: str) -> None:
    assert orphans.state_of(owner()) == state


class Some:
    def __init__(self, *owners: str) -> None:
        self.rows = [Listed(id=str(number), name=orphans.new_name(), labels={orphans.OWNER: owner, orphans.KIND: "job"},
                            state="running") for number, owner in enumerate(owners)]  # fmt: skip
        self.removed: list[str] = []

    def list(self, label: str) -> list[Listed]:
        assert label == orphans.OWNER
        return self.rows

    def remove(self, container: str, force: bool = True) -> None:
        if container == "2":
            raise SetupError("remove the container", "busy")
        self.removed.append(container)


def test_only_what_nobody_owns_is_removed() -> None:
    client = Some(orphans.owner(), changed(1, "1"), changed(1, "2"), changed(3, "1"))
    found = orphans.find(client)
    assert [each.id for each in found] == ["1", "2"]
    gone, problems = orphans.remove(client, found)
    assert [each.id for each in gone] == client.removed == ["1"] and "busy" in problems["2"]


@pytest.mark.parametrize("name", ["postgres", "", "ringfence-", f"ringfence-{'0' * 23}x", f"x-ringfence-{'0' * 24}"])
def test_labels_of_an_image_make_nobodys_container_ours(name: str) -> None:
    client = Some(changed(1, "1"))
    assert len(orphans.find(client)) == 1
    client.rows = [replace(row, name=name) for row in client.rows]
    assert orphans.find(client) == []


def test_every_container_of_ours_says_whose_it_is() -> None:
    assert orphans.labels("job")[orphans.OWNER].startswith(f"{os.getpid()}:")


def test_a_group_is_looked_up_by_a_whole_id_only(tmp_path: object) -> None:
    assert group_files.locate("../../etc") == {} and group_files.locate("") == {}
