"""Text from tokens: stop strings across token borders, characters of several bytes, special tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from staticjob.engine.decode_batch import Look
from staticjob.generating.stop_text import GrowingText, RowText, StopRule, StopWatch, row_text

PIECES = ["1 ", "he", "llo w", "orld!", "a", "b", "ab", " x"]


def pieces_tokenizer() -> Tokenizer:
    """Every piece is one token; id 8 is special."""
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def bytes_tokenizer() -> Tokenizer:
    """One token per UTF-8 byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_the_text_ends_before_a_stop_string_that_crosses_token_borders():
    """G1"""
    result = row_text(pieces_tokenizer(), [0, 1, 2, 3, 4], StopRule(("hello world",)), False)
    assert result == RowText("1 ", 4, True)


def test_without_a_stop_string_all_of_the_text_is_kept():
    tokenizer = pieces_tokenizer()
    assert row_text(tokenizer, [0, 1, 2, 3], StopRule(("hello mars",)), False) == RowText(
        "1 hello world!", 4, False
    )
    assert row_text(tokenizer, [0, 1], StopRule(()), False) == RowText("1 he", 2, False)


def test_special_tokens_and_the_token_that_ended_the_row_are_not_text():
    tokenizer = pieces_tokenizer()
    assert row_text(tokenizer, [0, 1, 8], StopRule(()), True) == RowText("1 he", 3, False)
    assert row_text(tokenizer, [0, 8, 1, 4], StopRule(()), True) == RowText("1 he", 4, False)
    assert row_text(tokenizer, [8], StopRule(("x",)), True) == RowText("", 1, False)


def test_of_two_stop_strings_the_first_to_be_complete_ends_the_text():
    tokenizer = pieces_tokenizer()
    assert row_text(tokenizer, [0, 1, 2, 3], StopRule(("world", "lo")), False) == RowText("1 hel", 3, True)
    assert row_text(tokenizer, [4, 6, 6], StopRule(("bab", "abab")), False) == RowText("a", 3, True)


def test_a_stop_string_before_the_least_number_of_tokens_does_not_count():
    tokenizer = pieces_tokenizer()
    rule = StopRule(("ab",), min_new_tokens=2)
    assert row_text(tokenizer, [6, 0, 0], rule, False) == RowText("ab1 1 ", 3, False)
    assert row_text(tokenizer, [6, 0, 6, 0], rule, False) == RowText("ab1 ", 3, True)


def test_characters_of_several_bytes_are_whole_or_replaced():
    tokenizer = bytes_tokenizer()
    ids = tokenizer.encode("né 👍 ok").ids
    assert row_text(tokenizer, ids, StopRule(("👍",)), False).text == "né "
    cut = ids[:6]  # in the middle of the emoji
    assert row_text(tokenizer, cut, StopRule(("ok",)), False).text == "né �"


@settings(max_examples=60, deadline=None)
@given(text=st.text("ab 👍é", max_size=12), stop=st.text("ab 👍é", min_size=1, max_size=3))
def test_the_text_is_what_stands_before_the_first_occurrence(text, stop):
    tokenizer = bytes_tokenizer()
    result = row_text(tokenizer, tokenizer.encode(text).ids, StopRule((stop,)), False)
    before, found, _ = text.partition(stop)
    assert result.text == before
    assert result.stopped == bool(found)
    assert result.tokens == len((before + found).encode())


@pytest.mark.parametrize("every", [1, 3])
def test_a_watch_ends_the_rows_whose_stop_string_is_complete_and_no_others(every):
    rows = [[0, 1, 2, 3, 4, 4, 4, 4], [4, 4, 4, 4, 4, 4, 4, 4], [1, 2, 3, 4, 4, 4, 4, 4]]
    watch = StopWatch(pieces_tokenizer(), StopRule(("hello w",)), 3)
    finish = np.zeros(3, np.int8)
    ended: dict[int, int] = {}
    for count in range(every, 8, every):
        look = Look(0, count - 1, 3, (3,) * count, 0.0, np.array(rows), np.full(3, count), finish)
        for row in watch.ended(look):
            ended[row] = count
            finish[row] = 1
    assert ended == ({0: 3, 2: 2} if every == 1 else {0: 3, 2: 3})


def test_a_growing_text_shows_what_has_arrived():
    growing = GrowingText(pieces_tokenizer(), StopRule(("world",)))
    assert not growing.push([0, 1])
    assert growing.text == "1 he"
    assert growing.push([2, 3, 3])
    assert (growing.text, growing.tokens) == ("1 hello ", 4)
