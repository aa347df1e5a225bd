"""What stands behind a source of examples: which datasets a job names, which rows are an example, how they are read."""
