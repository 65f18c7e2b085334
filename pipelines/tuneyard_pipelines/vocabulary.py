"""Other tools' words for what a spec says, and the nearest known name to a slip of the pen."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Their word -> our dotted key. No edit distance would find these.
FOREIGN: dict[str, str] = {
    word: key
    for key, words in {
        "model.d_model": (
            "hidden_size hidden_dim hidden_units n_embd embed_dim embedding_dim embedding_size emb_dim "
            "dim dmodel model_dim d_hidden width"
        ),
        "model.num_heads": (
            "n_head nhead n_heads nheads heads head_count num_attention_heads attention_heads encoder_heads"
        ),
        "model.num_layers": (
            "n_layer n_layers nlayers layers depth num_hidden_layers num_blocks n_blocks layer_count "
            "num_encoder_layers encoder_layers"
        ),
        "model.sequence_length": (
            "block_size context_length context_size context_window max_seq_len seq_len seq_length seqlen "
            "max_seq_length max_sequence_length max_len max_length length n_ctx n_positions "
            "max_position_embeddings window_size"
        ),
        "model.d_ff": (
            "dim_feedforward ffn_dim ff_dim d_inner n_inner intermediate_size mlp_dim feedforward_size hidden_ff"
        ),
        "model.dropout": (
            "dropout_rate dropout_prob dropout_p drop_rate attn_pdrop resid_pdrop embd_pdrop "
            "attention_dropout hidden_dropout_prob p_drop"
        ),
        "model.positions": "position_embedding position_embedding_type positional_encoding pos_encoding pos_emb",
        "model.num_kv_heads": "num_key_value_heads n_kv_heads kv_heads num_query_groups",
        "model.num_decoder_layers": "decoder_layers n_decoder_layers",
        "model.norm": "norm_first normalize_before pre_norm post_norm layer_norm norm_type",
        "model.activation": "activation_function hidden_act act_fn nonlinearity",
        "model.bias": "use_bias add_bias qkv_bias attention_bias",
        "model.tied_embeddings": "tie_word_embeddings tie_weights weight_tying tie_embeddings tied",
        "model.cell": "rnn_type cell_type rnn_cell",
        "model.attention": "attention_type attn_type attention_score",
        "model.teacher_forcing": "teacher_forcing_ratio scheduled_sampling",
        "model.kernel_size": "kernel kernel_width filter_size",
        "model.order": "ngram_order n ngram_size",
        "model.window": "window_radius cbow_window",
        "model.architecture": "arch model_type model_name family",
        "training.learning_rate": "lr eta alpha step_size max_lr peak_lr base_lr initial_lr lr_rate learningrate",
        "training.batch_tokens": (
            "batch_size bs batchsize train_batch_size per_device_train_batch_size micro_batch_size "
            "tokens_per_batch max_tokens_per_batch"
        ),
        "training.max_epochs": "epochs epoch n_epochs num_epochs num_train_epochs max_epoch",
        "training.max_steps": (
            "steps n_steps num_steps num_train_steps train_steps total_steps iterations max_iters max_updates"
        ),
        "training.max_tokens": "tokens total_tokens train_tokens num_tokens token_budget",
        "training.warmup": "warmup_steps warmup_ratio warmup_iters num_warmup_steps warmup_share",
        "training.min_learning_rate_share": (
            "min_lr min_lr_ratio eta_min final_lr final_learning_rate min_learning_rate"
        ),
        "training.weight_decay": "wd l2 l2_penalty",
        "training.gradient_clip": "grad_clip clip_grad clip_norm max_grad_norm gradient_clip_val clip",
        "training.label_smoothing": "smoothing label_smoothing_factor label_smooth",
        "training.adam_beta2": "beta2 beta_2 betas",
        "training.accumulate": (
            "accumulate_grad_batches gradient_accumulation gradient_accumulation_steps grad_accum grad_accum_steps "
            "accumulation_steps accumulation update_freq accum_freq"
        ),
        "training.schedule": "lr_scheduler lr_schedule lr_scheduler_type learning_rate_schedule lr_decay",
        "training.decay": "cooldown cooldown_steps decay_steps decay_ratio decay_share lr_decay_iters",
        "training.early_stopping": "patience early_stopping_patience early_stop stop_early",
        "training.average": "weight_averaging averaging swa ema polyak model_averaging",
        "training.ema_decay": "ema_rate ema_momentum polyak_decay",
        "training.last_checkpoints": "average_checkpoints num_checkpoints last_n avg_last checkpoints_to_average",
        "training.precision": "dtype amp fp16 bf16 mixed_precision half autocast",
        "model.gradient_checkpointing": (
            "grad_checkpointing activation_checkpointing checkpoint_activations recompute remat"
        ),
        "training.compile": "torch_compile compile_model use_compile jit",
        "training.deterministic": "use_deterministic_algorithms determinism cudnn_deterministic reproducible",
        "training.evaluations": "eval_interval eval_steps val_check_interval num_evals evals",
        "data.tokenizer.vocab_size": "vocabulary_size n_vocab num_words bpe_size vocab",
        "data.source": "dataset dataset_name train_file data_path corpus",
        "data.generate.distractors": "noise noise_tokens num_distractors n_distractors",
        "data.examples": "num_examples n_examples n_samples dataset_size",
        "search.trials": "num_samples n_trials num_trials max_trials trial_count max_evals n_iter",
        "search.max_concurrent_trials": "max_concurrent n_jobs parallelism parallel_trials concurrency",
        "search.algorithm": "sampler searcher search_alg search_algorithm method strategy",
        "search.scheduler": "pruner stopper",
        "search.metric": "objective monitor target_metric",
        "search.retries": "max_failures max_retries",
        "search.scheduler.reduction_factor": "eta_factor halving_factor",
        "search.scheduler.min_share": "grace_period min_resource min_budget",
        "resources.workers": (
            "num_workers nproc_per_node num_gpus world_size n_workers num_processes nproc devices ranks "
            "data_parallel_size"
        ),
        "resources.cpus_per_worker": "cpus cpu num_cpus cpus_per_trial n_cpus",
        "resources.gpus_per_worker": "gpus gpu gpus_per_trial n_gpus gpu_share gpu_fraction num_gpus_per_worker",
        "resources.memory_per_worker": "memory mem ram",
        "resources.accelerator_type": "accelerator gpu_type gpu_kind gpu_model device_type",
        "resources.stall_timeout": "timeout hang_timeout",
        "resources.on_out_of_memory": "oom on_oom auto_scale_batch_size",
        "resources.on_idle_gpu": "idle_gpu gpu_idle_action",
        "seed": "random_seed random_state rng_seed manual_seed",
        "name": "experiment experiment_name sweep_name study_name project",
        "register": "registered_model_name register_model registered_model",
        "constraints": "constraint conditions restrictions",
    }.items()
    for word in words.split()
}
_NOTES = {
    "training.batch_tokens": "counted in tokens, not in examples",
    "training.warmup": "a share of the budget",
    "training.evaluations": "how many over the whole budget",
    "training.early_stopping": "counted in validations",
    "model.sequence_length": "in tokens",
    "resources.workers": "each trains on gpus_per_worker GPUs: 0, a share of one, or 1",
}


def did_you_mean(word: str, section: str, keys: Iterable[str]) -> str | None:
    """The known key that `word`, written inside `section` (dotted, "" is the top), likely stands for, as a question.

    `keys` are all dotted keys. A key of the same section is named by its last part, any other in full. The same word
    may be a key in one section and another tool's word in the next: max_length of `data`, and of `model`.
    """
    keys = list(keys)
    plain = _plain(word)
    top = section.partition(".")[0]
    mine = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == section}
    near_by = {key.rpartition(".")[2]: key for key in keys if key.partition(".")[0] == top} | mine
    others = {key.rpartition(".")[2]: key for key in keys}
    if plain in near_by:
        found = near_by[plain]
    elif plain in FOREIGN and FOREIGN[plain] in keys:
        found = FOREIGN[plain]
    elif plain in others:
        found = others[plain]
    elif near := difflib.get_close_matches(plain, mine, n=1, cutoff=0.6):
        found = mine[near[0]]
    elif near := difflib.get_close_matches(plain, others, n=1, cutoff=0.75):
        found = others[near[0]]
    else:
        return None
    known = found.rpartition(".")[2] if found.rpartition(".")[0] == section else found
    note = f" ({_NOTES[found]})" if plain in FOREIGN and found in _NOTES else ""
    return f"did you mean {known}{note}?"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name of `names` that `word` most likely stands for: by other tools' words first, then by spelling."""
    names = list(names)
    plain = _plain(word)
    ours = FOREIGN.get(plain.rpartition(".")[2], "").rpartition(".")[2]
    if ours in names:
        return ours
    return next(iter(difflib.get_close_matches(plain, names, n=1, cutoff=0.6)), None)


def constraint_names(keys: Iterable[str]) -> dict[str, str]:
    """Every name by which a constraint may call a key: the dotted key and each of its tails."""
    names: dict[str, str] = {}
    for key in keys:
        parts = key.split(".")
        names |= {".".join(parts[start:]): key for start in range(len(parts))}
    return names


def _plain(word: str) -> str:
    """`numHeads`, `Num-Heads` -> `num_heads`; cut, since comparing is quadratic."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word[:80])
    return snake.lower().replace("-", "_").replace(" ", "_")
