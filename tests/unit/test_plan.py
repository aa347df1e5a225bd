"""The cost model plays the schedules through and finds the closed forms of the literature, and shared wires."""

import json
from dataclasses import replace

import pytest

from hpctrain.comm.pipeline import Receive, Send
from hpctrain.comm.schedules import SUMMING
from hpctrain.plan.cost import on_ranks, price, programs
from hpctrain.plan.machine import Link, Machine

LATENCY, BYTE_S, ADD_S = 3e-5, 8e-9, 1e-10
LINE = Link((0, 1000), (LATENCY, LATENCY + 1000 * BYTE_S))
MACHINE = Machine(inside=None, between=LINE, add_byte_s=ADD_S)
WORDS, WHOLE = 2**16, 2**30


def cost(name, ranks, ranks_a_node=1, machine=MACHINE, length=WORDS, chunk_bytes=WHOLE):
    nodes = [rank // ranks_a_node for rank in range(ranks)]
    return price(programs(SUMMING[name], ranks, length, chunk_bytes), nodes, machine)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_a_ring_and_halving_and_doubling_cost_what_theory_says(ranks):
    """Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005."""
    size = 4 * WORDS
    wire = 2 * (ranks - 1) / ranks * size * BYTE_S + (ranks - 1) / ranks * size * ADD_S
    assert cost("ring", ranks) == pytest.approx(2 * (ranks - 1) * LATENCY + wire)
    assert cost("halving_doubling", ranks) == pytest.approx(2 * (ranks.bit_length() - 1) * LATENCY + wire)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_tree_sends_everything_down_and_up(depth):
    size = 4 * WORDS
    expected = depth * (2 * LATENCY + 2 * size * BYTE_S + size * ADD_S)
    assert cost("tree", 2**depth) == pytest.approx(expected)


def test_two_trees_are_quicker_than_one_and_quicker_than_a_ring_where_latency_counts():
    assert cost("double_tree", 32) < 0.75 * cost("tree", 32)
    assert cost("double_tree", 32, length=1000) < 0.75 * cost("ring", 32, length=1000)


@pytest.mark.parametrize("name", list(SUMMING))
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 12, 33])
def test_every_schedule_comes_to_an_end_at_any_world_size(name, ranks):
    for length in (0, 1, 100):
        seconds = cost(name, ranks, length=length)
        assert (seconds > 0) == (ranks > 1 and length > 0)


def test_ranks_of_a_node_share_its_wire():
    """Halving over two nodes of two ranks: first each rank exchanges half of the buffer with one on the other node."""
    machine = Machine(inside=Link((0, 1000), (0.0, 0.0)), between=LINE, add_byte_s=0.0)
    between = 2 * (LATENCY + 2 * (4 * WORDS / 2) * BYTE_S)  # two messages of half, one behind the other; and back
    assert cost("halving_doubling", 4, 2, machine) == pytest.approx(between)


def send(rank, size, after=0):
    return Send(rank, 0, size // 4, after)


def receive(rank, size, combine=False):
    return Receive(rank, 0, size // 4, combine, 0, 0, ())


def test_a_wire_carries_both_directions_at_once():
    there = [([send(1, 5000)], []), ([], [receive(0, 5000)])]
    both = [([send(1, 5000)], [receive(1, 5000)]), ([send(0, 5000)], [receive(0, 5000)])]
    assert price(there, [0, 1], MACHINE) == price(both, [0, 1], MACHINE) == pytest.approx(LINE.time(5000))


def test_a_rank_adds_what_has_come_before_it_sends_it_on():
    chain = [
        ([send(1, 1000)], []),
        ([send(2, 1000, after=1)], [receive(0, 1000, combine=True)]),
        ([], [receive(1, 1000, combine=True)]),
    ]
    expected = 2 * LINE.time(1000) + 2 * 1000 * ADD_S
    assert price(chain, [0, 1, 2], MACHINE) == pytest.approx(expected)


def test_a_sender_goes_on_to_others_while_one_receiver_is_busy():
    """Two ranks send to rank 2 at once; what one of them sends to rank 3 behind that does not wait for rank 2."""
    parts = [
        ([send(2, 5000)], []),
        ([send(2, 5000), send(3, 5000)], []),
        ([], [receive(0, 5000), receive(1, 5000)]),
        ([], [receive(1, 5000)]),
    ]
    assert price(parts, range(4), MACHINE) == pytest.approx(LATENCY + 2 * 5000 * BYTE_S)


@pytest.mark.parametrize("burst_s", [0.0, 2e-5, 1.0])
def test_a_link_that_has_rested_lets_some_bytes_through_at_once(burst_s):
    """A bucket that holds `burst_s` of the wire's time; ranks take steps one behind the other, so it is spent at first.

    Rank 0 sends, and after a short answer sends again: meanwhile its wire has rested.  Latency is never saved.
    """
    machine = replace(MACHINE, between=replace(LINE, burst_s=burst_s))
    parts = [
        ([send(1, 5000), send(1, 5000, after=1)], [receive(1, 4)]),
        ([send(0, 4, after=1)], [receive(0, 5000), receive(0, 5000)]),
    ]
    saved = min(burst_s, 4 * BYTE_S) + min(burst_s, 5000 * BYTE_S)
    assert price(parts, [0, 1], machine) == pytest.approx(2 * LINE.time(5000) + LINE.time(4) - saved)
    behind = [([send(1, 5000)] * 2, []), ([], [receive(0, 5000)] * 2)]
    assert price(behind, [0, 1], machine) == pytest.approx(LATENCY + 2 * 5000 * BYTE_S), "it has not rested"


def test_a_short_message_is_not_quicker_than_the_rate_because_of_what_the_link_had_saved_up():
    link = Link((64, 10_000, 20_000), (1e-5, 2e-5, 1e-4), burst_s=1e-3)
    assert link.time(10_000) == link.busy(10_000) == pytest.approx(10_000 * 8e-9)
    assert replace(link, burst_s=0.0).time(10_000) == 2e-5
    assert link.time(64) == 1e-5


def test_a_rank_that_has_waited_goes_on_late():
    there = [([send(1, 1000)], []), ([], [receive(0, 1000)])]
    late = replace(MACHINE, wake_s=1e-3)
    assert price(there, [0, 1], late) == pytest.approx(LINE.time(1000) + 1e-3)


def test_a_machine_is_kept_as_plain_values():
    link = Link((64, 4096), (1e-5, 2e-5), 1e-3)
    for machine in (Machine(None, link, 1e-10, 1e-6, 1e-5), Machine(link, None, 1e-10)):
        assert Machine.from_dict(json.loads(json.dumps(machine.to_dict()))) == machine


def test_chunks_hide_additions_and_latency_but_not_the_wire():
    wire = 2 * 3 / 4 * 4 * WORDS * BYTE_S
    whole, cut = cost("ring", 4), cost("ring", 4, chunk_bytes=2**14)
    assert wire < cut < wire + 0.2 * (whole - wire)


def test_programs_of_a_part_of_the_world():
    placed = on_ranks(programs(SUMMING["ring"], 2, 10, WHOLE), [3, 7])
    assert {rank: {each.rank for each in sends} for rank, (sends, _) in placed.items()} == {3: {7}, 7: {3}}
    assert [each.hi - each.lo for each in placed[7][0]] == [5, 5]


def test_messages_that_do_not_fit_are_seen():
    with pytest.raises(ValueError, match="for ever"):
        price([([send(1, 8, after=1)], []), ([], [receive(0, 8)])], [0, 1], MACHINE)
    with pytest.raises(ValueError, match="same length"):
        price([([send(1, 8)], []), ([], [receive(0, 4)])], [0, 1], MACHINE)


def test_a_link_lies_on_lines_between_what_was_measured():
    link = Link((100, 1000, 10_000), (1.0, 2.0, 20.0))
    assert [link.time(size) for size in (1, 100, 550, 1000, 5500, 10_000, 19_000)] == [1, 1, 1.5, 2, 11, 20, 38]
    assert link.byte_s == 18 / 9000
    assert link.busy(10_000) == 20  # never longer than the message takes
    assert link.busy(500) == 1
