"""A SLURM cluster of one node on this machine: daemons of its own, without systemd, and nothing of it under /etc."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")

# More CPUs and memory than the machine may have: they are what SLURM counts, not what jobs of the tiny grid use.
# Memory is watched and a job that exceeds its own is killed, without cgroups.
SLURM_CONF = """
ClusterName=token-collapse
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/controller
SlurmdSpoolDir={root}/node
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
PlugStackConfig={root}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MinJobAge=3600
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=32000 Gres=gpu:2 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes={host} MaxTime=INFINITE State=UP
"""
CGROUP_CONF = """
CgroupPlugin=cgroup/v1
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=no
ConstrainSwapSpace=no
ConstrainDevices=no
"""


class Cluster:
    """A cluster with the partitions cpu and gpu; two files play its GPUs. Use as a context manager.

    Attributes
    ----------
    env : dict
        The environment in which its commands, and Snakemake, find it.
    """

    def __init__(self):
        # Short, since the path of a socket may have 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="slurm-"))
        programs = os.pathsep.join([str(self.root / "bin"), os.environ["PATH"], "/usr/sbin"])
        self._daemons = []
        self.env = os.environ | {"SLURM_CONF": str(self.root / "slurm.conf"), "PATH": programs}

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_):
        self._stop()

    def run(self, *command):
        """Return what a command of SLURM prints."""
        return subprocess.run(command, env=self.env, check=True, capture_output=True, text=True).stdout

    def jobs(self):
        """Return every job ever submitted, by id: its state, partition, memory, and what it is."""
        fields = {"id": "%i", "state": "%T", "partition": "%P", "memory": "%m", "comment": "%k"}
        lines = self.run("squeue", "--states=all", "--noheader", "--format=" + "|".join(fields.values())).splitlines()
        jobs = [dict(zip(fields, line.split("|"), strict=True)) for line in lines]
        return {int(job["id"]): job for job in jobs}

    def _start(self):
        for name in DAEMONS:
            if shutil.which(name, path=self.env["PATH"]) is None:
                raise FileNotFoundError(f"{name} is not installed: `make test-slurm` installs it (slurm-wlm and munge)")
        self._configure()
        files = [f"--{name}-file={self.root}/munge.{name}" for name in ("key", "pid", "seed")]
        self._daemon("munged", "--foreground", f"--socket={self.root}/munge.socket", *files)
        self._daemon("slurmctld", "-D")
        self._wait("scontrol", "ping", lambda answer: "is UP" in answer)
        self._daemon("slurmd", "-D")
        self._wait("sinfo", "--noheader", "--format=%T", lambda answer: "idle" in answer)

    def _configure(self):
        self.root.chmod(0o755)
        for folder in ("controller", "node", "bin"):
            (self.root / folder).mkdir()
        key = self.root / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        ports = _free_ports(2)
        values = {"root": self.root, "user": getpass.getuser(), "host": socket.gethostname().split(".")[0]}
        conf = SLURM_CONF.format(**values, controller_port=ports[0], node_port=ports[1])
        (self.root / "slurm.conf").write_text(conf)
        (self.root / "cgroup.conf").write_text(CGROUP_CONF)
        gpus = [self.root / "gpu0", self.root / "gpu1"]
        for gpu in gpus:
            gpu.touch()
        (self.root / "gres.conf").write_text("".join(f"Name=gpu File={gpu}\n" for gpu in gpus))
        # The executor calls srun without SLURM_CONF in its environment.
        srun = self.root / "bin" / "srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={self.root}/slurm.conf exec {shutil.which("srun")} "$@"\n')
        srun.chmod(0o755)

    def _daemon(self, name, *arguments):
        """Start a daemon that ends with this process, even where that is killed."""
        with open(self.root / f"{name}.log", "w") as log:
            command = ["setpriv", "--pdeathsig", "TERM", name, *arguments]
            self._daemons.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=subprocess.STDOUT))

    def _wait(self, *command_and_check):
        *command, check = command_and_check
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = subprocess.run(command, env=self.env, capture_output=True, text=True)
            if check(answer.stdout):
                return
            time.sleep(0.2)
        logs = "".join(f"\n{path}:\n{path.read_text()[-3000:]}" for path in sorted(self.root.glob("*.log")))
        raise TimeoutError(f"{' '.join(command)} still says {answer.stdout + answer.stderr!r}{logs}")

    def _stop(self):
        """End jobs and daemons, the last started first, also where the start failed half-way."""
        try:
            if len(self._daemons) == len(DAEMONS):
                self.run("scancel", f"--user={getpass.getuser()}")
                self._wait("squeue", "--noheader", lambda answer: not answer)
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
                daemon.wait(timeout=30)
            shutil.rmtree(self.root)


def _free_ports(count):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports
