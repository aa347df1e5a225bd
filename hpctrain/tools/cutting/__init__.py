"""Cutting a data set into shard files: what is in it, where it is cut, and writing the pieces.  The verb is `shard`."""
