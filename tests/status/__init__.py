"""What of the four specifications works: one table, which the tests hold to the code.

``python -m tests.status`` writes docs/status.md from it. The rows are in one module for each specification.
"""

from __future__ import annotations

from tests.status.bundles import BUNDLES
from tests.status.docker import DOCKER
from tests.status.execution import EXECUTION
from tests.status.os_level import OS_LEVEL

SPECIFICATIONS = (OS_LEVEL, DOCKER, BUNDLES, EXECUTION)
ROWS = tuple(row for specification in SPECIFICATIONS for row in specification.rows)
