"""Control groups of version 2, 1 and hybrid hosts."""
