"""The strict sandbox as data: what it contains and what this host offers for it."""
