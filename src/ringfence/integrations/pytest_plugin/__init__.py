"""A plug-in of pytest: ``pytest --ringfence`` runs the tests in a sandbox, the fixture ``sandbox`` is a box for a test.

pytest loads it in every run of an environment that has ringfence, so it loads nothing until it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ringfence.integrations.pytest_plugin.words import FLAG, INSIDE_VARIABLE, NESTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from ringfence.engine.box import Box
    from ringfence.model.policy import SandboxPolicy


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ringfence", "untrusted tests")
    group.addoption(FLAG, nargs="?", const="strict", default=None, metavar="=LEVEL", dest="ringfence",
                    help="run all of it in a sandbox; =strict is the default level")  # fmt: skip
    group.addoption("--ringfence-policy", metavar="FILE", default=None, help="limits, network and paths of the sandbox")
    group.addoption("--ringfence-keep", metavar="PATH", action="append", default=[],
                    help="keep what tests write there, besides reports; may be repeated")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandbox(**fields): fields of the policy of the fixture `sandbox`")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> Generator[None]:
    """Before any conftest is loaded, and before pytest captures what is printed."""
    level = level_of(args)
    if not level and INSIDE_VARIABLE not in os.environ:
        _refuse_a_hidden_flag(early_config)
    if level and INSIDE_VARIABLE not in os.environ:
        from ringfence.integrations.pytest_plugin.search_path import refuse_the_projects_code

        refuse_the_projects_code(early_config, FLAG)
        from ringfence.integrations.pytest_plugin.inside import run_inside

        raise SystemExit(run_inside(early_config, level))
    return (yield)


def level_of(args: list[str]) -> str:
    """The value of the last of these flags; empty: there is none. The next word is a path, not its value."""
    found = [word for word in args if word == FLAG or word.startswith(f"{FLAG}=")]
    return (found[-1].partition("=")[2] or "strict") if found else ""


def _refuse_a_hidden_flag(config: pytest.Config) -> None:
    """pytest replaces ``@FILE`` by the words in it only when it parses them, so ``level_of`` has not seen them."""
    if getattr(config.known_args_namespace, "ringfence", None) is not None:
        raise pytest.UsageError(f"{FLAG} is in a file of arguments, where it has no effect; give it on the command "
                                "line or in PYTEST_ADDOPTS")  # fmt: skip


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[Box]:
    """A strict box with a private directory; ``@pytest.mark.sandbox(mem_bytes="64M")`` changes its policy."""
    import ringfence

    fields: dict[str, object] = {"isolation": "strict"}
    for marker in reversed(list(request.node.iter_markers("sandbox"))):  # the nearest one last
        fields |= marker.kwargs
    policy = ringfence.SandboxPolicy.from_dict(fields)
    with _opened(policy) as box:
        yield box


def _opened(policy: SandboxPolicy) -> Box:
    import ringfence

    try:
        return ringfence.open(policy)
    except ringfence.UnavailableError as error:
        if os.environ.get(INSIDE_VARIABLE) != NESTED:
            raise
        raise ringfence.UnavailableError(
            f"the fixture sandbox can't be used inside the sandbox of {FLAG}: sandboxes do not nest",
            missing=error.missing, hint=f"use {FLAG}=process, or omit {FLAG}",
        ) from error  # fmt: skip
