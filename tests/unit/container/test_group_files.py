"""The control group of a container by its files, of either version."""

from __future__ import annotations

from pathlib import Path

from ringfence.container import group_files

ID = "0123456789abcdef" * 4


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_version_1_is_read(tmp_path: Path) -> None:
    write(tmp_path / "memory/docker" / ID, memory__limit_in_bytes="100\n", memory__max_usage_in_bytes="90\n",
          memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")  # fmt: skip
    write(tmp_path / "pids/docker" / ID, pids__max="7\n", pids__events="max 3\n", pids__current="5\n")
    write(tmp_path / "cpuacct/docker" / ID, cpuacct__usage="1500\n")
    places = group_files.locate(ID, str(tmp_path))
    assert group_files.limits(places) == {"memory.limit_in_bytes": "100", "pids.max": "7"}
    assert (group_files.processor_ns(places), group_files.peak_bytes(places)) == (1500, 90)
    assert (group_files.refused_tasks(places), group_files.killed_for_memory(places)) == (3, 2)
    assert group_files.tasks(places) == 5 and group_files.pids_events(places).endswith("pids.events")


def test_version_2_is_read(tmp_path: Path) -> None:
    write(tmp_path / "system.slice" / f"docker-{ID}.scope", memory__max="max\n", memory__swap__max="0\n",
          cpu__max="max 1", cpu__stat="usage_usec 20\nuser_usec 1\n", memory__events="low 0\noom_kill 1\n",
          pids__events="max 4\n",
          memory__peak="50\n")  # fmt: skip
    places = group_files.locate(ID, str(tmp_path))
    assert group_files.limits(places) == {"memory.max": "max", "memory.swap.max": "0", "cpu.max": "max 1"}
    assert (group_files.processor_ns(places), group_files.peak_bytes(places)) == (20_000, 50)
    assert (group_files.refused_tasks(places), group_files.killed_for_memory(places)) == (4, 1)


def test_nothing_is_said_of_a_group_that_is_not_there(tmp_path: Path) -> None:
    assert group_files.locate(ID, str(tmp_path)) == {}
    assert group_files.limits({}) == {} and group_files.processor_ns({}) == group_files.refused_tasks({}) == 0
    assert group_files.peak_bytes({}) == group_files.tasks({}) == 0 and group_files.pids_events({}) == ""
