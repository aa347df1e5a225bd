"""`Hosts`: several hosts on this machine, joined by a switch with links of a given rate, while a `with` block lasts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
_LOCK = Path(tempfile.gettempdir()) / "hpctrain-hosts.lock"
_PROGRAMS = ("ip", "tc", "nsenter", "unshare", "mount")
_NAMESPACES = ("--net", "--uts", "--mount", "--ipc")
# What a link lets through at once, and how long a packet may wait in its queue before it is dropped.
_BURST, _LATENCY = "128kb", "100ms"


def why_not() -> str | None:
    """Return why there cannot be hosts on this machine, None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts on one machine need Linux and root"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"hosts on one machine need the programs {', '.join(missing)} (apt-get install iproute2 util-linux)"
    tried = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, text=True)
    return f"namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else None


class Hosts:
    """Hosts node1 to nodeN, each with both directions of its link to the switch limited to `rate` ("1gbit", "none").

    At most one set of hosts exists on a machine: the block begins when the set of another process is gone, or raises a
    TimeoutError after `patience_s`.  Everything is gone with the block, also when this process is killed.
    """

    def __init__(self, count: int = 4, rate: str = "1gbit", patience_s: float = 1800) -> None:
        self.names = [f"node{number}" for number in range(1, count + 1)]
        self.rate = rate
        self._patience_s = patience_s
        self._keepers: dict[str, subprocess.Popen] = {}
        self._services: list[subprocess.Popen] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Hosts:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_only_one(self._patience_s))
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hpctrain-hosts-")))
            stack.callback(self._end)
            self._begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which `remote-shell` finds the hosts."""
        return {"HPCTRAIN_HOSTS": str(self.folder)}

    def on(self, name: str, command: Sequence[str], cwd: Path | str | None = None) -> list[str]:
        """Return the command that runs a command on a host, in the folder `cwd` (default: the one it is called in)."""
        return [
            "nsenter",
            "--target",
            str(self._keepers[name].pid),
            *_NAMESPACES,
            f"--wdns={cwd or os.getcwd()}",
            *command,
        ]

    def run(
        self, name: str, *command: str, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess:
        """Run a short command on a host to its end; raises where it fails."""
        done = subprocess.run(self.on(name, command), env=env, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} on {name}: code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def start(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen:
        """Start a command on a host that goes on until the host ends."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._services.append(subprocess.Popen(self.on(name, command), env=env, start_new_session=True, **quiet))
        return self._services[-1]

    def shape(self, rate: str) -> None:
        """Give all links another rate: a number with a unit of tc ("100mbit"), or "none" for no limit."""
        for name, keeper in self._keepers.items():
            ends = [f"p{host}" for host in self.names] if name == "switch" else ["eth0"]
            for end in ends:
                # A queue that replaces another of its kind would keep what the other has let through so far.
                _inside(keeper, "tc", "qdisc", "del", "dev", end, "root", may_fail=True)
                if rate != "none":
                    limit = ("tbf", "rate", rate, "burst", _BURST, "latency", _LATENCY)
                    _inside(keeper, "tc", "qdisc", "add", "dev", end, "root", *limit)
        self.rate = rate

    def sent_bytes(self, name: str) -> int:
        """Return how many bytes, headers included, a host has sent over its link so far."""
        return sent_bytes(self._keepers[name].pid)

    def _begin(self) -> None:
        addresses = {name: f"10.77.0.{number}" for number, name in enumerate(self.names, 1)}
        hosts_file = self.folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        hosts_file.write_text("\n".join(lines) + "\n")
        for name in ("switch", *self.names):
            self._keepers[name] = _keep(name, hosts_file)
        for name, keeper in self._keepers.items():
            if keeper.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{name} cannot be made")
            (self.folder / name).write_text(str(keeper.pid))
        switch = self._keepers["switch"]
        _links(switch, "link add br0 type bridge", "link set br0 up")
        for name, address in addresses.items():
            host = self._keepers[name]
            _links(host, f"link add eth0 type veth peer name p{name} netns {switch.pid}")
            _links(host, "link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up")
            _links(switch, f"link set p{name} master br0 up")
        self.shape(self.rate)

    def _end(self) -> None:
        for keeper in self._keepers.values():
            keeper.stdin.close()
        for keeper in self._keepers.values():
            keeper.wait()
            keeper.stdout.close()
        for service in self._services:  # the keepers have killed them
            service.wait()
        self._keepers.clear()
        self._services.clear()


def sent_bytes(process: int | str = "self", interface: str = "eth0") -> int:
    """Return the bytes sent so far over an interface of the host that a process runs on."""
    for line in Path(f"/proc/{process}/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            return int(counts.split()[8])
    raise LookupError(f"process {process} sees no interface {interface}")


def _keep(name: str, hosts_file: Path) -> subprocess.Popen:
    keeper = [sys.executable, "-I", "-S", str(HERE / "keeper.py"), name, str(hosts_file)]
    return subprocess.Popen(
        ["unshare", *_NAMESPACES, "--propagation", "slave", *keeper],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for its maker, which may still need the host
    )


def _links(keeper: subprocess.Popen, *lines: str) -> None:
    _inside(keeper, "ip", "-batch", "-", text="\n".join(lines) + "\n")


def _inside(keeper: subprocess.Popen, *command: str, text: str = "", may_fail: bool = False) -> None:
    """Run a command in a host's network, with the machine's own files."""
    entered = ["nsenter", "--target", str(keeper.pid), "--net", *command]
    done = subprocess.run(entered, input=text, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise RuntimeError(f"{' '.join(command)} {text}: {done.stderr.strip()}")


@contextlib.contextmanager
def _only_one(patience_s: float):  # noqa: ANN202
    """Hold this machine's lock for the length of the block; it goes with the process that holds it."""
    with _LOCK.open("a+") as file:
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    holder = _LOCK.read_text().strip()
                    raise TimeoutError(f"process {holder} has had hosts for {patience_s:g} s: {_LOCK}") from None
                time.sleep(0.2)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
