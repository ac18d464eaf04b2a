"""UEmbed: w_j = log(1 + relu(<w_j, h_n> + b_j)), where the token of end n has the head of dimension j (`splade.last`).

Song et al., arXiv 2608.02583, equations 3 and 4. A Qwen3.5 reads a text, or an image as patches, in a chat of an
instruction and one message; N tokens of end follow, each with a head of its own (`sparse_weights.pt`, whose number N is
in `sparse_info.json`). Names, prompt and sizes of images are those of the authors' code and of MTEB's (2.26.24). A
dimension stands for a group of tokens that no published file names, so terms are `uembed000000` and so on.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.encoders.checkpoints.find import CHAT_TEMPLATE, Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import complain, read_weights
from lexvl_anserini.encoders.encoder import Encoder, ReadsImages
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import complain_of_report, from_pretrained
from lexvl_anserini.encoders.parts.sparsify import keep_top
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, load_tokenizer
from lexvl_anserini.encoders.parts.towers import (
    Backbone,
    Batch,
    Composition,
    Direction,
    Head,
    LexicalTower,
    TextTower,
    in_direction,
    log1p_relu,
    pool_last,
    with_topk,
)
from lexvl_anserini.ground.errors import FAIL, CheckpointError, InstallationError, OnError, UsageError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.machine import find_package, find_version
from lexvl_anserini.ground.records import Vocabulary
from lexvl_plugins.models.patches import Patches, read_patches

MODEL_TYPE = "qwen3_5"
SPARSE_INFO, SPARSE_WEIGHTS = "sparse_info.json", "sparse_weights.pt"
# The language model's head, and what predicts further tokens in training.
UNUSED = re.compile(r"(model\.)?(mtp|lm_head)\..*")
INSTRUCTION = "Represent the user's input."

# What Qwen3.5's chat templates write around a system's and a user's message, and before an answer: there, what follows
# `else` is written where nobody says whether to think.
OPENING, CLOSING = "<|im_start|>{}\n", "<|im_end|>\n"
LITERAL = r"\{\{-?\s*'((?:[^'\\]|\\n)*)'\s*-?\}\}\s*"
THINKING = r"if enable_thinking is defined and enable_thinking is (?:true|false)\s*-?%\}\s*"
ELSE, END = r"\{%-?\s*else\s*-?%\}\s*", r"\{%-?\s*endif\s*-?%\}\s*"
ANSWER = re.compile(
    rf"if add_generation_prompt\s*-?%\}}\s*{LITERAL}(?:\{{%-?\s*{THINKING}{LITERAL}(?:{ELSE}{LITERAL})?{END})?{END}$"
)
INPUT = "{input}"
IMAGE = "<|vision_start|>{}<|vision_end|>"


def load_uembed(
    source: Source,
    direction: Direction = "text-to-image",
    instruction: str = INSTRUCTION,
    prompt: str | None = None,
    topk: int | None = None,
    query_topk: int | None = None,
    max_length: int = 8192,
) -> Encoder:
    """UEmbed: w_j = log(1 + relu(<w_j, h_n> + b_j)), where the token of end n has the head of dimension j.

    Both sides are one network, in float32.

    Args:
        source: the folder of a Qwen3.5 with `sparse_info.json` and `sparse_weights.pt` beside its weights.
        direction: the modalities of queries and documents.
        instruction: of queries, for example "Retrieve images relevant to the query."; documents have the default.
        prompt: what stands around an input, with {instruction} and {input}; default what the folder's chat template
            makes of both.
        topk: dimensions kept per document; default all positive ones.
        query_topk: the same for queries; default `topk`.
        max_length: tokens of a text with its prompt; of a longer one the end of the prompt is cut too, as published.
    """
    folder = check_backbone(source.required("uembed"))
    ends = read_ends(folder)
    shape = read_prompt(folder) if prompt is None else prompt
    if shape.count(INPUT) != 1:
        raise UsageError(f"prompt {shape!r:.80}: expected {INPUT} once, where the text or the image is")
    tokenizer = load_tokenizer(source.tokenizer_folder())
    model, head = load_network(folder, ends, source.device)
    if (size := model.config.text_config.vocab_size) < len(tokenizer):
        raise CheckpointError(f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model {size}")
    patches = read_patches(folder, model.config.vision_config)
    count = len(head.matrix)
    terms = Vocabulary([f"uembed{number:06d}" for number in range(count)], "the heads")
    columns = TokenColumns(terms, np.full(0, -1, dtype=np.int64))  # tokens have no dimension
    network = EndStates(model, ends)

    def build_towers(instructed: str) -> tuple[Any, Any]:
        before, after = shape.replace("{instruction}", end_sentence(instructed)).split(INPUT)
        reader = ChatReader(tokenizer, max_length, after=after, prompt=before)
        if reader.special_tokens != ends:
            adds = f"the tokenizer adds {reader.special_tokens} tokens to a text, expected {ends} as in {SPARSE_INFO}"
            raise CheckpointError(f"{folder}: {adds}; download the newest revision")

        def compose(k: int | None) -> Composition:
            return Composition(network, head, log1p_relu, pool_last, keep_top(k))

        return (
            lambda k: EndTexts(compose(k), reader, columns, source.device),
            lambda k: EndImages(compose(k), patches, reader, columns, source.device),
        )

    queries, documents = build_towers(instruction), build_towers(INSTRUCTION)
    sides = in_direction(direction, *queries)[0], in_direction(direction, *documents)[1]
    query, document = with_topk(sides, topk, query_topk)
    return Encoder("uembed", "impact", query=query, document=document)


def check_backbone(checkpoint: Checkpoint) -> Path:
    """Returns the folder of a Qwen3.5, which this installation's transformers has."""
    folder, transformers = checkpoint.folder, find_package("transformers")
    if transformers and not (transformers / "models" / MODEL_TYPE).is_dir():
        release = f"transformers {find_version('transformers')}"
        raise InstallationError(f"{release} has no Qwen3.5, which uembed needs; pip install 'transformers>=5.4'")
    if (kind := checkpoint.config().get("model_type")) != MODEL_TYPE:
        raise CheckpointError(f"{folder}: a {kind!r:.80} model, expected {MODEL_TYPE!r} of UEmbed")
    return folder


def read_ends(folder: Path) -> int:
    """The number of tokens of end, each with a head."""
    for name in (SPARSE_INFO, SPARSE_WEIGHTS):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: no {name}, which UEmbed's sparse vectors need; download the whole folder")
    ends = read_json(folder / SPARSE_INFO, "number of heads", CheckpointError).get("num_eos_tokens")
    if type(ends) is not int or not 0 < ends <= 1000:
        raise CheckpointError(f"{folder / SPARSE_INFO}: num_eos_tokens is {ends!r:.80}, expected 1 to 1,000")
    return ends


def read_prompt(folder: Path) -> str:
    """What a chat template of Qwen3.5's form makes of an instruction and an input, with {instruction} and {input}.

    A template is a program, which is not run: those of this form differ in how an answer begins.
    """
    path = folder / CHAT_TEMPLATE
    template = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    answer = ANSWER.search(template)
    if answer is None or not re.search(r"'<\|im_start\|>'|'<\|im_start\|>system\\n'", template):
        raise CheckpointError(f"{path}: has not the form of Qwen3.5's chat template; give the option prompt")
    written = (answer[1] + (answer[3] or "")).replace("\\n", "\n")
    messages = [OPENING.format(role) + part + CLOSING for role, part in (("system", "{instruction}"), ("user", INPUT))]
    return "".join([*messages, written])


def end_sentence(instruction: str) -> str:
    """The instruction with a mark of punctuation at its end."""
    text = instruction.strip() or INSTRUCTION
    return text if unicodedata.category(text[-1]).startswith("P") else f"{text}."


@dataclass(frozen=True)
class EndHead(Head):
    """Heads of several positions, one below the other in `matrix` [V, D] and `bias` [V]."""

    rows: Sequence[int] = ()


def load_network(folder: Path, ends: int, device: torch.device) -> tuple[Any, EndHead]:
    """The network without the language model's head, and the heads of its tokens of end."""
    import transformers

    model: Any
    model, info = from_pretrained(transformers.AutoModel, folder)
    complain_of_report(str(folder), info, info["missing_keys"], UNUSED)
    return model.to(device), read_heads(folder / SPARSE_WEIGHTS, ends, model.config.text_config.hidden_size, device)


def read_heads(path: Path, ends: int, width: int, device: torch.device) -> EndHead:
    """A head for each token of end."""
    stored = read_weights(path)
    names = [(f"sparse_lm_heads.{number}", f"sparse_bias.{number}") for number in range(ends)]
    known = {name for pair in names for name in pair}
    misshaped = []
    for pair in names if known <= stored.keys() else ():
        matrix, bias = (list(stored[name].shape) for name in pair)
        if len(matrix) != 2 or matrix[1] != width or bias != matrix[:1]:
            misshaped.append(f"{pair[0]} {matrix} with a bias {bias}, expected [rows, {width}] with [rows]")
    complain(str(path), known - stored.keys(), stored.keys() - known, misshaped)
    rows, biases = (torch.cat([stored[name].float() for name in part]).to(device) for part in zip(*names, strict=True))
    return EndHead(nn.Identity(), rows, biases, [len(stored[name]) for name, _ in names])


class EndStates(nn.Module):
    """A Qwen3.5 from token ids, attention and maybe an image to the states of the last `ends` tokens."""

    def __init__(self, model: Any, ends: int):
        super().__init__()
        self.model, self.ends = model, ends

    def forward(
        self, ids: Tensor, attention: Tensor, patches: Tensor | None = None, grid: Tensor | None = None
    ) -> Tensor:
        """States [B, N, D] of token ids and attention [B, L], padded at the end; patches [P, C] on a grid [1, 3]."""
        seen: Mapping[str, Tensor] = {}
        if patches is not None and grid is not None:
            kinds = (ids == self.model.config.image_token_id).int()
            seen = {"pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": kinds}
        states = self.model(input_ids=ids, attention_mask=attention, use_cache=False, **seen).last_hidden_state
        last = attention.sum(dim=1, keepdim=True) - self.ends + torch.arange(self.ends, device=ids.device)  # [B, N]
        picked: Tensor = states[torch.arange(len(ids), device=ids.device)[:, None], last]
        return picked


class EndTower(LexicalTower):
    """Each token of end gives the dimensions of its head."""

    def pool_batch(self, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
        """Weights before the sparsifier, float32 [B, V]."""
        head = self.composition.head
        assert isinstance(head, EndHead)
        assert head.bias is not None
        states = self.composition.backbone(*inputs).to(head.matrix.dtype)  # [B, N, D]
        parts = zip(states.unbind(1), head.matrix.split(head.rows), head.bias.split(head.rows), strict=True)
        return self.composition.activation(torch.cat([linear(*part) for part in parts], dim=1).float())


class EndTexts(EndTower, TextTower):
    """Texts in their prompt to lexical vectors."""


@dataclass(frozen=True)
class ChatReader(TextReader):
    """Tokenises texts between `prompt` and `after`, without blanks around them."""

    after: str = ""

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids per text with its prompt and the tokens of end."""
        return super().__call__([f"{text.strip()}{self.after}" for text in texts])


class EndImages(ReadsImages, EndTower):
    """Images in their prompt to lexical vectors, one per forward pass: they have different numbers of patches."""

    def __init__(
        self,
        composition: Composition,
        patches: Patches,
        reader: ChatReader,
        columns: TokenColumns,
        device: torch.device,
    ):
        super().__init__(composition, columns, device)
        self.patches, self.reader = patches, reader

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """In the order of the inputs; threads decode and resize them beside the forward pass."""
        for position, image in read_images(inputs, on_error=on_error, prepare=self.patches.resize):
            pixels, grid = self.patches.cut(torch.from_numpy(image).to(self.device))
            ids = torch.tensor(self.tokenise(int(grid.prod()) // self.patches.merge**2)).to(self.device)
            yield Batch(np.array([position], dtype=np.int64), (ids, torch.ones_like(ids), pixels, grid))

    def tokenise(self, cells: int) -> list[list[int]]:
        """Token ids [1, L] of the prompt with an image of so many cells."""
        backbone: Backbone = self.composition.backbone
        assert isinstance(backbone, EndStates)
        number = backbone.model.config.image_token_id
        rows = self.reader([IMAGE.format(self.reader.tokenizer.convert_ids_to_tokens(number) * cells)])
        if rows[0].count(number) != cells:
            what = f"an image of {cells} cells and the prompt have more than the {self.reader.max_length} tokens"
            raise UsageError(f"{what} of max_length; give a larger one")
        return rows
