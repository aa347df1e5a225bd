"""Guessing from data what a job could be that trains on it: datasets and network.  For `init` and `inspect`."""
