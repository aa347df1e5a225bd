"""What a run will cost, worked out without running it: the machine as it was measured, and prices of schedules on it.

Needs no MPI and no second rank.
"""
