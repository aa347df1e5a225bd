"""`Slurm`: a real Slurm over `Hosts`, one node a host, for as long as the hosts last.  Needs slurm-wlm and munge."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .hosts import Hosts

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "munged")
_START_S = 20

_CONFIGURATION = """\
ClusterName=hpctrain
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={state}/munge/socket,cred_expire=5
StateSaveLocation={state}/controller
SlurmdSpoolDir={state}/%n
SlurmctldPidFile={state}/controller.pid
SlurmdPidFile={state}/%n.pid
SlurmctldLogFile={state}/controller.log
SlurmdLogFile={state}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={state}/completed
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_min_interval=200000,batch_sched_delay=0
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
JobRequeue=1
SwitchType=switch/none
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""

_MUNGE_FILES = {
    "key-file": "key",
    "socket": "socket",
    "pid-file": "pid",
    "log-file": "log",
    "seed-file": "seed",
}


def why_not() -> str | None:
    """Return why Slurm cannot run here, None where it can (given hosts)."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"Slurm needs the programs {', '.join(missing)} (apt-get install slurm-wlm munge)" if missing else None


class Slurm:
    """Starts Slurm's daemons on hosts, the controller on the first; they end with the hosts."""

    def __init__(self, hosts: Hosts, cores: int = 2) -> None:
        self._hosts = hosts
        self._state = hosts.folder / "slurm"
        self.environment = {"SLURM_CONF": str(self._state / "slurm.conf")}
        self._configure(cores)
        self._start()

    def run(self, *command: str, timeout: float = 60) -> str:
        """Run one of Slurm's commands on the first host and return what it prints."""
        env = os.environ | self.environment
        return self._hosts.run(self._hosts.names[0], *command, env=env, timeout=timeout).stdout

    def submitted(self, command: Sequence[str], cwd: Path, env: dict[str, str]) -> str:
        """Submit a batch job (`command` begins with sbatch) from a folder on the first host; returns its number."""
        entered = self._hosts.on(self._hosts.names[0], [command[0], "--parsable", *command[1:]], cwd)
        done = subprocess.run(entered, env=env | self.environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout.strip()

    def outcome(self, job: str, timeout: float) -> str | None:
        """Return how a job ended ("COMPLETED", "FAILED", ...), None when it is still there after `timeout` seconds."""
        until = time.monotonic() + timeout
        completed = self._state / "completed"
        while time.monotonic() < until:
            for line in completed.read_text().splitlines() if completed.exists() else []:
                facts = dict(field.split("=", 1) for field in line.split() if "=" in field)
                if facts.get("JobId") == job:
                    return facts["JobState"]
            time.sleep(0.2)
        return None

    def _configure(self, cores: int) -> None:
        for folder in ("munge", "controller", *self._hosts.names):
            (self._state / folder).mkdir(parents=True)
        key = self._state / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        self._hosts.folder.chmod(0o755)  # munge wants its socket's folder open, and its key's closed to others
        names = self._hosts.names
        nodes = [
            f"NodeName={name} CPUs={cores} Boards=1 SocketsPerBoard=1 CoresPerSocket={cores} ThreadsPerCore=1 "
            f"RealMemory=4000 State=UNKNOWN"
            for name in names
        ]
        written = _CONFIGURATION.format(controller=names[0], state=self._state, names=",".join(names))
        (self._state / "slurm.conf").write_text("\n".join([*nodes, written]))
        # The hosts share /tmp, where each node's PMIx plugin would make the same file.
        (self._state / "mpi.conf").write_text("PMIxCliTmpDirBase=/run\n")

    def _start(self) -> None:
        env = os.environ | self.environment
        first, munge = self._hosts.names[0], self._state / "munge"
        options = [f"--{name}={munge / file}" for name, file in _MUNGE_FILES.items()]
        self._hosts.start(first, "munged", "--foreground", "--force", "--num-threads=2", *options)
        _appears(munge / _MUNGE_FILES["socket"])
        self._hosts.start(first, "slurmctld", "-D", "-c", env=env)
        for name in self._hosts.names:
            self._hosts.run(name, "mount", "-t", "tmpfs", "tmpfs", "/run")
            self._hosts.start(name, "slurmd", "-D", "-c", "-N", name, env=env)
        until = time.monotonic() + _START_S
        while self._idle() != len(self._hosts.names):
            if time.monotonic() > until:
                raise TimeoutError(f"Slurm's nodes are not idle after {_START_S} s\n{self._logs()}")
            time.sleep(0.1)

    def _idle(self) -> int:
        """The number of nodes that wait for work: 0 as long as the controller does not answer."""
        asked = self._hosts.on(self._hosts.names[0], ["sinfo", "-h", "-t", "idle", "-o", "%D"])
        done = subprocess.run(asked, env=os.environ | self.environment, capture_output=True, text=True, timeout=60)
        return int(done.stdout.strip() or 0) if done.returncode == 0 else 0

    def _logs(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text()}" for log in sorted(self._state.glob("*.log")))


def _appears(path: Path) -> None:
    until = time.monotonic() + _START_S
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"there is no {path} after {_START_S} s")
        time.sleep(0.02)
