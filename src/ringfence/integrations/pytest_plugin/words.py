"""The flag of the plug-in, and the variable by which it knows that it runs inside a sandbox. It loads nothing."""

from __future__ import annotations

INSIDE_VARIABLE = "RINGFENCE_PYTEST"
"""Set inside the sandbox, where the option has no further effect."""
NESTED = "apart"
"""Its value where the sandbox is one in which no other can be made."""
FLAG = "--ringfence"
