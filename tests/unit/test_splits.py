"""Splits by class, group, file and index: exact counts, nothing in two parts, and what cannot be split is said."""

import pickle

import h5py
import numpy as np
import pytest

from hpctrain.data.facts import DataFacts
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.sharding import TEST, TRAIN, UNUSED, VALIDATION, Split
from hpctrain.data.splits import CodedSplit, _whole_groups, largest_remainders, split_rows
from hpctrain.errors import UserError
from hpctrain.job.data import DataSection

ROWS = 1000


@pytest.fixture(scope="module")
def labels():
    """Sorted classes of very different sizes, with a gap."""
    return np.repeat([0, 1, 2, 4], [700, 197, 100, 3])


@pytest.fixture(scope="module")
def people():
    """A group for each row, which come again all over the files."""
    return np.random.default_rng(2).integers(0, 83, ROWS)


@pytest.fixture(scope="module")
def paths(tmp_path_factory, labels, people):
    folder, found = tmp_path_factory.mktemp("splits"), []
    bounds = [0, 250, 251, 600, 600, 780, 1000]
    for number, (lo, hi) in enumerate(zip(bounds, bounds[1:], strict=False)):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["x"], file["y"] = np.zeros((hi - lo, 2), "f4"), labels[lo:hi]
            file["person"] = people[lo:hi]
            file.create_dataset("name", data=[f"p{number}" for number in people[lo:hi]], dtype=h5py.string_dtype())
            file["real"] = np.zeros(hi - lo)
            file["train"] = np.arange(0, hi - lo, 2)
            file["test"] = np.arange(1, hi - lo, 4)
        found.append(str(folder / f"{number}.h5"))
    return found


@pytest.fixture
def source(paths):
    with Hdf5Source(paths, "x", "y") as source:
        yield source


def parts(split):
    return split.part_of(0, split.rows)


def refused(match, *args, **options):
    with pytest.raises(UserError, match=match) as caught:
        split_rows(*args, **options)
    return caught.value.message


def test_random_is_arithmetic(source):
    assert split_rows(source, 5, 0.1, 0.2) == Split(ROWS, 5, 0.1, 0.2)


def test_parts_are_told_for_any_range():
    codes = np.random.default_rng(0).integers(0, 4, 1003).astype(np.uint8)
    split = pickle.loads(pickle.dumps(CodedSplit(codes)))
    assert split.nbytes == 251
    assert split.counts == tuple(np.bincount(codes)[:3])
    assert split.unused == np.count_nonzero(codes == UNUSED)
    for lo, hi in [(0, 1003), (0, 0), (1, 2), (3, 9), (5, 1003), (1003, 1003), (999, 1001)]:
        found = split.part_of(lo, hi)
        assert found.dtype == np.uint8
        assert np.array_equal(found, codes[lo:hi])
    with pytest.raises(ValueError, match="1004"):
        split.part_of(0, 1004)


def test_stratified_has_the_fractions_of_each_class(source, labels):
    split = split_rows(source, 1, 0.1, 0.25, by="stratified")
    assert split.counts == (650, 100, 250)
    part = parts(split)
    for label, rows in zip(*np.unique(labels, return_counts=True), strict=True):
        held = np.bincount(part[labels == label], minlength=3)
        assert abs(held[TEST] - 0.25 * rows) < 1
        assert abs(held[VALIDATION] - 0.1 * rows) < 1
    # Within a class the rows are drawn: those of the class that fills the first 700 rows lie all over them.
    first = np.flatnonzero(part[:700] == TEST)
    assert np.histogram(first, 7, (0, 700))[0].min() > 10
    assert np.array_equal(part, parts(split_rows(source, 1, 0.1, 0.25, by="stratified")))
    assert not np.array_equal(part, parts(split_rows(source, 2, 0.1, 0.25, by="stratified")))


@pytest.mark.parametrize(
    ("sizes", "fraction", "most", "expected"),
    [
        ([10, 10, 10], 0.1, [10, 10, 10], [1, 1, 1]),
        ([5, 5, 5, 5], 0.1, [5, 5, 5, 5], [1, 1, 0, 0]),  # of equal remainders the first
        ([7, 11, 2], 0.5, [7, 11, 2], [4, 5, 1]),  # 3.5, 5.5, 1: sum 10
        ([1, 1, 1], 0.4, [0, 1, 1], [0, 1, 0]),
        ([100, 1], 0.5, [100, 0], [50, 0]),
        ([9, 9], 0.0, [9, 9], [0, 0]),
    ],
)
def test_largest_remainders_by_hand(sizes, fraction, most, expected):
    found = largest_remainders(np.array(sizes), fraction, np.array(most))
    assert found.tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_largest_remainders_add_up(seed):
    rng = np.random.default_rng(seed)
    sizes, fraction = rng.integers(1, 50, 30), rng.uniform(0, 0.9)
    found = largest_remainders(sizes, fraction, sizes)
    assert found.sum() == round(fraction * sizes.sum())
    assert (np.abs(found - fraction * sizes) < 1).all()


@pytest.mark.parametrize("name", ["person", "name"])
def test_no_group_is_in_two_parts(source, people, name):
    split = split_rows(source, 3, 0.2, 0.3, by="group", group=name)
    part = parts(split)
    for person in np.unique(people):
        assert len(np.unique(part[people == person])) == 1
    # Groups of about 12 rows: a part is nearer to its fraction than half of the largest group.
    largest = np.bincount(people).max()
    assert abs(split.counts[TEST] - 300) <= largest / 2
    assert abs(split.counts[VALIDATION] - 200) <= largest / 2
    assert split.unused == 0
    if name == "name":  # the same groups, numbered in the same order: the same parts
        assert np.array_equal(part, parts(split_rows(source, 3, 0.2, 0.3, by="group", group="person")))
    assert not np.array_equal(part, parts(split_rows(source, 4, 0.2, 0.3, by="group", group=name)))


@pytest.mark.parametrize("seed", range(6))
def test_files_stay_together(source, seed):
    split = split_rows(source, seed, 0.2, 0.2, by="file")
    part, bounds = parts(split), [0, 250, 251, 600, 600, 780, 1000]
    assert all(len(np.unique(part[lo:hi])) <= 1 for lo, hi in zip(bounds, bounds[1:], strict=False))
    assert min(split.counts) > 0
    assert sum(split.counts) == ROWS


@pytest.mark.parametrize("seed", range(4))
def test_a_part_that_all_groups_are_too_large_for_takes_the_smallest(seed):
    sizes = np.array([3001, 0, 7000, 1, 4998])
    part = _whole_groups(sizes, seed, (0.1, 0.2))
    held = {code: int(sizes[part == code].sum()) for code in (TEST, VALIDATION)}
    assert 0 < held[TEST] <= 2 * 3000  # no further from a fifth than nothing at all
    assert 0 < held[VALIDATION] <= 3001  # all but one are too large for a tenth: the smallest that is left
    assert 7000 in sizes[part == TRAIN]


def test_a_resumed_run_must_find_the_same_parts(source):
    splits = [split_rows(source, seed, 0.2, 0.2, by="group", group="person") for seed in (1, 1, 2)]
    prints = [DataFacts.collect(source, split=split).fingerprint for split in splits]
    assert prints[0] == prints[1] != prints[2]
    assert "split" not in DataFacts.collect(source, split=split_rows(source, 1, 0.2)).fingerprint["train"]


def test_index_datasets_count_within_their_file(source, paths):
    split = split_rows(source, 0, by="index", index={"train": "train", "test": "test"})
    expected = np.full(ROWS, UNUSED)
    for lo, hi in [(0, 250), (250, 251), (251, 600), (600, 780), (780, 1000)]:
        expected[lo:hi:2] = TRAIN
        expected[lo + 1 : hi : 4] = TEST
    assert np.array_equal(parts(split), expected)
    assert split.unused == np.count_nonzero(expected == UNUSED) > 0
    assert split.counts[VALIDATION] == 0


def index_of(tmp_path, **index):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((6, 2), "f4"), np.zeros(6, int)
        for name, values in index.items():
            file[name] = np.array(values)
    source = Hdf5Source([str(tmp_path / "a.h5")], "x", "y")
    return source, {name: name for name in index}


def test_index_of_true_and_false(tmp_path):
    source, index = index_of(tmp_path, train=[True, True, False, True, False, False], validation=[2, 5])
    assert parts(split_rows(source, 0, by="index", index=index)).tolist() == [0, 0, 1, 0, 3, 1]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"train": [0, 1], "test": [1]}, "row that is in the train part too[\\s\\S]*row 1"),
        ({"train": [0, 6], "test": [1]}, "not in the file[\\s\\S]*found: +6\n[\\s\\S]*0 to 5"),
        ({"train": [0, 1], "test": [-1]}, "index.test = 'test' in .*a.h5 has a row number that is not"),
        ({"train": [0, 0], "test": [1]}, "a row twice[\\s\\S]*row 0"),
        ({"train": [0.5], "test": [1]}, "no row numbers"),
        ({"train": [[0, 1]], "test": [2]}, "no row numbers"),
        ({"train": [True, False], "test": [2]}, "no row numbers"),
        ({"train": [0, 1], "test": np.empty(0, int)}, "no rows for the test part"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path, rows, text):
    source, index = index_of(tmp_path, **rows)
    refused(text, source, 0, by="index", index=index)


def test_what_cannot_be_split_so_is_said(source, paths, tmp_path):
    assert "there is no such dataset" in refused(
        "data.split.group = 'pers'", source, 0, 0.1, 0, by="group", group="pers"
    )
    refused("does not say a group for each row", source, 0, 0.1, 0, by="group", group="x")
    refused("does not say a group for each row", source, 0, 0.1, 0, by="group", group="real")
    refused("out of range", source, 0, 1.2, 0, by="file")
    with Hdf5Source(paths, "x", "real") as real:
        refused("no class label each", real, 0, 0.1, 0, by="stratified")
    with Hdf5Source(paths[:1], "x", "y") as one:
        message = refused("leaves no rows for training", one, 0, 0, 0.1, by="file")
        assert "too few files" in message


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ({"validation": 0.1, "by": "group"}, 'by = "group" and group go together'),
        ({"validation": 0.1, "by": "file", "group": "person"}, 'by = "group" and group go together'),
        ({"by": "index", "validation": 0.1, "index": {"train": "a"}}, "leave the fractions out"),
        ({"by": "stratified"}, "needs a fraction"),
        ({"index": {"test": "a"}}, "data.split.index.train is missing"),
        ({"by": "clas"}, "data.split.by"),
    ],
)
def test_a_job_says_all_that_a_split_needs(split, text):
    with pytest.raises(UserError, match=text.replace("(", r"\(")):
        DataSection.checked({"files": "a.h5", "input": "x", "target": "y", "split": split}, "data")


def test_by_follows_from_what_is_named():
    base = {"files": "a.h5", "input": "x", "target": "y"}
    group = DataSection(**base, split={"test": 0.1, "group": "person"}).split
    index = DataSection(**base, split={"index": {"train": "a", "validation": "b"}})
    assert (group.by, group.parts) == ("group", ("test",))
    assert (index.split.by, index.split.parts, index.has_validation) == ("index", ("validation",), True)
    with pytest.raises(UserError, match=r"data.split.index.validation and data.validation_files are both given"):
        DataSection(**base, split={"index": {"train": "a", "validation": "b"}}, validation_files="v.h5")
