"""From `shard` over `stage` to training on each node's own copies: the results of files that all ranks see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import write_classes
from launching import mpirun

RANKS, ROWS, LIMIT_S = 3, 211, 100

# Every rank runs this.  The last rank says that it is on another node, with a folder of its own.
SCRIPT = """
import json, os, sys
from pathlib import Path
import h5py, numpy as np
from hpctrain import train
from hpctrain.comm import join
from hpctrain.tools.shard import shard
from hpctrain.tools.stage import stage

folder, tests = map(Path, sys.argv[1:])
sys.path.insert(0, str(tests))
from datasets import job_for

from hpctrain.nn.model import Model
given, real = [], Model.loss_and_grad


def noted(self, batch, *args, **options):
    given.append((batch.epoch, batch.ids.copy(), batch.inputs.copy()))
    return real(self, batch, *args, **options)


Model.loss_and_grad = noted
with h5py.File(folder / "all.h5") as file:
    rows = file["x"][:]
group = join()
group.nodes, group.node = 2, int(group.rank == group.size - 1)
group.local_size = 1 if group.node else group.size - 1
group.local_rank = 0 if group.node else group.rank
os.environ["NODE"] = str(folder / f"node{group.node}")
shard(group, [str(folder / "all.h5")], 5, folder / "shards")
staged = stage(group, folder / "shards", os.environ["NODE"])
found = {"staged": [list(node.shards) for node in staged]}
files = {"shared": folder / "all.h5", "local": folder / "shards"}
for shuffle in ("global", "none", "chunks", "local"):
    for distribute in ("shared", "local"):
        data = {"shuffle": shuffle, "distribute": distribute}
        data |= {"staged": "$NODE"} if distribute == "local" else {}
        run = {"progress": "none", "epochs": 2}
        # Sums in memory that the ranks of a node share would take the nodes for what they are not.
        job = job_for(files[distribute], data=data, run=run, strategy={"collective": "native"})
        given.clear()
        result = train(job, run_dir=folder / f"{shuffle}-{distribute}", group=group)
        batches = [batch for part in group.all_gather_objects(given) for batch in part]
        once = []
        for epoch in range(2):
            ids, inputs = (np.concatenate([batch[i] for batch in batches if batch[0] == epoch]) for i in (1, 2))
            once.append(sorted(ids.tolist()) == list(range(len(rows))) and np.array_equal(inputs, rows[ids]))
        found[f"{shuffle} {distribute}"] = [result.summary["train_loss"], *once]
if group.rank == 0:
    (folder / "found.json").write_text(json.dumps(found))
"""


@pytest.mark.timeout(LIMIT_S + 20)
def test_training_on_staged_shards(tmp_path: Path) -> None:
    write_classes(tmp_path / "all.h5", rows=ROWS)
    (tmp_path / "script.py").write_text(SCRIPT)
    tests = Path(__file__).resolve().parent.parent
    done = mpirun(RANKS, tmp_path / "script.py", tmp_path, tests, timeout=LIMIT_S, cwd=tmp_path)
    assert done.returncode == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.pop("staged") == [[0, 1], [2, 3, 4]]
    assert {path.name for path in (tmp_path / "node1").glob("*.h5")} == {
        f"shard-0000{number}-of-00005.h5" for number in (2, 3, 4)
    }
    for way, (_, *once) in found.items():
        assert once == [True, True], f"{way}: every example exactly once an epoch, as it is in the file"
    for shuffle in ("global", "none"):
        shared, local = found[f"{shuffle} shared"][0], found[f"{shuffle} local"][0]
        assert local == pytest.approx(shared, rel=1e-4)
