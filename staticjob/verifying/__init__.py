"""What `verify` works with: planned rows beside what was published of them, and the engine once more."""
