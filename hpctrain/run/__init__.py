"""From a job to a finished run: putting the parts together, the run folder, and how a job ends when it fails."""
