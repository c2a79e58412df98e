"""Where a model's files come from, and what they are."""
