"""Where large arrays are placed, how much memory there is, and sizes as a person writes them."""

import numpy as np
import pytest

from hpctrain import memory
from hpctrain.memory import aligned_zeros, peak_bytes, resident_bytes, taken_bytes

HUGE = 1 << 21


@pytest.mark.parametrize("count", [0, 1, 17, HUGE // 4 - 1, HUGE // 4, HUGE // 4 + 3, HUGE])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_arrays_are_zero_writable_and_start_on_a_line(count, dtype):
    array = aligned_zeros(count, dtype)

    assert (array.shape, array.dtype) == ((count,), dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert count == 0 or array.ctypes.data % 64 == 0
    assert not array.any()
    array[:] = 1  # all of it is there
    assert array.sum() == count


def test_the_peak_of_private_memory_is_the_most_that_was_seen(tmp_path):
    peak, size = memory.PrivatePeak(), 64 << 20
    before = peak.look()
    array = np.ones(size, np.uint8)
    most = peak.look()
    assert most - before == pytest.approx(size, rel=0.1)
    assert most <= peak_bytes()
    del array
    assert memory.private_bytes() < most - size // 2
    assert peak.look() == most
    # The pages of a mapped file are none of it.
    (tmp_path / "file").write_bytes(bytes(size))
    held = memory.private_bytes()
    mapped = np.memmap(tmp_path / "file", np.uint8, "r")
    assert mapped.sum() == 0
    assert resident_bytes() > held + size // 2
    assert memory.private_bytes() - held < size // 4


def test_memory_is_not_looked_at_all_the_time(monkeypatch):
    found = iter([5, 9, 7])
    monkeypatch.setattr(memory, "private_bytes", lambda: next(found))
    peak = memory.PrivatePeak()
    assert [peak.look(60), peak.look(60), peak.look(), peak.look()] == [5, 5, 9, 9]
    monkeypatch.setattr(memory, "private_bytes", lambda: None)
    assert memory.PrivatePeak().look() is None


def test_sizes_are_written_so_that_they_are_read_back():
    for size in (1000, 2_621_000, 25_000_000, 64_000_000, 999_999_000):
        assert memory.parse_bytes(memory.bytes_text(size)) == size


def test_large_arrays_start_on_a_huge_page():
    assert aligned_zeros(HUGE // 4).ctypes.data % HUGE == 0


def test_arrays_do_not_share_memory():
    first, second = aligned_zeros(HUGE), aligned_zeros(HUGE)

    first[:] = 1

    assert not second.any()


@pytest.mark.parametrize(
    ("size", "touched", "pages", "page"),
    [
        (0, None, 0, 4096),
        (1, None, 1, 4096),
        (4097, None, 2, 4096),
        (HUGE - 1, None, 512, 4096),
        (HUGE, None, 1, HUGE),
        (HUGE + 1, None, 513, 4096),
        (HUGE + 1, [(HUGE - 1, HUGE + 1)], 513, 4096),
        (HUGE + 5000, [(HUGE, HUGE + 1)], 1, 4096),
        (10 * HUGE, [], 0, HUGE),
        (10 * HUGE, [(5, 5)], 0, HUGE),
        (10 * HUGE, [(HUGE, 2 * HUGE), (0, 1), (3 * HUGE - 1, 3 * HUGE + 1)], 4, HUGE),
        (10 * HUGE, [(0, 3 * HUGE), (HUGE, HUGE + 9), (2 * HUGE, 4 * HUGE)], 4, HUGE),
    ],
)
def test_memory_is_taken_in_whole_pages(size, touched, pages, page):
    assert taken_bytes(size, touched) == pages * page


def test_what_is_used_is_resident_and_what_was_used_is_the_peak():
    before = resident_bytes()
    array = aligned_zeros(16 * HUGE // 4)
    untouched = resident_bytes()
    array[:] = 1
    used = resident_bytes()
    assert untouched - before < HUGE
    assert 15 * HUGE < used - before < 18 * HUGE
    del array
    assert resident_bytes() < used - 15 * HUGE
    assert peak_bytes() > used - HUGE  # Linux counts by and by


@pytest.mark.parametrize(
    ("text", "size"),
    [("512 MB", 512 * 10**6), ("1.5 GiB", 3 << 29), ("64kb", 64_000), (" 2 TB ", 2 * 10**12), ("1 KiB", 1024)],
)
def test_sizes_are_read(text, size):
    assert memory.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["512", "MB", "-1 MB", "0 MB", "1 XB", "1 MB more", 512])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="must be a size"):
        memory.parse_bytes(text)


def test_a_batch_system_may_leave_less_than_the_machine_has(tmp_path, monkeypatch):
    def limit(folder, most, used, cached):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("max", most), ("current", used), ("stat", f"anon 5\nfile {cached}\nfile_mapped 3")):
            (folder / f"memory.{name}").write_text(f"{text}\n")

    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_GROUP", tmp_path / "cgroup")
    there = memory.psutil.virtual_memory().available
    assert memory.available_bytes() == pytest.approx(there, rel=0.2)
    (tmp_path / "cgroup").write_text("0::/slurm/job_1/step_0\n")
    limit(tmp_path / "groups" / "slurm" / "job_1" / "step_0", "max", 900, 0)
    limit(tmp_path / "groups" / "slurm" / "job_1", 1000, 900, 300)
    assert memory.available_bytes() == 400  # files in the cache give way
    limit(tmp_path / "groups" / "slurm", 10_000, 9_990, 20)
    assert memory.available_bytes() == 30
