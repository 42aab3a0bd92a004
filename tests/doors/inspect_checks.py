"""Inspect's own checks of a sandbox provider, over ours. Run by a pytest with Inspect's directory, not by this
suite."""

from __future__ import annotations

import asyncio

import pytest
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

USERS = "there is one user in a sandbox, so nobody can be added and no other be chosen"


@pytest.fixture(scope="module")
def made():
    kind = registry_find_sandboxenv("ringfence")
    environments = asyncio.run(kind.sample_init("checks", None, {}))
    yield environments["default"]
    asyncio.run(kind.sample_cleanup("checks", None, environments, False))


@pytest.fixture
def sandbox_env(made, request):
    if request.node.originalname == "test_exec_as_user":
        request.node.add_marker(pytest.mark.xfail(reason=USERS, strict=True))
    return made
