"""The benchmark of links makes hosts, runs itself on them and counts: a host sends what theory asks for, no more."""

import json
import subprocess
import sys

import pytest
from launching import ROOT, environment, mpirun

LINKS = ROOT / "benchmarks" / "links.py"
ON_HOSTS = ROOT / "benchmarks" / "on_hosts.py"


@pytest.mark.usefixtures("place_for_hosts")
def test_a_host_sends_each_byte_once_however_many_ranks_it_holds(tmp_path):
    file = tmp_path / "records.json"
    options = ("--hosts", "3", "--ranks", "1", "2", "--sizes", "1MB", "--algorithms", "window", "--pairs", "1")
    done = mpirun(0, LINKS, *options, "--json", file, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.output
    records = json.loads(file.read_text())
    assert [(record["hosts"], record["ranks_a_host"]) for record in records] == [(3, 1), (3, 2)]
    for record in records:
        assert record["limit_s"] == pytest.approx(2 * 2 / 3 * 2**20 * 8 / 1e9)
        assert record["ours_s"] > 0.8 * record["limit_s"], "what the shaper lets through at once is a tenth"
        # By the interfaces' own counters; headers are 4.5 % of full packets, but a virtual link need not cut them up.
        assert 0.99 < record["sent"] < 1.05
    assert done.stdout.count("x limit") >= 3, "a table for each world and one of all"
    assert [path.name for path in tmp_path.iterdir()] == ["records.json"]


@pytest.mark.usefixtures("place_for_hosts")
def test_a_command_runs_on_the_first_host(tmp_path):
    given = [sys.executable, str(ON_HOSTS), "--hosts", "1", "--command", "sh", "-c", "hostname; exit 3"]
    done = subprocess.run(given, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("node1\n", 3)


def test_a_mistake_in_a_rate_is_told():
    done = mpirun(0, LINKS, "--rate", "fast", timeout=60)
    assert done.returncode != 0
    assert "'fast' is not a rate such as 1gbit" in done.output
    assert "Traceback" not in done.output
