"""A language model of causal dilated convolutions, which sees a window of tokens and nothing before it.

B batch, N rows chosen from a batch, T text length, P past length, D model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tuneyard_modules.recurrent import Vocabulary, check_length, check_sizes


@dataclass(frozen=True)
class ConvolutionConfig:
    """The shape of a ConvolutionalLanguageModel.

    Layer i (from 0) sees `kernel_size` inputs, 2^i tokens apart; `max_length` is the most tokens of a text; with
    `tied_embeddings` one matrix embeds tokens and gives the logits. Raises ValueError for a shape that cannot be built.
    """

    vocab_size: int
    d_model: int
    num_layers: int
    kernel_size: int
    max_length: int
    dropout: float = 0.1
    tied_embeddings: bool = True
    pad_id: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "d_model", "num_layers", "kernel_size", "max_length")

    @property
    def receptive_field(self) -> int:
        """How many tokens a logit depends on, the last one read among them: 1 + (kernel_size - 1)(2^num_layers - 1)."""
        return 1 + (self.kernel_size - 1) * ((1 << self.num_layers) - 1)


class ConvolutionState(NamedTuple):
    """What a ConvolutionalLanguageModel still needs of what it has read; a value of one size, however long the text.

    Of layer i the last P = (kernel_size - 1) 2^i inputs, zeros before the first token.
    """

    position: int
    inputs_BDP: tuple[Tensor, ...]

    def select(self, index_N: Tensor) -> ConvolutionState:
        """The rows `index_N` of the batch, in that order; rows may be repeated or left out."""
        return ConvolutionState(self.position, tuple(inputs_BDP[index_N] for inputs_BDP in self.inputs_BDP))


class ConvolutionalLanguageModel(nn.Module):
    """WaveNet's residual blocks (van den Oord et al. 2016) on words, as in Bai et al. 2018, and a final norm.

    Dropout acts on embeddings and on what every block adds. There are no positions: zeros stand before the first token.
    Padding stands at the right, where nothing comes after it.
    """

    def __init__(self, config: ConvolutionConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Vocabulary(config.vocab_size, config.d_model, tied=config.tied_embeddings, start_std=1.0)
        self.blocks = nn.ModuleList(
            Block(config.d_model, config.kernel_size, 2**layer, config.dropout) for layer in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        # Small vectors for the output, so that the first guess is uniform.
        nn.init.constant_(self.norm.weight, config.d_model**-0.5)

    @property
    def max_length(self) -> int:
        """The most tokens that can be read: a training text's."""
        return self.config.max_length

    @property
    def receptive_field(self) -> int:
        """How many tokens a logit depends on."""
        return self.config.receptive_field

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token after each of `tokens_BT`; raises ValueError for more than `max_length` tokens."""
        x_BTD, _ = self._read(tokens_BT, None)
        return self.vocabulary.logits(x_BTD)

    def start(self, prompt_BT: Tensor) -> ConvolutionState:
        """Read the beginning of a text, which may be empty; the next token is known after a step."""
        _, state = self._read(prompt_BT, None)
        return state

    def step(self, tokens_B: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        """Read one token per row; returns the logits (BV) of the next one and the state after it.

        Raises ValueError where that would be more than `max_length` tokens.
        """
        x_B1D, state = self._read(tokens_B[:, None], state)
        return self.vocabulary.logits(x_B1D[:, 0]), state

    def _read(self, tokens_BT: Tensor, state: ConvolutionState | None) -> tuple[Tensor, ConvolutionState]:
        position = (state.position if state else 0) + tokens_BT.shape[1]
        check_length(position, self.max_length)
        x_BDT = self.dropout(self.vocabulary(tokens_BT)).transpose(1, 2)
        inputs = []
        for block, before in zip(self.blocks, state.inputs_BDP if state else [None] * len(self.blocks), strict=True):
            x_BDT, after_BDP = block(x_BDT, before)
            inputs.append(after_BDP)
        return self.norm(x_BDT.transpose(1, 2)), ConvolutionState(position, tuple(inputs))


class Block(nn.Module):
    """x + W_1 (tanh(W_f * x) s(W_g * x)), * a dilated convolution, s the logistic function: equation 2 and figure 4
    of van den Oord et al. 2016, without skip connections and conditions.
    """

    def __init__(self, d_model: int, kernel_size: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.past = (kernel_size - 1) * dilation
        self.filter_gate = nn.Conv1d(d_model, 2 * d_model, kernel_size, dilation=dilation)
        self.output = nn.Conv1d(d_model, d_model, 1)
        self.dropout = nn.Dropout(dropout)
        for convolution in (self.filter_gate, self.output):
            nn.init.xavier_uniform_(convolution.weight)
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)

    def forward(self, x_BDT: Tensor, before_BDP: Tensor | None) -> tuple[Tensor, Tensor]:
        """The tokens one layer on (BDT), and the last P inputs after them; None stands for zeros before a text."""
        if before_BDP is None:
            before_BDP = x_BDT.new_zeros(*x_BDT.shape[:2], self.past)
        seen_BDS = torch.cat([before_BDP, x_BDT], dim=2)
        after_BDP = seen_BDS[:, :, seen_BDS.shape[2] - self.past :]
        if x_BDT.shape[2] == 0:
            return x_BDT, after_BDP
        filter_BDT, gate_BDT = self.filter_gate(seen_BDS).chunk(2, dim=1)
        added_BDT = self.output(filter_BDT.tanh() * gate_BDT.sigmoid())
        return x_BDT + self.dropout(added_BDT), after_BDP
