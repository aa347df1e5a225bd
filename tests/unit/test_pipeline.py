"""Hops cut into chunks, simulated for 1 to 33 ranks in any order that MPI may choose: the sums, and no endless wait."""

import random
from collections import deque
from itertools import chain

import numpy as np
import pytest

from hpctrain.comm.pipeline import pipeline
from hpctrain.comm.schedule import Hop, part_bounds
from hpctrain.comm.schedules import double_tree, halving_doubling, ring, tree

SUMMING = {
    "ring": (ring.reduce_scatter, ring.all_gather),
    "halving_doubling": (halving_doubling.reduce_scatter, halving_doubling.all_gather),
    "tree": (tree.reduce, tree.broadcast),
    "double_tree": (double_tree.reduce, double_tree.broadcast),
}
CHUNK = 16
summing = pytest.mark.parametrize("schedules", SUMMING.values(), ids=SUMMING)


class Rank:
    """One rank with its buffer, as far as it has come."""

    def __init__(self, buffer, sends, receives, ahead):
        self.buffer, self.sends, self.receives, self.ahead = buffer, sends, receives, ahead
        self.begun = self.posted = self.over = 0
        self.left, self.sent = [False] * len(sends), 0  # sends that are over, and how many of the first ones
        self.arrived = {}  # receives that have come in: what there is to add, None where it stands in its place
        self.finished = np.zeros(len(buffer), int)

    def are_sent(self, count):
        while self.sent < count and self.left[self.sent]:
            self.sent += 1
        return self.sent >= count

    def go_on(self, ends):
        """Do what needs no message: begin and post what may be, add what has come in."""
        while True:
            while self.posted < min(self.over + self.ahead, len(self.receives)):
                receive = self.receives[self.posted]
                if not receive.combine and (receive.after > self.over or not self.are_sent(receive.after_sent)):
                    break
                ends[receive.rank, self.buffer.rank][1].append(self.posted)
                self.posted += 1
            while self.begun < len(self.sends) and self.sends[self.begun].after <= self.over:
                ends[self.buffer.rank, self.sends[self.begun].rank][0].append(self.begun)
                self.begun += 1
            if self.over not in self.arrived:
                return
            receive = self.receives[self.over]
            if receive.combine:
                if not self.are_sent(receive.after_sent):
                    return
                self.buffer[receive.lo : receive.hi] += self.arrived[self.over]
            for lo, hi in receive.finished:
                self.finished[lo:hi] += 1
            self.over += 1


class Buffer(np.ndarray):
    rank = 0


class Ends(dict):
    def __missing__(self, pair):
        self[pair] = deque(), deque()
        return self[pair]


def simulate(programs, buffers, ahead, seed):
    """Let messages pass in a random order, each only when both its ends are there, and read when it passes."""
    chance, ends, ranks = random.Random(seed), Ends(), []
    for number, (sends, receives) in enumerate(programs):
        buffer = buffers[number].view(Buffer)
        buffer.rank = number
        ranks.append(Rank(buffer, sends, receives, ahead))
        ranks[-1].go_on(ends)
    while ready := [pair for pair, (begun, posted) in ends.items() if begun and posted]:
        for source, to in chance.sample(ready, len(ready)):
            begun, posted = ends[source, to]
            if chance.random() < 0.3 or not (begun and posted):
                continue
            number, place = begun.popleft(), posted.popleft()
            send, receive = ranks[source].sends[number], ranks[to].receives[place]
            assert send.hi - send.lo == receive.hi - receive.lo, "both ends must mean a message of the same length"
            value = ranks[source].buffer[send.lo : send.hi].copy()
            if not receive.combine:
                ranks[to].buffer[receive.lo : receive.hi] = value
            ranks[to].arrived[place] = value
            ranks[source].left[number] = True
            ranks[to].go_on(ends)
            ranks[source].go_on(ends)
    assert all(rank.over == len(rank.receives) and all(rank.left) for rank in ranks), "they wait for ever"
    return ranks


def programs(schedules, size, length, chunk=CHUNK):
    bounds = part_bounds(length, size)
    return [pipeline(chain(*(hops(rank, size) for hops in schedules)), bounds, chunk) for rank in range(size)]


@summing
@pytest.mark.parametrize("size", range(1, 34))
def test_every_order_of_messages_gives_the_sum(schedules, size):
    for length, ahead in ((7, 2), (700, (1, 3, 8)[size % 3])):
        buffers = np.random.default_rng(size).integers(-1000, 1000, (size, length)).astype(float)
        expected = np.tile(buffers.sum(axis=0), (size, 1))
        ranks = simulate(programs(schedules, size, length), buffers, ahead, seed=length + ahead)
        np.testing.assert_array_equal(buffers, expected)
        if size > 1:
            assert all((rank.finished == 1).all() for rank in ranks), "each element is finished once"


@summing
@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
def test_the_bits_do_not_depend_on_the_chunks(schedules, size):
    """Floats whose sum depends on the order of the additions."""
    given = np.random.default_rng(size).normal(size=(size, 500)).astype(np.float32)
    results = []
    for chunk in (16, 48, 10_000):
        buffers = given.copy()
        simulate(programs(schedules, size, 500, chunk), buffers, 4, seed=chunk)
        results.append(buffers.tobytes())
    assert len(set(results)) == 1


def test_a_chunk_leaves_as_soon_as_it_is_summed():
    """Rank 0 of 4 in a ring: part 2 comes in in its first hop and leaves in its second, chunk by chunk."""
    sends, _ = programs(SUMMING["ring"], 4, 4 * 80)[0]
    assert [(send.lo, send.after) for send in sends[:10]] == [
        *((240 + start, 0) for start in range(0, 80, 16)),
        *((160 + start, 1 + start // 16) for start in range(0, 80, 16)),
    ]


@summing
def test_chunks_are_near_even_whole_lines_and_no_longer_than_asked_for(schedules):
    for sends, receives in programs(schedules, 3, 3001, chunk=100):
        for message in (*sends, *receives):
            assert 0 < message.hi - message.lo <= 112


def test_what_is_overwritten_must_have_left():
    """Each gives its part away and then gets another in the same place."""
    hops = [Hop(1, 1, (0, 1), (1, 2), combine=False), Hop(None, 1, None, (0, 1), combine=False)]
    _, receives = pipeline(hops, [0, 32, 64], CHUNK)
    assert [(receive.lo, receive.after_sent, receive.finished) for receive in receives] == [
        (32, 0, ((32, 48),)),
        (48, 0, ((48, 64),)),
        (0, 1, ((0, 16),)),
        (16, 2, ((16, 32),)),
    ]
