"""Atomic writing: whole or not at all, and nothing left behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.errors import UserError
from hpctrain.files import atomic_text, atomic_write, sweep_temporary


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    atomic_text(path, "one\n")
    atomic_text(path, "grün\n")
    assert path.read_bytes() == "grün\n".encode()
    assert names(tmp_path) == ["a.txt"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write(temporary: Path) -> None:
        assert temporary.parent == tmp_path
        temporary.write_text("new")
        assert path.read_text() == "old"

    atomic_write(path, write)
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("half")
        raise error

    with pytest.raises(type(error)):
        atomic_write(path, write)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_the_content_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        calls.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        real_sync(handle)

    def replace(old: Path, new: Path) -> None:
        calls.append(f"rename to {new.name}")
        real_replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    atomic_text(tmp_path / "a.txt", "x")
    assert calls == [f"sync .a.txt.{os.getpid()}.tmp", "rename to a.txt", f"sync {tmp_path.name}"]


@pytest.mark.parametrize("below", ["file/a.txt", "missing/a.txt"])
def test_a_refusal_names_the_file_and_the_reason(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        atomic_text(tmp_path / below, "x")
    kind = errno.ENOTDIR if below.startswith("file") else errno.ENOENT
    assert f"cannot write {tmp_path / below}" in caught.value.message
    assert os.strerror(kind) in caught.value.message


def test_no_space_is_an_error_for_people_and_leaves_nothing(tmp_path: Path) -> None:
    """The file size limit stands in for the full disk: the same refusal in the middle of writing, without root."""
    program = (
        "import resource, sys; from hpctrain.files import atomic_text; from hpctrain.errors import UserError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try: atomic_text(sys.argv[1], 'x' * 100_000)\n"
        "except UserError as error: print(error.message)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "big")]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert f"cannot write {tmp_path / 'big'}" in output
    assert os.strerror(errno.EFBIG) in output
    assert "make room" in output
    assert names(tmp_path) == []


def test_sweeping_takes_temporary_files_alone(tmp_path: Path) -> None:
    for name in (".a.h5.123.tmp", "a.h5", ".lock", "b.tmp"):
        (tmp_path / name).write_text("")
    sweep_temporary(tmp_path)
    assert names(tmp_path) == [".lock", "a.h5", "b.tmp"]
