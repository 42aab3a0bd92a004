"""An environment for Harbor: ``harbor run -p TASK -a AGENT --env ringfence.integrations.harbor:RingfenceEnvironment``.

A task runs on the host's own system, if its Dockerfile asks for nothing that the host lacks, or on the files of an
image (``--ek root=DIR``). Each command is a strict sandbox of its own over one layer: files stay, processes end with
their command. It does not claim what it can't enforce; Harbor then refuses the task.
"""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
import shutil
import tarfile
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.run import backend_for, refuse, run
from ringfence.errors import UsageError
from ringfence.integrations.harbor_bundle import ledger_of
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome, Status
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import real
from ringfence.proctor.foreign.environment import Described, Prepared, prepare
from ringfence.roles.removal import remove_tree

HOST = "host"
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64")
_SHOWN = ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs")
_FOLDERS = ("app", "etc", "home", "logs", "root", "solution", "tests", "tmp", "usr", "var/tmp")
_PASSWD = b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_LONGEST_S = 24 * 3600
_TRANSFER_BYTES = 2**30
_MEMORY_BYTES = 2 * 2**30
_WORKDIR = "/app"
_SHELL = 'cd "$1" && exec bash -c "$2"'


class RingfenceEnvironment(BaseEnvironment):
    """One trial's sandbox."""

    def __init__(
        self, *args: Any, root: str = HOST, public_network: str = "refuse", allowed_ports: object = "80,443",
        **kwargs: Any,
    ) -> None:  # fmt: skip
        """``root``: host, or a directory with the files of an image. ``public_network``: for tasks with a public
        network: refuse, or host, which gives them this host's own. ``allowed_ports``: ports of the hosts in a task's
        allowlist, which names no ports."""
        self._root = root
        self._public = public_network
        self._ports = [word.strip() for word in str(allowed_ports).strip("[]() ").split(",")]
        self._prepared = Prepared()
        self._place = ""
        self._transaction: Transaction | None = None
        self._turn = threading.Lock()
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "ringfence"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True, network_allowlist=True, network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True, network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True, network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True, dynamic_network_policy=True,
        )  # fmt: skip

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(memory_limit=True)

    def _validate_definition(self) -> None:
        """UsageError, with file and line, if this host lacks something that the task's image would have."""
        if self._root != HOST:
            if not os.path.isdir(self._root):
                raise UsageError(f"root: {self._root} is not a directory", hint="name the files of the task's image")
            return
        dockerfile = os.path.join(str(self.environment_dir), "Dockerfile")
        if not os.path.exists(dockerfile):
            raise UsageError("the task names an image and has no Dockerfile, so nobody knows what is in it",
                             hint="extract the image and name the directory: --ek root=DIR")  # fmt: skip
        said = Described(where=dockerfile, name=self.environment_name, context=str(self.environment_dir),
                         dockerfile=dockerfile)  # fmt: skip
        self._prepared = prepare(said, HOST)

    # ---- its life

    async def start(self, force_build: bool) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        policy = self._policy()
        refuse(backend_for(policy.isolation), policy)
        self._place = tempfile.mkdtemp(prefix="ringfence-harbor-")
        root = self._root if self._root != HOST else self._host_root(os.path.join(self._place, "root"))
        self._root_folder = real(root)
        self._transaction = Transaction.create(os.path.join(self._place, "layer"), [self._root_folder])
        made = self._run(Job(argv=("mkdir", "-p", self.workdir, "/logs/agent", "/logs/verifier", "/logs/artifacts")))
        if not made.ok:
            raise RuntimeError(f"the environment could not be prepared: {made.reason}")

    def _host_root(self, folder: str) -> str:
        """An empty root on which the host's programs are shown, with what the Dockerfile lays."""
        for name in _FOLDERS:
            os.makedirs(os.path.join(folder, name))
        for name in _LINKS:
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}").lstrip("/"), os.path.join(folder, name))  # never one to the host's
        for path in filter(os.path.exists, _SHOWN[1:]):
            place = folder + path
            os.makedirs(place if os.path.isdir(path) else os.path.dirname(place), exist_ok=True)
            if not os.path.isdir(path):
                Path(place).touch()
        Path(folder, "etc/passwd").write_bytes(_PASSWD)
        Path(folder, "etc/group").write_bytes(b"root:x:0:\nnogroup:x:65534:\n")
        if self._prepared.workspace:
            laid = real(folder + self.workdir)
            if not within(laid, real(folder)):
                raise UsageError(f"workdir: {self.workdir} points outside the task's own files")
            shutil.copytree(self._prepared.workspace, laid, symlinks=True, dirs_exist_ok=True)
        return folder

    @property
    def workdir(self) -> str:
        """Where commands begin: what the task says, else what its Dockerfile does."""
        said = getattr(self.task_env_config, "workdir", None)
        named = posixpath.normpath(said or (self._prepared.mount_at if self._root == HOST else _WORKDIR))
        if not named.startswith("/"):
            raise UsageError(f"workdir: {named!r} is not an absolute path")
        return named

    async def stop(self, delete: bool) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        with self._turn:
            transaction, self._transaction = self._transaction, None
            if transaction is not None:
                transaction.close()
            if self._place:
                with suppress(OSError):
                    remove_tree(self._place)

    # ---- commands

    def _policy(self) -> SandboxPolicy:
        memory = self._effective_memory_mb
        shown = tuple(path for path in _SHOWN if os.path.exists(path)) if self._root == HOST else ()
        return SandboxPolicy.from_dict({
            "isolation": "strict", "wall_time_s": _LONGEST_S, "cpu_time_s": _LONGEST_S, "pids_max": 1024,
            "nofile": 4096, "mem_bytes": memory * 2**20 if memory else _MEMORY_BYTES, "output_bytes": 64 * 2**20,
            "network": self._network(self.network_policy), "readable_paths": list(shown),
        })  # fmt: skip

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        """Every command has a sandbox of its own, so the next one has it."""
        self._network(network_policy)

    def _network(self, asked: NetworkPolicy) -> object:
        """Exactly what the task's policy says; a public one is refused unless the operator gives it the host's."""
        if asked.network_mode == NetworkMode.NO_NETWORK or (
            asked.network_mode == NetworkMode.ALLOWLIST and not asked.allowed_hosts
        ):
            return "none"
        if asked.network_mode == NetworkMode.ALLOWLIST:
            return [{"host": host, "ports": self._ports} for host in asked.allowed_hosts]
        if asked.network_mode == NetworkMode.PUBLIC and self._public == "host":
            return "host"
        mode = asked.network_mode.value
        raise UsageError(f"network_mode {mode} is not enforced by this environment; declare no-network in the task, or "
                         "give it this host's own: --ek public_network=host")  # fmt: skip

    def _run(self, job: Job, timeout: float | None = None, output_bytes: int = 0) -> Outcome:
        """One at a time: each works on the same layer."""
        with self._turn:
            if self._transaction is None:
                raise RuntimeError("the environment is not started, or was stopped")
            policy = self._policy().with_changes(root=self._root_folder)
            if output_bytes:
                policy = policy.with_changes(output_bytes=output_bytes)
            outcome = run(job, policy, transaction=self._transaction, cwd=self._root_folder, timeout=timeout)
        folder = str(self.trial_paths.trial_dir)
        if (ledger := ledger_of(folder)) is not None:
            ledger.add(os.path.basename(folder), policy, outcome)
        return outcome

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        asked = self._resolve_user(user)
        if asked not in (None, "root", 0, "0"):
            raise RuntimeError(f"the sandbox has one user, root without privileges; {asked!r} is not available")
        variables = {**self._prepared.environment, **(self._merge_env(env) or {})}
        job = Job(argv=("bash", "-c", _SHELL, "bash", cwd or self.workdir, command), environment=variables, stdin=b"")
        outcome = await asyncio.to_thread(self._run, job, timeout_sec)
        if outcome.status is Status.TIMEOUT:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        said = outcome.stderr.decode("utf-8", "replace")
        if outcome.status not in (Status.OK, Status.FAILED):
            said += f"\nringfence: {outcome.status}: {outcome.reason}"
        return ExecResult(stdout=outcome.stdout.decode("utf-8", "replace"), stderr=said, return_code=outcome.rc)

    # ---- files

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1" && chmod "$2" "$1"'
        mode = oct(os.stat(source_path).st_mode & 0o777)[2:]
        job = Job(argv=("bash", "-c", script, "bash", target_path, mode), stdin=Path(source_path).read_bytes() or b"")
        await self._transferred(job, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(str(source_dir), arcname=".")
        script = 'mkdir -p -- "$1" && tar -x --no-same-owner -C "$1"'
        job = Job(argv=("bash", "-c", script, "bash", target_dir), stdin=packed.getvalue())
        await self._transferred(job, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        data = await self._transferred(Job(argv=("cat", "--", source_path)), source_path)
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Pack inside, and unpack here as hostile input: no link, device or name leads out of the directory."""
        data = await self._transferred(Job(argv=("tar", "-c", "-C", source_dir, ".")), source_dir)
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(target_dir, filter=transfer_tar_filter)

    async def _transferred(self, job: Job, path: str) -> bytes:
        outcome = await asyncio.to_thread(self._run, job, None, _TRANSFER_BYTES)
        if not outcome.ok or outcome.stdout_dropped:
            said = outcome.stderr.decode("utf-8", "replace")
            raise RuntimeError(f"{path} can't be transferred: {outcome.reason}: {said}")
        return outcome.stdout
