"""Tiny folders in the layouts of BGE-M3 and UEmbed: random weights, tokenizers with the published special tokens."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tiny_encoders import Tiny

WORDS = (
    *("a", "an", "the", "on", "in", "of", "and", "two", "red", "boat", "boats", "sea", "dog", "dogs", "cat", "horse"),
    *("beach", "man", "riding", "frisbee", "park", "pizza", "table", "wooden", "near", "ocean", "people", "harbour"),
)
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz,.!?'0123456789")

TEXTS = (
    "a dog on the beach",
    "two dogs and a dog in the park, a DOG!",
    "",
    "the red boat <mask> near </s> the harbour <unk> \u2603 <pad> boat",
    "a man riding a horse on a beach near the ocean and two people, two dogs, a cat and a pizza on a wooden table",
)


def draw(module: Any, seed: int, scale: float = 0.3) -> dict[str, Any]:
    """Weights of a network, N(0, scale^2) by name and seed, of norms around 1; the same in every version of numpy."""
    import torch

    drawn = {}
    for name, value in module.state_dict().items():
        random = np.random.RandomState([seed, *name.encode()])
        # A norm would magnify the rounding of small embeddings.
        factor = 1.0 if "embed_tokens" in name else scale
        array = factor * random.standard_normal(tuple(value.shape)).astype(np.float32)
        scales = "norm" in name.lower() and name.endswith("weight")
        drawn[name] = torch.from_numpy(array + np.float32(scales)) if value.is_floating_point() else value
    return drawn


def write_json(folder: Path, **files: Mapping[str, Any]) -> None:
    """Writes `name.json` for each."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


# ---- BGE-M3


def write_pieces(folder: Path) -> int:
    """A SentencePiece-like tokenizer with the special tokens of XLM-RoBERTa; returns its number of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(token, 0.0) for token in specials] + [(f"\u2581{word}", -5.0) for word in WORDS]
    pieces += [("\u2581", -8.0), *((letter, -10.0) for letter in LETTERS), ("s", -9.0)][: 1 + len(LETTERS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens([*specials, "<mask>"])
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    named = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    names = {f"{key}_token": token for key, token in named.items()}
    inputs = ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def write_bge_m3(folder: Path, seed: int = 3) -> Path:
    """The layout of BAAI/bge-m3, in a new folder: weights of torch, and the maps of both further vectors."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaModel

    folder.mkdir(parents=True, exist_ok=True)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = XLMRobertaConfig(
        vocab_size=write_pieces(folder), max_position_embeddings=66, type_vocab_size=1, **shape, **ids
    )
    config.architectures = ["XLMRobertaModel"]
    config.save_pretrained(folder)
    torch.save(draw(XLMRobertaModel(config), seed), folder / "pytorch_model.bin")
    for name, width in (("sparse_linear", 1), ("colbert_linear", 16)):
        torch.save(draw(torch.nn.Linear(16, width), seed + 1), folder / f"{name}.pt")
    return folder


def make_bge_m3(golden: Path, folder: Path) -> Path:
    """BGE-M3 with random weights, without the map of its third vector."""
    write_bge_m3(folder / "bge-m3")
    (folder / "bge-m3/colbert_linear.pt").unlink()
    return folder / "bge-m3"


# ---- UEmbed

# Rows of each head.
HEADS = (20, 30, 14)
ENDS, VISION = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<|vision_start|>", "<|vision_end|>")
PADS = ("<|image_pad|>", "<|video_pad|>")

# A template that writes what Qwen3.5's writes of a system's and a user's message.
BODY = (
    "{%- macro render(content) %}{% for part in content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|>"
    "<|vision_end|>{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endmacro %}{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{{- render(message.content)|trim }}{{- '<|im_end|>' + '\\n' }}{%- endfor %}"
)
TAIL = (
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is true %}\n        {{- '<think>\\n' }}\n"
    "    {%- else %}\n        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}"
)


def write_bytes(folder: Path, ends: int) -> dict[str, int]:
    """A tokenizer of words and bytes that ends a text with `ends` tokens of end; returns its special tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    terms = [*alphabet, *(f"\u0120{word}" for word in WORDS), "<unknown>"]
    tokenizer = Tokenizer(models.BPE({term: number for number, term in enumerate(terms)}, [], ignore_merges=True))
    words = pre_tokenizers.Split(Regex(r" ?\w+|\s|[^\w\s]"), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence([words, as_bytes]), decoders.ByteLevel()
    tokenizer.add_special_tokens([*ENDS, *VISION, *PADS])
    ids = {token: tokenizer.token_to_id(token) for token in (*ENDS, *VISION, *PADS)}
    end = (ENDS[0], ids[ENDS[0]])
    if ends:
        single = " ".join(["$A", *[ENDS[0]] * ends])
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=[end])
    named = {"image_token": PADS[0], "video_token": PADS[1]}
    named |= {"vision_bos_token": VISION[0], "vision_eos_token": VISION[1]}
    inputs = ["input_ids", "attention_mask"]
    options = {"extra_special_tokens": named, "padding_side": "right", "eos_token": ENDS[0], "pad_token": ENDS[0]}
    tokens = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **options)
    tokens.save_pretrained(folder)
    return ids


def write_uembed(folder: Path, heads: Sequence[int] = HEADS, ends: int | None = None, seed: int = 5) -> Path:
    """The layout of UEmbed, in a new folder; `ends` tokens of end, by default as many as heads."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModel, Qwen3_5Config

    folder.mkdir(parents=True, exist_ok=True)
    ids = write_bytes(folder, len(heads) if ends is None else ends)
    text = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": max(ids.values()) + 8}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096}
    text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    text["layer_types"] = ["linear_attention", "full_attention"]
    text |= {"linear_num_value_heads": 4, "rope_parameters": rope | {"mrope_section": [2, 1, 1]}}
    vision = {"depth": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 20, "out_hidden_size": 32}
    config = Qwen3_5Config(
        text_config=text,
        vision_config={**vision, "num_position_embeddings": 16},
        image_token_id=ids[PADS[0]],
        video_token_id=ids[PADS[1]],
        vision_start_token_id=ids[VISION[0]],
        vision_end_token_id=ids[VISION[1]],
    )
    config.architectures = ["Qwen3_5Model"]
    config.save_pretrained(folder)
    save_file(draw(AutoModel.from_config(config), seed, 0.1), folder / "model.safetensors", {"format": "pt"})
    layers = [torch.nn.Linear(32, rows) for rows in heads]
    drawn = [draw(layer, seed + 1 + number) for number, layer in enumerate(layers)]
    lists = {"sparse_lm_heads": [d["weight"] for d in drawn], "sparse_bias": [d["bias"] for d in drawn]}
    torch.save(lists, folder / "sparse_weights.pt")
    pixels = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    pixels |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    size = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}
    write_json(
        folder,
        sparse_info={"num_eos_tokens": len(heads)},
        preprocessor_config={**pixels, **size, "image_processor_type": "Qwen2VLImageProcessorFast"},
        video_preprocessor_config={**pixels, **size, "video_processor_type": "Qwen3VLVideoProcessor"},
    )
    (folder / "chat_template.jinja").write_text(BODY + TAIL)
    return folder


def make_uembed(golden: Path, folder: Path) -> Path:
    """UEmbed with random weights."""
    return write_uembed(folder / "uembed")


TINY_ENCODERS = {
    "bge-m3": Tiny("bge-m3", make_bge_m3),
    "bge-m3 topk": Tiny("bge-m3", make_bge_m3, {"topk": 3, "query_topk": 2}),
    "uembed": Tiny("uembed", make_uembed),
    "uembed topk": Tiny("uembed", make_uembed, {"topk": 16}),
}
