"""The training loop, evaluation, checkpoints and stopping in good order."""
