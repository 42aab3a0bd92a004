"""A kernel for Jupyter that lives in a strict box: ``ringfence jupyter install``; the extra is ``jupyter``.

``spec`` installs it. ``kernel`` is what Jupyter starts: it runs ipykernel in a sandbox and relays its five sockets.
"""
