"""What sandboxes leave in a directory for temporary files. The directory of ours that they all lie in stays."""

from __future__ import annotations

import os
from pathlib import Path


def left_in(temporary: Path) -> list[Path]:
    """All that lies there and in the directory of ours."""
    ours = temporary / f"ringfence-{os.geteuid()}"
    inside = list(ours.iterdir()) if ours.is_dir() else []
    return sorted([path for path in temporary.iterdir() if path != ours] + inside)
