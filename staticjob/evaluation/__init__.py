"""Results against gold columns, and one job run at every point of a grid."""
