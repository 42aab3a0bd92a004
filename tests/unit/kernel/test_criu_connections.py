"""Which connections of a process lead to somebody else: those can't be kept in a checkpoint."""

from __future__ import annotations

import os
import socket

import pytest

from ringfence.kernel.criu import processes

pytestmark = [pytest.mark.system, pytest.mark.skipif(not os.path.isdir("/proc/self/net"), reason="Linux only")]


@pytest.mark.parametrize(("family", "address", "shown"), [(socket.AF_INET, "127.0.0.1", "127.0.0.1:{}"),
                                                         (socket.AF_INET6, "::1", "[::1]:{}")])  # fmt: skip
def test_a_connection_to_somebody_else_is_told_and_one_of_its_own_is_not(family: int, address: str, shown: str) -> None:
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("no such family here")
    with server, socket.create_connection(server.getsockname()[:2]) as ours:
        theirs, _ = server.accept()
        port, me = server.getsockname()[1], os.getpid()
        assert shown.format(port) not in processes.connections(me, [me]), "both ends are ours"
        child = os.fork()
        if child == 0:  # only the near end is in the child
            theirs.close()
            server.close()
            told = processes.connections(os.getpid(), [os.getpid()])
            os._exit(0 if shown.format(port) in told else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        theirs.close()
        ours.close()
    assert not [each for each in processes.connections(me, [me]) if each == shown.format(port)]
