"""The way of the data: HDF5 files -> rows -> this rank's shard -> batches.  Leans on `comm` and on kernels alone."""
