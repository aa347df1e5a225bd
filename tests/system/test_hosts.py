"""Several hosts on one machine: what each has of its own, the rate of their links, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import ROOT, environment

from benchmarks.cluster import mpi
from benchmarks.cluster.hosts import Hosts

# Sends some bytes to another host and prints the seconds that took until they were all there.
SENDER = """
import socket, sys, time
count = int(sys.argv[1])
if sys.argv[2] == "take":
    server = socket.create_server(("", 7000))
    print("listening", flush=True)
    taker, _ = server.accept()
    while count:
        count -= len(taker.recv(1 << 16))
    taker.sendall(b".")
else:
    sender = socket.create_connection((sys.argv[2], 7000))
    start = time.monotonic()
    sender.sendall(bytes(count))
    sender.recv(1)
    print(time.monotonic() - start)
"""


def python(hosts: Hosts, name: str, *args: str) -> list[str]:
    return hosts.on(name, [sys.executable, "-c", *args])


def sending_s(hosts: Hosts, count: int) -> float:
    """The seconds that node1 takes to send so many bytes to node2."""
    with subprocess.Popen(python(hosts, "node2", SENDER, str(count), "take"), stdout=subprocess.PIPE) as taker:
        taker.stdout.readline()
        return float(hosts.run("node1", sys.executable, "-c", SENDER, str(count), "node2").stdout)


def test_each_has_a_name_a_network_and_shared_memory_of_its_own(hosts: Hosts) -> None:
    for name in hosts.names:
        hosts.run(name, "touch", f"/dev/shm/{name}")
    for name in hosts.names:
        assert hosts.run(name, "hostname").stdout.strip() == name
        assert hosts.run(name, "ls", "/dev/shm").stdout.split() == [name]
        assert "eth0" in hosts.run(name, "cat", "/proc/net/dev").stdout
    assert not Path("/dev/shm/node1").exists()
    assert hosts.run("node2", "pwd").stdout.strip() == os.getcwd(), "the files are the machine's"


def test_links_have_their_rate_and_count_their_bytes(hosts: Hosts) -> None:
    count = 4_000_000
    before = hosts.sent_bytes("node1")
    hosts.shape("100mbit")
    slow = sending_s(hosts, count)
    hosts.shape("1gbit")
    fast = sending_s(hosts, count)
    # 320 ms and 32 ms by the rates; what the shaper lets through at once makes it less, a busy machine more.
    assert 0.8 * 0.32 < slow < 2 * 0.32
    assert 0.5 * 0.032 < fast < 0.5 * slow
    assert 2 * count < hosts.sent_bytes("node1") - before < 1.1 * 2 * count


@pytest.mark.parametrize("ranks", [1, 2])
def test_mpi_sees_the_hosts_as_nodes(hosts: Hosts, ranks: int, tmp_path: Path) -> None:
    program = tmp_path / "nodes.py"
    program.write_text(
        "from hpctrain.comm import join\n"
        "group = join()\n"
        "seen = group.all_gather_objects((group.hostname, group.node, group.nodes, group.local_size))\n"
        "if group.rank == 0:\n"
        "    print(seen)\n"
    )
    command = mpi.command(hosts, sys.executable, ranks, program)
    env = mpi.environment(hosts, sys.executable, environment())
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    expected = [(name, node, 4, ranks) for node, name in enumerate(hosts.names) for _ in range(ranks)]
    assert str(expected) in done.stdout, done.stdout + done.stderr


def test_nothing_is_left_when_their_maker_is_killed(hosts: Hosts, tmp_path: Path) -> None:
    program = (
        "import sys, time; from benchmarks.cluster.hosts import Hosts\n"
        "with Hosts(2) as made:\n"
        "    import subprocess; subprocess.Popen(made.on('node2', ['sleep', '600']))\n"
        "    print('made', flush=True); time.sleep(600)\n"
    )
    # A set beside this module's own: its lock is in another folder.
    env = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    maker = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE)
    assert maker.stdout.readline() == b"made\n"
    family = psutil.Process(maker.pid).children(recursive=True)
    assert len(family) == 4, "a switch, two hosts, and what runs on one"
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


def test_there_is_one_set_at_a_time(hosts: Hosts) -> None:
    with pytest.raises(TimeoutError, match=f"process {os.getpid()} has had hosts"), Hosts(1, patience_s=0):
        pass
