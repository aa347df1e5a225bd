"""Several hosts on one machine, for tests and benchmarks: `hosts` makes them, `mpi` and `slurm` start programs on them.

A host is a set of Linux namespaces: a network, a hostname and a /dev/shm of its own; files, cores and processes are the
machine's.  Links have a rate.  Needs root and the programs ip and tc (Debian's iproute2), nsenter and unshare.
"""
