"""Ranks that read for themselves have to see the same files: who does not is named, with what is wrong there."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.alike import check_alike
from hpctrain.errors import UserError


class Rank(SingleGroup):
    """One of two ranks that look one after the other; `told` and `found` are what they have said so far."""

    def __init__(self, rank: int, told: list, found: list) -> None:
        super().__init__()
        self.rank, self.size, self.hostname = rank, 2, f"node{rank}"
        self._told, self._found = told, found

    def broadcast_object(self, value, root=0, patient=False):
        """Return what rank 0 has given."""
        if self.rank == 0:
            self._told.append(copy.deepcopy(value))
        return self._told[-1]

    def all_gather_objects(self, value):
        """Return what both have given, once both have."""
        self._found.append(value)
        return list(self._found)


def looked(files: list[str], change=lambda: None) -> str | None:
    """Let rank 0 look, change something, let rank 1 look; return the message."""
    told, found = [], []
    check_alike(Rank(0, told, found), files, "shared")
    change()
    try:
        check_alike(Rank(1, told, found), files, "shared")
    except UserError as error:
        return error.message if error.agreed else "not agreed"
    return None


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    random = np.random.default_rng(0)
    for name, size in (("small", 100), ("large", 1_000_000), ("empty", 0)):
        (tmp_path / name).write_bytes(random.bytes(size))
    return [str(tmp_path / name) for name in ("small", "large", "empty")]


def test_the_same_files_and_copies_of_them_are_alike(files, tmp_path) -> None:
    assert looked(files) is None

    def copied() -> None:
        shutil.copyfile(files[1], tmp_path / "copy")  # with another time of change
        (tmp_path / "copy").replace(files[1])

    assert looked(files, copied) is None


def test_a_missing_file_is_told_with_rank_and_host(files) -> None:
    message = looked(files, Path(files[1]).unlink)
    assert f"rank 1 (node1): {files[1]}: No such file or directory" in message
    assert "rank 0 (" not in message
    assert 'data.distribute = "scatter"' in message
    assert "gone" not in message


@pytest.mark.parametrize("name", ["small", "large"])
def test_other_contents_of_the_same_size_are_told(files, tmp_path, name) -> None:
    def other() -> None:
        path = tmp_path / name
        path.write_bytes(np.random.default_rng(1).bytes(path.stat().st_size))

    assert f"{tmp_path / name} has other contents than on rank 0" in looked(files, other)


def test_another_size_is_told(files) -> None:
    message = looked(files, lambda: Path(files[0]).write_bytes(b"1234"))
    assert f"{files[0]} has 4 bytes, and 100 on rank 0" in message


def test_of_very_many_files_some_are_looked_at(tmp_path, monkeypatch) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr("hpctrain.data.alike._look", lambda path, blocks: asked.append((path, blocks)) or (1, ""))
    looked([str(number) for number in range(2500)])
    rank_0 = asked[: len(asked) // 2]
    assert len(rank_0) == 834  # every third
    assert sum(blocks > 0 for _, blocks in rank_0) <= 64
    assert sum(blocks for _, blocks in rank_0) <= 256
