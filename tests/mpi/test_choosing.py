"""The choice of a collective on several ranks, as if each node had so many: measured once, agreed, kept."""

import json
import time

import numpy as np
import pytest

from hpctrain.comm import join
from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.choice import allocate
from hpctrain.comm.mpi_group import MpiGroup
from hpctrain.nn.flat import TAIL, WEIGHT
from hpctrain.strategies import choosing, known_clusters, tuning
from hpctrain.strategies.all_reduce import AllReduce
from hpctrain.strategies.choosing import Choice, choose
from hpctrain.strategies.known_clusters import Candidate

pytestmark = pytest.mark.mpi(min_size=2)
LENGTH = 5000


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Rank 0's folder, empty; the others have none of their own."""
    path = join().broadcast_object(tmp_path)
    monkeypatch.setattr(known_clusters, "cache_dir", lambda: path)
    return path


def world(ranks_a_node):
    from mpi4py import MPI

    join()
    return MpiGroup(MPI.COMM_WORLD, ranks_a_node=ranks_a_node)


@pytest.mark.parametrize("ranks_a_node", [1, 2])
def test_it_is_measured_once_and_every_rank_has_the_same(folder, ranks_a_node, monkeypatch):
    group = world(ranks_a_node)
    buffer = allocate("auto", group, LENGTH)
    choice, said = choose(group, buffer, LENGTH, None)
    assert group.all_gather_objects(choice) == [choice] * group.size
    assert choice.collective in COLLECTIVES
    assert not buffer.any()
    if group.nodes == 1:
        assert (choice.collective, said) == ("window", [])
        return
    assert "native" in said[0]
    assert "measured in" in said[0]
    assert choice.collective in said[0]
    if group.rank == 0:
        (file,) = (folder / "clusters").iterdir()
        times = json.loads(file.read_text())["sizes"][str(LENGTH.bit_length())]["times"]
        assert {"native", "window"} < {name for (name, *_), _ in times}
        assert [choice.collective, choice.chunk_bytes, choice.leader] == min(times, key=lambda entry: entry[1])[0]
        shares = group.size == ranks_a_node * group.nodes and ranks_a_node > 1
        assert any(leader for (*_, leader), _ in times) == shares, "uneven nodes have no other way than leaders"
    monkeypatch.setattr(choosing, "_measured", None)  # it would be an error to measure again
    again, said = choose(group, buffer, LENGTH - 1, None)
    assert again == choice
    assert "as measured before" in said[0]


@pytest.mark.parametrize(("kept_s", "is_believed"), [(1e-4, True), (50.0, False)])
def test_what_was_kept_is_measured_anew_where_it_is_no_longer_so(folder, monkeypatch, kept_s, is_believed):
    group = world(1)
    buffer = np.zeros(LENGTH, np.float32)
    monkeypatch.setattr(
        known_clusters.KnownCluster, "times", lambda *_: {Candidate("ring"): kept_s, Candidate("native"): 60.0}
    )
    choice, said = choose(group, buffer, LENGTH, None)
    assert ("as measured before" in said[0]) == is_believed
    assert ("measured in" in said[0]) != is_believed
    assert (choice.collective == "ring") or not is_believed


def test_a_run_goes_on_with_what_it_began_with_while_the_ranks_are_where_they_were(folder, monkeypatch):
    group = world(1)
    buffer = np.zeros(LENGTH, np.float32)
    ranks = f"{group.size} x 1"
    times = {Candidate("native"): 2.0, Candidate("tree", 4096): 1.0, Candidate("window", leader=True): 3.0}
    monkeypatch.setattr(choosing, "_measured", lambda *_: times)
    monkeypatch.setattr(known_clusters.KnownCluster, "keep", lambda *_: None)
    before = Choice(collective="ring", ranks=ranks)
    assert choose(group, buffer, LENGTH, before) == (before, [])
    choice, said = choose(group, buffer, LENGTH, Choice(collective="ring", ranks="17 x 4"))
    assert choice == Choice(collective="tree", chunk_bytes=4096, ranks=ranks)
    assert said[0] == (
        f"the collective is chosen anew (ranks were 17 x 4, are {ranks}): sums agree to rounding, not bit for bit"
    )


class Model:
    def __init__(self, group, length=LENGTH):
        self.params = np.zeros(length, np.float32)
        self.grad_buffer = AllReduce().allocate_gradients(group, length + TAIL)
        self.grads, self.tail = self.grad_buffer[:-TAIL], self.grad_buffer[-TAIL:]
        self.table, self.ready_offsets = None, ()

    def update_state(self, rows):
        pass


class Sum:
    slots = ()
    ema = None

    def bound(self, params, grads, slots, table):
        return lambda lr, step, scale: np.copyto(params, grads)


def test_a_run_writes_its_choice_into_its_options_and_goes_on_with_it(folder):
    group = world(1)
    run = AllReduce().bind(group, Model(group), Sum(), None)
    assert "measured in" in run.said[0]
    assert run.taken.chosen.ranks == f"{group.size} x 1"
    assert run.taken.chosen.collective in run.describe()
    chosen = Choice(collective="tree", chunk_bytes=1024, ranks=f"{group.size} x 1")
    model = Model(group)
    again = AllReduce(chosen=chosen).bind(group, model, Sum(), None)
    assert (again.said, again.taken.chosen) == ((), chosen)
    assert "tree" in again.describe()
    model.grads[:] = np.arange(LENGTH) % 100
    model.tail[WEIGHT] = 1
    again.step(0, 0.1)
    np.testing.assert_array_equal(model.params, group.size * (np.arange(LENGTH) % 100))
    for each in (run, again):
        each.close()


class WideModel(Model):
    """Three megabytes of gradients, final from these places on."""

    ready_at = (600_000, 300_000, 100_000, 0)

    def __init__(self, group):
        super().__init__(group, 750_000)
        self.ready_offsets = self.ready_at
        self.passes = []

    def a_pass(self, cuts, ready):
        """Take long with all cuts but the ones of 1 MB; as each rank finds, which must not be one alone."""
        self.passes.append(cuts)
        self.grads[:] = 1
        for lo in cuts:
            ready(lo, 0.0)
        time.sleep(0.0 if cuts == (300_000,) else 0.02)


@pytest.mark.parametrize("collective", ["auto", "native"])
def test_the_size_of_buckets_is_measured_and_kept(folder, collective, monkeypatch):
    monkeypatch.setattr(tuning, "_MOST_ROUNDS", 1)
    group = world(1)
    model = WideModel(group)
    options = {"collective": collective, "overlap": True}
    run = AllReduce(**options).bind(group, model, Sum(), None)
    first = run.cuts
    assert run.tune(model.a_pass)
    assert set(model.passes) == {(600_000, 300_000, 100_000), (300_000,), ()}
    assert (first, run.cuts) == ((300_000,), (300_000,))
    assert "buckets of 1 MB" in run.said[0]
    assert run.taken.chosen.bucket == 1 << 20
    assert run.taken.chosen.ranks == f"{group.size} x 1"
    assert group.all_gather_objects(run.taken) == [run.taken] * group.size
    assert not model.grad_buffer.any()
    chosen = run.taken.chosen.model_copy(update={"bucket": 256 << 10})
    again = AllReduce(**options, chosen=chosen).bind(group, model, Sum(), None)
    assert not again.tune(model.a_pass)
    assert again.cuts == (600_000, 300_000, 100_000)
    moved = AllReduce(**options, chosen=chosen.model_copy(update={"ranks": "17 x 4"})).bind(group, model, Sum(), None)
    assert moved.tune(model.a_pass)
    fixed = AllReduce(**options, bucket="256 kB").bind(group, model, Sum(), None)
    assert not fixed.tune(model.a_pass)
    for each in (run, again, moved, fixed):
        each.close()


def test_a_file_that_cannot_be_read_is_measured_anew(folder):
    group = world(1)
    buffer = np.zeros(100, np.float32)
    choose(group, buffer, 100, None)
    for text in ("", "[]", '{"machine": 3}', '{"machine": {"inside": null, "between": null, "add_byte_s": 1}}'):
        if group.rank == 0:
            (file,) = (folder / "clusters").iterdir()
            file.write_text(text)
        group.barrier()
        cluster = known_clusters.KnownCluster(group, f"{group.size} x 1")
        assert (cluster.machine, cluster.times(100)) == (None, {})
