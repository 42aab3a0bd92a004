"""Files and directories of ours that lie where others could reach them, in places that callers choose."""
