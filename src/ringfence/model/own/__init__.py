"""What is ours and lies where others could get at it: files and folders whose places callers choose."""
