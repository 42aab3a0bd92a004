"""Ray for tests: that of this environment, or one that pip puts into a cache directory."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from tests.framework_environment import environment_with, packages_of


def ray_environment() -> Mapping[str, str]:
    """The environment in which this interpreter finds Ray and this source; «not testable here» where there is none."""
    has_ray = importlib.util.find_spec("ray") is not None
    return environment_with(*(() if has_ray else (str(packages_of("ray")),)))
