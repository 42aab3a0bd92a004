"""One file per isolation level, the contract they keep, and the suite that each must pass."""
