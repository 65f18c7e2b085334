"""The options of all transformers: what they start from, what they learn, what is left out, what is kept."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, TransformerConfig

SIDES = ("encoder", "decoder")
KINDS = [EncoderDecoder, DecoderOnly, EncoderOnly]
PARTS = ["nothing", "positions", "residual", "norm", "feed_forward", "scaling"]


def network(kind: type[Any], **changes: Any) -> Any:
    shape = {"vocab_size": 19, "d_model": 16, "num_heads": 4, "num_layers": 2, "max_length": 12, "dropout": 0.0}
    torch.manual_seed(0)
    return kind(TransformerConfig(**(shape | changes)))


def ids(rows: int, length: int, vocab_size: int = 19) -> torch.Tensor:
    return torch.randint(4, vocab_size, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


def loss(model: nn.Module, vocab_size: int = 19, rows: int = 4) -> torch.Tensor:
    """Of texts that are to be guessed: the next token, or behind a mask the token itself."""
    text = ids(rows, 12, vocab_size)
    if isinstance(model, EncoderDecoder):
        logits, target = model(ids(rows, 9, vocab_size), text[:, :-1]), text[:, 1:]
    elif isinstance(model, EncoderOnly):
        masked = torch.arange(12) % 3 == 0
        logits, target = model(text.masked_fill(masked, model.mask_id))[:, masked], text[:, masked]
    else:
        logits, target = model(text[:, :-1]), text[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("without", PARTS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_loss_at_the_start_is_that_of_a_uniform_guess(kind: type[Any], without: str, norm: str) -> None:
    for positions, activation in itertools.product(["sinusoidal", "learned", "rotary"], ["relu", "gelu", "swiglu"]):
        model = network(
            kind,
            vocab_size=100,
            d_model=32,
            num_layers=4,
            norm=norm,
            without=without,
            positions=positions,
            activation=activation,
            bias=positions != "rotary",
        )
        first = loss(model.eval(), vocab_size=100, rows=64).item()
        assert first == pytest.approx(math.log(100), rel=0.02), (positions, activation)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "post", "positions": "learned", "activation": "gelu"},
        {"norm": "pre", "positions": "rotary", "activation": "swiglu", "bias": False},
    ],
)
def test_a_batch_can_be_learned_by_heart(kind: type[Any], changes: dict[str, Any]) -> None:
    model = network(kind, d_model=32, num_layers=1, **changes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(120):
        optimizer.zero_grad()
        loss(model, rows=2).backward()
        optimizer.step()
    assert loss(model, rows=2).item() < 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_checkpointing_layers_changes_neither_losses_nor_gradients(kind: type[Any], norm: str) -> None:
    losses, gradients = [], []
    for checkpointing in (False, True):
        model = network(kind, dropout=0.3, norm=norm, positions="rotary", gradient_checkpointing=checkpointing)
        torch.manual_seed(1)
        losses.append([])
        for _ in range(2):
            losses[-1].append(loss(model))
            losses[-1][-1].backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1], "dropout was drawn anew"
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_only_training_is_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def spy(function: Any, *inputs: Any, use_reentrant: bool, **options: Any) -> Any:
        called.append(use_reentrant)
        return function(*inputs, **options)

    monkeypatch.setattr("tuneyard_modules.transformer.checkpoint", spy)
    model = network(EncoderDecoder, gradient_checkpointing=True, num_decoder_layers=3)
    loss(model)
    assert called == [False] * 5
    loss(model.eval())
    assert len(called) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_is_not_there(kind: type[Any]) -> None:
    def parameters(**changes: Any) -> set[str]:
        return {name for name, _ in network(kind, positions="learned", **changes).named_parameters()}

    whole = parameters()
    assert parameters(without="residual") == parameters(without="scaling") == whole
    assert whole - parameters(without="positions") == {name for name in whole if "positions" in name}
    assert whole - parameters(without="norm") == {name for name in whole if "norm" in name}
    assert whole - parameters(without="feed_forward") == {name for name in whole if "feed_forward" in name}
    linear = ("query.bias", "key_value.bias", "output.bias", "feed_forward.0.bias", "feed_forward.2.bias")
    assert whole - parameters(bias=False) == {name for name in whole if name.endswith(linear)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_without_residuals_a_layer_says_only_what_its_last_map_says(kind: type[Any], norm: str) -> None:
    for without in ("nothing", "residual"):
        model = network(kind, norm=norm, without=without)
        layer = (model.encoder if kind is EncoderDecoder else model.layers)[0]
        nn.init.zeros_(layer.feed_forward[2].weight)
        said, _, _ = layer(torch.randn(2, 5, 16), None, None)
        assert said.any() == (without == "nothing")


@pytest.mark.parametrize("kind", KINDS)
def test_without_scaling_scores_are_not_divided(kind: type[Any]) -> None:
    """A quarter of the queries makes up for it: heads are 16 wide."""
    plain, unscaled = (network(kind, d_model=64, num_layers=1, without=part) for part in ("nothing", "scaling"))
    inputs = (ids(2, 5),) * (2 if kind is EncoderDecoder else 1)
    assert not torch.allclose(plain(*inputs), unscaled(*inputs), rtol=1e-4)
    with torch.no_grad():
        for name, parameter in unscaled.named_parameters():
            if "query" in name:
                parameter /= 4
    assert_close(plain(*inputs), unscaled(*inputs))


@pytest.mark.parametrize("need_weights", [False, True])
def test_without_positions_no_order_is_told(need_weights: bool) -> None:
    tokens, order = ids(2, 6), torch.tensor([5, 2, 0, 1, 4, 3])
    for positions in ("sinusoidal", "learned", "rotary"):
        for without in ("positions", "nothing"):
            model = network(EncoderOnly, positions=positions, without=without).eval()
            nn.init.normal_(model.embedding.weight)
            said, turned = (model._read(x, need_weights=need_weights)[0] for x in (tokens, tokens[:, order]))
            same = torch.allclose(turned, said[:, order], rtol=1e-4, atol=1e-5)
            assert same == (without == "positions"), positions


def test_sides_may_have_layers_of_their_own_number() -> None:
    model = network(EncoderDecoder, num_layers=3, num_decoder_layers=1)
    assert (len(model.encoder), len(model.decoder)) == (3, 1)
    looked = model.attention_weights(ids(2, 5), ids(2, 4))
    assert {kind: len(layers) for kind, layers in looked.items()} == {"encoder": 3, "decoder": 1, "cross": 1}


def test_a_cache_holds_only_the_shared_heads() -> None:
    past = network(DecoderOnly, num_kv_heads=2).start(ids(3, 5))
    assert past.caches[0].key_BHSK.shape == (3, 2, 5, 4)


@pytest.mark.parametrize(
    ("kind", "changes", "owner"),
    [
        (EncoderDecoder, {"num_kv_heads": 2}, "DecoderOnly"),
        (EncoderOnly, {"num_kv_heads": 2}, "DecoderOnly"),
        (DecoderOnly, {"num_decoder_layers": 2}, "EncoderDecoder"),
        (EncoderOnly, {"num_decoder_layers": 2}, "EncoderDecoder"),
    ],
)
def test_options_of_others_are_refused(kind: type[Any], changes: dict[str, Any], owner: str) -> None:
    with pytest.raises(ValueError, match=f"=2 is an option of {owner} only: leave it out"):
        network(kind, **changes)


@pytest.mark.parametrize("kind", [EncoderDecoder, DecoderOnly])
def test_a_familys_own_positions_must_fit_the_width(kind: type[Any]) -> None:
    with pytest.raises(ValueError, match="d_model=15 is odd"):
        network(kind, d_model=15, num_heads=3)
    network(kind, d_model=15, num_heads=3, without="positions")
    network(kind, d_model=15, num_heads=3, positions="learned")


def test_saved_models_of_before_there_were_options_can_be_loaded() -> None:
    layer = [f"{norm}.{part}" for norm in ("attention_norm", "feed_forward_norm") for part in ("weight", "bias")]
    maps = ("attention.query", "attention.key_value", "attention.output", "feed_forward.0", "feed_forward.2")
    layer += [f"{name}.{part}" for name in maps for part in ("weight", "bias")]
    cross = ("cross_attention_norm", "cross_attention.query", "cross_attention.key_value", "cross_attention.output")
    more = [f"{name}.{part}" for name in cross for part in ("weight", "bias")]
    gpt = {"embedding.weight", "positions.table_TD", "norm.weight", "norm.bias"}
    gpt |= {f"layers.0.{name}" for name in layer}
    assert network(DecoderOnly, num_layers=1, positions="learned").state_dict().keys() == gpt
    translator = {"embedding.weight"} | {f"{side}_norm.{part}" for side in SIDES for part in ("weight", "bias")}
    translator |= {f"{side}.0.{name}" for side in SIDES for name in layer} | {f"decoder.0.{name}" for name in more}
    assert network(EncoderDecoder, num_layers=1).state_dict().keys() == translator
