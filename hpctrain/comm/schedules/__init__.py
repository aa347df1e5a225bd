"""The schedules: which rank sends which parts of a buffer to whom, and when.  One idea a file; pure data, see `Hop`."""
