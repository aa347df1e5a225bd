"""Data sets that come with hpctrain ("builtin:digits" in `data.files`); README.md states sources and licences."""
