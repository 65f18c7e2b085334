"""What recurrent, convolutional and recurrent encoder-decoder models cost.

D model width, L layers, S sequence length, K kernel size, G gates of a cell, V target vocabulary. What is kept
was measured on a CPU; on a GPU, whose library keeps other things, it is untested.
"""

from __future__ import annotations

from functools import partial

from tuneyard_pipelines.formulas.shape import Formulas, Values, VocabSizes

_GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def _sizes(values: Values) -> tuple[int, int, int]:
    """D, L, S."""
    d, layers, s = (values[f"model.{name}"] for name in ("d_model", "num_layers", "sequence_length"))
    return d, layers, s


def _vocabulary(values: Values, size: int) -> int:
    d, _, _ = _sizes(values)
    return size * d if values["model.tied_embeddings"] else 2 * size * d


def _cell_parameters(cell: str, inputs: int, width: int) -> int:
    """Of one layer and direction: matrices for inputs and states, and the two biases that torch keeps."""
    return _GATES[cell] * width * (inputs + width + 2)


def _cell_flops(cell: str, inputs: int, width: int) -> int:
    return 2 * _GATES[cell] * width * (inputs + width)


def _cell_kept(cell: str, width: int) -> int:
    """Of one layer that reads one text.

    Gates and states, 2 D or 8 D; of an LSTM what oneDNN works in, near 15.6 D, and its output.
    """
    return {"rnn": 2 * width, "gru": 8 * width, "lstm": 83 * width // 5}[cell]


def _recurrent_parameters(cell: str, values: Values, sizes: VocabSizes) -> int:
    d, layers, _ = _sizes(values)
    return _vocabulary(values, sizes.target) + layers * _cell_parameters(cell, d, d)


def _recurrent_forward_flops(cell: str, values: Values, sizes: VocabSizes) -> int:
    d, layers, _ = _sizes(values)
    return layers * _cell_flops(cell, d, d) + 2 * d * sizes.target


def _recurrent_kept_floats(cell: str, values: Values) -> int:
    """The layers and the output's input; with dropout a mask of embeddings and of each layer.

    An LSTM also keeps its embeddings, and with dropout what is left between layers.
    """
    d, layers, _ = _sizes(values)
    dropout: bool = values["model.dropout"] > 0
    lstm = cell == "lstm"
    masks = layers + 1 + (layers - 1) * lstm
    return layers * _cell_kept(cell, d) + d * (1 + lstm + masks * dropout)


def _conv_parameters(values: Values, sizes: VocabSizes) -> int:
    d, layers, _ = _sizes(values)
    block = 2 * d * (d * _kernel(values) + 1) + d * (d + 1)
    return _vocabulary(values, sizes.target) + layers * block + 2 * d


def _conv_forward_flops(values: Values, sizes: VocabSizes) -> int:
    d, layers, _ = _sizes(values)
    return layers * (4 * d * d * _kernel(values) + 2 * d * d) + 2 * d * sizes.target


def _conv_kept_floats(values: Values) -> int:
    """In each layer its input, the zeros before it, filter, gate and their product; the final norm's input and output.

    With dropout a mask of embeddings and of each layer.
    """
    d, layers, s = _sizes(values)
    dropout: bool = values["model.dropout"] > 0
    zeros = (_kernel(values) - 1) * ((1 << layers) - 1)
    return d * (4 * layers + 2) + d * zeros // s + d * (layers + 1) * dropout


def _kernel(values: Values) -> int:
    size: int = values["model.kernel_size"]
    return size


def _seq2seq_parameters(values: Values, sizes: VocabSizes) -> int:
    d, layers, _ = _sizes(values)
    cell, attention = values["model.cell"], values["model.attention"]
    encoder = 2 * layers * _cell_parameters(cell, d, d // 2)
    decoder = _cell_parameters(cell, 2 * d if attention == "none" else d, d)
    decoder += (layers - 1) * _cell_parameters(cell, d, d)
    attentions = {"additive": 2 * d * d + d, "multi_head": 4 * d * d + 4 * d}
    embeddings = _vocabulary(values, sizes.target) + (sizes.source or 0) * d
    return embeddings + encoder + decoder + attentions.get(attention, 0) + 2 * d * d


def _seq2seq_forward_flops(values: Values, sizes: VocabSizes) -> int:
    """Half of what a source and a target token take together, the latter with S scores and values.

    What a model reads of its own (`teacher_forcing` below 1) takes the decoder's part once more, without gradients, and
    is not counted.
    """
    d, layers, s = _sizes(values)
    cell, attention = values["model.cell"], values["model.attention"]
    encoder = 2 * layers * _cell_flops(cell, d, d // 2)
    decoder = _cell_flops(cell, 2 * d if attention == "none" else d, d) + (layers - 1) * _cell_flops(cell, d, d)
    matrices = {"additive": 2, "multi_head": 4}.get(attention, 0)
    scores = 0 if attention == "none" else 4 * s * d
    return (encoder + decoder + 2 * matrices * d * d + scores + 4 * d * d) // 2 + d * sizes.target


def _seq2seq_kept_floats(values: Values) -> int:
    """Of a source and a target token: the layers, the output's two inputs, and what attention keeps, by its kind.

    Without oneDNN, which takes no batch of different lengths, an LSTM keeps 8 D in the encoder; where all sources of a
    batch are equally long, some 15 D more. The fixed context makes its inputs in the decoder wider, and with them what
    oneDNN works in. With dropout there are masks of both embeddings and between layers, and one more before the output
    beside what it leaves; an LSTM keeps also what is left between layers of the decoder.
    """
    d, layers, s = _sizes(values)
    cell, attention = values["model.cell"], values["model.attention"]
    lstm: bool = cell == "lstm"
    dropout: bool = values["model.dropout"] > 0
    encoder = 8 * d if lstm else _cell_kept(cell, d)
    kept = {
        "none": 4 * d + lstm * 15 * d // 2,
        "dot": 5 * d + s,
        "scaled_dot": 6 * d,
        "additive": 5 * d + s * d + s,
        "multi_head": (9 + lstm) * d,
    }[attention]
    masks = 2 * layers + 2 + lstm * (layers - 1)
    return layers * (encoder + _cell_kept(cell, d)) + kept + d * masks * dropout


def _recurrent(cell: str) -> Formulas:
    return Formulas(
        1,
        partial(_recurrent_parameters, cell),
        partial(_recurrent_forward_flops, cell),
        partial(_recurrent_kept_floats, cell),
    )


RNN = _recurrent("rnn")
LSTM = _recurrent("lstm")
GRU = _recurrent("gru")
CONV = Formulas(1, _conv_parameters, _conv_forward_flops, _conv_kept_floats)
SEQ2SEQ = Formulas(2, _seq2seq_parameters, _seq2seq_forward_flops, _seq2seq_kept_floats)
