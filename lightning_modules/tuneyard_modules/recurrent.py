"""Recurrent language models: Elman's network, LSTM and GRU, trained in one pass and decoded step by step.

h is a layer's hidden state, x its input, s the logistic function, * by element; b stands for the sum of the two biases
that torch keeps, one with x and one with h.

| cell   | equations                                                                                                   |
|--------|-------------------------------------------------------------------------------------------------------------|
| `rnn`  | h_t = a(W_x x_t + W_h h_{t-1} + b), a tanh or ReLU (Elman 1990)                                             |
| `lstm` | i, f, o = s(..), g = tanh(..), each of W_x x_t + W_h h_{t-1} + b; c_t = f * c_{t-1} + i * g;                |
|        | h_t = o * tanh(c_t) (Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000)              |
| `gru`  | r, z = s(W_x x_t + W_h h_{t-1} + b); n = tanh(W_x x_t + b_x + r * (W_h h_{t-1} + b_h));                     |
|        | h_t = (1 - z) * n + z * h_{t-1} (Cho et al. 2014 with r after the product, as cuDNN has it)                 |

B batch, N rows chosen from a batch, T text length, I input width, D model width, L layers and directions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Cell = Literal["rnn", "lstm", "gru"]
Activation = Literal["tanh", "relu"]
Inputs = TypeVar("Inputs", Tensor, PackedSequence)

# Of token vectors at the start. The further a cell's hidden states are from 0 at first, the smaller it must be for the
# first guess to be uniform; the larger it is, the faster embeddings that are the output, too, are learned from.
START_STD: dict[Cell, float] = {"rnn": 0.55, "gru": 0.8, "lstm": 1.0}

_GATES: dict[Cell, int] = {"rnn": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True)
class RecurrentConfig:
    """The shape of a RecurrentLanguageModel.

    `d_model` is the width of embeddings and of every hidden state; `activation` is the Elman network's; `max_length` is
    the most tokens of a text; with `tied_embeddings` one matrix embeds tokens and gives the logits. Raises ValueError
    for a shape that cannot be built.
    """

    vocab_size: int
    d_model: int
    num_layers: int
    max_length: int
    cell: Cell
    activation: Activation = "tanh"
    dropout: float = 0.1
    tied_embeddings: bool = True
    pad_id: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "d_model", "num_layers", "max_length")
        check_activation(self.cell, self.activation)


class Hidden(NamedTuple):
    """What the cells of all layers hand on to the next token; a value. `cell_LBD` is c of an LSTM, None for others."""

    hidden_LBD: Tensor
    cell_LBD: Tensor | None

    def select(self, index_N: Tensor) -> Hidden:
        """The rows `index_N` of the batch, in that order; rows may be repeated or left out."""
        return Hidden(*(None if part is None else part.index_select(1, index_N) for part in self))  # type: ignore[arg-type]


class Recurrence(nn.Module):
    """Layers of one cell, dropout between them: torch's nn.RNN, nn.LSTM or nn.GRU, which are fast.

    Starts with Glorot's uniform W_x, orthogonal W_h (Saxe et al. 2014) and biases of 0, but for an
    LSTM's forget gate: 1, so that it remembers (Jozefowicz et al. 2015). Where `bidirectional`, each is `width` wide.
    """

    def __init__(
        self,
        cell: Cell,
        activation: Activation,
        input_width: int,
        width: int,
        num_layers: int,
        *,
        dropout: float,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.cell = cell
        between = dropout if num_layers > 1 else 0.0
        if cell == "rnn":
            self.layers: nn.RNNBase = nn.RNN(
                input_width,
                width,
                num_layers,
                nonlinearity=activation,
                batch_first=True,
                dropout=between,
                bidirectional=bidirectional,
            )
        else:
            gated = nn.LSTM if cell == "lstm" else nn.GRU
            self.layers = gated(
                input_width, width, num_layers, batch_first=True, dropout=between, bidirectional=bidirectional
            )
        self._initialise()

    def forward(self, x_BTI: Tensor, before: Hidden, lengths_B: Tensor | None = None) -> tuple[Tensor, Hidden]:
        """The last layer's hidden states (BTD), and what comes after the last token; T may be 0.

        Where `lengths_B` (at least 1 each) says how many tokens a row has, what stands after them is not read, and the
        states there are 0.
        """
        length = x_BTI.shape[1]
        if length == 0:
            return x_BTI.new_zeros(*x_BTI.shape[:2], self.layers.hidden_size), before
        if lengths_B is None:
            return self._run(x_BTI, before)
        packed = pack_padded_sequence(x_BTI, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        packed, after = self._run(packed, before)
        states_BTD, _ = pad_packed_sequence(packed, batch_first=True, total_length=length)
        return states_BTD, after

    def zeros(self, like_BTI: Tensor) -> Hidden:
        """What stands before the first token of a batch of such inputs: zeros."""
        directions = 1 + self.layers.bidirectional
        zeros_LBD = like_BTI.new_zeros(self.layers.num_layers * directions, like_BTI.shape[0], self.layers.hidden_size)
        return Hidden(zeros_LBD, zeros_LBD if self.cell == "lstm" else None)

    def _run(self, inputs: Inputs, before: Hidden) -> tuple[Inputs, Hidden]:
        # In mixed precision a CPU keeps float32 here: oneDNN cannot train an LSTM in bfloat16 everywhere.
        with torch.autocast("cpu", enabled=False):
            if before.cell_LBD is None:
                states, hidden_LBD = self.layers(inputs, before.hidden_LBD)
                return states, Hidden(hidden_LBD, None)
            states, (hidden_LBD, cell_LBD) = self.layers(inputs, (before.hidden_LBD, before.cell_LBD))
            return states, Hidden(hidden_LBD, cell_LBD)

    def _initialise(self) -> None:
        for name, parameter in self.layers.named_parameters():
            gates = parameter.detach().chunk(_GATES[self.cell])
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                if self.cell == "lstm" and name.startswith("bias_ih"):
                    nn.init.ones_(gates[1])
            else:
                for gate in gates:
                    (nn.init.xavier_uniform_ if name.startswith("weight_ih") else nn.init.orthogonal_)(gate)


class RecurrentState(NamedTuple):
    """Where a RecurrentLanguageModel stands: how many tokens it has read, and its hidden states; of one size always."""

    position: int
    hidden: Hidden

    def select(self, index_N: Tensor) -> RecurrentState:
        """The rows `index_N` of the batch, in that order; rows may be repeated or left out."""
        return RecurrentState(self.position, self.hidden.select(index_N))


class RecurrentLanguageModel(nn.Module):
    """Mikolov et al. 2010 over any of the cells, with the dropout of Zaremba et al. 2014 and a softmax without bias.

    Tied embeddings are those of Press and Wolf 2017. Padding stands at the right, where nothing comes after it.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(
            config.vocab_size, config.d_model, tied=config.tied_embeddings, start_std=START_STD[config.cell]
        )
        self.recurrence = Recurrence(
            config.cell, config.activation, config.d_model, config.d_model, config.num_layers, dropout=config.dropout
        )
        self.dropout = nn.Dropout(config.dropout)

    @property
    def max_length(self) -> int:
        """The most tokens that can be read: a training text's."""
        return self.config.max_length

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token after each of `tokens_BT`; raises ValueError for more than `max_length` tokens."""
        states_BTD, _ = self._read(tokens_BT, None)
        return self.vocabulary.logits(states_BTD)

    def start(self, prompt_BT: Tensor) -> RecurrentState:
        """Read the beginning of a text, which may be empty; the next token is known after a step."""
        _, state = self._read(prompt_BT, None)
        return state

    def step(self, tokens_B: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Read one token per row; returns the logits (BV) of the next one and the state after it.

        Raises ValueError where that would be more than `max_length` tokens.
        """
        states_B1D, state = self._read(tokens_B[:, None], state)
        return self.vocabulary.logits(states_B1D[:, 0]), state

    def _read(self, tokens_BT: Tensor, state: RecurrentState | None) -> tuple[Tensor, RecurrentState]:
        position = (state.position if state else 0) + tokens_BT.shape[1]
        check_length(position, self.max_length)
        x_BTD = self.dropout(self.vocabulary(tokens_BT))
        states_BTD, hidden = self.recurrence(x_BTD, state.hidden if state else self.recurrence.zeros(x_BTD))
        return self.dropout(states_BTD), RecurrentState(position, hidden)


class Vocabulary(nn.Module):
    """Tokens to vectors and vectors to logits, by one matrix where `tied`, otherwise by two, without biases.

    Vectors are the matrix's rows times sqrt(D), as in section 3.4 of Vaswani et al. 2017, and start with numbers of
    size `start_std`.
    """

    def __init__(self, size: int, d_model: int, *, tied: bool, start_std: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, d_model)
        self.output = None if tied else nn.Linear(d_model, size, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=start_std * d_model**-0.5)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The vectors (BTD) of tokens."""
        x_BTD: Tensor = self.embedding(ids_BT) * self.embedding.embedding_dim**0.5
        return x_BTD

    def logits(self, x_BTD: Tensor) -> Tensor:
        """The logits (BTV) of vectors."""
        return F.linear(x_BTD, (self.output or self.embedding).weight)


def check_sizes(config: object, *names: str) -> None:
    """Raises ValueError where one of these is below 1, or where a dropout is no share."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)} must be at least 1")
    dropout: float = config.dropout  # type: ignore[attr-defined]
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout={dropout} must be at least 0 and less than 1")


def check_activation(cell: Cell, activation: Activation) -> None:
    """Raises ValueError for an activation that the cell does not have."""
    if cell != "rnn" and activation != "tanh":
        raise ValueError(
            f"activation={activation!r} is for cell='rnn': cell={cell!r} has tanh and gates, leave it at tanh"
        )


def check_length(length: int, max_length: int) -> None:
    """Raises ValueError for a sequence that is too long."""
    if length > max_length:
        raise ValueError(f"a sequence of {length} tokens is longer than max_length={max_length}: cut it off")
