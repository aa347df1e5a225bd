"""`kernel`: the decorator of every compiled function, and the place of the cache of compiled code.

Numba's cache notices a change of the file that a function stands in, but not of functions in other files that were
inlined into it.  So the cache folder is named by a hash of *all* kernel sources, numba's version and the CPU: any edit
makes a fresh folder.  Numba looks the folder up when a function is decorated; `kernel` sets it for that moment only, so
that a user's own numba functions keep their cache where it was.

The root is, in this order: $HPCTRAIN_CACHE_DIR; $NUMBA_CACHE_DIR; ~/.cache/hpctrain where that is on a local disk; else
a private folder under $TMPDIR or /tmp: many nodes must not fight over files on a shared file system.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import inspect
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import llvmlite
import llvmlite.binding
import numba
import numba.core.config
from llvmlite.binding import Linkage
from numba.core import sigutils, types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.runtime import _nrt_python

from hpctrain.kernels.cpu import has_matrix_unit

# Reductions may be reordered and vectorised; NaN and infinity keep their meaning.
FASTMATH = frozenset({"reassoc", "contract", "nsz", "arcp"})

_SHARED_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb3",
    "afs",
    "orangefs",
    "fuse.sshfs",
    "panfs",
}
_KEEP_DAYS = 30


def kernel(function: Callable | None = None, **options: object) -> Callable:
    """Compile a function with numba, cached; options are those of `numba.njit`."""
    if function is None:
        return functools.partial(kernel, **options)
    settings = {"nogil": True, "fastmath": set(FASTMATH), "error_model": "numpy"}
    settings |= {"no_cfunc_wrapper": True, **options}  # for calls through pointers, which nobody makes
    is_cached = settings.pop("cache", True)
    compiled = numba.njit(**settings)(function)
    if is_cached and inspect.getmodule(function) is not None:  # numba looks the module up by name when it loads
        compiled._cache = _loading_cache(function)
    return compiled


def callback(function: Callable, signature: types.Type, **options: object) -> CFunc:
    """Load a function that is called through a pointer from the cache or compile it; as `numba.cfunc`."""
    made = CFunc(function, sigutils.normalize_signature(signature), {}, {"nopython": True, "nogil": True, **options})
    made._cache = _loading_cache(function)
    made.compile()
    return made


class _SelfContained(JITCodeLibrary):
    """Compiled code that calls its own copies of the functions that were linked into it.

    The linker would take the copy that was loaded first, be it optimised elsewhere with other roundings: code just
    compiled and the same code out of the cache would then not give the same bits.
    """

    def _finalize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage is Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        super()._finalize_final_module()


JITCPUCodegen._library_class = _SelfContained


def _loading_cache(function: Callable) -> FunctionCache:
    """Return the cache of a function, in our cache folder."""
    with _cached_in_cache_dir():
        return _LoadingCache(function)


class _LoadingCache(FunctionCache):
    """Numba's cache, but one that loads compiled code without what it takes to compile.

    Numba imports its implementations of all that it can compile (40 MB, 0.7 s) before it looks into its cache.  What
    was compiled runs without them; numba does the same once more before it compiles anything.
    """

    def load_overload(self, sig: object, target_context: object) -> object:
        """Return the compiled code of a signature, or None."""
        _name_runtime()
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


@functools.cache
def _name_runtime() -> None:
    """Tell the linker where the functions are that compiled code calls for its arrays."""
    for name, address in _nrt_python.c_helpers.items():
        llvmlite.binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@contextlib.contextmanager
def _cached_in_cache_dir() -> Iterator[None]:
    """Let numba's caches look up our cache folder."""
    before = numba.core.config.CACHE_DIR
    numba.core.config.CACHE_DIR = str(cache_dir())
    try:
        yield
    finally:
        numba.core.config.CACHE_DIR = before


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Look for garbage less often: numba makes millions of objects that stay; a twentieth of its time goes there."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 50_000) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@functools.cache
def cache_dir() -> Path:
    """Return the folder for compiled code of these kernel sources on this CPU; make it if need be."""
    folder = _cache_root() / source_hash()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    return folder


@functools.cache
def source_hash() -> str:
    """Hash every kernel's source with the versions and the CPU that the compiled code depends on."""
    digest = hashlib.sha256()
    versions = numba.__version__, llvmlite.__version__
    for item in (*versions, llvmlite.binding.get_host_cpu_name(), _cpu_features(), str(has_matrix_unit())):
        digest.update(item.encode() + b"\0")
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def clear_old(days: float = _KEEP_DAYS) -> None:
    """Remove cache folders of other kernel sources that no run has used for `days`."""
    for folder in _cache_root().iterdir():
        try:
            if folder != cache_dir() and len(folder.name) == 16 and time.time() - folder.stat().st_mtime > days * 86400:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def _cpu_features() -> str:
    try:
        return llvmlite.binding.get_host_cpu_features().flatten()
    except RuntimeError:
        return ""


def _cache_root() -> Path:
    for variable in ("HPCTRAIN_CACHE_DIR", "NUMBA_CACHE_DIR"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).absolute() / "hpctrain-kernels"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpctrain"
    if _is_private(home) and not _on_shared_file_system(home):
        return home
    return _private_temporary_root()


def _is_private(folder: Path) -> bool:
    """Whether a folder can be made here and nobody else can plant compiled code in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = folder.stat()
        return info.st_uid == os.getuid() and os.access(folder, os.W_OK) and not info.st_mode & 0o002
    except OSError:
        return False


def _private_temporary_root() -> Path:
    folder = Path(tempfile.gettempdir()) / f"hpctrain-cache-{os.getuid()}"
    return folder if _is_private(folder) else Path(tempfile.mkdtemp(prefix="hpctrain-cache-"))


def _on_shared_file_system(folder: Path) -> bool:
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    path = str(folder.resolve())
    kinds = [(len(point), kind) for point, kind in mounts if path == point or path.startswith(point.rstrip("/") + "/")]
    return bool(kinds) and max(kinds)[1] in _SHARED_FILE_SYSTEMS
