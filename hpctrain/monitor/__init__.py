"""What is told about a run while it goes on: `base.Monitor`, the console, the log of metrics."""
