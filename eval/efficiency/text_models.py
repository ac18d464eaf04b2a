"""Text encoders of BERT-base's shape with random weights, as each compared system loads them; runs in children."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.texts.tokens import FIRST_WORD_ID, load_tokenizer
from lexvl_anserini.ground.files import read_json

from .encode import Encoding, alternate, copy_tokenizer, memory, model_folder
from .processes import Stopwatch

# Tokens of MS MARCO's passages, approximately: lognormal, median 70.
MEDIAN_TOKENS, SIGMA, MOST_TOKENS = 70, 0.45, 256
SPECIAL_TOKENS = 2

# Positive terms of a document of a trained SPLADE; random weights would give half of the vocabulary.
SPLADE_TERMS = 200
VDR_TERMS = 768

# The number of times that a product is computed, and the shapes of its factors.
Product = tuple[int, tuple[int, ...], tuple[int, ...]]


def make(
    folder: str, shape: str, documents: int, tokens: int, corpus: str | None, data_dir: str | None, seed: int
) -> dict[str, Any]:
    """Writes the model if it does not exist; returns its folder and the texts of each case."""
    path = model_folder(folder)
    if not (path / "config.json").is_file():
        write_model(path, seed)
    tokenizer = load_tokenizer(path)
    random = np.random.default_rng(seed)
    mixed = (
        real_texts(corpus, data_dir, documents)
        if corpus
        else synthetic_texts(tokenizer, mixed_lengths(random, documents), random)
    )
    equal = synthetic_texts(tokenizer, [tokens] * documents, random)
    return {"folder": folder, "cases": {f"{tokens} tokens": equal, "mixed lengths": mixed}}


def write_model(folder: Path, seed: int, **sizes: Any) -> None:
    """A masked-LM folder of BERT-base's shape (or of other `sizes`) with random weights and BERT's tokenizer.

    The decoder's bias is lowered so that about `SPLADE_TERMS` terms of a text are positive, as after training.
    """
    import transformers

    tokenizer = copy_tokenizer(folder)
    torch.manual_seed(seed)
    model: Any = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer), **sizes)).eval()
    [text] = synthetic_texts(tokenizer, [64], np.random.default_rng(seed))
    with torch.inference_mode():
        peaks = model(**tokenizer([text], return_tensors="pt")).logits.amax(dim=1)  # [1, V]
    with torch.no_grad():
        model.get_output_embeddings().bias -= peaks[0].topk(SPLADE_TERMS).values[-1]
    model.save_pretrained(folder)


def synthetic_texts(tokenizer: Any, lengths: Sequence[int], random: np.random.Generator) -> list[str]:
    """Texts of random words of one token each; a length includes the two special tokens."""
    words = [
        token
        for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        if number >= FIRST_WORD_ID and len(token) > 2 and token.isascii() and token.isalpha()
    ]
    return [" ".join(random.choice(words, max(1, length - SPECIAL_TOKENS))) for length in lengths]


def mixed_lengths(random: np.random.Generator, count: int) -> list[int]:
    """Numbers of tokens with the distribution of passages."""
    lengths = random.lognormal(np.log(MEDIAN_TOKENS), SIGMA, count)
    return np.clip(np.rint(lengths), SPECIAL_TOKENS + 1, MOST_TOKENS).astype(int).tolist()


def real_texts(corpus: str, data_dir: str | None, count: int) -> list[str]:
    """The first texts of a corpus."""
    from lexvl_anserini.data.dataset import load_dataset

    documents = load_dataset(corpus, data_dir=data_dir, direction="text-to-text").documents()
    return [document.contents for document in islice(documents, count)]


def compare(
    shape: str, folder: str, inputs: list[str], batch_size: int, threads: int, systems: list[str], repeats: int
) -> dict[str, Any]:
    """Costs per system and round, the difference of their vectors from ours, and the floor of the matrix products."""
    torch.set_num_threads(threads)
    compared = alternate({name: LOADERS[name](shape, folder) for name in systems}, inputs, batch_size, repeats)
    figures: dict[str, Any] = {}
    lengths = token_lengths(folder, inputs)
    figures["mean_tokens"] = round(float(np.mean(lengths)), 1)
    if len(set(lengths)) == 1:
        config = read_json(Path(folder) / "config.json", "model configuration")
        floor_s = matrix_product_seconds(config, len(inputs), lengths[0], batch_size, shape)
        figures["matrix_product_floor_cpu_s"] = round(floor_s, 2)
        for name, rounds in compared.costs.items():
            figures[f"{name}_over_floor"] = round(min(cost["cpu_s"] for cost in rounds) / floor_s, 2)
    return {"costs": compared.costs, "differences": compared.differences, "figures": figures}


def token_lengths(folder: str, texts: Sequence[str]) -> list[int]:
    """Tokens per text, as the systems count them."""
    ids = load_tokenizer(Path(folder))(list(texts), truncation=True, max_length=MOST_TOKENS)["input_ids"]
    return [len(row) for row in ids]


def peak(shape: str, folder: str, inputs: list[str], batch_size: int, threads: int, system: str) -> dict[str, int]:
    """Resident memory of the loaded system, and the additional memory while it encodes."""
    torch.set_num_threads(threads)
    return memory(LOADERS[system](shape, folder), inputs, batch_size)


def load_ours(shape: str, folder: str) -> Encoding:
    """Our encoder, through the public loader."""
    model = load_encoder(shape, checkpoint=folder, device="cpu", max_length=MOST_TOKENS)
    return Encoding(model.encode_document, as_lexical(model.document).dense_weights)


def load_sentence_transformers(shape: str, folder: str) -> Encoding:
    """SparseEncoder on the same folder."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(folder, device="cpu")
    model.max_seq_length = MOST_TOKENS

    def vectors(texts: Sequence[str], batch_size: int) -> Any:
        return model.encode(list(texts), batch_size=batch_size, show_progress_bar=False)

    return Encoding(vectors, lambda texts: vectors(texts, len(texts)).to_dense().numpy())


def load_naive(shape: str, folder: str) -> Encoding:
    """The formula as in the code of papers: all logits of a batch at once, batches in the order of the texts."""
    import transformers

    tokenizer = load_tokenizer(Path(folder))
    model: Any = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    formula = FORMULAS[shape](model)

    @torch.inference_mode()
    def pooled(texts: Sequence[str]) -> Tensor:
        batch = tokenizer(list(texts), padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt")
        return formula(batch["input_ids"], batch["attention_mask"])

    def vectors(texts: Sequence[str], batch_size: int) -> sparse.csr_matrix:
        rows = []
        for start in range(0, len(texts), batch_size):
            weights = pooled(texts[start : start + batch_size])
            if shape == "vdr":
                least = weights.topk(VDR_TERMS, dim=1).values[:, -1:]
                weights = torch.where(weights >= least, weights, 0.0)
            rows.append(sparse.csr_matrix(weights.numpy()))
        return sparse.vstack(rows, format="csr")

    return Encoding(vectors, lambda texts: pooled(texts).numpy())


def splade_formula(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Max over positions of log(1 + relu(logit)) times mask."""

    def formula(ids: Tensor, mask: Tensor) -> Tensor:
        logits = model(input_ids=ids, attention_mask=mask).logits  # [B, L, V]
        return (torch.log1p(torch.relu(logits)) * mask.unsqueeze(-1)).amax(dim=1)  # [B, V]

    return formula


def vdr_formula(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Max over unmasked positions of elu1p(<LayerNorm(h), E>), E the input embeddings of word tokens."""
    embeddings = model.get_input_embeddings().weight[FIRST_WORD_ID:]

    def formula(ids: Tensor, mask: Tensor) -> Tensor:
        hidden = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state  # [B, L, D]
        normed = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:], eps=1e-5)
        logits = (normed @ embeddings.T).masked_fill(mask.unsqueeze(-1) == 0, -torch.inf)  # [B, L, V]
        return (torch.nn.functional.elu(logits) + 1).amax(dim=1)  # [B, V]

    return formula


FORMULAS: Mapping[str, Callable[[Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "splade": splade_formula,
    "vdr": vdr_formula,
}

LOADERS: Mapping[str, Callable[[str, str], Encoding]] = {
    "ours": load_ours,
    "sentence-transformers": load_sentence_transformers,
    "naive": load_naive,
}


def products(config: Mapping[str, Any], batch: int, length: int, shape: str) -> list[Product]:
    """The matrix products of one forward pass of a BERT with that configuration.

    Args:
        config: of the model.
        batch: texts.
        length: tokens per text.
        shape: splade has a transform before its head, vdr omits the dimensions of unused tokens.
    """
    layers, width, inner = config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]
    heads, size, rows = config["num_attention_heads"], config["vocab_size"], batch * length
    head = width // heads
    found: list[Product] = [
        (4 * layers, (rows, width), (width, width)),
        (layers, (rows, width), (width, inner)),
        (layers, (rows, inner), (inner, width)),
        (layers, (batch * heads, length, head), (batch * heads, head, length)),
        (layers, (batch * heads, length, length), (batch * heads, length, head)),
        (1, (rows, width), (width, size - (FIRST_WORD_ID if shape == "vdr" else 0))),
    ]
    return [*found, (1, (rows, width), (width, width))] if shape == "splade" else found


@torch.inference_mode()
def matrix_product_seconds(config: Mapping[str, Any], texts: int, length: int, batch_size: int, shape: str) -> float:
    """CPU time of the matrix products of encoding alone: no system that computes them can be faster."""
    total = 0.0
    # The last batch may be smaller.
    sizes = [batch_size] * (texts // batch_size) + ([texts % batch_size] if texts % batch_size else [])
    for batch in sorted(set(sizes)):
        for count, left, right in products(config, batch, length, shape):
            factors = torch.randn(left), torch.randn(right)
            out = torch.empty(*left[:-1], right[-1])
            times = []
            for _ in range(3):
                with Stopwatch() as watch:
                    torch.matmul(*factors, out=out)
                times.append(watch.cpu_s)
            total += sizes.count(batch) * count * min(times)
    return total
