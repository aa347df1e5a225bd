"""The hops of every algorithm, simulated in plain Python for 1 to 33 ranks: they sum right and cannot wait for ever."""

import numpy as np
import pytest

from hpctrain.comm.schedule import Hop, part_bounds
from hpctrain.comm.schedules import double_tree, halving_doubling, ring, tree

SIZES = range(1, 34)
sizes = pytest.mark.parametrize("size", SIZES)
scattering = pytest.mark.parametrize("family", [ring, halving_doubling], ids=["ring", "halving_doubling"])


def lengths(size):
    return sorted({0, 1, 7, size - 1, size, 1000})


def simulate(algorithm, buffers):
    """Run all ranks' hops on their buffers; a send is complete only when its receiver has taken it.

    That is the strictest an MPI may be (it may hold any message back until the receive is there), so what comes to an
    end here cannot lock up there.
    """
    size = len(buffers)
    bounds = part_bounds(len(buffers[0]), size)
    programs = [iter(checked(algorithm(rank, size))) for rank in range(size)]
    running = {rank: next(program, None) for rank, program in enumerate(programs)}
    posted = {rank: cut(buffers[rank], bounds, hop.send) for rank, hop in running.items() if hop}
    received = dict.fromkeys(range(size), False)
    taken = dict.fromkeys(range(size), False)
    while any(running.values()):
        moved = False
        for rank, hop in running.items():
            if hop is None:
                continue
            if hop.recv is not None and not received[rank]:
                peer = running[hop.recv_from]
                if peer is not None and peer.send_to == rank and not taken[hop.recv_from]:
                    target = cut(buffers[rank], bounds, hop.recv, copy=False)
                    value = posted[hop.recv_from]
                    assert len(value) == len(target), "both ends must mean a transfer of the same length"
                    target[:] = target + value if hop.combine else value
                    received[rank] = taken[hop.recv_from] = moved = True
        for rank, hop in running.items():
            if hop and (hop.recv is None or received[rank]) and (hop.send is None or taken[rank]):
                running[rank] = following = next(programs[rank], None)
                received[rank] = taken[rank] = False
                moved = True
                if following:
                    posted[rank] = cut(buffers[rank], bounds, following.send)
        assert moved, "the ranks wait for each other for ever"


def checked(hops):
    for hop in hops:
        if hop.send and hop.recv:
            assert hop.send[1] <= hop.recv[0] or hop.recv[1] <= hop.send[0], "a part changes while it is being sent"
        yield hop


def cut(buffer, bounds, parts, copy=True):
    if parts is None:
        return None
    view = buffer[bounds[parts[0]] : bounds[parts[1]]]
    return view.copy() if copy else view


@sizes
@scattering
def test_a_reduce_scatter_gives_each_rank_its_part_of_the_sum(family, size):
    for length in lengths(size):
        buffers = np.random.default_rng(size).integers(-1000, 1000, (size, length)).astype(float)
        expected, bounds = buffers.sum(axis=0), part_bounds(length, size)
        simulate(family.reduce_scatter, buffers)
        for rank in range(size):
            own = slice(bounds[rank], bounds[rank + 1])
            np.testing.assert_array_equal(buffers[rank, own], expected[own])


def own_parts(size, length):
    """Buffers that hold their own part of 1, 2, 3, ... and NaN elsewhere; and the whole."""
    whole, bounds = np.arange(1.0, length + 1), part_bounds(length, size)
    buffers = np.full((size, length), np.nan)
    for rank in range(size):
        buffers[rank, bounds[rank] : bounds[rank + 1]] = whole[bounds[rank] : bounds[rank + 1]]
    return buffers, whole


@sizes
@scattering
def test_an_all_gather_gives_every_rank_all_parts(family, size):
    for length in lengths(size):
        buffers, whole = own_parts(size, length)
        simulate(family.all_gather, buffers)
        np.testing.assert_array_equal(buffers, np.tile(whole, (size, 1)))


@sizes
def test_a_tree_brings_the_sum_to_rank_0_and_from_there_to_all(size):
    for length in lengths(size):
        buffers = np.random.default_rng(size).integers(-1000, 1000, (size, length)).astype(float)
        expected = buffers.sum(axis=0)
        simulate(tree.reduce, buffers)
        np.testing.assert_array_equal(buffers[0], expected)
        simulate(tree.broadcast, buffers)
        np.testing.assert_array_equal(buffers, np.tile(expected, (size, 1)))


@sizes
def test_two_trees_bring_each_half_of_the_sum_to_a_root_and_from_there_to_all(size):
    for length in lengths(size):
        buffers = np.random.default_rng(size).integers(-1000, 1000, (size, length)).astype(float)
        expected, bounds = buffers.sum(axis=0), part_bounds(length, size)
        simulate(double_tree.reduce, buffers)
        for tree_number, root in enumerate((0, size - 1 if size % 2 == 0 else min(1, size - 1))):
            for parts in double_tree.chunks(tree_number, size):
                half = slice(bounds[parts[0]], bounds[parts[1]])
                np.testing.assert_array_equal(buffers[root, half], expected[half])
        simulate(double_tree.broadcast, buffers)
        np.testing.assert_array_equal(buffers, np.tile(expected, (size, 1)))


def sent(algorithm, rank, size):
    return [part for hop in algorithm(rank, size) if hop.send for part in range(*hop.send)]


@sizes
def test_a_ring_sends_the_least_possible(size):
    for algorithm in (ring.reduce_scatter, ring.all_gather):
        for rank in range(size):
            parts = sent(algorithm, rank, size)
            assert len(parts) == len(set(parts)) == size - 1


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_halving_sends_the_least_possible_in_the_fewest_hops(size):
    for algorithm in (halving_doubling.reduce_scatter, halving_doubling.all_gather):
        for rank in range(size):
            assert len(sent(algorithm, rank, size)) == size - 1
            assert len(list(algorithm(rank, size))) == size.bit_length() - 1


@sizes
def test_no_rank_hops_more_often_than_a_tree_is_deep(size):
    depth = (size - 1).bit_length()
    for rank in range(size):
        assert len(list(tree.reduce(rank, size))) <= depth
        assert len(list(halving_doubling.reduce_scatter(rank, size))) <= depth + 1


@pytest.mark.parametrize("size", range(2, 34))
def test_two_trees_keep_every_rank_busy(size):
    """Nobody sends more than the buffer, or waits longer than two rounds for each level of a tree before the first."""
    depth = (size - 1).bit_length()
    for rank in range(size):
        hops = list(double_tree.reduce(rank, size))
        assert len(sent(double_tree.reduce, rank, size)) <= size
        assert len(hops) <= 4 * double_tree.CHUNKS
    assert max(double_tree._first_rounds(size).values()) <= 2 * depth
    leaves = [{rank for rank in range(size) if not received(tree, rank, size)} for tree in (0, 1)]
    assert not leaves[0] & leaves[1], "a leaf of one tree is an inner node of the other"


def received(tree_number, rank, size):
    parts = {part for chunk in double_tree.chunks(tree_number, size) for part in range(*chunk)}
    return [hop for hop in double_tree.reduce(rank, size) if hop.recv and hop.recv[0] in parts]


def test_the_simulation_sees_a_deadlock():
    def both_wait(rank, size):
        yield Hop(None, 1 - rank, None, (0, 1), combine=True)
        yield Hop(1 - rank, None, (0, 1), None, combine=True)

    with pytest.raises(AssertionError, match="for ever"):
        simulate(both_wait, np.ones((2, 4)))


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 33])
@pytest.mark.parametrize("length", [0, 1, 6, 7, 1000])
def test_parts_follow_one_another_and_are_near_even(length, parts):
    bounds = part_bounds(length, parts)
    sizes = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == length
    assert len(sizes) == parts
    assert sizes.min() >= 0
    assert sizes.max() - sizes.min() <= 1
