"""What goes into a proctored run and what it leaves, bound by one signature."""
