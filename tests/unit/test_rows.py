"""The exchange plan, simulated for all ranks in one process, and the copying kernels, against plain numpy."""

import numpy as np
import pytest

from hpctrain.data.order import EpochOrder
from hpctrain.data.sharding import row_range, worker_range
from hpctrain.kernels.rows import assemble_rows, first_nonfinite_row, pack_rows, plan_window


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("total", "batch", "shuffle"), [(40, 12, "global"), (40, 12, "none"), (5, 3, "global")])
@pytest.mark.parametrize(("uneven", "unit"), [(False, 1), (True, 1), (True, 5)])
def test_every_worker_gets_its_rows_in_order(size, total, batch, shuffle, uneven, unit):
    inputs = np.random.default_rng(0).integers(0, 2**32, (total, 3), np.uint32)
    targets = np.random.default_rng(1).integers(0, 2**32, (total, 2), np.uint32)
    weights = np.random.default_rng(2).integers(0, 2**32, (total, total % 2), np.uint32)  # one column or none
    starts = np.array([row_range(total, r, size)[0] for r in range(size)] + [total])
    if uneven:
        starts[1:-1] = total // 4  # rank 0 has a quarter, the last rank the rest, those between nothing
    ids = EpochOrder(total, 1, 0, shuffle).ids(0, total)

    sent, plans = {}, []
    for rank in range(size):
        own = slice(starts[rank], starts[rank + 1])
        index, source = np.full(total, -99), np.full(total, -99)
        send_rows, receive_rows, cursor = np.zeros((3, size), np.int64)
        held = (starts, np.arange(size), np.zeros(size, np.int64), rank, np.empty(total, np.int64))
        leaving = plan_window(ids, batch, unit, *held, index, send_rows, receive_rows, source, cursor)
        wire = np.empty((leaving, 5 + weights.shape[1]), np.uint32)
        pack_rows(inputs[own], targets[own], weights[own], index[:leaving], wire)
        assert send_rows.sum() == leaving
        for to, rows in enumerate(np.split(wire, np.cumsum(send_rows)[:-1])):
            sent[rank, to] = rows
        plans.append((own, receive_rows, source))

    for rank, (own, receive_rows, source) in enumerate(plans):
        assert [len(sent[other, rank]) for other in range(size)] == receive_rows.tolist()
        received = np.concatenate([sent[other, rank] for other in range(size)])
        expected = []
        for at in range(0, total, batch):
            lo, hi = worker_range(min(batch, total - at), rank, size, unit)
            expected += ids[at + lo : at + hi].tolist()
        out = [np.empty((len(expected), array.shape[1]), np.uint32) for array in (inputs, targets, weights)]
        assemble_rows(inputs[own], targets[own], weights[own], received, source[: len(expected)], *out)
        assert np.array_equal(out[0], inputs[expected])
        assert np.array_equal(out[1], targets[expected])
        assert np.array_equal(out[2], weights[expected])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_first_nonfinite_row(bad):
    values = np.random.default_rng(2).normal(size=(20, 7)).astype(np.float32)
    values[3] = 0, -0.0, 1e-45, 3.4e38, -3.4e38, 1, 2
    assert first_nonfinite_row(values.view(np.uint32)) == -1
    for row, column in [(19, 6), (11, 0), (4, 3)]:
        values[row, column] = bad
        assert first_nonfinite_row(values.view(np.uint32)) == row
    assert first_nonfinite_row(values[:0].view(np.uint32)) == -1
