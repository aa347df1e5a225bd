"""What is chosen for data of which sizes, the words for it, and the rows of parts as tables."""

import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data import ways as module
from hpctrain.data.parts import PartRows, cut_parts
from hpctrain.data.sharding import TEST, TRAIN, VALIDATION, Split
from hpctrain.data.ways import MAPPED, MEMORY, STREAMED, Needs, budget, choose, mixing, sees_files
from hpctrain.errors import UserError

MB = 10**6


def needs(train, validation=0, mapped=None, streamed=100 * MB, loading=64 * MB):
    parts = {"train": train} | ({"validation": validation} if validation else {})
    return [Needs(parts, loading, mapped, streamed)]


@pytest.mark.parametrize(
    ("found", "shuffle", "expected"),
    [
        (needs(400 * MB), "global", {"train": MEMORY}),
        (needs(500 * MB, mapped=9 * MB), "global", {"train": MAPPED}),
        (needs(500 * MB, mapped=600 * MB), "chunks", {"train": STREAMED}),
        (needs(5000 * MB, 100 * MB, mapped=9 * MB), "global", {"train": MAPPED, "validation": MAPPED}),
        (needs(5000 * MB, 100 * MB), "chunks", {"train": STREAMED, "validation": MEMORY}),
        (needs(5000 * MB, 400 * MB), "none", {"train": STREAMED, "validation": STREAMED}),
        (
            [*needs(5000 * MB), Needs({"validation": 300 * MB}, MB, None, MB), Needs({"test": 200 * MB}, MB, 5, MB)],
            "chunks",
            {"train": STREAMED, "validation": MEMORY, "test": MAPPED},
        ),
    ],
)
def test_what_fits_is_kept_and_the_rest_goes_another_way(found, shuffle, expected):
    chosen = choose(found, 512 * MB, shuffle, False, 2)
    assert chosen.of == expected
    assert chosen.shuffle == shuffle
    assert bool(chosen.said) == (expected["train"] != MEMORY)


def test_global_becomes_chunks_where_it_may_or_is_refused():
    found = needs(5000 * MB)
    changed = choose(found, 512 * MB, "global", True, 2)
    assert (changed.of["train"], changed.shuffle) == (STREAMED, "chunks")
    assert '"chunks" instead of "global"' in changed.said[0]
    with pytest.raises(UserError, match=r"5,064 MB a rank, more than the 512 MB") as caught:
        choose(found, 512 * MB, "global", False, 2)
    assert "give data.memory 5,064 MB, or take about 23 ranks" in caught.value.message  # 2 x 5000 / (512 - 64)
    with pytest.raises(UserError, match=r"99 MB a rank, and reading takes 100 MB[\s\S]*data\.shuffle_buffer less"):
        choose(found, 99 * MB, "chunks", False, 2)


@pytest.mark.parametrize(("limit", "words"), [(2000, "2 kB"), (999, "999 bytes"), (9_500_000, "9.5 MB")])
def test_a_budget_that_no_number_of_ranks_helps_is_told_so(limit, words):
    with pytest.raises(UserError, match=f"5,064 MB a rank, more than the {words} of data.memory") as caught:
        choose(needs(5000 * MB), limit, "global", False, 2)
    assert "ranks" not in caught.value.message.split("to do:")[1]


def test_the_budget_is_half_of_what_is_left(monkeypatch):
    monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    assert budget(SingleGroup(), None) == 500
    assert budget(SingleGroup(), 3) == 3


def test_files_are_looked_for(tmp_path):
    (tmp_path / "a").write_text("a")
    assert sees_files(SingleGroup(), [str(tmp_path / "a"), str(tmp_path / "none")])


def test_ranks_that_see_other_files_are_found_out(tmp_path, monkeypatch):
    class Other(SingleGroup):
        """A rank that is told what rank 0 sees."""

        rank = 1

        def broadcast_object(self, value, root=0, patient=False):
            return told

    path = tmp_path / "a"
    path.write_text("a")
    status = path.stat()
    told = [(str(path), (status.st_size, status.st_mtime_ns))]
    assert sees_files(Other(), None)
    path.write_text("ab")
    assert not sees_files(Other(), None)
    path.unlink()
    assert not sees_files(Other(), None)
    looked_at = []
    monkeypatch.setattr(module, "_state", looked_at.append)
    assert sees_files(SingleGroup(), [str(number) for number in range(2500)])
    assert len(set(looked_at)) == 834  # every third


def test_the_order_is_told_with_what_it_costs_in_mixing():
    assert "every epoch is a permutation" in mixing("global", 0, 0, 100)
    assert "order of the files" in mixing("none", 0, 0, 100)
    line = mixing("chunks", 84, 21_000, 60_000)
    assert "chunks of about 84 examples" in line
    assert "mixed among 21,000 at a time (35.0% of the epoch" in line
    assert mixing("chunks", 84, 21_000, 20_000).startswith("shuffle: chunks")
    assert "permutation" in mixing("chunks", 84, 21_000, 20_000)


@pytest.mark.parametrize("rows", [10, 64, 513, 5000])
def test_examples_of_a_part_are_found_by_their_number(rows):
    split = Split(rows, 3, 0.2, 0.3)
    part = split.part_of(0, rows)
    for code in (TRAIN, VALIDATION, TEST):
        expected = np.flatnonzero(part == code)
        table = PartRows.of(split, code)
        assert np.array_equal(table.to_rows(np.arange(len(expected))), expected)
        some = np.array([len(expected) - 1, 0, len(expected) // 2])
        assert np.array_equal(table.to_rows(some.copy()), expected[some])
    whole = PartRows.of(Split(rows, 3), TRAIN)
    assert np.array_equal(whole.to_rows(np.arange(rows)), np.arange(rows))


def test_the_chunks_of_a_part_are_counted(monkeypatch):
    monkeypatch.setattr("hpctrain.data.parts._BLOCK", 64)
    split, bounds = Split(1000, 3, 0.2, 0.3), np.array([0, 10, 10, 300, 301, 700, 1000])
    part = split.part_of(0, 1000)
    found = cut_parts(SingleGroup(), split, bounds, [TRAIN, TEST])
    for code in (TRAIN, TEST):
        assert found[code].tolist() == [np.count_nonzero(part[:bound] == code) for bound in bounds]
