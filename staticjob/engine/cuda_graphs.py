"""One captured launch sequence per shape: replaying it costs the host one call."""

from __future__ import annotations

from collections.abc import Callable

import torch

from staticjob.engine.shape import Shape

# Runs before capture: libraries choose kernels and allocate their own buffers at first use.
WARM_UP_RUNS = 2


class CudaGraphs:
    """Graphs of one device in one memory pool.

    Captured largest first, each smaller shape's activations fit into what the pool already holds. One
    graph at a time is replayed and its results are copied out of buffers that lie outside the pool.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}

    def capture(self, shape: Shape, work: Callable[[], None]) -> None:
        """Record what `work` launches; it must read and write static buffers only."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        self._graphs[shape] = graph

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._graphs

    def replay(self, shape: Shape) -> None:
        self._graphs[shape].replay()
