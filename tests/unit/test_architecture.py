"""The rules of docs/architecture.md, read from the code: who imports whom, sizes, docstrings, what must not be used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hpctrain"
MODULES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = ("hpctrain", "tests", "benchmarks", "jobs", "docs")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

LEAVES = {"errors", "registry", "options", "duration", "batch", "files", "memory", "version"}

# Package or top-level module -> what of ours it may import besides itself and the leaves: whole packages, or one module
# by its full name.  `job` reads the tables of names and nothing behind them.
MAY_IMPORT = {
    "kernels": set(),
    "monitor": set(),
    "compress": {"kernels"},
    "nn": {"kernels"},
    "optim": {"kernels"},
    "comm": {"kernels"},
    "data": {"comm", "kernels"},
    "plan": {"hpctrain.comm.pipeline", "hpctrain.comm.schedule", "hpctrain.comm.schedules"},
    "strategies": {"comm", "compress", "plan", "optim", "kernels", "hpctrain.nn.flat"},
    "training": {"strategies", "comm", "optim", "nn", "data", "monitor", "kernels"},
    "job": {"hpctrain.data.prepare", "hpctrain.nn", "hpctrain.optim", "hpctrain.strategies"},
    "run": {"job", "training", "strategies", "comm", "optim", "nn", "data", "monitor", "kernels"},
    "tools": {"job", "run", "training", "strategies", "comm", "optim", "nn", "data", "monitor", "kernels"},
    "cli": {"tools", "run", "job", "comm"},
    "__main__": {"cli"},
    "__init__": {"job", "run", "hpctrain.comm.environment"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in MODULES}


def house(module: str) -> str:
    """The package or top-level module that a module belongs to: "nn" for hpctrain.nn.layers.dense."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever it stands, or as text ("module:Class", import_module)."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(path).split(".")
                package = package if path.name == "__init__.py" else package[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in NAMES else base
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.fullmatch(r"(hpctrain\.[\w.]+)(:\w+)?", node.value)
            yield from [match[1]] if match else []


@cache
def ours(path: Path) -> frozenset[str]:
    """The modules of ours that a file imports; a file's own name in it is no import."""
    return frozenset(name for name in imported(path) if name in NAMES and name != module_name(path))


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_imports_run_downwards(path: Path) -> None:
    name = module_name(path)
    own = house(name)
    assert own in MAY_IMPORT or own in LEAVES, f"{own} has no place in the map of imports"
    allowed = {own, *MAY_IMPORT.get(own, set()), *(LEAVES if own != "kernels" else set())}
    wrong = {other for other in ours(path) if not {other, house(other)} & allowed}
    assert not wrong, f"{name} must not import {', '.join(sorted(wrong))}"


def test_no_import_cycle() -> None:
    graph = {module_name(path): ours(path) for path in MODULES if path != PACKAGE / "__init__.py"}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_mpi4py_only_in_comm_and_inside_functions(path: Path) -> None:
    sheltered = (
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    )
    inside = {child for node in sheltered for child in ast.walk(node)}
    for node in ast.walk(tree(path)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] == "mpi4py" for name in names):
            where = f"{shown(path)}:{node.lineno}"
            assert house(module_name(path)) == "comm", f"{where}: mpi4py belongs in comm/"
            assert node in inside, f"{where}: import mpi4py inside a function, so that importing us starts no MPI"


@pytest.mark.parametrize("heavy", ["mpi4py", "numba", "h5py"])
def test_importing_the_package_is_light(heavy: str) -> None:
    code = f"import sys, hpctrain; sys.exit({heavy!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"import hpctrain imports {heavy} {done.stderr}"


def test_no_file_over_400_lines() -> None:
    long = {shown(path): lines for path in FILES if (lines := len(path.read_text().splitlines())) > 400}
    assert not long, f"which room should be two? {long}"


def test_every_file_says_what_lives_there() -> None:
    silent = [shown(path) for path in FILES if path.read_text().strip() and not ast.get_docstring(tree(path))]
    assert not silent


def public_without_docstring(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield f"{prefix}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from public_without_docstring(node.body, f"{prefix}{node.name}.")


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_every_public_name_has_a_docstring(path: Path) -> None:
    assert not list(public_without_docstring(tree(path).body, f"{shown(path)}: "))


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_nothing_is_pickled(path: Path) -> None:
    picklers = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert not picklers & {name.split(".")[0] for name in imported(path)}
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    assert not [shown(path) for call in calls for word in call.keywords if word.arg == "allow_pickle"]


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_nothing_is_left_to_do(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)
    names = {node.id for node in ast.walk(tree(path)) if isinstance(node, ast.Name)}
    assert "NotImplementedError" not in names, "what a subclass must write is an abc.abstractmethod"


def test_every_test_is_run() -> None:
    """Every test file stands where `python -m pytest` or the launched worlds find it, under a name of its own kind."""
    kinds = {"unit", "conformance", "system", "mpi"}
    tests = ROOT / "tests"
    stray = [
        shown(path)
        for path in tests.rglob("test_*.py")
        if path != tests / "test_mpi_worlds.py" and path.relative_to(tests).parts[0] not in kinds
    ]
    assert not stray
    mpi = [path for path in (tests / "mpi").glob("test_*.py") if "mark.mpi" not in path.read_text()]
    assert not mpi, "tests in tests/mpi are marked @pytest.mark.mpi(min_size=1)"


def test_no_test_is_skipped() -> None:
    """But for those that need several hosts, where this machine can have none: the fixtures in conftest.py say so."""
    skip = re.compile(r"pytest\.(skip|xfail)\(|mark\.(skip|skipif|xfail)\b|importorskip")
    may = {Path(__file__).resolve(), ROOT / "tests" / "conftest.py"}
    tests = (path for path in FILES if path.is_relative_to(ROOT / "tests") and path not in may)
    assert not [shown(path) for path in tests if skip.search(path.read_text())]
