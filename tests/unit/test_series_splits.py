"""Splits of windows: no stored row is in two parts, by time, by run, by group, by file and by index."""

import numpy as np
import pytest
from sources import refused, write

from hpctrain.data.fields.examples import Windows
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.series import default_way
from hpctrain.data.sharding import TEST, TRAIN, UNUSED, VALIDATION
from hpctrain.data.splits import split_rows
from hpctrain.job import Job
from hpctrain.run.master import resolve

SHAPES = [(6, 1, 1), (6, 1, 2), (4, 3, 5), (3, (0, 2), 1), (1, 1, 1), (5, 0, 3)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Series of several lengths, of which each has runs, and runs that lie in two files; rows know their number."""
    folder, paths, first = tmp_path_factory.mktemp("series"), [], 0
    for number, lengths in enumerate([(120, 40), (0,), (90, 5, 70), (60,)]):
        rows = sum(lengths)
        person = np.repeat([f"p{(number + at) % 5}" for at in range(len(lengths))], lengths)
        paths.append(
            write(
                folder / f"{number}.h5",
                x=np.arange(first, first + rows, dtype="f4"),
                y=np.arange(first, first + rows, dtype="f8"),
                label=np.arange(rows) % 2,
                run=np.repeat(np.arange(len(lengths)), lengths),
                person={"data": person.astype("S2")},
                table=np.stack([np.zeros(rows, int), np.repeat(np.arange(len(lengths)), lengths) % 2], 1),
                train=np.arange(0, rows // 2),
                test=np.arange(rows // 2, rows),
            )
        )
        first += rows
    return paths


def rows_of(source, windows, part, split):
    """The stored rows that the windows of a part use, from what they hold: each number is its row's."""
    chosen = np.flatnonzero(split.part_of(0, split.rows) == part)
    inputs, targets, _ = source.read(0, len(source))
    return set(inputs[chosen].ravel().astype(int)) | set(targets[chosen].ravel().astype(int))


def of_parts(source, windows, split):
    """The rows of each part; asserts that none is in two of them."""
    found = [rows_of(source, windows, part, split) for part in (TRAIN, VALIDATION, TEST)]
    assert len(set().union(*found)) == sum(map(len, found))
    return found


def source_of(files, windows, **options):
    return Hdf5Source(files, "x", "y", windows=windows, **options)


@pytest.mark.parametrize(("length", "horizon", "stride"), SHAPES)
@pytest.mark.parametrize("by", ["time", "run", "file"])
def test_no_row_is_in_two_parts(files, length, horizon, stride, by):
    windows = Windows(length, horizon, stride, "run")
    with source_of(files, windows) as source:
        split = split_rows(source, 3, 0.15, 0.25, by=by)
        of_parts(source, windows, split)
        used = split.rows - split.unused
        if by != "time":
            assert split.unused == 0
            return
        # To a window the fractions of what is left of the runs that are cut: those that lose less than they keep.
        room = [size - 2 * windows.sharing for size in source.stretches() if size >= 4 * windows.sharing]
        assert split.counts[1:] == (round(0.15 * sum(room)), round(0.25 * sum(room)))
        assert used == sum(split.counts)


def test_in_time_the_first_train_and_the_last_test(files):
    windows = Windows(6, 1, 1, "run")
    with source_of(files[:1], windows) as source:
        split = split_rows(source, 0, 0.2, 0.2, by="time")
        # Runs of 120 and 40 rows have 114 and 34 windows; 6 that follow one share rows with it: 12 a run are left out.
        assert source.stretches().tolist() == [114, 34]
        tests = [21, 4]  # 20.4 and 4.4 of the 102 and 22 that are left: 25 in all
        expected = []
        for size, test in zip((114, 34), tests, strict=True):
            train = size - 12 - 2 * test
            expected += [TRAIN] * train + [UNUSED] * 6 + [VALIDATION] * test + [UNUSED] * 6 + [TEST] * test
        assert split.part_of(0, 148).tolist() == expected
        assert split.unused == 24


def test_a_run_that_is_too_short_to_be_cut_trains(files):
    with source_of(files, Windows(30, 5, 1, "run")) as source:
        split = split_rows(source, 0, 0.0, 0.3, by="time")
        sizes = source.stretches()
        assert sizes.tolist() == [86, 6, 0, 56, 0, 36, 26]  # of 34 windows that share rows with the one before
        part, ends = split.part_of(0, split.rows), np.cumsum(sizes)
        for size, end in zip(sizes, ends, strict=True):
            assert (TEST in part[end - size : end]) == (size >= 2 * 34)
        # Where none is longer, those are cut that can be.
        cut = split_rows(source, 0, 0.25, 0.25, by="time").part_of(0, split.rows)
        assert np.bincount(cut[:86], minlength=4).tolist() == [10, 4, 4, 68]
    with source_of(files[3:], Windows(30, 5, 1)) as source:
        message = refused("leaves no rows for the test part", split_rows, source, 0, 0.0, 0.3, by="time")
        assert "data.windows.length" in message


def test_a_window_has_the_group_of_its_rows(files):
    windows = Windows(6, 2, 1)  # of files: over the ends of runs too
    with source_of(files, windows) as source:
        split = split_rows(source, 1, 0.0, 0.4, by="group", group="person")
        part = split.part_of(0, split.rows)
        # A window of 8 rows that holds a change of the group: 7 begin before each of the changes.
        starts = [(0, 160, [120]), (160, 325, [90, 95]), (325, 385, [])]
        mixed = []
        for lo, hi, changes in starts:
            reach = np.arange(hi - lo - 7)
            mixed += [any(at < change < at + 8 for change in changes) for at in reach]
        assert np.array_equal(part == UNUSED, mixed)
        people = np.concatenate([np.repeat([0, 1], [120, 40]), np.repeat([2, 3, 4], [90, 5, 70]), np.full(60, 3)])
        for row_sets in (of_parts(source, windows, split),):
            groups = [{people[row] for row in rows} for rows in row_sets]
            assert not groups[0] & groups[2]
            assert groups[0] | groups[2] == {0, 1, 2, 3, 4}


def test_a_group_may_be_a_column_or_a_field(files, tmp_path):
    with source_of(files, Windows(3, 1, 1, "run")) as source:
        one = split_rows(source, 1, 0.0, 0.4, by="group", group="table[:, 1]")
        assert min(one.counts[0], one.counts[2]) > 0
        refused("does not say a group for each row", split_rows, source, 1, 0.0, 0.4, by="group", group="table")
        refused("does not say a group for each row", split_rows, source, 1, 0.0, 0.4, by="group", group="test")
    records = np.zeros(20, [("a", "f4"), ("who", "S3"), ("run", "i4")])
    records["who"], records["run"] = np.repeat([b"x", b"yy", b"zzz", b"x"], 5), np.repeat([1, 2], 10)
    records["a"] = np.arange(20)  # differs within a run
    path = write(tmp_path / "r.h5", events=records)
    with Hdf5Source([path], "events[a]", "events[a]", windows=Windows(4, 1, run="events[run]")) as source:
        assert source.stretches().tolist() == [6, 6]
    with Hdf5Source([path], "events[a]", "events[run]") as source:
        split = split_rows(source, 0, 0.0, 0.25, by="group", group="events[who]")
        part = split.part_of(0, 20)
        assert [len(set(part[rows])) for rows in (slice(5, 10), slice(10, 15), [0, 1, 2, 3, 4, 15, 16])] == [1, 1, 1]


def test_an_index_is_of_rows(files):
    windows = Windows(6, 1, 2, "run")
    with source_of(files, windows) as source:
        split = split_rows(source, 0, by="index", index={"train": "train", "test": "test"})
        train, _, test = of_parts(source, windows, split)
        edges = np.cumsum([0, 160, 0, 165, 60])
        half = [set(range(lo, lo + (hi - lo) // 2)) for lo, hi in zip(edges, edges[1:], strict=False)]
        first = set().union(*half)
        assert train <= first
        assert not test & first
        assert split.unused > 0


def test_what_would_share_rows_is_refused(files):
    with source_of(files, Windows(6, 1, 6)) as source:
        message = refused("the windows overlap", split_rows, source, 0, 0.0, 0.2)
        assert "data.windows.stride = 7 or more" in message
    with source_of(files, Windows(6, 1, 7)) as source:
        windows = Windows(6, 1, 7)
        of_parts(source, windows, split_rows(source, 0, 0.1, 0.2))
    with Hdf5Source(files, "x", "label", windows=Windows(6)) as source:
        refused("the windows overlap", split_rows, source, 0, 0.0, 0.2, by="stratified")
    data = {"files": "a.h5", "input": "x", "target": "x"}
    refused("is for data.windows", Job, data={**data, "split": {"test": 0.2, "by": "time"}})
    refused("needs a fraction", Job, data={**data, "windows": {"length": 2}, "split": {"by": "run"}})


def test_the_default_follows_from_the_series(files, tmp_path):
    with source_of(files, Windows(6, 1, 7)) as source:
        assert default_way(source, 0.1, 0.1) == "random"
    with source_of(files, Windows(2, 1, 1)) as source:
        assert default_way(source, 0.1, 0.1) == "time"
    with source_of(files, Windows(20, 1, 1, "run")) as source:
        assert default_way(source, 0.1, 0.1) == "run"
        assert default_way(source, 0.0, 0.0) == "random"
    with source_of(files[3:], Windows(20, 1, 1)) as source:
        assert default_way(source, 0.0, 0.1) == "time", "one run alone can be cut in no other way"
    with Hdf5Source(files, "x", "y") as source:
        assert default_way(source, 0.1, 0.1) == "random"


def test_a_job_says_what_it_does(files):
    data = {"files": files, "input": "x", "target": "y", "split": {"validation": 0.1, "test": 0.2}}
    notes = {}
    for name, windows in (("time", {"length": 4}), ("run", {"length": 25, "run": "run"}), ("random", None)):
        prepared = resolve(Job(data={**data, "windows": windows}))
        assert prepared.job.data.split.by == name
        assert resolve(Job.from_toml(prepared.job.to_toml())).split.counts == prepared.split.counts
        notes[name] = "\n".join(prepared.notes)
    assert "split in time" in notes["time"]
    assert "windows are left out: they share rows with windows of other parts" in notes["time"]
    assert "whole runs" in notes["run"]
    assert notes["random"] == ""
    grouped = {**data, "windows": {"length": 4}, "split": {"test": 0.4, "group": "person"}}
    assert "windows are left out: their rows are of several groups" in "\n".join(resolve(Job(data=grouped)).notes)


def test_parts_far_from_what_was_asked_are_said(tmp_path):
    few, many = np.repeat([0, 1, 2], [50, 30, 20]), np.arange(100) // 2
    path = write(tmp_path / "a.h5", x=np.zeros(100), y=np.zeros(100), few=few, many=many)

    def said(test, group):
        split = {"test": test, "group": group}
        return "\n".join(resolve(Job(data={"files": path, "input": "x", "target": "y", "split": split})).notes)

    assert "the test part has 20.0% of the examples, not 5.0%: each group stays whole" in said(0.05, "few")
    assert "stays whole" not in said(0.2, "many")
