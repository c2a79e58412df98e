"""The memory arithmetic: right for a real model, and shown when a job cannot fit."""

from __future__ import annotations

import json
import struct
from itertools import accumulate
from math import prod
from pathlib import Path

import pytest
import tiny_encoders
from planning import MODEL_CONFIG, MODEL_DIR, job, planned, split

from staticjob.errors import ConfigError
from staticjob.memory import HEAP_HOLES, MIB, USABLE_SHARE, Held, Target, fit_budget, predict
from staticjob.models.dimensions import Dimensions
from staticjob.models.model_files import model_config
from staticjob.planning.activations import fused_values, layer_buffers, module_values
from staticjob.planning.decoding import Growth
from staticjob.planning.head_sizes import HeadSizes

CPU = Target("cpu", "float32")
HEAD = HeadSizes(row_bytes=384 * 4)


def stored_parameters() -> int:
    """Floating-point values in the real model's safetensors file, from its header."""
    with (MODEL_DIR / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    tensors = [t for name, t in header.items() if name != "__metadata__" and t["dtype"] == "F32"]
    return sum(prod(tensor["shape"]) for tensor in tensors)


def test_the_parameter_count_is_exactly_the_real_models() -> None:
    assert Dimensions.of(MODEL_CONFIG).parameters == stored_parameters() == 22_713_216


@pytest.mark.parametrize(
    "name", ["BertConfig", "RobertaConfig", "DistilBertConfig", "ModernBertConfig", "Qwen3Config"]
)
def test_the_parameter_count_of_other_architectures_is_transformers_own(name: str) -> None:
    import torch
    import transformers

    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    small |= {"num_key_value_heads": 2, "head_dim": 32} if name == "Qwen3Config" else {}
    if name == "DistilBertConfig":
        small = {"dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4}
    config = getattr(transformers, name)(vocab_size=1000, pad_token_id=0, **small)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert Dimensions.of(config.to_dict()).parameters == pytest.approx(counted, rel=0.01)


def test_a_shape_is_the_sum_of_terms_that_show_their_arithmetic() -> None:
    plan = predict(MODEL_CONFIG, CPU, [Held(512, 8, 100), Held(64, 64, 1_000)], HEAD)
    for shape in plan.shapes:
        assert shape.bytes == sum(term.bytes for term in shape.terms)
        assert all(term.formula for term in shape.terms)
    weights = next(term for term in plan.shapes[0].terms if term.name == "weights")
    assert weights.bytes == 4 * 22_713_216
    assert weights.formula == "22,713,216 parameters × 4 B"
    assert plan.peak == max(shape.bytes for shape in plan.shapes)


def test_the_results_a_chunk_holds_are_counted_where_they_share_the_devices_memory() -> None:
    for device, counted in (("cpu", 3 * 10_000 * 384 * 4), ("cuda", 0)):
        terms = predict(MODEL_CONFIG, Target(device, "float32"), [Held(64, 64, 10_000)], HEAD).shapes[0].terms
        assert sum(term.bytes for term in terms if term.name == "chunk results") == counted


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "laid_out"),
    [({}, True), ({"sliding_window": 8}, False), ({"model_type": "gpt2"}, False)],
)
def test_the_matrices_that_generation_lays_out_once_more_are_counted_where_it_does(
    changes: dict[str, object], laid_out: bool
) -> None:
    config = {**LLAMA, **changes}
    plan = predict(config, CPU, [Held(64, 8, 8)], HEAD, Growth(cap=16, lanes=2))
    sizes = Dimensions.of(config)
    counted = sum(term.bytes for term in plan.shapes[0].terms if term.name == "prepacked weights")
    assert counted == (4 * (sizes.linear_parameters + 1000 * 64) if laid_out else 0)


@pytest.mark.parametrize(
    ("logits", "dtype", "laid_out"), [(9, "float32", True), (9, "bfloat16", False), (0, "float32", False)]
)
def test_a_vocabulary_that_is_scored_is_laid_out_once_more_on_a_cpu_in_float32(
    logits: int, dtype: str, laid_out: bool
) -> None:
    plan = predict(LLAMA, Target("cpu", dtype), [Held(64, 8, 8)], HeadSizes(row_bytes=16, logits=logits))
    counted = sum(term.bytes for term in plan.shapes[0].terms if term.name == "prepacked weights")
    assert counted == (4 * 1000 * 64 if laid_out else 0)


def test_half_precision_halves_the_weights_and_the_activations() -> None:
    wide, half = (
        {
            t.name: t.bytes
            for t in predict(MODEL_CONFIG, Target("cuda", dtype), [Held(512, 128, 0)], HEAD).shapes[0].terms
        }
        for dtype in ("float32", "bfloat16")
    )
    assert half["weights"] * 2 == wide["weights"]
    assert half["activations"] * 2 == wide["activations"]
    assert half["inputs"] == wide["inputs"]


@pytest.mark.parametrize(("device", "budget"), [("cpu", 2_048), ("cuda:0", 65_536)])
def test_the_automatic_budget_is_the_devices_best_where_memory_allows(device: str, budget: int) -> None:
    assert fit_budget(MODEL_CONFIG, Target(device, "float32", 64 * 2**30), 512, HEAD) == budget
    assert fit_budget(MODEL_CONFIG, Target(device, "float32", None), 512, HEAD) == budget


def test_the_automatic_budget_shrinks_until_the_longest_rung_fits() -> None:
    room = Target("cuda", "float32", 1_200 * MIB)
    budget = fit_budget(MODEL_CONFIG, room, 512, HEAD)
    assert 512 <= budget < 65_536
    assert predict(MODEL_CONFIG, room, [Held(512, budget // 512, 0)], HEAD).peak <= 1_200 * MIB


def test_a_job_that_cannot_fit_one_row_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ConfigError) as refusal:
        fit_budget(MODEL_CONFIG, Target("cpu", "float32", 300 * MIB), 512, HEAD)
    message = str(refusal.value)
    assert "1 row of 512 tokens" in message
    assert "weights 86.6 MiB" in message
    assert "300.0 MiB free" in message
    assert "no smaller batch will fit: use a smaller dtype or a larger device" in message
    assert "\n" not in message


def test_a_row_that_does_not_fit_beside_weights_that_do_is_advised_to_be_shorter() -> None:
    fixed = predict(MODEL_CONFIG, Target("cpu", "float32"), [Held(1, 1, 1)], HEAD).peak
    with pytest.raises(ConfigError, match=r"1 row of 512 tokens.*lower limits\.max_length, or use"):
        fit_budget(MODEL_CONFIG, Target("cpu", "float32", int(fixed * 1.01 / 0.9)), 512, HEAD)


def test_a_given_budget_that_does_not_fit_is_refused_and_not_changed() -> None:
    with pytest.raises(ConfigError, match=r"128 rows of 512 tokens.*lower batching\.token_budget"):
        fit_budget(MODEL_CONFIG, Target("cuda", "float32", 900 * MIB), 512, HEAD, wanted=65_536)


def test_every_lane_has_activations_of_its_own() -> None:
    one, four = (
        {t.name: t.bytes for t in predict(MODEL_CONFIG, target, [Held(64, 16, 0)], HEAD).shapes[0].terms}
        for target in (Target("cpu", "float32"), Target("cpu", "float32", lanes=4))
    )
    assert four["activations"] == 4 * one["activations"]
    assert four["weights"] == one["weights"]


def held_values(directory: Path, slots: tuple[int, int]) -> tuple[float, float]:
    """Per slot, the values of fused layers' buffers, and the most that torch's memory profiler sees live at
    once beside them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from staticjob.config.job import ModelConfig
    from staticjob.engine import attention, loader, workspace
    from staticjob.engine.fusions import fuse

    kind, cpu = attention.register(model_config(directory)), torch.device("cpu")
    model = loader.load_model(directory, ModelConfig(path=str(directory)), cpu, torch.float32, kind)
    fuse(model)
    ids, mask = torch.full(slots, 7), torch.ones(slots, dtype=torch.bool)
    workspace._local.__dict__["buffers"] = {}
    with torch.inference_mode():
        model(ids, attention_mask=mask)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            model(ids, attention_mask=mask)
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns()))
    kept = sum(buffer.numel() for buffer in workspace._local.buffers.values())
    return kept / prod(slots), max(held) / 4 / prod(slots)


WIDE = {"hidden_size": 128, "intermediate_size": 512}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bert", WIDE),
        ("roberta", WIDE),
        ("modernbert", WIDE),
        ("llama", {**WIDE, "head_dim": 32}),
        ("qwen3", {**WIDE, "head_dim": 32}),
        ("gpt2", {"n_embd": 128}),
    ],
)
def test_as_many_values_live_at_once_as_the_arithmetic_says(
    family: str, changes: dict[str, int], tmp_path: Path
) -> None:
    directory = tiny_encoders.save(family, tmp_path / family, **changes)
    sizes = Dimensions.of(model_config(directory))
    kept, live = held_values(directory, (8, 32))
    assert kept == (layer_buffers(sizes) if sizes.fused else 0)
    assert live == pytest.approx(fused_values(sizes) if sizes.fused else module_values(sizes), rel=0.06)


def test_what_comes_and_goes_leaves_holes_in_a_cpus_heap_and_none_on_a_gpu() -> None:
    sizes = Dimensions.of(MODEL_CONFIG)
    for device, dtype, live in (("cpu", "float32", fused_values(sizes)), ("cuda", "bfloat16", 0)):
        target = Target(device, dtype)
        terms = {t.name: t for t in predict(MODEL_CONFIG, target, [Held(64, 16, 0)], HEAD).shapes[0].terms}
        expected = HEAP_HOLES * live * 4 if live else module_values(sizes) * 2
        assert terms["activations"].bytes == 64 * 16 * expected
        assert ("layer buffers" in terms) == (device == "cpu")


def test_chunks_hold_fewer_rows_where_memory_has_no_room_for_more_results() -> None:
    rows = [split(0, [[16] * 200_000])]
    wide = planned(rows, target=Target("cpu", "float32", 64 * 2**30))
    most = wide.memory.peak / USABLE_SHARE
    tight = planned(rows, target=Target("cpu", "float32", int(most) - 40 * MIB))
    assert tight.memory.peak <= (most - 40 * MIB) * USABLE_SHARE
    assert max(chunk.rows for chunk in tight.chunks) < max(chunk.rows for chunk in wide.chunks)
    assert tight.token_budget == wide.token_budget


def test_a_plan_whose_results_alone_are_too_large_is_refused() -> None:
    fixed = planned([split(0, [[16]])]).memory.peak
    with pytest.raises(ConfigError, match=r"chunk results .* free"):
        planned(
            [split(0, [[16] * 200_000])],
            job(batching={"token_budget": 16 * 65_536}),
            target=Target("cpu", "float32", int(fixed / USABLE_SHARE) + 900 * MIB),
        )


def test_the_plan_refuses_what_the_device_cannot_hold() -> None:
    with pytest.raises(ConfigError, match="not enough memory"):
        planned([split(0, [[512] * 40])], job(), target=Target("cpu", "float32", 300 * MIB))


def test_a_config_that_is_no_transformers_is_refused_with_the_missing_size() -> None:
    with pytest.raises(ConfigError, match="gives no hidden_size"):
        Dimensions.of({"model_type": "resnet"})
