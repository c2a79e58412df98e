"""Peak memory of a run by arithmetic, term by term, before a device is touched.

Everything follows from the model's `config.json` and the shapes: buffers are static, so nothing
else is ever allocated. A head that scores a vocabulary adds its chunk of logits, a decoder its KV cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from staticjob.engine.cache_slots import PREFILL_SLOTS
from staticjob.errors import ConfigError
from staticjob.ladder import batch_rows
from staticjob.models.dimensions import Dimensions
from staticjob.planning.activations import by_hand_values, fused_values, layer_buffers, module_values
from staticjob.planning.decoding import BEST_ROWS, Growth
from staticjob.planning.head_sizes import HeadSizes
from staticjob.records.memory import MemoryPlan, MemoryTerm, ShapeMemory
from staticjob.units import plural, size

MIB = 2**20
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Python with torch, transformers and pyarrow loaded, and the buffers of a few matrix products: 560 to 590 MiB
# resident once two lanes have run, measured with torch 2.13 on Linux x86-64 (Zen 3, AVX2), and 40 more where
# the products use AVX-512 (Zen 4). On CUDA the driver's context, kernels and the cuBLAS workspace take about
# as much.
RUNTIME_BYTES = {"cpu": 620 * MIB, "cuda": 640 * MIB}
# Of a chunk of logits: as computed, and normalised.
LOGIT_COPIES = 2
# A CPU's lanes share one heap that never shrinks. glibc keeps the few bytes before an aligned block for small
# objects, so that the next block of the same size does not fit where the last was: for what comes and goes
# this much is held of what lives (1.4 to 2.1 measured with 2 lanes; 1.0 with glibc's thread caches off).
HEAP_HOLES = 1.9
# The same of chunks of logits, the largest blocks there are: the most that was measured.
LOGIT_HOLES = 2.1
# The same of a decoder's lanes, which allocate less often (measured with SmolLM2-135M, 2 lanes).
DECODER_HOLES = 1.5
# Nodes and kernel arguments of one captured graph, apart from the pool that all graphs share.
GRAPH_BYTES = 8 * MIB
# Best token budgets, equally fast, largest first. A CPU's core computes a batch alone: 1,024 and 2,048
# slots cost it the same (measured; 512 cost 3% to 10% more a slot). A GPU needs far more to fill its cores.
BEST_BUDGETS = {"cpu": (2_048, 1_024), "cuda": (65_536,)}
# Rungs are multiples of this: a GPU's tensor cores ask for it, a CPU's products do not (measured).
ALIGNMENT = {"cpu": 1, "cuda": 8}
# Allocators round up and fragment: this share of what is free is planned with.
USABLE_SHARE = 0.9
# Terms that are there whatever the shapes.
FIXED_TERMS = frozenset({"runtime", "weights", "head weights", "prepacked weights"})
# A number and its unit.
Factor = tuple[float, str]


@dataclass(frozen=True)
class Target:
    """Where the job will run: device name, dtype of the weights, bytes free (None: unknown), and how many
    batches are computed at once."""

    device: str
    dtype: str
    available: int | None = None
    lanes: int = 1

    @property
    def kind(self) -> str:
        """`cuda` or `cpu`, from a name such as `cuda:0`."""
        return "cuda" if self.device.startswith("cuda") else "cpu"

    @property
    def width(self) -> int:
        """Bytes of one value."""
        return DTYPE_BYTES[self.dtype]


class Held(NamedTuple):
    """A shape, and the rows whose results its largest chunk holds until it commits."""

    length: int
    batch: int
    rows: int


def predict(
    model_config: Mapping[str, Any],
    target: Target,
    shapes: Sequence[Held],
    head: HeadSizes,
    growth: Growth | None = None,
) -> MemoryPlan:
    """Predicted peak per shape and over all of them, in bytes of the device's memory."""
    sizes = Dimensions.of(model_config)
    predicted = tuple(_shape_memory(sizes, target, shape, len(shapes), head, growth) for shape in shapes)
    fixed = sum(term.bytes for term in _fixed_terms(sizes, target, 0, head, packed=0))
    return MemoryPlan(
        device=target.device,
        dtype=target.dtype,
        available=target.available,
        shapes=predicted,
        peak=max((shape.bytes for shape in predicted), default=fixed),
    )


def fit_budget(
    model_config: Mapping[str, Any],
    target: Target,
    longest: int,
    head: HeadSizes,
    wanted: int | None = None,
    growth: Growth | None = None,
) -> int:
    """The token budget: `wanted`, or the device's best, halved until the longest rung fits.

    Where rows grow, a row of `longest` tokens has cache slots for its whole growth, and the best budget
    is that of BEST_ROWS such rows.

    A wanted budget is not changed: ConfigError, with the arithmetic, when it does not fit; so too
    when not even one row of `longest` tokens fits.
    """
    width = longest + growth.cap if growth else longest
    best = BEST_ROWS[target.kind] * width if growth else BEST_BUDGETS[target.kind][0]
    budget = wanted or best
    if target.available is None:
        return budget
    while True:
        batch = batch_rows(width, budget)
        plan = predict(model_config, target, [Held(longest, batch, batch)], head, growth)
        if fits(plan):
            return budget
        if wanted is not None or batch == 1:
            raise does_not_fit(plan, wanted)
        budget //= 2


def fits(plan: MemoryPlan) -> bool:
    """Whether the predicted peak leaves enough of what is free; true where nobody knows what is."""
    return plan.available is None or plan.peak <= plan.available * USABLE_SHARE


def does_not_fit(plan: MemoryPlan, wanted: int | None) -> ConfigError:
    """The arithmetic of the shape that needs most; `wanted` is the token budget that the job states."""
    shape = max(plan.shapes, key=lambda s: s.bytes)
    terms = " + ".join(f"{term.name} {size(term.bytes)}" for term in shape.terms)
    rows = f"{plural(shape.batch, 'row')} of {shape.length} tokens"
    room = (plan.available or 0) * USABLE_SHARE
    if sum(term.bytes for term in shape.terms if term.name in FIXED_TERMS) > room:
        advice = "no smaller batch will fit: use"
    elif wanted and shape.batch > 1:
        advice = "lower batching.token_budget, or use"
    else:
        advice = "lower limits.max_length, or use"
    return ConfigError(
        f"not enough memory for {rows}: {terms} = {size(shape.bytes)}, but {plan.device} has "
        f"{size(plan.available or 0)} free, {USABLE_SHARE:.0%} of it planned with; {advice} a smaller dtype "
        "or a larger device"
    )


def _term(name: str, *factors: Factor) -> MemoryTerm:
    """A product of (number, unit) factors, shown as arithmetic."""
    product = 1.0
    for number, _ in factors:
        product *= number
    formula = " × ".join(f"{number:,.10g} {unit}".strip() for number, unit in factors)
    return MemoryTerm(name=name, bytes=int(product), formula=formula)


def _fixed_terms(
    sizes: Dimensions, target: Target, graphs: int, head: HeadSizes, packed: int
) -> list[MemoryTerm]:
    """Terms that no shape changes. `packed`: elements of matrices that are laid out once more."""
    width = (target.width, "B")
    terms = [
        _term("runtime", (RUNTIME_BYTES[target.kind] // MIB, "MiB measured"), (MIB, "B")),
        _term("weights", (sizes.parameters, "parameters"), width),
    ]
    if head.parameters:
        terms.append(_term("head weights", (head.parameters, "parameters"), width))
    if packed:
        terms.append(_term("prepacked weights", (packed, "matrix elements"), width))
    if target.kind == "cuda" and graphs:
        terms.append(_term("graphs", (graphs, "shapes"), (GRAPH_BYTES // MIB, "MiB"), (MIB, "B")))
    return terms


def _shape_memory(
    sizes: Dimensions, target: Target, shape: Held, graphs: int, head: HeadSizes, growth: Growth | None
) -> ShapeMemory:
    if growth:
        return _decode_memory(sizes, target, shape, graphs, head, growth)
    length, batch, rows = shape
    lanes = (target.lanes, "lanes")
    slots = (batch * length, "slots")
    packed = _packed(sizes, head) if _lays_out(target) else 0
    terms = [
        *_fixed_terms(sizes, target, graphs, head, packed),
        _term("inputs", lanes, slots, (2, "tensors (ids, mask)"), (8, "B")),
        *_activation_terms(sizes, target, slots),
        _term("results", lanes, (batch, "rows"), (head.row_bytes, "B")),
    ]
    if sizes.masks:
        # Where each query may look, a byte each; one layer's at a time is what is added to the scores.
        masks = lanes, slots, (length, "slots"), (sizes.masks + target.width, "B")
        terms.append(_term("attention masks", *masks))
    if sizes.eager:
        scores = lanes, slots, (length, "slots"), (sizes.heads, "heads"), (3, "copies"), (4, "B")
        terms.append(_term("attention scores", *scores))
    if head.logits:
        chunk = lanes, (head.logits, "logits"), (LOGIT_COPIES, "copies")
        terms.append(_term("logits", *chunk, _holes(target, LOGIT_HOLES), (4, "B")))
    if target.kind == "cpu":
        # As computed, in one piece, and sorted: on a GPU's host this is not the device's memory.
        terms.append(_term("chunk results", (rows, "rows"), (3, "copies"), (head.row_bytes, "B")))
    return ShapeMemory(
        length=length, batch=batch, terms=tuple(terms), bytes=sum(term.bytes for term in terms)
    )


def _decode_memory(
    sizes: Dimensions, target: Target, shape: Held, graphs: int, head: HeadSizes, growth: Growth
) -> ShapeMemory:
    """A decoder's lanes: each has a cache, and buffers for one token per row."""
    length, batch, _ = shape
    lanes, width = (growth.lanes, "lanes"), (target.width, "B")
    slots = growth.width(length)
    prefill = min(batch, max(1, PREFILL_SLOTS[target.kind] // length)) * length
    cached = 2 * sizes.layers * sizes.kv_heads * sizes.head_dim
    packed = 0
    if _lays_out(target) and sizes.by_hand:
        packed = sizes.linear_parameters + sizes.vocabulary * sizes.hidden
    values = by_hand_values(sizes) if sizes.by_hand else module_values(sizes)
    active = (prefill, "slots"), (values, "values"), _holes(target, DECODER_HOLES)
    terms = [
        *_fixed_terms(sizes, target, graphs, head, packed),
        _term("key-value cache", lanes, (batch, "rows"), (slots, "slots"), (cached, "values"), width),
        _term("prefill activations", lanes, *active, width),
        _term("logits", lanes, (batch, "rows"), (sizes.vocabulary, "tokens"), (2, "copies"), (4, "B")),
        _term("texts", lanes, (batch, "rows"), (growth.cap + 1, "tokens"), (12, "B")),
    ]
    return ShapeMemory(
        length=length, batch=batch, terms=tuple(terms), bytes=sum(term.bytes for term in terms)
    )


def _packed(sizes: Dimensions, head: HeadSizes) -> int:
    """Elements of the matrices that the static engine lays out and holds once more.

    Those of pre-norm layers it lays out too, and lets the model's own go.
    """
    layers = sizes.linear_parameters if sizes.post_norm else 0
    return layers + (sizes.vocabulary * sizes.hidden if head.logits else 0)


def _lays_out(target: Target) -> bool:
    """Whether weights are laid out once more, as a CPU's products read them."""
    return target.kind == "cpu" and target.dtype == "float32"


def _activation_terms(sizes: Dimensions, target: Target, slots: Factor) -> list[MemoryTerm]:
    """What lives between a batch's tokens and its results, of all lanes."""
    lanes, width, holes = (target.lanes, "lanes"), (target.width, "B"), _holes(target, HEAP_HOLES)
    if not (_lays_out(target) and sizes.fused):
        return [_term("activations", lanes, slots, (module_values(sizes), "values"), holes, width)]
    return [
        _term("layer buffers", lanes, slots, (layer_buffers(sizes), "values"), width),
        _term("activations", lanes, slots, (fused_values(sizes), "values"), holes, width),
    ]


def _holes(target: Target, share: float) -> Factor:
    """Factor of a term whose blocks come and go; a GPU's allocator keeps blocks of one size together."""
    return (share if target.kind == "cpu" else 1.0), "with holes"
