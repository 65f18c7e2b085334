"""What must hold of every transformer, whichever options it has."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, TransformerConfig

V, LONGEST = 13, 7
OPTIONS = {
    "norm": st.sampled_from(["pre", "post"]),
    "positions": st.sampled_from(["sinusoidal", "learned", "rotary"]),
    "activation": st.sampled_from(["relu", "gelu", "swiglu"]),
    "bias": st.booleans(),
    "without": st.sampled_from(["nothing", "positions", "residual", "norm", "feed_forward", "scaling"]),
}
# Each example builds and runs up to three networks; options are as readable when they are not made simpler.
few = settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])


def configs(**own: st.SearchStrategy[Any]) -> st.SearchStrategy[TransformerConfig]:
    sizes = {"vocab_size": V, "d_model": 16, "num_heads": 4, "num_layers": 2, "max_length": LONGEST + 3}
    return st.builds(lambda **options: TransformerConfig(**sizes, **options), **(OPTIONS | own))


TRANSLATORS = configs(num_decoder_layers=st.sampled_from([None, 1]))
READERS = configs(num_kv_heads=st.sampled_from([None, 2, 1]))
GUESSERS = configs()


def built(*configs: TransformerConfig) -> list[Any]:
    """In double precision, so that what differs by rounding and what differs can be told apart."""
    networks = []
    for kind, config in zip((EncoderDecoder, DecoderOnly, EncoderOnly), configs, strict=False):
        torch.manual_seed(0)
        network = kind(config).double().eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_(std=0.3)
        networks.append(network)
    return networks


@st.composite
def texts(draw: st.DrawFn, rows: int | None = None) -> torch.Tensor:
    """Up to three rows, padded at the right to the longest."""
    lengths = draw(st.lists(st.integers(1, LONGEST), min_size=rows or 1, max_size=rows or 3))
    ids = [draw(st.lists(st.integers(4, V - 1), min_size=length, max_size=length)) for length in lengths]
    return torch.tensor([row + [0] * (max(lengths) - len(row)) for row in ids])


PAIRS = st.integers(1, 3).flatmap(lambda rows: st.tuples(texts(rows), texts(rows)))


def check_weights(weights_BHTS: torch.Tensor, allowed: torch.Tensor) -> None:
    assert (weights_BHTS >= 0).all()
    assert_close(weights_BHTS.sum(-1), torch.ones_like(weights_BHTS[..., 0]))
    assert not weights_BHTS.masked_fill(allowed, 0).any(), "none where a query may not look"


def no_later(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


@few
@given(TRANSLATORS, READERS, GUESSERS, PAIRS)
def test_weights_are_shares_of_the_keys_that_may_be_seen(translator, reader, guesser, pair):
    (translator, reader, guesser), (source, target) = built(translator, reader, guesser), pair
    seen = (source != 0)[:, None, None]
    by_kind = translator.attention_weights(source, target)
    for kind, allowed in (("encoder", seen), ("decoder", no_later(target.shape[1])), ("cross", seen)):
        for weights in by_kind[kind]:
            check_weights(weights, allowed)
    for weights in reader.attention_weights(target)["self"]:
        check_weights(weights, no_later(target.shape[1]))
    for weights in guesser.attention_weights(source)["self"]:
        check_weights(weights, seen)


@few
@given(TRANSLATORS, READERS, GUESSERS, PAIRS)
def test_the_same_is_said_whether_weights_are_asked_for_or_not(translator, reader, guesser, pair):
    (translator, reader, guesser), (source, target) = built(translator, reader, guesser), pair
    state, _ = translator._encode(source, need_weights=True)
    assert_close(translator._read(target, state, need_weights=True)[0], translator(source, target))
    assert_close(reader._read(target, None, need_weights=True)[0], reader._read(target, None)[0])
    assert_close(guesser._read(source, need_weights=True)[0], guesser._read(source)[0])


def gradient_of_step(network: Any, t: int, *ids: torch.Tensor) -> torch.Tensor:
    """Of what is said at t, by the embedding of each place of the last of `ids`: (T,)."""
    embedded: list[torch.Tensor] = []
    with network.embedding.register_forward_hook(lambda _, __, x_BTD: embedded.append(x_BTD)):
        logits_BTV = network(*ids)
    (gradient_BTD,) = torch.autograd.grad(logits_BTV[:, t].square().sum(), embedded[-1])
    return gradient_BTD.abs().sum((0, 2))


@few
@given(TRANSLATORS, READERS, PAIRS, st.data())
def test_no_step_hears_of_a_later_one(translator, reader, pair, data):
    (translator, reader), (source, target) = built(translator, reader), pair
    t = data.draw(st.integers(0, target.shape[1] - 1))
    for gradient_T in (gradient_of_step(translator, t, source, target), gradient_of_step(reader, t, target)):
        assert not gradient_T[t + 1 :].any()
        assert gradient_T[: t + 1].any()


@few
@given(TRANSLATORS, READERS, GUESSERS, PAIRS, st.integers(1, 3))
def test_padding_changes_nothing(translator, reader, guesser, pair, more):
    (translator, reader, guesser), (source, target) = built(translator, reader, guesser), pair
    length = target.shape[1]
    padded = [F.pad(ids, (0, more)) for ids in pair]
    assert_close(translator(*padded)[:, :length], translator(source, target))
    assert_close(reader(padded[1])[:, :length], reader(target))
    assert_close(guesser(padded[1])[:, :length], guesser(target))


@few
@given(TRANSLATORS, READERS, GUESSERS, PAIRS)
def test_a_row_says_the_same_alone(translator, reader, guesser, pair):
    translator, reader, guesser = built(translator, reader, guesser)
    together = translator(*pair), reader(pair[1]), guesser(pair[1])
    for row in range(len(pair[0])):
        source, target = (ids[row : row + 1, : int((ids[row] != 0).sum())] for ids in pair)
        for logits, alone in zip(together, (translator(source, target), reader(target), guesser(target)), strict=True):
            assert_close(logits[row : row + 1, : target.shape[1]], alone)


@few
@given(TRANSLATORS, READERS, PAIRS, st.data())
def test_steps_say_what_one_pass_says(translator, reader, pair, data):
    (translator, reader), (source, target) = built(translator, reader), pair
    prompt = data.draw(st.integers(0, target.shape[1]))
    whole, state = translator(source, target), translator.start(source)
    whole_text, past = reader(target), reader.start(target[:, :prompt])
    for t in range(target.shape[1]):
        logits, state = translator.step(target[:, t], state)
        assert_close(logits, whole[:, t])
        if t >= prompt:
            logits, past = reader.step(target[:, t], past)
            assert_close(logits, whole_text[:, t])


@few
@given(configs(without=st.just("positions")), st.permutations(range(LONGEST)), st.data())
def test_an_encoder_without_positions_does_not_know_order(config, order, data):
    *_, network = built(config, config, config)
    tokens = torch.tensor([data.draw(st.lists(st.integers(4, V - 1), min_size=LONGEST, max_size=LONGEST))])
    assert_close(network(tokens[:, order]), network(tokens)[:, order])


@few
@given(TRANSLATORS, READERS, GUESSERS, PAIRS)
def test_tied_weights_stay_tied_after_loading(translator, reader, guesser, pair):
    translator, reader, guesser = built(translator, reader, guesser)
    for network, ids in ((translator, pair), (reader, pair[1:]), (guesser, pair[1:])):
        loaded = type(network)(network.config).double().eval()
        loaded.load_state_dict(network.state_dict())
        before = network(*ids)
        assert torch.equal(loaded(*ids), before)
        with torch.no_grad():
            loaded.embedding.weight[3] += 1.0  # no text has it: it can only be said
        changed = (loaded(*ids) != before).any(0).any(0)
        assert changed.nonzero().flatten().tolist() == [3]
