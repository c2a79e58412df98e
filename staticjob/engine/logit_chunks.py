"""How many positions' logits are computed together. Needs no torch."""

from __future__ import annotations

# Logits of one part of a batch: on a CPU about what its caches hold, on a GPU enough to fill it.
CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
LEAST_POSITIONS = 16


def chunk_positions(kind: str, vocabulary: int) -> int:
    """Positions whose logits are computed together, on a device of `kind` (`cpu` or `cuda`)."""
    return max(LEAST_POSITIONS, CHUNK_BYTES[kind] // (4 * vocabulary))
