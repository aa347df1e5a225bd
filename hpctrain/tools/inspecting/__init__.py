"""Looking into HDF5 files: what is in them, what the values are like, and how that is shown.  The verb is `inspect`."""
