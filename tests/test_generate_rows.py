"""A chunk's rows through both engines: every row once, joined by its key, the same text as run alone."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
import tiny_models
from tokenizers import Tokenizer, decoders, models

from staticjob.config.job import ModelConfig
from staticjob.config.options import GenerateConfig
from staticjob.engine.decode import StaticDecoder
from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError
from staticjob.generating.fallback import TailRequest, TailResult
from staticjob.generating.generate_rows import TextWriter, decoder_settings
from staticjob.generating.policy import Scope
from staticjob.generating.stop_ids import stop_ids
from staticjob.generating.tail_policy import TailPolicy
from staticjob.generating.text_rows import NO_CHANCES, PromptBatch, RowKey, Tail

CAP = 24
SHAPE = Shape(16, 4)


def letters() -> Tokenizer:
    """Token i is the character 33 + i."""
    vocabulary = {chr(33 + i): i for i in range(tiny_models.VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="!"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


class Continued:
    """Stands in for vLLM: greedy continuation of token ids by the same model, in reverse order."""

    def __init__(self, model: object) -> None:
        self._model = model
        self.seen: list[TailRequest] = []

    def run(self, requests: Sequence[TailRequest], alive: object) -> list[TailResult]:
        self.seen += requests
        return [self._result(request) for request in reversed(requests)]

    def _result(self, request: TailRequest) -> TailResult:
        got = tiny_models.greedy(self._model, list(request.tokens), request.max_new_tokens, request.stop_ids)
        finish = "stop" if got.tokens[-1] in request.stop_ids else "length"
        return TailResult(request.id, tuple(got.tokens), finish, tuple(0.0 for _ in got.tokens))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama") / "model")


def batches(rows: list[list[int]]) -> list[PromptBatch]:
    made = []
    for start in range(0, len(rows), SHAPE.batch):
        part = rows[start : start + SHAPE.batch]
        ids, lengths = tiny_models.rectangle(part, SHAPE.length, SHAPE.batch)
        made.append(PromptBatch(tuple(RowKey(2, start + i) for i in range(len(part))), SHAPE, ids, lengths))
    return made


def policy(rows: int, engine: str = "static") -> TailPolicy:
    return TailPolicy(engine, Scope(16, 10.0, CAP, rows), 4, 2, "cpu")


def run(checkpoint, rows: list[list[int]], chosen: TailPolicy, options: GenerateConfig):
    """All texts by row, the stand-in for vLLM, and the batches as they were done."""
    ends = stop_ids(checkpoint, options)
    sampling, ending = decoder_settings(options, ends)
    decoder = StaticDecoder(checkpoint, ModelConfig(path="x"), [SHAPE], CAP, sampling, ending, lanes=2)
    writer = TextWriter(letters(), options, ends)
    prompts = batches(rows)
    done = list(writer.static(decoder, prompts, chosen))
    continued = Continued(tiny_models.load(checkpoint))
    texts = [text for batch in done for text in batch.rows]
    tails = [tail for batch in done for tail in batch.tails]
    tails += [batch.tail(row) for batch in prompts[len(done) :] for row in range(len(batch.keys))]
    texts += writer.tails(tails, continued)
    assert sorted(text.key.row for text in texts) == list(range(len(rows)))
    return {text.key.row: text for text in texts}, continued, done


@pytest.fixture(scope="module")
def rows():
    return tiny_models.prompts([3, 9, 16, 5, 12, 7, 8, 10, 4, 6])


@pytest.fixture(scope="module")
def alone(checkpoint, rows):
    model = tiny_models.load(checkpoint)
    return [tiny_models.greedy(model, row, CAP).tokens for row in rows]


def common(alone: list[list[int]], after: int) -> int:
    """A token that many of the rows generate, none of them within the first `after`."""
    counts = np.bincount([t for row in alone for t in set(row[after:]) - set(row[:after])], minlength=97)
    return int(counts.argmax())


def test_static_rows_have_the_text_of_their_tokens(checkpoint, rows, alone):
    texts, continued, done = run(
        checkpoint, rows, policy(10), GenerateConfig(max_new_tokens=CAP, ignore_eos=True, token_ids=True)
    )
    assert not continued.seen
    assert [len(batch.rows) for batch in done] == [4, 4, 2]
    for row, tokens in enumerate(alone):
        assert texts[row].tokens.tolist() == tokens
        assert texts[row].text == "".join(chr(33 + t) for t in tokens)
        assert (texts[row].finish, texts[row].engine) == ("length", "static")
        assert texts[row].n_prompt == len(rows[row])


class Scripted(TailPolicy):
    """Batch 0 runs to its end, batch 1 hands over after 7 passes, batch 2 never begins."""

    def begin(self, index: int, rows: int) -> bool:
        return index < 2 and super().begin(index, rows)

    def look(self, index: int, step: int, curve: Sequence[int], seconds: float) -> bool:
        super().look(index, step, curve, seconds)
        return index == 1 and step >= 7


def test_tails_are_joined_to_what_the_static_engine_generated(checkpoint, rows, alone):
    chosen = Scripted("static", Scope(16, 10.0, CAP, 10), 4, 2, "cpu")
    options = GenerateConfig(max_new_tokens=CAP, ignore_eos=True, logprobs=True, token_ids=True)
    texts, continued, done = run(checkpoint, rows, chosen, options)
    assert [texts[row].engine for row in range(10)] == ["static"] * 4 + ["static+vllm"] * 4 + ["vllm"] * 2
    for row, tokens in enumerate(alone):
        assert texts[row].tokens.tolist() == tokens
        assert len(texts[row].logprobs) == CAP
    assert [request.generated for request in continued.seen] == [8] * 4 + [0] * 2
    assert [request.max_new_tokens for request in continued.seen] == [CAP - 8] * 4 + [CAP] * 2
    assert [(len(batch.curve.active), batch.curve.left) for batch in done] == [(CAP - 1, 0), (7, 4)]


def test_an_insisted_engine_gets_every_row_whole(checkpoint, rows, alone):
    texts, continued, done = run(
        checkpoint,
        rows,
        policy(10, "vllm"),
        GenerateConfig(max_new_tokens=CAP, ignore_eos=True, token_ids=True),
    )
    assert not done
    assert [request.generated for request in continued.seen] == [0] * 10
    assert [texts[row].tokens.tolist() for row in range(10)] == alone
    assert {text.engine for text in texts.values()} == {"vllm"}


def test_a_token_that_ends_rows_counts_and_is_not_text(checkpoint, rows, alone):
    end = common(alone, 2)
    options = GenerateConfig(max_new_tokens=CAP, stop_token_ids=(end,), ignore_eos=True, token_ids=True)
    texts, _, _ = run(checkpoint, rows, policy(10), options)
    stopped = 0
    for row, tokens in enumerate(alone):
        count = tokens.index(end) + 1 if end in tokens else CAP
        assert texts[row].tokens.tolist() == tokens[:count]
        if end in tokens:
            stopped += 1
            assert texts[row].finish == "stop"
            assert texts[row].text == "".join(chr(33 + t) for t in tokens[: count - 1])
    assert stopped


def test_a_stop_string_ends_static_rows_and_their_batch(checkpoint, rows, alone):
    first = "".join(chr(33 + t) for t in alone[0])
    options = GenerateConfig(max_new_tokens=CAP, stop=(first[4:7],), ignore_eos=True, token_ids=True)
    texts, _, done = run(checkpoint, rows[:1], policy(1), options)
    assert texts[0].text == first[: first.index(first[4:7])]
    assert texts[0].finish == "stop"
    assert texts[0].n_tokens == len(texts[0].tokens) == len(texts[0].text) + 3
    assert len(done[0].curve.active) == texts[0].n_tokens - 1


def test_a_stop_string_that_began_before_the_handover_is_found_after_it(checkpoint, rows, alone):
    writer = TextWriter(letters(), GenerateConfig(max_new_tokens=CAP, stop=("CDE",)), ())
    so_far = np.array([ord(c) - 33 for c in "ABC"], np.int32)
    tail = Tail(RowKey(0, 5), np.array([1, 2], np.int32), so_far, NO_CHANCES)

    class Answers:
        def run(self, requests, alive):
            return [TailResult(0, tuple(ord(c) - 33 for c in "DEFG"), "length")]

    (text,) = writer.tails([tail], Answers())
    assert (text.text, text.finish, text.engine) == ("AB", "stop", "static+vllm")
    assert (text.n_tokens, text.n_handed) == (5, 3)
    assert text.tokens is None  # nobody asked for them


def test_the_models_own_ends_come_from_both_of_its_files(checkpoint, tmp_path):
    for name in ("config.json",):
        (tmp_path / name).write_text((checkpoint / name).read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 96]}))
    assert stop_ids(tmp_path, GenerateConfig(max_new_tokens=4)) == (1, 2, 96)
    assert stop_ids(tmp_path, GenerateConfig(max_new_tokens=4, ignore_eos=True, stop_token_ids=(7,))) == (7,)
    with pytest.raises(ConfigError, match=r"\[500\] not among the model's 97 tokens"):
        stop_ids(tmp_path, GenerateConfig(max_new_tokens=4, stop_token_ids=(500,)))
