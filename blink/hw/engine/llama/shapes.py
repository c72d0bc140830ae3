"""Models by name, as fields of their published ``config.json``: a benchmark needs no download.

Weights of a named shape are random unless a folder of them is given. ``tiny-...`` are for tests.
"""

from __future__ import annotations

from typing import Any, Final

_LLAMA3: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "vocab_size": 128_256,
}

_QWEN3: Final[dict[str, Any]] = {
    "hidden_act": "silu",
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "vocab_size": 151_936,
}

_LLAMA31_ROPE: Final[dict[str, Any]] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8_192,
}

_TINY: Final[dict[str, Any]] = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "vocab_size": 199,
}

SHAPES: Final[dict[str, dict[str, Any]]] = {
    # huggingface.co/meta-llama/Meta-Llama-3-8B
    "llama3-8b": _LLAMA3
    | {
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8_192,
    },
    # huggingface.co/meta-llama/Llama-3.2-1B
    "llama3.2-1b": _LLAMA3
    | {
        "hidden_size": 2_048,
        "intermediate_size": 8_192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rope_scaling": _LLAMA31_ROPE | {"factor": 32.0},
        "tie_word_embeddings": True,
    },
    # huggingface.co/Qwen/Qwen3-32B
    "qwen3-32b": _QWEN3
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 5_120,
        "intermediate_size": 25_600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    # huggingface.co/Qwen/Qwen3-30B-A3B
    "qwen3-30b-a3b": _QWEN3
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2_048,
        "intermediate_size": 6_144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
    "tiny-llama": _TINY
    | {
        "architectures": ["LlamaForCausalLM"],
        "rms_norm_eps": 1e-5,
        "rope_scaling": _LLAMA31_ROPE | {"original_max_position_embeddings": 64},
    },
    "tiny-qwen2": _TINY | {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "tiny-qwen3": _TINY | {"architectures": ["Qwen3ForCausalLM"]},
    "tiny-qwen3-moe": _TINY
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
}
