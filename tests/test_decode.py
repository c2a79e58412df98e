"""Static decoding: the tokens of a row run alone, whatever the batch, the rung or the cache held before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch

from staticjob.config.job import ModelConfig
from staticjob.engine.cache_slots import PREFILL_SLOTS, cache_rungs, cache_slots, prefill_slices
from staticjob.engine.decode import StaticDecoder
from staticjob.engine.decode_batch import Answer, Look, Prompts
from staticjob.engine.decode_state import Ending, Finish
from staticjob.engine.hf_decoder import HfDecoder
from staticjob.engine.llama_like import LlamaLike
from staticjob.engine.shape import Shape
from staticjob.ledger import Ledger
from staticjob.models.dimensions import Dimensions
from staticjob.models.model_files import model_config

NEAR = 1e-3


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoint of a family, written once."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = tiny_models.save(family, tmp_path_factory.mktemp(family) / "model")
        return made[family]

    return get


def decoder(directory: Path, shapes: list[Shape], cap: int, **kwargs) -> StaticDecoder:
    return StaticDecoder(directory, ModelConfig(path=str(directory)), shapes, cap, lanes=1, **kwargs)


def prompts(rows: list[list[int]], shape: Shape) -> Prompts:
    ids, lengths = tiny_models.rectangle(rows, shape.length, shape.batch)
    return Prompts(shape, ids, lengths, np.zeros(shape.batch, np.int64))


def generate(engine: StaticDecoder, rows: list[list[int]], shape: Shape, **kwargs):
    return next(engine.run([prompts(rows, shape)], **kwargs))


def tokens_of(result, row: int) -> list[int]:
    return result.tokens[row, : result.counts[row]].tolist()


def assert_same(mine: list[int], reference: tiny_models.Reference) -> None:
    """Equal up to the first position where the reference itself was undecided."""
    sure = next((i for i, m in enumerate(reference.margins) if m < NEAR), len(reference.margins))
    assert mine[:sure] == reference.tokens[:sure]
    assert sure == len(reference.tokens) or len(mine) > sure


@pytest.mark.parametrize("family", tiny_models.CONFIGS)
def test_every_family_equals_each_row_run_alone_across_cache_rungs(checkpoints, family):
    rows = tiny_models.prompts([3, 9, 16, 1, 12])
    engine = decoder(checkpoints(family), [Shape(16, 8)], cap=40)
    assert isinstance(engine.lanes[0]._model, LlamaLike if family in tiny_models.BY_HAND else HfDecoder)
    result = generate(engine, rows, Shape(16, 8))
    model = tiny_models.load(checkpoints(family))
    for b, row in enumerate(rows):
        assert_same(tokens_of(result, b), tiny_models.greedy(model, row, 40))
    assert len(cache_rungs(16, 40, "cpu")) > 1
    assert result.finish[: len(rows)].tolist() == [Finish.LENGTH] * len(rows)


def test_a_prefill_is_computed_in_slices_that_end_with_their_longest_row(checkpoints, monkeypatch):
    monkeypatch.setitem(PREFILL_SLOTS, "cpu", 32)
    rows = tiny_models.prompts([13, 12, 7, 5, 3])
    engine = decoder(checkpoints("llama"), [Shape(16, 8)], cap=6)
    result = generate(engine, rows, Shape(16, 8))
    # Of two rows each: 13, 7, 3 and a dummy's, and 1 for two dummies.
    assert result.prompts == Ledger(useful=40, padding=3, dummy=5, slots=48)
    model = tiny_models.load(checkpoints("llama"))
    for b, row in enumerate(rows):
        assert_same(tokens_of(result, b), tiny_models.greedy(model, row, 6))


def test_a_gpu_prefills_the_rectangle_as_it_is():
    lengths = np.array([13, 3, 0, 0], np.int32)
    assert list(prefill_slices(lengths, 16, "cuda")) == [(slice(0, 4096), 16)]


def test_prompts_of_different_lengths_start_at_position_zero_in_a_model_with_absolute_positions(checkpoints):
    """T2"""
    rows = tiny_models.prompts([3, 9])
    engine = decoder(checkpoints("gpt2"), [Shape(16, 2)], cap=1)
    with torch.inference_mode():
        logits = engine.lanes[0].prefill(prompts(rows, Shape(16, 2)))
        for b, row in enumerate(rows):
            alone = tiny_models.load(checkpoints("gpt2"))(torch.tensor([row])).logits[0, -1]
            torch.testing.assert_close(logits[b], alone, rtol=1e-5, atol=1e-5)


def test_rows_end_at_any_of_several_stop_ids_and_the_loop_ends_with_the_last_row(checkpoints):
    """G2"""
    rows = tiny_models.prompts([5, 7], seed=3)
    directory = checkpoints("llama")
    first, second = (tiny_models.greedy(tiny_models.load(directory), row, 8).tokens for row in rows)
    assert first[1] not in (first[0], *second[:4])
    assert second[4] not in (*second[:4], first[0])
    stops = (first[1], second[4])
    engine = decoder(directory, [Shape(8, 4)], cap=8, ending=Ending(stop_ids=stops))
    result = generate(engine, rows, Shape(8, 4))
    assert tokens_of(result, 0) == first[:2]
    assert tokens_of(result, 1) == second[:5]
    assert result.finish[:2].tolist() == [Finish.STOP] * 2
    assert result.curve.active == (2, 1, 1, 1)
    later = generate(engine, rows, Shape(8, 4), look_steps=3)
    assert len(later.curve.active) == 6  # the first look at or after the last row's end
    assert [tokens_of(later, b) for b in range(2)] == [first[:2], second[:5]]


def test_no_stop_id_is_chosen_before_the_least_number_of_tokens(checkpoints):
    rows = tiny_models.prompts([5], seed=3)
    directory = checkpoints("llama")
    free = tiny_models.greedy(tiny_models.load(directory), rows[0], 6).tokens
    stops = Ending(stop_ids=(free[0],), min_new_tokens=4)
    result = generate(decoder(directory, [Shape(8, 1)], 12, ending=stops), rows, Shape(8, 1))
    assert free[0] not in result.tokens[0, :4]
    plain = Ending(stop_ids=(free[0],))
    result = generate(decoder(directory, [Shape(8, 1)], 12, ending=plain), rows, Shape(8, 1))
    assert tokens_of(result, 0) == free[:1]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_nothing_of_a_former_batch_leaks_through_the_cache(checkpoints, family):
    shape = Shape(16, 4)
    engine = decoder(checkpoints(family), [shape], cap=24)
    clean = generate(engine, tiny_models.prompts([4, 11, 16, 2]), shape)
    engine.lanes[0].cache._storage.fill_(float("nan"))
    after = generate(engine, tiny_models.prompts([4, 11, 16, 2]), shape)
    assert (after.tokens == clean.tokens).all()
    assert (after.counts == clean.counts).all()


def test_a_rows_bits_do_not_depend_on_its_neighbours_or_its_place(checkpoints):
    shape = Shape(16, 4)
    engine = decoder(checkpoints("llama"), [shape], cap=24, ending=Ending(logprobs=True))
    row, others = tiny_models.prompts([9])[0], tiny_models.prompts([3, 16, 7], seed=5)
    seen = []
    for place in range(4):
        company = list(others)
        company.insert(place, row)
        result = generate(engine, company, shape)
        seen.append((result.tokens[place].tolist(), result.logprobs[place].tobytes()))
    assert all(s == seen[0] for s in seen)


def test_log_probabilities_are_those_of_the_chosen_tokens(checkpoints):
    row = tiny_models.prompts([6])[0]
    engine = decoder(checkpoints("qwen2"), [Shape(8, 1)], cap=5, ending=Ending(logprobs=True))
    result = generate(engine, [row], Shape(8, 1))
    tokens = tokens_of(result, 0)
    with torch.inference_mode():
        logits = tiny_models.load(checkpoints("qwen2"))(torch.tensor([row + tokens])).logits[0, 5:-1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    np.testing.assert_allclose(result.logprobs[0], expected.numpy(), atol=1e-4)


def test_handing_over_leaves_the_active_rows_where_they_stopped(checkpoints):
    rows = tiny_models.prompts([5, 7], seed=3)
    engine = decoder(checkpoints("llama"), [Shape(8, 2)], cap=20)
    whole = generate(engine, rows, Shape(8, 2))

    def at_six(look: Look) -> Answer:
        return Answer(hand_over=look.step == 6)

    cut = generate(engine, rows, Shape(8, 2), observer=at_six)
    assert (len(cut.curve.active), cut.curve.left) == (6, 2)
    assert cut.finish.tolist() == [Finish.ACTIVE] * 2
    assert cut.counts.tolist() == [7, 7]
    assert (cut.tokens[:, :7] == whole.tokens[:, :7]).all()


def test_rows_the_host_ends_are_ended_and_the_batch_with_the_last_of_them(checkpoints):
    rows = tiny_models.prompts([5, 7], seed=3)
    engine = decoder(checkpoints("llama"), [Shape(8, 2)], cap=20)
    at = {3: (0,), 5: (1,)}
    result = generate(engine, rows, Shape(8, 2), observer=lambda look: Answer(ended=at.get(look.step, ())))
    assert result.counts.tolist() == [4, 6]
    assert result.finish.tolist() == [Finish.STOP] * 2


def test_a_row_with_a_non_finite_result_is_an_error_and_its_neighbours_are_not(checkpoints, monkeypatch):
    rows = tiny_models.prompts([5, 7], seed=3)
    engine = decoder(checkpoints("llama"), [Shape(8, 2)], cap=6)
    whole = generate(engine, rows, Shape(8, 2))
    step = engine.lanes[0]._model.step

    def overflow(*args):
        logits = step(*args)
        logits[0] = float("nan")
        return logits

    monkeypatch.setattr(engine.lanes[0]._model, "step", overflow)
    result = generate(engine, rows, Shape(8, 2))
    assert result.finish.tolist() == [Finish.ERROR, Finish.LENGTH]
    assert tokens_of(result, 1) == tokens_of(whole, 1)


def test_a_row_near_the_models_last_position_ends_there(checkpoints):
    row = tiny_models.prompts([126])[0]
    engine = decoder(checkpoints("gpt2"), [Shape(128, 1)], cap=8)
    result = generate(engine, [row], Shape(128, 1))
    assert result.counts.tolist() == [2]
    assert result.finish.tolist() == [Finish.LENGTH]


def test_the_cache_holds_exactly_the_predicted_bytes_for_the_largest_shape(checkpoints):
    shapes = [Shape(16, 8), Shape(64, 2), Shape(32, 4)]
    engine = decoder(checkpoints("llama"), shapes, cap=33)
    sizes = Dimensions.of(model_config(checkpoints("llama")))
    predicted = [sizes.cache_bytes(s.batch, cache_slots(s.length, 33), 4) for s in shapes]
    assert engine.cache_bytes == max(predicted)
    assert sizes.cache_bytes(8, 48, 4) == 2 * 3 * 2 * 8 * 8 * 48 * 4
    storage = engine.lanes[0].cache._storage.data_ptr()
    for shape in shapes:
        generate(engine, tiny_models.prompts([5]), shape)
    assert engine.lanes[0].cache._storage.data_ptr() == storage


def test_batches_on_several_lanes_come_in_order_and_equal_those_of_one_lane(checkpoints):
    rows = tiny_models.prompts(list(range(1, 15)))
    shapes = [Shape(16, 2), Shape(8, 2)]
    batches = [prompts(rows[i : i + 2], shapes[i < 6]) for i in range(0, 14, 2)]
    one = decoder(checkpoints("gpt2"), shapes, cap=20)
    three = StaticDecoder(checkpoints("gpt2"), ModelConfig(path="gpt2"), shapes, 20, lanes=3)
    seen = []
    expected = list(one.run(batches))
    results = three.run(iter(batches), lambda look: seen.append(look.index) or Answer())
    for alone, result in zip(expected, results, strict=True):
        assert (alone.tokens == result.tokens).all()
    assert sorted(set(seen)) == list(range(7))


def test_a_failure_in_a_lane_reaches_the_caller_and_ends_the_others(checkpoints):
    shape = Shape(8, 2)
    engine = StaticDecoder(checkpoints("gpt2"), ModelConfig(path="gpt2"), [shape], 100, lanes=2)

    def fail(look: Look) -> Answer:
        if look.index == 1:
            raise RuntimeError("no more")
        return Answer()

    batches = [prompts(tiny_models.prompts([3]), shape) for _ in range(6)]
    with pytest.raises(RuntimeError, match="no more"):
        list(engine.run(batches, fail))
    assert len(list(engine.run(batches))) == 6


def test_a_consumer_that_leaves_early_ends_the_lanes_and_no_batch_more_is_taken(checkpoints):
    shape, taken = Shape(8, 2), []
    engine = StaticDecoder(checkpoints("gpt2"), ModelConfig(path="gpt2"), [shape], 60, lanes=2)
    stream = (taken.append(i) or prompts(tiny_models.prompts([3]), shape) for i in range(50))
    results = engine.run(stream)
    next(results)
    results.close()
    assert len(taken) <= 6


@pytest.mark.parametrize(("prompt", "cap"), [(64, 64), (1, 2), (31, 1), (100, 512)])
def test_cache_rungs_hold_every_step_and_end_at_the_last_slot(prompt, cap):
    rungs = cache_rungs(prompt, cap, "cpu")
    assert list(rungs) == sorted(set(rungs))
    assert (prompt + cap - 1 <= rungs[-1] < prompt + cap + 15) if cap > 1 else rungs == ()
    assert all(r > prompt for r in rungs)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_replayed_graphs_equal_the_rows_run_alone(checkpoints, family):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    rows = tiny_models.prompts([3, 9, 16])
    directory, shape = checkpoints(family), Shape(16, 4)
    settings = ModelConfig(path=str(directory), dtype="float32", device="cuda")
    engine = StaticDecoder(directory, settings, [shape], 24)
    engine.warm_up(shape)
    result = generate(engine, rows, shape)
    model = tiny_models.load(directory)
    for b, row in enumerate(rows):
        assert_same(tokens_of(result, b), tiny_models.greedy(model, row, 24))
