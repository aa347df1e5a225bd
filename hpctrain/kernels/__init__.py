"""Kernels: compiled functions of arrays.  No classes, no MPI, no files; `jit.py` has the decorator and its cache."""
