"""Files and folders of ours that lie where others could reach them, in places that callers choose."""
