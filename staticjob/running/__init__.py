"""What `chunk` runs with: parts in, rectangles, results out, progress and watchdogs."""
