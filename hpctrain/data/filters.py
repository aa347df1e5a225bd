"""Compression filters: those that HDF5 has by itself, those of the package hdf5plugin, and what to do without them."""

from __future__ import annotations

import importlib

import h5py

from hpctrain.errors import UserError

# Registered at https://support.hdfgroup.org/documentation/hdf5/latest/_registered_filter_plugins.html; those that the
# package hdf5plugin brings.
_IN_PLUGIN = {
    307: "bzip2",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32015: "zstd",
    32017: "sz",
    32018: "fcidecomp",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}
_SZIP = 4


def check_filters(dataset: h5py.Dataset, where: str) -> None:
    """Raise a `UserError` where a dataset cannot be decoded: names the filter, and the package that has it."""
    properties = dataset.id.get_create_plist()
    for code, _, _, stored in (properties.get_filter(i) for i in range(properties.get_nfilters())):
        if is_available(code):
            continue
        name = _IN_PLUGIN.get(code) or ("szip" if code == _SZIP else stored.decode(errors="replace").split(";")[0])
        if code in _IN_PLUGIN and not _load_plugins():
            hint = "install the package that has it, on every node: pip install hdf5plugin (it is found by itself)"
        elif code == _SZIP:
            hint = "use an HDF5 that is built with szip (conda's is), or write the file with gzip: h5repack -f GZIP=4"
        else:
            hint = "install its HDF5 plugin and set HDF5_PLUGIN_PATH, or write the file with gzip: h5repack -f GZIP=4"
        raise UserError(
            f"{where} is compressed by a filter that is not installed here, in {dataset.file.filename}",
            found=f"HDF5 filter {code} ({name or 'no name'})",
            hint=hint,
        )


def is_available(code: int) -> bool:
    """Return whether HDF5 can decode a filter, if need be with those of hdf5plugin, which are then registered."""
    return h5py.h5z.filter_avail(code) or (_load_plugins() and h5py.h5z.filter_avail(code))


def _load_plugins() -> bool:
    """Register the filters of hdf5plugin, and return whether it is installed; it takes a while."""
    try:
        importlib.import_module("hdf5plugin")
    except ImportError:
        return False
    return True
