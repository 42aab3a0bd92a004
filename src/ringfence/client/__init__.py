"""``ringfence.client``: the library's names over HTTP, for a service that ``ringfence serve`` runs.

    from ringfence.client import Client
    remote = Client("http://127.0.0.1:8700", token=…)
    remote.run(["echo", "hello"]).stdout

``run``, ``open`` and ``Pool`` take and return the same as those of ``ringfence``.
"""

from __future__ import annotations

from ringfence.client.client import Client as Client

__all__ = ["Client"]
