"""What a policy asks for and a host can't hold is refused with what helps, and with nothing that does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ringfence import SandboxPolicy, UnavailableError
from ringfence.engine.run import refuse
from ringfence.model.lack import Lack


@pytest.mark.parametrize(("whole", "helps"), [(False, True), (True, False)])
def test_to_accept_less_is_offered_where_something_would_be_left(whole: bool, helps: bool) -> None:
    lack = Lack(capability="engine", missing="a container engine", fix="start it", whole=whole)
    backend = SimpleNamespace(level="container", lacks=lambda _: (lack,))
    with pytest.raises(UnavailableError) as refused:
        refuse(backend, SandboxPolicy())  # type: ignore[arg-type]
    assert refused.value.fixes[0] == "engine: start it"
    assert any("allow_partial" in fix for fix in refused.value.fixes) is helps
