"""Which schedules are worth trying on which cluster, and how places of ranks are written."""

from dataclasses import replace

import pytest

from hpctrain.plan.machine import Link, Machine
from hpctrain.strategies.choosing import ranks_text, window_chunk, worth_trying
from hpctrain.strategies.tuning import bucket_sizes


def cluster(latency_s, gbit):
    link = Link((0, 10**6), (latency_s, latency_s + 8e-3 / gbit))
    return Machine(inside=None, between=link, add_byte_s=1e-10)


def names(machine, nodes, length):
    return [way.collective for _, way in worth_trying(machine, nodes, length)]


def test_long_buffers_go_by_the_least_bytes_and_short_ones_by_the_fewest_messages():
    nodes = range(6)  # no power of two: halving has to fold two ranks into others
    assert names(cluster(1e-5, 1), nodes, 10**7)[0] == "ring"
    assert names(cluster(1e-3, 100), nodes, 100)[0] in ("tree", "halving_doubling")
    assert "ring" not in names(cluster(1e-3, 100), range(33), 100)


def test_schedules_of_too_many_moves_are_left_out():
    assert "ring" in names(cluster(1e-6, 0.1), range(64), 10**5)
    assert "ring" not in names(cluster(1e-6, 0.1), range(200), 10**5)


def test_chunks_are_small_where_only_the_wire_counts_and_large_where_messages_cost():
    nodes = [0, 0, 1, 1, 2, 2]
    adding = replace(cluster(1e-5, 1), add_byte_s=7e-9)  # nearly as slow as the wire: to be done while that is busy
    messages = replace(adding, message_s=2e-3)
    small, large = (worth_trying(machine, nodes, 10**5)[0][1] for machine in (adding, messages))
    assert small.chunk_bytes < large.chunk_bytes
    assert window_chunk(adding, range(3), 10**5) < window_chunk(messages, range(3), 10**5)
    assert window_chunk(adding, nodes, 1) == 0


def test_buckets_are_tried_that_cut_differently():
    kb = 256  # floats
    ready = tuple(part * kb for part in (3000, 2500, 1200, 10, 0))
    assert bucket_sizes(ready, 3500 * kb) == {
        256 << 10: (3000 * kb, 2500 * kb, 1200 * kb, 10 * kb),
        1 << 20: (1200 * kb, 10 * kb),
        4 * 3500 * kb: (),
    }
    assert bucket_sizes((), 100) == {400: ()}, "there is nothing to choose"


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([0], "1 x 1"),
        ([0, 0, 1, 1, 2, 2, 3, 3], "4 x 2"),
        ([0, 0, 0, 1, 1, 2, 2], "1 x 3 + 2 x 2"),
        ([0, 1, 0, 1], "0 1 0 1"),
    ],
)
def test_places_of_ranks(nodes, text):
    assert ranks_text(nodes) == text
