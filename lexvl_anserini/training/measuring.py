"""How good a pair is while it is trained: hit rates over a validation split, as its encoder would be searched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.parts.tokens import Columns
from lexvl_anserini.encoders.parts.vision import Pixels
from lexvl_anserini.errors import UsageError
from lexvl_anserini.training.batches import text_batch
from lexvl_anserini.training.data import Tokens
from lexvl_anserini.training.objectives import bag_of, masked
from lexvl_anserini.training.pairs import KINDS, Pair, words_only
from lexvl_anserini.training.recipe import Model
from lexvl_anserini.training.words import CHARACTERS

BATCH = 256
CUTS = (1, 5, 10)


@dataclass(frozen=True)
class Validation:
    """A validation split: pixels uint8 [n, R, R, 3] and the tokens of their captions."""

    pixels: np.ndarray
    tokens: Tokens
    columns: Columns
    prepare: Pixels

    @torch.inference_mode()
    def measure(self, pair: Pair, model: Model) -> dict[str, float]:
        """Hit rates in percent: text-to-image and image-to-text, and of the alpha mode where the pair is lexical."""
        device, lexical = pair.log_temperature.device, KINDS[model.kind].lexical
        pair.eval()
        pieces = []
        for start in range(0, len(self.pixels), BATCH):
            crops = torch.from_numpy(np.array(self.pixels[start : start + BATCH])).to(device)
            pieces.append(pair.encoder_p(self.prepare.normalise(crops)))
        images = torch.cat(pieces)
        owner = torch.from_numpy(np.repeat(np.arange(len(self.pixels)), np.diff(self.tokens.first))).to(device)
        texts, bags = [], []
        for start in range(0, len(owner), BATCH):
            chosen = np.arange(start, min(start + BATCH, len(owner)))
            batch = text_batch(self.tokens, chosen, self.columns, device)
            encoded = pair.encoder_q(batch)
            if lexical:
                own = batch.bag[:, len(CHARACTERS) :]
                encoded = masked(words_only(encoded), own, model.topk)
                bags.append(bag_of(own, normalised=False))
            texts.append(encoded)
        pair.train()
        if lexical:
            images = masked(words_only(images), None, model.topk)
        text = torch.cat(texts)
        found = {f"t2i_R@{k}": rate for k, rate in hit_rates(text @ images.T, owner).items()}
        found |= {f"i2t_R@{k}": rate for k, rate in backward_rates(images @ text.T, owner).items()}
        if bags:
            alpha = hit_rates(torch.cat(bags) @ images.T, owner)
            found |= {f"alpha_t2i_R@{k}": rate for k, rate in alpha.items()}
            found["mean_text_terms"] = round(float((text > 0).sum(dim=1).float().mean()), 1)
        return found


def hit_rates(scores: Tensor, owner: Tensor) -> dict[int, float]:
    """Share in percent of queries [N] whose document `owner` [N] is among the first k by scores [N, M].

    Raises:
        UsageError: scores that are no numbers.
    """
    return _shares(ranks(scores, owner))


def backward_rates(scores: Tensor, owner: Tensor) -> dict[int, float]:
    """Share in percent of images [M] with a caption of theirs among the first k by scores [M, N].

    Raises:
        UsageError: scores that are no numbers.
    """
    mine = owner[None, :] == torch.arange(len(scores), device=scores.device)[:, None]
    best = scores.masked_fill(~mine, -torch.inf).amax(dim=1, keepdim=True)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    first = places.masked_fill(~mine | (scores != best), scores.shape[1] - 1).amin(dim=1)
    return _shares(ranks(scores, first))


def ranks(scores: Tensor, place: Tensor) -> Tensor:
    """How many columns come before column `place` [N] of each row of scores [N, M], equal scores by their position.

    Raises:
        UsageError: scores that are no numbers.
    """
    if not torch.isfinite(scores).all():
        raise UsageError("validation: scores that are no numbers; lower the learning rate or the clip")
    own = scores.gather(1, place[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < place[:, None]
    return ((scores > own) | ((scores == own) & before)).sum(dim=1)


def _shares(rank: Tensor) -> dict[int, float]:
    return {k: round(100 * float((rank < k).float().mean()), 2) for k in CUTS}
