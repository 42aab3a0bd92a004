"""What sandboxes of a pool have in common reaches their zygote once; each names it by a number."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from ringfence import Pool, SandboxPolicy, Status
from ringfence.backends import drafts, leader_client
from ringfence.model import state_folder
from ringfence.roles import zygote_client
from ringfence.sandbox import host
from ringfence.transport import passing, wire

if not hasattr(os, "memfd_create"):
    pytest.skip("there are no zygotes with drafts elsewhere", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.privileges]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Sizes of requests to leaders, and of drafts."""
    sizes: dict[str, list[int]] = {"requests": [], "drafts": []}
    pack, send_draft = wire.packed, zygote_client.ZygoteClient._send_draft

    def packed(request: wire.Request) -> bytes:
        message = pack(request)
        if "standby" in request:
            sizes["requests"].append(len(message))
        return message

    def drafted(zygote: zygote_client.ZygoteClient, draft: bytes) -> None:
        sizes["drafts"].append(len(draft))
        send_draft(zygote, draft)

    monkeypatch.setattr(leader_client.wire, "packed", packed)
    monkeypatch.setattr(zygote_client.ZygoteClient, "_send_draft", drafted)
    return sizes


def test_a_draft_is_sent_once_and_requests_are_small(
    tmp_path: Path, sent: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, stamp = host.mount_table(), state_folder.own_stamp()
    monkeypatch.setattr(host, "mount_table", lambda: table)  # what others mount, or note, meanwhile asks for another
    monkeypatch.setattr(state_folder, "own_stamp", lambda: stamp)
    monkeypatch.setattr(drafts, "GOOD_FOR_S", 3600)
    policy = SandboxPolicy(isolation="strict", readable_paths=(str(tmp_path),))
    with Pool(policy, warm=4) as pool:
        assert all(pool.run_source("print(1)").ok for _ in range(8))
    assert len(sent["requests"]) >= 8
    assert max(sent["requests"]) < 2048
    assert len(sent["drafts"]) < len(sent["requests"]) / 2


def test_more_drafts_than_a_zygote_keeps(tmp_path: Path, sent: dict[str, list[int]]) -> None:
    """Pools that have a template in common and differ in what the leader holds."""
    with contextlib.ExitStack() as stack:
        pools = []
        for wall_s in range(60, 61 + wire.MOST_DRAFTS):
            policy = SandboxPolicy(isolation="strict", readable_paths=(str(tmp_path),), wall_time_s=wall_s)
            pools.append(stack.enter_context(Pool(policy, warm=0)))
        for _ in range(2):
            assert [pool.run_source("print(1)").status for pool in pools] == [Status.OK] * len(pools)
    assert len(sent["drafts"]) > len(pools), "control: some had to be sent again"


def test_a_zygote_that_has_no_such_draft_gives_no_leader(tmp_path: Path) -> None:
    with Pool(SandboxPolicy(isolation="strict", readable_paths=(str(tmp_path),)), warm=1) as pool:
        assert pool.run_source("print(1)").ok
        zygote = next(reversed(zygote_client._standing.values()))
        commands, to_commands = os.pipe()
        reports, to_reports = os.pipe()
        ours, theirs = passing.channel()
        owner = os.pidfd_open(os.getpid())
        groups = {"group": "", "enter": [], "cgroups": []}
        zygote.fork_leader([commands, to_reports, owner, theirs])
        os.write(to_commands, wire.encode_request({"draft": 1 << 40, "groups": groups, "standby": True}))  # type: ignore[typeddict-item]
        os.close(to_reports)
        assert os.read(reports, 100) == b"", "it ends without a word"
        for descriptor in (commands, to_commands, reports, ours, theirs, owner):
            os.close(descriptor)
        assert pool.run_source("print(1)").ok
