"""Measured rates and the arithmetic they are divided by."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_encoders import FAMILIES, job, save

from staticjob.engine.calibrate import SHAPES, ceilings, measure
from staticjob.engine.flops import forward_bytes, forward_flops
from staticjob.engine.shape import Shape
from staticjob.engine.static_engine import StaticEngine
from staticjob.models.model_files import model_config


def test_a_few_shapes_across_the_ladder_are_timed_and_no_more(tmp_path: Path) -> None:
    shapes = [Shape(length, 2) for length in range(8, 96, 8)]
    engine = StaticEngine(save("bert", tmp_path), job(), shapes)
    rates = measure(engine, shapes, 2.5)
    lengths = [rate.length for rate in rates.shapes]
    assert len(lengths) == SHAPES
    assert {8, 88} <= set(lengths)
    assert all(rate.seconds > 0 and rate.batch == 2 for rate in rates.shapes)
    assert (rates.device, rates.dtype, rates.source) == ("cpu", "float32", "calibration")
    assert rates.start_seconds == 2.5


def test_one_shape_is_enough_to_calibrate(tmp_path: Path) -> None:
    engine = StaticEngine(save("bert", tmp_path), job(), [Shape(8, 2)])
    assert [r.length for r in measure(engine, [Shape(8, 2)], 0.0).shapes] == [8]


def test_ceilings_are_measured_on_the_device() -> None:
    found = ceilings("cpu")
    # Anything that runs these tests does more than a gigaflop and less than a petaflop a second.
    assert 1e9 < found.flops < 1e15
    assert 1e8 < found.bytes_per_second < 1e13


def test_flops_are_those_of_the_models_matrix_products(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModel

    for family in ("bert", "distilbert", "modernbert", "llama"):
        directory = save(family, tmp_path / family)
        model = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
        if hasattr(model, "pooler"):
            model.pooler = None
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model(torch.ones(3, 24, dtype=torch.long))
        counted = counter.get_total_flops()
        # Rotary tables are small products too.
        assert 0 <= counted - forward_flops(model_config(directory), 24, 3) < 0.01 * counted, family


def test_bytes_count_the_weights_once_whatever_the_batch(tmp_path: Path) -> None:
    config = model_config(save("bert", tmp_path))
    hidden, layers = FAMILIES["bert"][1]["hidden_size"], FAMILIES["bert"][1]["num_hidden_layers"]
    one, two = forward_bytes(config, 8, 1), forward_bytes(config, 8, 2)
    assert two - one == 4 * 8 * hidden * (2 * layers + 1)
    assert forward_bytes(config, 8, 1, item=2) * 2 == one
