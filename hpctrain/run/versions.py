"""The versions of everything that a result may depend on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import h5py

from hpctrain.comm.group import Group
from hpctrain.kernels.cpu import has_matrix_unit
from hpctrain.version import __version__


def versions(group: Group) -> dict[str, str]:
    """Return versions of hpctrain, its numeric packages, MPI and HDF5, and whether a matrix unit may be used."""
    found = {"hpctrain": __version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "scipy", "h5py", "mpi4py"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    found["mpi_library"] = group.library
    found["hdf5"] = h5py.version.hdf5_version
    found["matrix_unit"] = "on" if has_matrix_unit() else "off"
    return found
