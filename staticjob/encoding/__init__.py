"""What tokenizes: a job's columns to token ids, one outcome a row."""
