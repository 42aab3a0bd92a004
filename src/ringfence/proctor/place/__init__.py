"""Where a proctored run works: a private directory beside its output, which does not outlive it."""
