"""A running step on several ranks allocates nothing: rows travel and gradients are combined in buffers made once."""

import pytest
from allocations import CNN, COUNTED, MLP, count_allocations

from hpctrain.comm import join

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.timeout(120)]

SHARE = 4096  # rows of a batch on a rank


@pytest.mark.parametrize(
    ("network", "shape", "options", "shuffle", "collective"),
    [(MLP, (20,), {}, "none", "window"), (CNN, (8, 8, 2), {"micro_batch": 1024}, "global", "ring")],
)
def test_a_step_makes_no_array(network, shape, options, shuffle, collective):
    group = join()
    found = count_allocations(group, network, shape, SHARE * group.size, shuffle, collective, **options)
    # What Python makes of a step: numbers, views, and for each rank that a ring goes through two messages' requests.
    requests = 512 * max(0, group.size - 2) if collective == "ring" else 0
    assert sorted(found.steps)[COUNTED // 2] < 2048 + requests
    assert max(found.steps) < 4 * SHARE / 2  # half of the smallest array with something for each row
    assert found.kept < 8 * SHARE
