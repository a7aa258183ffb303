"""Make a tiny model with random weights, offline: `python tiny_model.py DIR --arch qwen3_moe`.

Runs in vLLM's own Python, whose torch, safetensors and tokenizers it uses. Seeded: the same
arguments give the same weights. The tokenizer is a byte-level BPE, as Qwen's is, learned from this
project's license; the chat template knows `enable_thinking` and tools.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, END_OF_TURN = 0, 2
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 2, 128, 256, 4, 2, 64
EXPERTS, EXPERTS_PER_TOKEN = 8, 2
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{{ message.content | map(attribute='text') | join }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)


def learn_tokenizer(folder: Path, max_len: int) -> Tokenizer:
    """Write the tokenizer's files; every text can be said in it, byte by byte if need be."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1536,
        special_tokens=list(CONTROLS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(TEXT)], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        eos_token=CONTROLS[END_OF_TURN],
        pad_token=CONTROLS[END_OF_TEXT],
        model_max_length=max_len,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )
    return tokenizer


def silent_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids that are no text on their own: the server would hold their output back, or end."""
    return [
        token
        for token in range(tokenizer.get_vocab_size())
        if not (text := tokenizer.decode([token])) or "\ufffd" in text
    ]


def weights(arch: str, vocab: int, silent: list[int], seed: int) -> dict[str, torch.Tensor]:
    """Random bfloat16 weights under the names of Hugging Face's checkpoints."""
    dice = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=dice) * scale / columns**0.5

    def mlp(prefix: str) -> dict[str, torch.Tensor]:
        return {
            f"{prefix}.gate_proj.weight": draw(INNER, HIDDEN),
            f"{prefix}.up_proj.weight": draw(INNER, HIDDEN),
            f"{prefix}.down_proj.weight": draw(HIDDEN, INNER),
        }

    # logits spread by 4, and by 0 for silent ids, which are then all but never chosen
    head = draw(vocab, HIDDEN, scale=4.0)
    head[silent] = 0.0
    tensors = {
        "lm_head.weight": head,
        "model.embed_tokens.weight": draw(vocab, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        attention = f"{layer}.self_attn"
        tensors |= {
            f"{layer}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{attention}.q_norm.weight": torch.ones(HEAD_DIM),
            f"{attention}.k_norm.weight": torch.ones(HEAD_DIM),
            f"{attention}.q_proj.weight": draw(HEADS * HEAD_DIM, HIDDEN),
            f"{attention}.k_proj.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{attention}.v_proj.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{attention}.o_proj.weight": draw(HIDDEN, HEADS * HEAD_DIM),
        }
        if arch == "qwen3":
            tensors |= mlp(f"{layer}.mlp")
            continue
        tensors[f"{layer}.mlp.gate.weight"] = draw(EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            tensors |= mlp(f"{layer}.mlp.experts.{expert}")
    return {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}


def config(arch: str, vocab: int, max_len: int) -> dict[str, object]:
    """config.json of the architecture, at this size."""
    known: dict[str, object] = {
        "architectures": ["Qwen3ForCausalLM" if arch == "qwen3" else "Qwen3MoeForCausalLM"],
        "model_type": arch,
        "vocab_size": vocab,
        "max_position_embeddings": max_len,
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": END_OF_TURN,
        "pad_token_id": END_OF_TEXT,
    }
    if arch == "qwen3_moe":
        known |= {
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "moe_intermediate_size": INNER,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    return known


def write(path: Path, **content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a tiny model with random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", choices=["qwen3", "qwen3_moe"], default="qwen3")
    parser.add_argument("--max-len", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = learn_tokenizer(wanted.folder, wanted.max_len)
    vocab = tokenizer.get_vocab_size()
    tensors = weights(wanted.arch, vocab, silent_ids(tokenizer), wanted.seed)
    save_file(tensors, wanted.folder / "model.safetensors", metadata={"format": "pt"})
    write(wanted.folder / "generation_config.json", eos_token_id=[END_OF_TURN, END_OF_TEXT])
    # last, because the tests take a model for complete that has it
    write(wanted.folder / "config.json", **config(wanted.arch, vocab, wanted.max_len))
    print(f"{wanted.folder}: {wanted.arch}, vocabulary {vocab}")


if __name__ == "__main__":
    main()
