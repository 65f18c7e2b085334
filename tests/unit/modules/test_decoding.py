"""Decoding against the plain, uncached way, every text that there is, and Hugging Face's `generate`."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import reference_models
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from tuneyard_modules.decoding import Decoding, Hypothesis, Restarting, beam, filtered, greedy, sample, score
from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, TransformerConfig

BOS, EOS = 1, 2


def _network(seed: int) -> EncoderDecoder:
    torch.manual_seed(seed)
    network = EncoderDecoder(TransformerConfig(9, 16, 2, 2, max_length=12)).eval()
    _spread(network)
    return network


def _spread(network: nn.Module) -> None:
    """Large weights, unlike those training starts with, so that rows differ and some end early."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)


def _uncached(network: EncoderDecoder, source: torch.Tensor, max_length: int) -> list[int]:
    ids = [BOS]
    while len(ids) < max_length:
        ids.append(int(network(source[None], torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == EOS:
            return ids[1:-1]
    return ids[1:]


def test_equals_the_most_likely_tokens_of_the_uncached_model() -> None:
    lengths = set()
    for seed in range(4):
        network = _network(seed)
        source = torch.randint(3, 9, (6, 5), generator=torch.Generator().manual_seed(seed))
        source[2, 3:] = 0
        rows = greedy(network, source, bos_id=BOS, eos_id=EOS, max_length=10)
        assert rows == [_uncached(network, row, 10) for row in source]
        lengths |= {len(row) for row in rows}
    assert 9 in lengths
    assert len(lengths) > 2, "the rows should end at different places for this test to mean anything"


class _Countdown(NamedTuple):
    """Says how many steps each row has left; the rows that still take part are recorded."""

    left_B: torch.Tensor

    def select(self, index_N: torch.Tensor) -> _Countdown:
        return _Countdown(self.left_B[index_N])


class _Counter:
    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def start(self, source_BS: torch.Tensor) -> _Countdown:
        return _Countdown(source_BS[:, 0])

    def step(self, tokens_B: torch.Tensor, state: _Countdown) -> tuple[torch.Tensor, _Countdown]:
        self.batch_sizes.append(len(tokens_B))
        token_B = torch.where(state.left_B > 0, state.left_B + 2, EOS)
        return torch.nn.functional.one_hot(token_B, 40).float(), _Countdown(state.left_B - 1)


def test_stops_with_the_last_row_and_drops_rows_that_ended() -> None:
    counter = _Counter()
    rows = greedy(counter, torch.tensor([[2], [0], [3], [2]]), bos_id=BOS, eos_id=EOS, max_length=30)
    assert rows == [[4, 3], [], [5, 4, 3], [4, 3]]
    assert counter.batch_sizes == [4, 3, 3, 1]


def test_the_last_place_is_the_end_tokens() -> None:
    assert greedy(_Counter(), torch.tensor([[9], [1]]), bos_id=BOS, eos_id=EOS, max_length=4) == [[11, 10, 9], [3]]
    assert greedy(_Counter(), torch.tensor([[9]]), bos_id=BOS, eos_id=EOS, max_length=1) == [[]]


def _sample(network: Any, prompt: Sequence[int], seed: int = 0, **options: Any) -> list[int]:
    """How one text goes on: greedily, without a temperature."""
    most, banned = options.pop("max_new", 40), options.pop("banned_ids", ())
    prompt_BT = torch.tensor([list(prompt)])
    said = sample(
        Restarting(network),
        prompt_BT[:, :-1],
        Decoding(**options),
        bos_id=prompt_BT[:, -1],
        eos_id=EOS,
        max_length=most + 1,
        generators=[torch.Generator().manual_seed(seed)],
        banned_ids=banned,
    )
    return said[0].ids


@pytest.mark.parametrize("max_length", [1, 2, 7, 8, 60])
@pytest.mark.parametrize("prompt", [[5], [4, 9, 3, 7, 11, 6, 28], list(range(3, 23))])
def test_a_text_goes_on_past_the_window_from_its_last_half(max_length: int, prompt: list[int]) -> None:
    new, read = list[int](), prompt[-max_length:]
    while len(new) < 40:
        if len(read) > max_length:
            read = read[-max(1, max_length // 2) :]
        new.append(_Hash.next(read))
        read = [*read, new[-1]]
    assert _sample(_Hash(max_length), prompt) == new
    assert max_length < 7 or len(set(new)) > 10, "a text of few letters says little about what was read"
    prompt_BT = torch.tensor([prompt, prompt])
    network, options = Restarting(_Hash(max_length)), {"bos_id": prompt_BT[:, -1], "eos_id": EOS, "max_length": 41}
    assert greedy(network, prompt_BT[:, :-1], **options) == [new, new]
    assert [row[0].ids for row in beam(network, prompt_BT[:, :-1], **options, beam_size=3)] == [new, new]
    assert [step.id for step in score(network, prompt_BT[:, :-1], [new, new], bos_id=prompt_BT[:, -1])[1]] == new


def test_a_real_network_goes_on_past_its_window() -> None:
    torch.manual_seed(0)
    network = DecoderOnly(TransformerConfig(30, 16, 2, 2, max_length=8, positions="learned")).eval()
    _spread(network)
    text, read = [3], [3]
    while len(text) < 30:
        logits = network(torch.tensor([read]))[0, -1]
        logits[[0, 1, EOS, *text[-3:]]] = -torch.inf
        text += _sample(network, read, max_new=1, banned_ids=(0, 1, EOS, *text[-3:]))
        assert text[-1] == int(logits.argmax())
        read = text[-8:]
    assert len(set(text)) > 5
    whole = _sample(network, [3], temperature=1.0, banned_ids=(EOS,))
    assert len(whole) == 40
    assert whole == _sample(network, [3], temperature=1.0, banned_ids=(EOS,))
    assert whole != _sample(network, [3], seed=1, temperature=1.0, banned_ids=(EOS,))


def test_a_text_ends_with_its_end_token() -> None:
    network = _Dice({5: 0.0, EOS: 1.0})
    assert _sample(network, [4]) == []
    assert _sample(network, [4], banned_ids=(EOS,), max_new=3) == [5, 5, 5]
    assert _sample(network, [4], max_new=0) == []


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_probabilities(temperature: float) -> None:
    logits = {5: 1.0, 6: 0.0, 7: -1.0, 8: 3.0}
    drawn = Counter(_sample(_Dice(logits), [4], temperature=temperature, max_new=4000, banned_ids=(8,)))
    weights = {token: math.exp(logits[token] / temperature) for token in (5, 6, 7)}
    assert set(drawn) == {5, 6, 7}
    for token, weight in weights.items():
        assert drawn[token] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


def test_only_the_likeliest_are_drawn() -> None:
    network = _Dice({5: 1.0, 6: 0.9, 7: 0.8, 8: 0.7})
    assert set(_sample(network, [4], temperature=1.0, top_k=2, max_new=200)) == {5, 6}
    assert set(_sample(network, [4], temperature=1.0, top_k=2, max_new=200, banned_ids=(5,))) == {6, 7}
    assert set(_sample(network, [4], temperature=1.0, top_k=99, max_new=200)) == {5, 6, 7, 8}
    assert set(_sample(network, [4], temperature=1.0, top_p=0.5, max_new=200)) == {5, 6}
    assert set(_sample(network, [4], temperature=1.0, min_p=0.8, max_new=200)) == {5, 6, 7}
    assert set(_sample(network, [4], temperature=1e-40, max_new=20)) == {5}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"temperature": -0.1}, r"temperature=-0\.1 must be at least 0"),
        ({"temperature": math.nan}, "temperature=nan must be a finite number"),
        ({"temperature": 1.0, "top_k": 0}, "top_k=0 must be a whole number of at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p=0\.0 must be above 0 and at most 1"),
        ({"temperature": 1.0, "min_p": 1.5}, r"min_p=1\.5 must be above 0 and at most 1"),
        ({"beam": 0}, "beam=0 must be a whole number of at least 1"),
        ({"beam": 2.5}, r"beam=2\.5 must be a whole number of at least 1"),
        ({"beam": "5"}, "beam='5' must be a whole number of at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be a whole number of at least 1"),
        ({"seed": -1}, r"seed=-1 must be a whole number from 0 to 2\^63 - 1"),
        ({"length_penalty": math.inf}, "length_penalty=inf must be a finite number"),
        ({"length_penalty": 1000}, "length_penalty=1000 must be from -10 to 10"),
        ({"beam": 5, "temperature": 0.8}, r"beam=5 and temperature=0\.8 exclude each other: .*; leave one out"),
        ({"n_best": 3}, "n_best=3 is more than beam=1: raise beam, or draw with a temperature"),
        ({"beam": 2, "n_best": 3}, "n_best=3 is more than beam=2: raise beam"),
        ({"length_penalty": 2.0}, "length_penalty=2 only matters to a beam: give beam, such as 5"),
        ({"seed": 3}, "seed=3 only matters to draws: give a temperature, such as 1"),
        ({"top_k": 5, "top_p": 0.9}, r"top_k=5, top_p=0\.9 only matters to draws, .* give a temperature"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Decoding(**options)


def _language(seed: int, vocab_size: int = 9) -> DecoderOnly:
    """In double precision, so that the rows of a batch are as exact as one by one."""
    torch.manual_seed(seed)
    network = DecoderOnly(TransformerConfig(vocab_size, 16, 2, 2, max_length=24, positions="learned")).eval()
    _spread(network)
    return network.double()


def _beam(network: Any, prompt_BT: torch.Tensor, **options: Any) -> list[list[Hypothesis]]:
    settings: dict[str, Any] = {"bos_id": prompt_BT[:, -1], "eos_id": EOS, "max_length": 9} | options
    return beam(network, prompt_BT[:, :-1], **settings)


def _prompts(seed: int, rows: int, length: int = 4) -> torch.Tensor:
    return torch.randint(3, 9, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def pair() -> tuple[DecoderOnly, Any]:
    """Ours, and Hugging Face's GPT-2 with the same weights."""
    ours = _language(11, vocab_size=11)
    theirs = reference_models.gpt2(ours)[0].double()
    ids = _prompts(0, 3, 7)
    assert_close(ours(ids), theirs(ids).logits)
    return ours, theirs


def _generate(theirs: Any, prompts: torch.Tensor, new: int, **options: Any) -> tuple[list[list[int]], list[float]]:
    """Ids without prompt and end, and scores where they come."""
    attend = torch.ones_like(prompts)
    said = theirs.generate(
        prompts,
        attention_mask=attend,
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    rows = [row[: row.index(EOS)] if EOS in row else row for row in said.sequences[:, prompts.shape[1] :].tolist()]
    rows = [[token for token in row if token != 0] for row in rows]
    return rows, said.sequences_scores.tolist() if "sequences_scores" in said else []


@pytest.mark.parametrize("banned", [(0,), (0, 1, 3)])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_beam_is_hugging_faces(pair: tuple[DecoderOnly, Any], width: int, penalty: float, banned: Any) -> None:
    ours, theirs = pair
    prompts = _prompts(1, 12)
    said = _beam(ours, prompts, max_length=13, beam_size=width, n_best=width, length_penalty=penalty, banned_ids=banned)
    rows, scores = _generate(
        theirs,
        prompts,
        12,
        num_beams=width,
        num_return_sequences=width,
        length_penalty=penalty,
        suppress_tokens=list(banned),
    )
    assert [text.ids for row in said for text in row] == rows
    if width > 1:
        assert_close([text.score for row in said for text in row], scores, rtol=1e-4, atol=1e-4)
        plain = greedy(ours, prompts[:, :-1], bos_id=prompts[:, -1], eos_id=EOS, max_length=13, banned_ids=banned)
        assert [row[0].ids for row in said] != plain, "the search should find other texts"
    assert len({len(ids) for ids in rows}) > 1, "the texts should end at different places"


def test_greedy_is_hugging_faces(pair: tuple[DecoderOnly, Any]) -> None:
    ours, theirs = pair
    prompts = _prompts(7, 8)
    rows, _ = _generate(theirs, prompts, 12, suppress_tokens=[0])
    assert greedy(ours, prompts[:, :-1], bos_id=prompts[:, -1], eos_id=EOS, max_length=13, banned_ids=(0,)) == rows


def _translations(theirs: Any, source: torch.Tensor, **options: Any) -> list[list[int]]:
    said = theirs.generate(source, do_sample=False, max_new_tokens=9, **options)[:, 1:].tolist()
    return [[token for token in row[: row.index(EOS) if EOS in row else None] if token] for row in said]


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_translations_are_those_of_hugging_faces_marian(penalty: float) -> None:
    torch.manual_seed(34)
    ours = EncoderDecoder(TransformerConfig(11, 16, 2, 2, max_length=12, norm="post", positions="sinusoidal")).eval()
    _spread(ours)
    theirs = reference_models.marian(ours.double())[0].double()
    source = torch.randint(3, 11, (9, 6), generator=torch.Generator().manual_seed(2))
    source[:3, 4:] = 0
    attend = {"attention_mask": (source != 0).long(), "suppress_tokens": [0]}
    plain = greedy(ours, source, bos_id=BOS, eos_id=EOS, max_length=10, banned_ids=(0,))
    assert plain == _translations(theirs, source, **attend)
    found = beam(
        ours,
        source,
        bos_id=BOS,
        eos_id=EOS,
        max_length=10,
        beam_size=4,
        n_best=3,
        length_penalty=penalty,
        banned_ids=(0,),
    )
    rows = _translations(
        theirs, source, num_beams=4, num_return_sequences=3, length_penalty=penalty, early_stopping=False, **attend
    )
    assert [text.ids for row in found for text in row] == rows
    assert [row[0].ids for row in found] != plain, "the search should find other texts"


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"top_k": 9, "top_p": 0.9, "min_p": 0.1},
        {"top_k": 99, "top_p": 1.0},
    ],
)
def test_what_is_left_out_is_what_hugging_face_leaves_out(filters: dict[str, Any], temperature: float) -> None:
    logits = 3 * torch.randn(50, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = logits / temperature
    warpers = {"top_k": transformers.TopKLogitsWarper, "top_p": transformers.TopPLogitsWarper}
    warpers["min_p"] = transformers.MinPLogitsWarper
    for name, warper in warpers.items():
        if name in filters:
            expected = warper(filters[name])(None, expected)
    left = filtered(logits, Decoding(temperature=temperature, **filters))
    assert_close(left.softmax(-1), expected.softmax(-1))
    assert torch.equal(left.isinf(), expected.isinf())


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 3.0])
def test_a_beam_as_wide_as_all_texts_finds_the_best_of_them(penalty: float) -> None:
    network, prompts = _Random(99), _prompts(2, 5)
    texts = [list(ids) for length in range(4) for ids in itertools.product((3, 4), repeat=length)]
    for prompt, found in zip(
        prompts, _beam(network, prompts, max_length=4, beam_size=20, n_best=20, length_penalty=penalty), strict=True
    ):
        whole = [[*ids, EOS] if len(ids) < 3 else ids for ids in texts]
        source = prompt[None, :-1].expand(len(whole), -1)
        nats = [
            sum(step.log_probability for step in steps) for steps in score(network, source, whole, bos_id=prompt[-1])
        ]
        scores = [nat / len(ids) ** penalty for nat, ids in zip(nats, whole, strict=True)]
        best = sorted(zip(scores, texts, strict=True), reverse=True)
        assert [text.ids for text in found] == [ids for _, ids in best]
        assert_close([text.score for text in found], [value for value, _ in best])
        if penalty == 0:
            assert sum(map(math.exp, nats)) == pytest.approx(1.0), "the texts are all that there are"


def test_a_beam_is_not_larger_than_the_vocabulary() -> None:
    with pytest.raises(
        ValueError, match=r"beam=10 is larger than the vocabulary: it has 9 tokens; give at most that many"
    ):
        _beam(_language(0), _prompts(0, 2), beam_size=10)
    assert len(_beam(_language(0), _prompts(0, 2), beam_size=9, n_best=9)[0]) == 9
    with pytest.raises(ValueError, match="n_best=3 must be from 1 to beam_size=2"):
        _beam(_language(0), _prompts(0, 2), beam_size=2, n_best=3)


def test_no_room_for_a_token_is_an_empty_text() -> None:
    assert _beam(_language(0), _prompts(0, 2), beam_size=2, max_length=1) == [[([], 0.0)]] * 2


@given(seed=st.integers(0, 50), width=st.integers(1, 9), penalty=st.floats(-2, 2), rows=st.integers(1, 4))
@settings(max_examples=20)
def test_what_holds_for_every_beam(seed: int, width: int, penalty: float, rows: int) -> None:
    network, prompts = _language(seed % 5), _prompts(seed, rows)
    found = _beam(network, prompts, beam_size=width, n_best=width, length_penalty=penalty)
    plain = greedy(network, prompts[:, :-1], bos_id=prompts[:, -1], eos_id=EOS, max_length=9)
    assert [row[0].ids for row in _beam(network, prompts, beam_size=1, length_penalty=penalty)] == plain
    for row, (prompt, texts) in enumerate(zip(prompts, found, strict=True)):
        (alone,) = _beam(network, prompt[None], beam_size=width, n_best=width, length_penalty=penalty)
        assert [text.ids for text in alone] == [text.ids for text in texts]
        assert greedy(network, prompt[None, :-1], bos_id=prompt[-1], eos_id=EOS, max_length=9) == [plain[row]]
        assert [text.score for text in texts] == sorted((text.score for text in texts), reverse=True)
        assert len({tuple(text.ids) for text in texts}) == len(texts) == width
        whole = [[*text.ids, EOS] if len(text.ids) < 8 else text.ids for text in texts]
        steps = score(network, prompt[None, :-1].expand(width, -1), whole, bos_id=prompt[-1])
        nats = [sum(step.log_probability for step in each) / len(each) ** penalty for each in steps]
        assert_close([text.score for text in texts], nats)


@given(
    seed=st.integers(0, 50),
    rows=st.integers(1, 4),
    temperature=st.floats(0.3, 3),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(0.05, 1),
)
@settings(max_examples=20)
def test_what_holds_for_every_draw(
    seed: int, rows: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    network, prompts = _language(seed % 5), _prompts(seed, rows)
    options = Decoding(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)

    def drawn(prompt_BT: torch.Tensor) -> list[Hypothesis]:
        generators = [options.generators()[0] for _ in prompt_BT]
        return sample(
            network,
            prompt_BT[:, :-1],
            options,
            bos_id=prompt_BT[:, -1],
            eos_id=EOS,
            max_length=9,
            generators=generators,
        )

    said = drawn(prompts)
    assert [text.ids for text in drawn(prompts)] == [text.ids for text in said], "a seed repeats"
    for prompt, text in zip(prompts, said, strict=True):
        assert drawn(prompt[None])[0].ids == text.ids, "a row draws for itself"
        whole = [*text.ids, EOS] if len(text.ids) < 8 else text.ids
        (steps,) = score(network, prompt[None, :-1], [whole], bos_id=prompt[-1], likeliest=top_k or 9)
        assert text.score == pytest.approx(sum(step.log_probability for step in steps) / len(whole))
        for step in steps:
            assert step.id in [token for token, _ in step.likeliest]


def test_seeds_differ_and_more_draws_begin_with_the_fewer() -> None:
    def first(**options: int) -> list[float]:
        return [float(torch.rand((), generator=one)) for one in Decoding(temperature=1.0, **options).generators()]

    assert first(seed=3, n_best=5)[:2] == first(seed=3, n_best=2)
    assert len({*first(seed=3, n_best=5), *first(seed=4, n_best=5)}) == 10


def test_draws_of_one_text_follow_the_probabilities_together() -> None:
    options = Decoding(temperature=1.0, n_best=2000, seed=5)
    source = torch.full((2000, 1), 4)
    network = _Dice({5: 0.0, 6: math.log(3)})
    said = sample(network, source, options, bos_id=BOS, eos_id=EOS, max_length=2, generators=options.generators())
    assert Counter(text.ids[0] for text in said)[6] / 2000 == pytest.approx(0.75, abs=0.03)


def test_given_texts_are_scored_token_by_token() -> None:
    network, source = _network(0), torch.tensor([[5, 6, 7, 0], [3, 4, 8, 8], [3, 3, 0, 0]])
    references = [[5, 4, EOS], [], [7, 7, 3, 8, EOS]]
    steps = score(network, source, references, bos_id=BOS, likeliest=5)
    assert [[step.id for step in row] for row in steps] == references
    for row, reference in enumerate(references):
        if reference:
            whole = network(source[row : row + 1], torch.tensor([[BOS, *reference[:-1]]]))[0].log_softmax(-1).detach()
            expected = [float(whole[place, token]) for place, token in enumerate(reference)]
            assert_close([step.log_probability for step in steps[row]], expected, rtol=1e-4, atol=1e-5)
            for step, nats in zip(steps[row], whole, strict=True):
                best, ids = nats.topk(5)
                assert [token for token, _ in step.likeliest] == ids.tolist()
                assert_close([value for _, value in step.likeliest], best.tolist(), rtol=1e-4, atol=1e-5)
    assert {step.likeliest for row in score(network, source, references, bos_id=BOS) for step in row} == {()}


class _Read(NamedTuple):
    """The ids that each row has read."""

    ids: list[tuple[int, ...]]

    def select(self, index_N: torch.Tensor) -> _Read:
        return _Read([self.ids[row] for row in index_N])


class _Hash:
    """Says what depends on every id it has read and on its place; refuses to read too much."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    @staticmethod
    def next(ids: Sequence[int]) -> int:
        return 3 + hash(tuple(ids)) % 27

    def start(self, prompt_BT: torch.Tensor) -> _Read:
        assert prompt_BT.shape[1] <= self.max_length
        return _Read([tuple(ids) for ids in prompt_BT.tolist()])

    def step(self, tokens_B: torch.Tensor, state: _Read) -> tuple[torch.Tensor, _Read]:
        read = [(*ids, token) for ids, token in zip(state.ids, tokens_B.tolist(), strict=True)]
        assert all(len(ids) <= self.max_length for ids in read)
        return self.logits(read), _Read(read)

    def logits(self, read: list[tuple[int, ...]]) -> torch.Tensor:
        return 9.0 * nn.functional.one_hot(torch.tensor([self.next(ids) for ids in read]), 30)


class _Random(_Hash):
    """Random logits that depend on all that was read; of 20 tokens only the end and two letters are possible."""

    def logits(self, read: list[tuple[int, ...]]) -> torch.Tensor:
        rows = [torch.randn(20, generator=torch.Generator().manual_seed(hash(ids) % 2**31)) for ids in read]
        logits = torch.stack(rows).double()
        logits[:, [*range(EOS), *range(EOS + 3, 20)]] = -torch.inf
        return logits


class _Dice:
    """Finds the same tokens likely whatever was said before."""

    max_length = 10**9

    def __init__(self, logits: dict[int, float]) -> None:
        self.logits_V = torch.full((10,), -torch.inf)
        for token, logit in logits.items():
            self.logits_V[token] = logit

    def start(self, prompt_BT: torch.Tensor) -> _Countdown:
        return _Countdown(prompt_BT.sum(1))

    def step(self, tokens_B: torch.Tensor, state: _Countdown) -> tuple[torch.Tensor, _Countdown]:
        return self.logits_V.expand(len(tokens_B), -1), state
