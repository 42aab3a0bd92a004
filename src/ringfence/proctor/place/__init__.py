"""Where a proctored run works: a private folder beside its output, which does not outlive it."""
