"""Counted and neural n-grams and the bag of neighbours, each against its equation written as a plain loop."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tuneyard_modules.baselines import (
    BagConfig,
    ContinuousBagOfWords,
    CountingNetwork,
    NeuralNGram,
    NeuralNGramConfig,
    NGram,
    NGramConfig,
)
from tuneyard_modules.language_modeling import CountingModule, LanguageBatch, LanguageSettings
from tuneyard_modules.objective import Optimization

V = 9


def text(length: int, seed: int = 0) -> Tensor:
    """Ids 1 .. V - 1, far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, V, dtype=torch.float)
    return 1 + torch.multinomial(weights, length, replacement=True, generator=generator)


def counted(ids_T: Tensor, order: int) -> NGram:
    network = NGram(NGramConfig(V, order, max_length=len(ids_T)))
    network.count(ids_T[None, :-1], ids_T[None, 1:])
    return network


class ByHand:
    """Interpolated Kneser-Ney over tuples, straight from the paper."""

    def __init__(self, ids: list[int], order: int) -> None:
        self.order = order
        grams = {k: [tuple(ids[i : i + k]) for i in range(len(ids) - k + 1)] for k in range(1, order + 1)}
        grams[1] = grams[1][1:]  # the first token of a window is never predicted
        self.count: dict[int, Counter[tuple[int, ...]]] = {order: Counter(grams[order])}
        for k in range(1, order):
            before = defaultdict(set)
            for longer in grams[k + 1]:
                before[longer[1:]].add(longer[0])
            self.count[k] = Counter({gram: max(1, len(before[gram])) for gram in grams[k]})

    def discount(self, k: int) -> float:
        once, twice = (sum(value == n for value in self.count[k].values()) for n in (1, 2))
        return once / (once + 2 * twice) if once and twice else 0.5

    def probability(self, word: int, context: tuple[int, ...]) -> float:
        p = 1.0 / V
        for k in range(1, self.order + 1):
            history = context[len(context) - (k - 1) :] if k > 1 else ()
            if len(history) < k - 1:
                break
            after = {gram[-1]: n for gram, n in self.count[k].items() if gram[:-1] == history}
            total = sum(after.values())
            if not total:
                break
            d = self.discount(k)
            p = max(after.get(word, 0) - d, 0.0) / total + d * len(after) / total * p
        return p


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_counts_give_kneser_neys_probabilities(order: int) -> None:
    ids_T = text(300)
    network, by_hand = counted(ids_T, order), ByHand(ids_T.tolist(), order)
    held_out_T = text(40, seed=1)
    log_probabilities_TV = network(held_out_T[None])[0]
    for place in range(len(held_out_T)):
        context = tuple(held_out_T[: place + 1].tolist())
        expected = torch.tensor([by_hand.probability(word, context) for word in range(V)])
        torch.testing.assert_close(log_probabilities_TV[place].exp(), expected, rtol=1e-5, atol=1e-7)


def test_the_probabilities_of_all_words_sum_to_one_and_none_is_zero() -> None:
    log_probabilities_BTV = counted(text(200), 4)(torch.stack([text(30, seed) for seed in range(5)]))
    torch.testing.assert_close(log_probabilities_BTV.exp().sum(-1), torch.ones(5, 30))
    assert log_probabilities_BTV.isfinite().all()


def test_nothing_counted_is_a_uniform_guess() -> None:
    network = NGram(NGramConfig(V, 3, max_length=8))
    torch.testing.assert_close(network(text(8)[None]), torch.full((1, 8, V), -math.log(V)))


def test_counting_in_parts_is_counting_at_once_and_padding_counts_nothing() -> None:
    one, two = text(60), text(60, seed=3)
    together = NGram(NGramConfig(V, 3, max_length=60))
    together.count(torch.stack([one, two])[:, :-1], torch.stack([one, two])[:, 1:])
    apart = NGram(NGramConfig(V, 3, max_length=60))
    for ids_T in (one, two):
        padded = torch.cat([ids_T, torch.zeros(7, dtype=torch.int64)])
        apart.count(padded[None, :-1], F.pad(ids_T[1:], (0, 7))[None])
        apart(ids_T[None])  # looking in between changes nothing
    torch.testing.assert_close(apart(one[None]), together(one[None]))


def test_counts_survive_their_state() -> None:
    network = counted(text(150), 3)
    fresh = NGram(NGramConfig(V, 3, max_length=8))
    fresh.load_state_dict(network.state_dict())
    torch.testing.assert_close(fresh(text(20, 2)[None]), network(text(20, 2)[None]), rtol=0, atol=0)
    fresh.count(text(20, 4)[None, :-1], text(20, 4)[None, 1:])
    assert int(fresh.counts_G.sum()) == 149, "what was just counted waits"
    fresh.state_dict()
    assert int(fresh.counts_G.sum()) == 149 + 19


def test_it_counts_and_has_no_parameters() -> None:
    network = counted(text(20), 2)
    assert isinstance(network, CountingNetwork)
    assert not list(network.parameters())
    assert not isinstance(neural(), CountingNetwork)


def test_a_text_is_counted_in_its_first_pass_and_costs_no_step() -> None:
    network = NGram(NGramConfig(V, 3, max_length=30))
    module = CountingModule(network, Optimization(learning_rate=1.0), LanguageSettings(), text_bytes=1, pass_tokens=58)
    rows_BT = torch.stack([text(30), text(30, seed=1)])
    optimizer = module.configure_optimizers()
    for tokens_trained in (0, 58, 116):
        module.tokens_trained = tokens_trained
        loss = module.training_step(LanguageBatch(rows_BT[:, :-1], rows_BT[:, 1:], tokens=58, share=0.0), 0)
        loss.backward()
        optimizer.step()
        assert loss.item() == 0.0
    assert int(network.state_dict()["counts_G"].sum()) == 58


def neural(order: int = 4) -> NeuralNGram:
    torch.manual_seed(0)
    return NeuralNGram(NeuralNGramConfig(V, order, d_model=6, d_ff=10, max_length=30, dropout=0.0)).eval()


@torch.inference_mode()
def test_the_neural_one_is_bengios_equation() -> None:
    network, ids = neural(4), text(12).tolist()
    logits_TV = network(torch.tensor([ids]))[0]
    for place in range(len(ids)):
        x = []
        for back in (2, 1, 0):  # the oldest first
            embedded = network.embedding.weight[ids[place - back]] if place >= back else torch.zeros(6)
            x += embedded.tolist()
        hidden = [
            math.tanh(float(d) + sum(float(h) * value for h, value in zip(row, x, strict=True)))
            for row, d in zip(network.hidden.weight, network.hidden.bias, strict=True)
        ]
        expected = [
            float(b) + sum(float(u) * value for u, value in zip(row, hidden, strict=True))
            for row, b in zip(network.output.weight, network.output.bias, strict=True)
        ]
        torch.testing.assert_close(logits_TV[place], torch.tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("network", [neural(4), neural(2), counted(text(200), 4), counted(text(200), 1)])
@torch.inference_mode()
def test_steps_say_what_a_whole_reading_says(network: NGram | NeuralNGram) -> None:
    rows_BT = torch.stack([text(10, seed) for seed in range(3)])
    whole_BTV = network(rows_BT)
    state = network.start(rows_BT[:, :4])
    for place in range(4, 10):
        logits_BV, state = network.step(rows_BT[:, place], state)
        torch.testing.assert_close(logits_BV, whole_BTV[:, place])
    swapped, _ = network.step(rows_BT[[2, 0], 3], network.start(rows_BT[:, :3]).select(torch.tensor([2, 0])))
    torch.testing.assert_close(swapped, whole_BTV[[2, 0], 3])


def bag(window: int = 2) -> ContinuousBagOfWords:
    torch.manual_seed(0)
    return ContinuousBagOfWords(BagConfig(V + 1, d_model=6, window=window, max_length=12)).eval()


@torch.inference_mode()
def test_a_bag_is_the_mean_of_the_words_around() -> None:
    network, ids = bag(), [3, V, 4, 5, 6, 0, 0]  # V is the mask, 0 padding
    logits_TV = network(torch.tensor([ids]))[0]
    around = {0: [4], 1: [3, 4, 5], 2: [3, 5, 6], 3: [4, 6], 4: [4, 5]}
    for place, words in around.items():
        expected = network.embedding.weight[words].mean(0) @ network.output.weight.T
        torch.testing.assert_close(logits_TV[place], expected)


@torch.inference_mode()
def test_a_bag_is_blind_to_order_and_uniform_where_nothing_is_around() -> None:
    network = bag()
    one, other = network(torch.tensor([[3, 4, V, 5, 6]])), network(torch.tensor([[6, 3, V, 4, 5]]))
    torch.testing.assert_close(one[0, 2], other[0, 2])
    assert not network(torch.tensor([[V, V, V]])).any()


@pytest.mark.parametrize("network", [neural(), bag()])
def test_the_loss_at_the_start_is_that_of_a_uniform_guess(network: nn.Module) -> None:
    ids_BT = torch.stack([text(12, seed) for seed in range(8)])
    logits_BTV = network(ids_BT)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT.flatten())
    assert loss.item() == pytest.approx(math.log(logits_BTV.shape[-1]), rel=0.02)


@pytest.mark.parametrize(
    "config",
    [
        lambda: NGramConfig(V, 0, 8),
        lambda: NeuralNGramConfig(V, 1, 4, 4, 8),
        lambda: NeuralNGramConfig(V, 2, 4, 4, 8, dropout=1.0),
        lambda: BagConfig(V, 4, 0, 8),
    ],
)
def test_shapes_that_cannot_be_built_are_refused(config) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        config()
