"""What keeps one host alive: `unshare ... python keeper.py NAME HOSTS_FILE`, started by `hosts.Hosts`.

It makes the namespaces it was started in a host, says "ready", and waits until its standard input ends: when its maker
closes it, or has died, however that happened.  Then it kills what still runs on the host, and the host is gone with it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time


def main(name: str, hosts_file: str) -> None:
    socket.sethostname(name)
    for mount in (["-t", "tmpfs", "tmpfs", "/dev/shm"], ["--bind", hosts_file, "/etc/hosts"]):
        subprocess.run(["mount", *mount], check=True)
    print("ready", flush=True)
    sys.stdin.read()
    while others := [process for process in map(int, filter(str.isdecimal, os.listdir("/proc"))) if is_here(process)]:
        for process in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def is_here(process: int) -> bool:
    """Whether another process, not yet dead, runs on this host."""
    if process == os.getpid():
        return False
    try:
        return os.readlink(f"/proc/{process}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:  # it has ended meanwhile, or is a zombie
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
