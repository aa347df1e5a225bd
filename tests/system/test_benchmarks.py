"""Every benchmark script runs as its help says, checks its own results, and writes the records that others read."""

import json

import pytest
from launching import ROOT, mpirun

from hpctrain.comm.collectives import COLLECTIVES

SCRIPT = ROOT / "benchmarks" / "all_reduce.py"


def test_all_reduce_compares_ours_with_mpi(tmp_path):
    file = tmp_path / "records.json"
    sizes = ("1KB", "64KB", "100")
    done = mpirun(3, SCRIPT, "--sizes", *sizes, "--pairs", "2", "--json", file, timeout=90, cwd=tmp_path)
    assert done.returncode == 0, done.output
    records = json.loads(file.read_text())
    algorithms = ["auto", *(name for name in COLLECTIVES if name != "native")]
    assert [(record["algorithm"], record["bytes"], record["ranks"]) for record in records] == [
        (name, size, 3) for size in (1024, 65536, 100) for name in algorithms
    ]
    assert len({record["case"] for record in records}) == len(records)
    for record in records:
        assert record["peer"] == "MPI_Allreduce"
        assert record["ours_s"] > 0
        assert record["peer_s"] > 0
        assert record["ratio"] > 0
        assert record["limit_s"] > 0
        assert record["chosen"] == ("window" if record["algorithm"] == "auto" else "")
    assert done.stdout.count("64 KB") == len(algorithms), "rank 0 alone prints the table"
    assert [path.name for path in tmp_path.iterdir()] == ["records.json"]


def test_it_runs_without_mpirun(tmp_path):
    done = mpirun(0, SCRIPT, "--sizes", "4KB", "--pairs", "1", timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert "4 KB" in done.stdout


@pytest.mark.parametrize(
    ("option", "value"), [("--sizes", "3"), ("--pairs", "0"), ("--peer-python", "/no/such/python")]
)
def test_a_mistake_is_told_once(option, value):
    done = mpirun(2, SCRIPT, option, value, timeout=60)
    assert done.returncode != 0
    assert done.output.count(f"argument {option}: '{value}'") == 1
    assert "Traceback" not in done.output


def test_hdf5_read_compares_with_the_page_cache(tmp_path):
    file = tmp_path / "records.json"
    script, options = ROOT / "benchmarks" / "hdf5_read.py", ("--pairs", "1", "--seconds", "0.05", "--json", file)
    done = mpirun(0, script, "--mb", "16", "--layouts", "contiguous,chunked", *options, timeout=90, cwd=tmp_path)
    assert done.returncode == 0, done.output
    records = json.loads(file.read_text())
    cases = [("contiguous", "none"), ("contiguous", "chunks"), ("contiguous", "global")]
    cases += [("chunked", "none"), ("chunked", "chunks")]
    assert [(record["layout"], record["shuffle"]) for record in records] == cases
    for record in records:
        assert record["peer"] == "page cache"
        assert record["ratio"] == pytest.approx(record["peer_s"] / record["ours_s"])
    assert [path.name for path in tmp_path.iterdir()] == ["records.json"]


def test_worlds_of_unequal_data_come_to_their_end(tmp_path):
    file, script = tmp_path / "records.json", ROOT / "benchmarks" / "unequal_worlds.py"
    done = mpirun(3, script, "--compressions", "int8", "--steps", "60", "--json", file, timeout=90)
    assert done.returncode == 0, done.output
    plain, packed = json.loads(file.read_text())
    assert (plain["compression"], packed["compression"], packed["ranks"]) == ("none", "int8", 3)
    assert packed["buckets"] > 1
    assert packed["same_bits"]
    assert packed["last_loss"] < 0.7 * packed["first_loss"]


def test_help_teaches_by_example():
    done = mpirun(2, SCRIPT, "--help", timeout=60)
    assert done.returncode == 0
    assert done.stdout.count("mpirun -n 4 python benchmarks/all_reduce.py") == 1


def test_compression_times_kernels_and_compares_accuracies(tmp_path):
    file, script = tmp_path / "records.json", ROOT / "benchmarks" / "compression.py"
    done = mpirun(0, script, "--kinds", "int8", "--sizes", "1", "--pairs", "1", "--json", file, timeout=90)
    assert done.returncode == 0, done.output
    (record,) = json.loads(file.read_text())
    assert (record["kind"], record["bytes"], record["peer"]) == ("int8", 2**20, "copy")
    assert min(record[name] for name in ("encode_gbps", "decode_gbps", "both_gbps", "ratio")) > 0
    short = ("--kinds", "int8", "--epochs", "2", "--seeds", "1", "--json", file)
    done = mpirun(2, script, "--accuracy", *short, timeout=90)
    assert done.returncode == 0, done.output
    (record,) = json.loads(file.read_text())
    assert record["ranks"] == 2
    assert record["difference"] == pytest.approx(record["accuracy"] - record["peer_accuracy"])
    assert record["accuracy"] > 50, "two epochs of the digits"
