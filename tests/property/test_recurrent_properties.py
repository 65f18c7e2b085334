"""Recurrent and convolutional models of any shape: parameters as the formula has them, steps as one pass.

Rows are read as they are alone, no step depends on a later one, and padding changes nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.convolution import ConvolutionalLanguageModel, ConvolutionConfig
from tuneyard_modules.decoding import greedy
from tuneyard_modules.recurrent import RecurrentConfig, RecurrentLanguageModel
from tuneyard_modules.seq2seq import Seq2Seq, Seq2SeqConfig
from tuneyard_pipelines import formulas
from tuneyard_pipelines.formulas import VocabSizes

torch.set_num_threads(1)

WINDOW = 9
VOCAB = 13
CELLS = st.sampled_from(
    [
        {"cell": "rnn", "activation": "tanh"},
        {"cell": "rnn", "activation": "relu"},
        {"cell": "lstm"},
        {"cell": "gru"},
    ]
)
SEEDS = st.integers(0, 2**32 - 1)


def shapes(vocab: st.SearchStrategy[int], width: st.SearchStrategy[int], window: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "d_model": width,
        "num_layers": st.integers(1, 3),
        "max_length": st.just(window),
        "dropout": st.sampled_from([0.0, 0.3]),
        "tied_embeddings": st.booleans(),
    }


def recurrent(vocab: st.SearchStrategy[int], width: st.SearchStrategy[int]) -> st.SearchStrategy[RecurrentConfig]:
    return st.builds(lambda cell, **sizes: RecurrentConfig(**cell, **sizes), CELLS, **shapes(vocab, width, WINDOW))


def convolutional(vocab: st.SearchStrategy[int], width: st.SearchStrategy[int]) -> st.SearchStrategy[ConvolutionConfig]:
    return st.builds(ConvolutionConfig, kernel_size=st.integers(1, 4), **shapes(vocab, width, WINDOW))


def seq2seq(vocab: st.SearchStrategy[int], width: st.SearchStrategy[int]) -> st.SearchStrategy[Seq2SeqConfig]:
    return st.builds(
        lambda cell, d_model, num_heads, **sizes: Seq2SeqConfig(
            d_model=2 * num_heads * d_model, num_heads=num_heads, **cell, **sizes
        ),
        CELLS,
        num_heads=st.integers(1, 3),
        attention=st.sampled_from(["none", "dot", "scaled_dot", "additive", "multi_head"]),
        source_vocab_size=st.none() | vocab,
        **shapes(vocab, width, WINDOW),
    )


SMALL = (st.just(VOCAB), st.integers(1, 8))
LANGUAGE_MODELS = recurrent(*SMALL) | convolutional(*SMALL)
ANY_SIZE = (st.integers(1, 70_000), st.integers(1, 200))


def built(config: Any) -> Any:
    if isinstance(config, RecurrentConfig):
        return RecurrentLanguageModel(config)
    return Seq2Seq(config) if isinstance(config, Seq2SeqConfig) else ConvolutionalLanguageModel(config)


def spread(config: Any, seed: int) -> Any:
    """In double precision, with weights unlike those training starts with."""
    torch.manual_seed(seed)
    network = built(config).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)
    return network


@st.composite
def ragged(draw: st.DrawFn, low: int = 1, *, vocab_size: int = VOCAB) -> torch.Tensor:
    """Rows of ids, padded at the right."""
    rows = draw(
        st.lists(st.lists(st.integers(1, vocab_size - 1), min_size=low, max_size=WINDOW), min_size=1, max_size=4)
    )
    length = max(1, max(map(len, rows)))
    return torch.tensor([row + [0] * (length - len(row)) for row in rows])


@settings(max_examples=100, deadline=None)
@given(recurrent(*ANY_SIZE) | convolutional(*ANY_SIZE) | seq2seq(st.integers(1, 70_000), st.integers(1, 60)))
def test_parameters_are_those_of_the_built_model(config: Any) -> None:
    with torch.device("meta"):
        network = built(config)
    values = {f"model.{name}": getattr(config, name) for name in config.__dataclass_fields__}
    values |= {"model.sequence_length": config.max_length}
    family = {RecurrentConfig: "cell", ConvolutionConfig: "conv", Seq2SeqConfig: "seq2seq"}[type(config)]
    name = (config.cell if family == "cell" else family).upper()
    sizes = VocabSizes(config.vocab_size, getattr(config, "source_vocab_size", None))
    counted = sum(parameter.numel() for parameter in network.parameters())
    assert getattr(formulas, name).parameters(values, sizes) == counted


@settings(max_examples=40, deadline=None)
@given(LANGUAGE_MODELS, ragged(), st.integers(0, WINDOW), SEEDS)
def test_a_text_is_read_alike_in_steps_in_one_pass_alone_and_padded(
    config: Any, tokens: torch.Tensor, prompt: int, seed: int
) -> None:
    network = spread(config, seed)
    whole = network(tokens)
    state = network.start(tokens[:, :prompt])
    for place in range(min(prompt, tokens.shape[1]), tokens.shape[1]):
        logits, state = network.step(tokens[:, place], state)
        assert_close(logits, whole[:, place])
    for row, text in enumerate(tokens):
        own = text[text != 0][None]
        assert_close(network(own)[0], whole[row, : own.shape[1]])


@settings(max_examples=40, deadline=None)
@given(LANGUAGE_MODELS | seq2seq(st.just(VOCAB), st.integers(1, 3)), ragged(), ragged(), SEEDS, st.data())
def test_no_step_depends_on_a_later_token(
    config: Any, source: torch.Tensor, target: torch.Tensor, seed: int, data: st.DataObject
) -> None:
    network, place = spread(config, seed), data.draw(st.integers(0, target.shape[1] - 1))
    rows = min(len(source), len(target))
    inputs = (source[:rows], target[:rows]) if isinstance(network, Seq2Seq) else (target[:rows],)
    embedded: list[torch.Tensor] = []

    def keep(_module: nn.Module, _inputs: object, out: torch.Tensor) -> torch.Tensor:
        embedded.append(out.detach().requires_grad_())
        return embedded[-1]

    network.vocabulary.register_forward_hook(keep)
    network(*inputs)[:, place].square().sum().backward()
    gradient = embedded[-1].grad
    assert gradient is not None
    assert (gradient[:, place + 1 :] == 0).all()


@settings(max_examples=40, deadline=None)
@given(seq2seq(st.just(VOCAB), st.integers(1, 3)), ragged(0), ragged(), SEEDS)
def test_a_pair_is_translated_alike_in_steps_in_one_pass_alone_and_padded(
    config: Seq2SeqConfig, source: torch.Tensor, target: torch.Tensor, seed: int
) -> None:
    network, rows = spread(config, seed), min(len(source), len(target))
    source, target = source[:rows], target[:rows]
    whole = network(source, target)
    assert whole.isfinite().all()
    state = network.start(F.pad(source, (0, WINDOW - source.shape[1])))
    for place, token in enumerate(target.T):
        logits, state = network.step(token, state)
        assert_close(logits, whole[:, place])
    said = greedy(network, source, bos_id=1, eos_id=2, max_length=6)
    for row in range(rows):
        own = source[row : row + 1, : max(1, int((source[row] != 0).sum()))]
        assert_close(network(own, target[row : row + 1])[0], whole[row])
        assert greedy(network, own, bos_id=1, eos_id=2, max_length=6) == [said[row]]


@settings(max_examples=40, deadline=None)
@given(seq2seq(st.just(VOCAB), st.integers(1, 3)), ragged(), ragged(), SEEDS)
def test_weights_sum_to_1_over_real_tokens_and_are_0_on_padding(
    config: Seq2SeqConfig, source: torch.Tensor, target: torch.Tensor, seed: int
) -> None:
    network, rows = spread(config, seed), min(len(source), len(target))
    source, target = source[:rows], target[:rows]
    looked = network.attention_weights(source, target)
    assert list(looked) == ([] if config.attention == "none" else ["cross"])
    for weights in looked.get("cross", []):
        assert (weights >= 0).all()
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert (weights.movedim(-1, 1)[source == 0] == 0).all()


@pytest.mark.parametrize(
    "config",
    [
        RecurrentConfig(VOCAB, 8, 1, WINDOW, "gru"),
        ConvolutionConfig(VOCAB, 8, 1, 2, WINDOW),
        Seq2SeqConfig(VOCAB, 8, 1, WINDOW, "gru", "dot"),
    ],
    ids=lambda config: type(config).__name__,
)
def test_tied_weights_stay_tied_after_loading(config: Any) -> None:
    network, other = built(config), spread(config, 1).float()
    assert not [name for name in network.state_dict() if "output.weight" in name and "vocabulary" in name]
    network.load_state_dict(other.state_dict())
    network.eval()
    tokens = torch.full((1, 4), 5)
    before = network.vocabulary.logits(torch.ones(1, 8))
    assert_close(before, other.vocabulary.logits(torch.ones(1, 8)))
    with torch.no_grad():
        network.vocabulary.embedding.weight[5] += 1.0
    assert_close(network.vocabulary.logits(torch.ones(1, 8))[0, 5], before[0, 5] + 8.0)
    assert not torch.allclose(network.vocabulary(tokens), other.vocabulary(tokens))
