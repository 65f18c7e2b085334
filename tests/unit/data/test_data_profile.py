"""Lengths, shares and padding: counted by hand on small splits, and equal to what the real batches hold."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoded import encoded_split

from tuneyard_pipelines import data
from tuneyard_pipelines.data import profile
from tuneyard_pipelines.data.batching import BatchStream
from tuneyard_pipelines.data.stream import Budget, Cursor
from tuneyard_pipelines.data.tokens import EncodedSplit
from tuneyard_pipelines.data.windows import WindowStream
from tuneyard_pipelines.data_facts import Bucket
from tuneyard_pipelines.spec import SweepSpec, Tokenizer, parse

ONE_PASS = Budget("epochs", 1)
HEAD = "version: 1\nname: x\ntask: translation\ntraining: {max_steps: 9}\n"


def pairs(*lengths: tuple[int, int]) -> EncodedSplit:
    return encoded_split(source=[[9] * one for one, _ in lengths], target=[[9] * other for _, other in lengths])


def many_pairs(count: int) -> EncodedSplit:
    rng = random.Random(1)
    return pairs(*((rng.randint(1, 30), rng.randint(1, 30)) for _ in range(count)))


def test_a_summary_counts_every_length_once() -> None:
    lengths = np.array([1, 1, 2, 3, 100])
    made = profile.summary(lengths, buckets=4)
    assert (made.shortest, made.median, made.longest) == (1, 2.0, 100)
    assert sum(bucket.count for bucket in made.buckets) == 5
    assert profile.summary(np.array([4, 4])).buckets == (Bucket(4, 4, 2),)
    assert profile.summary(np.array([], dtype=np.int64)).buckets == ()


@pytest.mark.parametrize("seed", range(20))
def test_the_buckets_of_a_summary_join_without_a_gap(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 10 ** (1 + seed % 4), size=1 + 37 * seed)
    buckets = profile.summary(lengths).buckets
    assert len(buckets) <= profile.BUCKETS + 1
    assert (buckets[0].low, buckets[-1].high >= lengths.max()) == (lengths.min(), True)
    assert all(one.high + 1 == other.low for one, other in pairwise(buckets))
    assert [bucket.count for bucket in buckets] == [
        int(((lengths >= bucket.low) & (lengths <= bucket.high)).sum()) for bucket in buckets
    ]


def test_a_pair_fits_with_its_end_tokens() -> None:
    train, validation = pairs((3, 1), (4, 1), (1, 9)), pairs((4, 4), (1, 1))
    fit = profile.fit(train, validation, sequence_length=5, batch_tokens=100, seed=1)
    assert (fit.too_long, fit.cut, fit.batches) == (pytest.approx(1 / 3), 0.0, 1)
    assert profile.fit(train, validation, sequence_length=4, batch_tokens=100, seed=1).cut == 0.5
    # one batch of (4, 2) and (5, 2) tokens in rows of 5 and 2 cells
    assert fit.batch_tokens == 13
    assert fit.padding == pytest.approx(1 - 13 / 14)


def test_where_no_pair_fits_nothing_is_divided_by_zero() -> None:
    fit = profile.fit(pairs((9, 9)), pairs((9, 9)), sequence_length=4, batch_tokens=100, seed=1)
    assert (fit.too_long, fit.padding, fit.batch_tokens, fit.batches) == (1.0, 0.0, 0.0, 0)


def test_the_padding_of_pairs_is_that_of_the_batches_of_the_first_pass() -> None:
    train = many_pairs(500)
    fit = profile.fit(train, train, sequence_length=25, batch_tokens=300, seed=7)
    stream = BatchStream(train, sequence_length=25, batch_tokens=300, seed=7, budget=ONE_PASS)
    batches = list(stream.between(Cursor(), 1.0))
    # The target is shown without its last token, and asked for without its first.
    cells = sum(batch.source_BS.numel() + batch.target_BT[:, 1:].numel() for batch in batches)
    tokens = sum(batch.tokens for batch in batches)
    assert fit.too_long == stream.too_long / 500
    assert (fit.batches, fit.batch_tokens) == (len(batches), pytest.approx(tokens / len(batches)))
    assert fit.padding == pytest.approx(1 - tokens / cells)
    assert 0.05 < fit.padding < 0.5


def test_the_padding_of_windows_is_that_of_the_batches_of_the_first_pass() -> None:
    train = encoded_split(text=[[9] * length for length in (3, 50, 7, 120, 11)])
    fit = profile.fit(train, train, sequence_length=16, batch_tokens=50, seed=3)
    stream = WindowStream(train, sequence_length=16, batch_tokens=50, seed=3, budget=ONE_PASS)
    batches = list(stream.between(Cursor(), 1.0))
    cells = sum(batch.tokens_BT.numel() for batch in batches)
    assert (fit.too_long, fit.batches) == (0.4, len(batches))
    assert fit.padding == pytest.approx(1 - stream.tokens_per_pass / cells)


def spec(text: str) -> SweepSpec:
    return parse(HEAD + text, file="x.yaml")


def names(made: SweepSpec) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.name, one.sequence_lengths) for one in profile.candidates(made)]


def test_the_tokenizers_of_a_sweep_are_those_of_its_ranges_and_variants() -> None:
    source = "data: {source: builtin/dates, tokenizer: {type: bpe, vocab_size: {int: [300, 900]}}}\n"
    made = spec(f"{source}model: {{sequence_length: [16, 32]}}\nsearch: {{trials: 2, metric: val/exact_match}}\n")
    assert names(made) == [("bpe 300", (16, 32)), ("bpe 900", (16, 32))]
    variants = (
        "data: {source: builtin/dates}\nsearch: {trials: 2, metric: val/exact_match}\nvariants:\n"
        "  a: {model: {sequence_length: 40}}\n  b: {data: {tokenizer: {type: byte}}}\n"
        "  c: {model: {sequence_length: 20}}\n"
    ).replace("trials: 2", "trials: 3")
    assert names(spec(variants)) == [("char", (20, 40)), ("byte", (64,))]


DATES = "data: {source: builtin/dates, examples: 300, tokenizer: {type: %s}}\nmodel: {sequence_length: [20, 48]}\n"


def test_facts_of_prepared_data_are_exact_and_a_plan_finds_them_in_the_cache(tmp_path: Path) -> None:
    made = spec(DATES % "char" + "search: {algorithm: grid}\n")
    about = profile.quickly(made, tmp_path)
    assert (about.approximate, about.looked_at, about.examples) == (True, 300, {})
    assert about.tokenizers[0].unknown_share is None
    assert not list(tmp_path.iterdir())  # a look makes nothing
    prepared = data.prepare(made.data, made.seed, tmp_path)
    assert profile.quickly(made, tmp_path).approximate  # its tokens are not there yet
    (candidate,) = profile.candidates(made)
    encoded = data.encode(prepared, candidate.tokenizer)
    known = profile.quickly(made, tmp_path)
    assert known == profile.facts(prepared, [(candidate, encoded)], task="translation", seed=1)
    assert not known.approximate
    assert sum(known.examples.values()) == 300
    (one,) = known.tokenizers
    assert one.vocab_size == {"source": encoded.sizes.target, "target": encoded.sizes.target}
    assert one.unknown_share == encoded.unknown_share("validation")
    train = encoded.split("train")
    assert one.lengths["source"].longest == int(train["source"].lengths.max())
    assert one.tokens_per_example == pytest.approx((len(train["source"].flat) + len(train["target"].flat)) / len(train))
    # A look at all of it comes near.
    (guess,) = about.tokenizers
    assert guess.tokens_per_example == pytest.approx(one.tokens_per_example, rel=0.05)
    assert [fit.too_long for fit in guess.fits] == pytest.approx([fit.too_long for fit in one.fits], abs=0.05)


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "word", "unigram"])
def test_every_tokenizer_can_be_judged_from_a_beginning(kind: Any) -> None:
    texts = [(f"the {word} house", word) for word in ("red", "green", "blue", "old", "new", "große", "weiße")]
    found = {}
    for vocabulary in ("joint", "separate"):
        config = Tokenizer(type=kind, vocab_size=300, vocabulary=vocabulary)
        candidate = profile.Candidate(config, (8, 64), 100)
        (found[vocabulary],) = profile.estimated("x", texts, [candidate], task="translation", seed=1).tokenizers
    joint, separate = found["joint"].vocab_size, found["separate"].vocab_size
    assert joint["source"] == joint["target"]
    assert separate["target"] <= separate["source"] <= joint["source"]
    assert [fit.sequence_length for fit in found["joint"].fits] == [8, 64]
    assert found["joint"].fits[1].too_long == 0.0


def test_what_is_measured_for_a_suggestion_are_tokens_by_column() -> None:
    rows = [("ab", "abc"), ("", "x")]
    assert profile.measure(Tokenizer(type="byte"), rows) == [[2, 0], [3, 1]]


def test_many_examples_are_judged_by_the_first_ones() -> None:
    split = profile._first(many_pairs(50), 10)
    assert (len(split), len(split["source"]), len(split["target"].flat)) == (10, 10, split["target"].lengths.sum())


def test_lengths_are_told_on_a_line_with_their_histogram() -> None:
    lengths = np.array([*[3] * 10, *[5] * 40, *[6] * 1, 20])
    text = str(profile.summary(lengths, buckets=4))
    assert text.startswith("3 to 20 tokens ")
    assert text.endswith(f", median 5, 99 % up to {np.quantile(lengths, 0.99):,.0f}")
    assert "█" in text


def test_more_tokenizers_than_are_looked_at_are_counted(tmp_path: Path) -> None:
    sizes = ", ".join(str(300 + number) for number in range(8))
    text = f"data: {{source: builtin/dates, examples: 50, tokenizer: {{type: bpe, vocab_size: [{sizes}]}}}}\n"
    found = profile.quickly(spec(text + "search: {algorithm: grid, metric: val/exact_match}\n"), tmp_path)
    assert (len(found.tokenizers), found.tokenizers_omitted) == (6, 2)
    assert found.lines()[-1] == ("", "and 2 more tokenizers")
