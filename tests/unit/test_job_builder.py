"""`model.python`: the user's function that makes the layers."""

import sys
from pathlib import Path

import pytest

from hpctrain.errors import UserError
from hpctrain.job import load_builder


def write(folder: Path, text: str) -> Path:
    path = folder / "net.py"
    path.write_text(text)
    return path


def message(spec: str) -> str:
    with pytest.raises(UserError) as caught:
        load_builder(spec)
    return caught.value.message


def test_function_with_a_module_beside_it_and_a_class_of_its_own(tmp_path: Path):
    (tmp_path / "sizes_for_test.py").write_text("UNITS = 7\n")
    path = write(
        tmp_path,
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from sizes_for_test import UNITS\n"
        "@dataclass\nclass Own:\n    units: int\n"
        "def build(input_shape, outputs):\n    return [Own(UNITS), input_shape, outputs]\n",
    )
    before = list(sys.path)
    own, *rest = load_builder(f"{path}:build")((8, 8), 10)
    assert (own.units, rest) == (7, [(8, 8), 10])
    assert sys.path == before


def test_an_edit_is_seen_by_the_next_run(tmp_path: Path):
    path = write(tmp_path, "def build(shape, outputs):\n    return 1\n")
    assert load_builder(f"{path}:build")((), 1) == 1
    write(tmp_path, "def build(shape, outputs):\n    return 'two'\n")
    assert load_builder(f"{path}:build")((), 1) == "two"


def test_no_such_file(tmp_path: Path):
    assert f"there is no file {tmp_path}/none.py" in message(f"{tmp_path}/none.py:build")


def test_not_a_python_file(tmp_path: Path):
    (tmp_path / "net.txt").write_text("")
    assert "not a Python file" in message(f"{tmp_path}/net.txt:build")


def test_no_such_function_lists_those_that_are_there(tmp_path: Path):
    path = write(tmp_path, "from os.path import join\nSIZE = 3\ndef build(shape, outputs): ...\ndef other(): ...\n")
    text = message(f"{path}:biuld")
    assert "no function 'biuld'" in text
    assert "build, other\n" in text
    assert "did you mean 'build'" in text
    assert "no function 'SIZE'" in message(f"{path}:SIZE")


def test_exception_while_importing_shows_the_users_own_line(tmp_path: Path):
    path = write(tmp_path, "x = 0\ndef half():\n    return 1 / x\nhalf()\n")
    text = message(f"{path}:build")
    assert f'File "{path}", line 3, in half' in text
    assert "return 1 / x" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "importlib" not in text


def test_syntax_error_shows_the_users_own_line(tmp_path: Path):
    path = write(tmp_path, "def build(:\n    pass\n")
    text = message(f"{path}:build")
    assert f'File "{path}", line 1' in text
    assert "SyntaxError" in text
    assert "importlib" not in text
