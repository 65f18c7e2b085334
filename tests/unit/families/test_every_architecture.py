"""What holds of every family alike: cost, first guess, learning by heart, decoding, padding, saving, and going on."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from mean_loss import mean_loss
from torch import Tensor, nn
from torch.nn import functional as F

from tuneyard_modules.baselines import CountingNetwork
from tuneyard_modules.decoding import greedy
from tuneyard_modules.objective import random_state, set_random_state
from tuneyard_pipelines import architectures, cost
from tuneyard_pipelines.catalog import TASKS
from tuneyard_pipelines.formulas import VocabSizes, with_mask

ALL = tuple(architectures.OURS)
GOLDEN = Path(__file__).with_name("golden_losses.json")
STEPPING = (*families.LANGUAGE, *families.TRANSLATION)


def evaluated(architecture: str, **model: Any) -> nn.Module:
    """Ready to be used; one that counts has seen some text."""
    network = families.network(architecture, **model).eval()
    if isinstance(network, CountingNetwork):
        text_BT = families.ids(20, families.LENGTH, seed=9)
        network.count(text_BT[:, :-1], text_BT[:, 1:])
    return network


def test_the_default_of_each_task_learns_it() -> None:
    for task in TASKS.values():
        assert task.name in architectures.find(task.architecture).tasks


@pytest.mark.parametrize("architecture", ALL)
def test_it_has_as_many_parameters_as_its_formula(architecture: str) -> None:
    sizes = VocabSizes(families.VOCAB, 31 if architecture in families.TRANSLATION else None)
    network = families.network(architecture, sizes=sizes)
    built = sum(parameter.numel() for parameter in network.parameters())
    assert cost.parameters(families.config(architecture).flat(), sizes) == built


@pytest.mark.parametrize("architecture", ALL)
def test_the_first_guess_is_uniform(architecture: str) -> None:
    """With a real vocabulary: the mean loss over random words is ln V within 2 %."""
    words = 2_000
    network = families.network(architecture, sizes=VocabSizes(words), d_model=64, d_ff=256).eval()
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(4, words, (8, families.LENGTH), generator=generator) for _ in range(2)]
    given = tuple(drawn) if architecture in families.TRANSLATION else (drawn[1],)
    logits_BTV = network(*given)
    wanted = torch.randint(4, words, (8, families.LENGTH), generator=generator)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), wanted.flatten()).item()
    size = with_mask(VocabSizes(words)) if architecture in families.MASKED else words
    assert loss == pytest.approx(math.log(size), rel=0.02)


@pytest.mark.parametrize("architecture", families.NEURAL)
def test_one_batch_is_learned_by_heart(architecture: str) -> None:
    """By its module's own loss; of masks, those of one draw."""
    trained = families.module(architecture, families.network(architecture), learning_rate=1e-2)
    given = families.batch(architecture, rows=1)
    optimizer = trained.configure_optimizers()
    trained.train()
    loss = math.inf
    for _ in range(500):
        torch.manual_seed(5)
        found = mean_loss(trained, given)
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        loss = found.item()
        if loss < 0.01:
            break
    assert loss < 0.01


@pytest.mark.parametrize("architecture", families.NEURAL)
def test_twenty_steps_lose_what_they_always_lost(architecture: str) -> None:
    """Exactly the same within a process; within 1e-4 of the file, which another machine wrote."""
    found = families.golden(architecture)
    assert found == families.golden(architecture)
    assert found == pytest.approx(json.loads(GOLDEN.read_text())[architecture], rel=1e-4)


@pytest.mark.parametrize("architecture", families.NEURAL)
def test_going_on_from_what_was_saved_is_never_having_stopped(architecture: str) -> None:
    batches = [families.batch(architecture, seed=step) for step in range(6)]
    whole = families.module(architecture, families.network(architecture, dropout=0.1))
    optimizer = whole.configure_optimizers()
    step(whole, optimizer, batches[:3])
    saved = io.BytesIO()
    torch.save({"weights": whole.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    chance = random_state(torch.device("cpu"))
    expected = step(whole, optimizer, batches[3:])

    fresh = families.module(architecture, families.network(architecture, seed=99, dropout=0.1))
    resumed = fresh.configure_optimizers()
    held = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    fresh.load_state_dict(held["weights"])
    resumed.load_state_dict(held["optimizer"])
    set_random_state(chance, torch.device("cpu"))
    assert step(fresh, resumed, batches[3:]) == expected


def step(trained: Any, optimizer: torch.optim.Optimizer, batches: list[Any]) -> list[float]:
    trained.train()
    found = []
    for given in batches:
        loss = mean_loss(trained, given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("architecture", ALL)
@torch.inference_mode()
def test_a_batch_is_its_rows_one_by_one(architecture: str) -> None:
    network = evaluated(architecture)
    given = families.inputs(architecture, families.batch(architecture, rows=3))
    together_BTV = network(*given)
    for row in range(3):
        torch.testing.assert_close(network(*(part[row : row + 1] for part in given))[0], together_BTV[row])


@pytest.mark.parametrize("architecture", ALL)
@torch.inference_mode()
def test_padding_at_the_right_changes_nothing(architecture: str) -> None:
    network = evaluated(architecture)
    given = [part[:, : families.LENGTH - 4] for part in families.inputs(architecture, families.batch(architecture))]
    padded_BTV = network(*(F.pad(part, (0, 3)) for part in given))
    torch.testing.assert_close(padded_BTV[:, : families.LENGTH - 4], network(*given))


@pytest.mark.parametrize("architecture", STEPPING)
@torch.inference_mode()
def test_steps_with_a_state_say_what_a_whole_reading_says(architecture: str) -> None:
    network = evaluated(architecture)
    *source, read_BT = families.inputs(architecture, families.batch(architecture, rows=3))
    whole_BTV = network(*source, read_BT)
    state = network.start(source[0] if source else read_BT[:, :0])
    for place in range(read_BT.shape[1]):
        if place == 5:
            state = state.select(torch.tensor([2, 0, 1]))
            read_BT, whole_BTV = read_BT[[2, 0, 1]], whole_BTV[[2, 0, 1]]
        logits_BV, state = network.step(read_BT[:, place], state)
        torch.testing.assert_close(logits_BV, whole_BTV[:, place])


@pytest.mark.parametrize("architecture", families.LANGUAGE)
@torch.inference_mode()
def test_a_text_can_be_begun_anywhere(architecture: str) -> None:
    network, read_BT = evaluated(architecture), families.ids(2, 8)
    logits_BV, _ = network.step(read_BT[:, 5], network.start(read_BT[:, :5]))
    torch.testing.assert_close(logits_BV, network(read_BT)[:, 5])


@pytest.mark.parametrize("architecture", [name for name in families.NEURAL if name in STEPPING])
def test_nothing_leaks_from_the_future(architecture: str) -> None:
    """Another token at a place changes nothing before it."""
    network = evaluated(architecture)
    *source, read_BT = families.inputs(architecture, families.batch(architecture, rows=1))
    before_BTV = network(*source, read_BT)
    for place in range(1, read_BT.shape[1]):
        other_BT = read_BT.clone()
        other_BT[0, place] = 4 + (int(read_BT[0, place]) - 3) % (families.VOCAB - 4)
        after_BTV = network(*source, other_BT)
        assert torch.equal(after_BTV[:, :place], before_BTV[:, :place])
        assert not torch.equal(after_BTV[:, place], before_BTV[:, place])


@pytest.mark.parametrize("architecture", ALL)
@torch.inference_mode()
def test_weights_come_back_from_their_state_and_tied_ones_stay_tied(architecture: str) -> None:
    network = evaluated(architecture)
    fresh = families.network(architecture, seed=3).eval()
    shared = storages(fresh)
    fresh.load_state_dict(network.state_dict())
    given = families.inputs(architecture, families.batch(architecture))
    assert torch.equal(fresh(*given), network(*given))
    assert storages(fresh) == shared


def storages(network: nn.Module) -> dict[str, str]:
    """Of every parameter, by all of its names, the first name of its memory."""
    first: dict[int, str] = {}
    named: list[tuple[str, Tensor]] = list(network.named_parameters(remove_duplicate=False))
    return {name: first.setdefault(parameter.data_ptr(), name) for name, parameter in named}


@pytest.mark.parametrize("architecture", families.TRANSLATION)
@torch.inference_mode()
def test_what_it_says_ends_and_depends_on_its_own_source_alone(architecture: str) -> None:
    network = evaluated(architecture)
    source_BS = families.batch(architecture, rows=3).source_BS
    said = greedy(network, source_BS, bos_id=1, eos_id=2, max_length=families.LENGTH)
    for row in range(3):
        alone = greedy(network, source_BS[row : row + 1], bos_id=1, eos_id=2, max_length=families.LENGTH)
        assert alone == [said[row]]
