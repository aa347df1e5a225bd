"""Where ranks and memory are near to each other, and the sum in two levels that makes use of it, without ranks."""

import numpy as np
import pytest

from hpctrain.comm.topology import cpus_of, neighbourhoods, own_place, place_of, share_of


def test_lists_of_processors():
    assert cpus_of("0-3,8\n") == {0, 1, 2, 3, 8}
    assert cpus_of("5") == {5}
    assert cpus_of("\n") == set()


def test_the_numa_node_of_a_process(tmp_path):
    for name, cpus in (("node0", "0-3,8-11"), ("node1", "4-7,12-15"), ("node2", "")):  # memory alone is in node2
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cpus + "\n")
    assert place_of({2, 9}, tmp_path) == 0
    assert place_of({4}, tmp_path) == 1
    assert place_of({3, 4}, tmp_path) is None, "it may run on both"
    assert place_of({99}, tmp_path) is None
    assert place_of({0}, tmp_path / "none") is None
    (tmp_path / "node0" / "cpulist").write_text("a-b\n")
    assert place_of({99}, tmp_path) is None
    assert own_place() is None or own_place() >= 0


@pytest.mark.parametrize(
    ("places", "ranks"),
    [
        ([0, 0, 1, 1], ((0, 1), (2, 3))),
        ([1, 0, 1, 0, 1, 0], ((0, 2, 4), (1, 3, 5))),
        ([0, 0, 0], None),  # one NUMA node
        ([0, 1, 2], None),  # one rank of each
        ([0, 0, 1], None),  # of different size
        ([0, 0, None, None], None),
    ],
)
def test_neighbourhoods(places, ranks):
    assert neighbourhoods(places) == ranks


@pytest.mark.parametrize("hoods", [((0, 1), (2, 3)), ((0, 2, 4), (1, 3, 5)), ((0, 3), (1, 4), (2, 5))])
@pytest.mark.parametrize("length", [0, 1, 7, 100])
def test_the_shares_make_a_sum_and_far_rows_are_read_once(hoods, length):
    size = sum(map(len, hoods))
    given = np.arange(size * length, dtype=np.float64).reshape(size, length) ** 2
    rows, far = given.copy(), 0
    shares = [share_of(rank, hoods, length) for rank in range(size)]
    for rank, share in enumerate(shares):
        rows[rank, slice(*share.part)] = given[list(share.near), slice(*share.part)].sum(axis=0)
    near = rows.copy()
    for share in shares:
        far += (share.piece[1] - share.piece[0]) * (len(share.peers) - 1)
        for peer in share.peers:
            rows[peer, slice(*share.piece)] = near[list(share.peers), slice(*share.piece)].sum(axis=0)
    summed = rows.copy()
    for rank, share in enumerate(shares):
        for other in share.near:
            rows[other, slice(*share.part)] = summed[rank, slice(*share.part)]
    np.testing.assert_array_equal(rows, np.tile(given.sum(axis=0), (size, 1)))
    assert far == length * (len(hoods) - 1), "each neighbourhood's sum crosses once, not each rank's row"
