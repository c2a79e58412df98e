"""The job file: what it may say, section by section, and how one is read."""
