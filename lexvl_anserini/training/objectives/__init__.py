"""What training minimises: objectives, auxiliary objectives and regularisers, with the tables that recipes name.

contrastive    VDR, SVDR and InfoNCE, and `Encoded`, the batch that they all read
caption_terms  `naming`: which terms the captions of an image contain
distillation   `distil`: the scores of a trained dense pair as targets
regularisers   what keeps vectors sparse
d2s_losses, joint_losses   the objectives of D2S and of Joint; no recipe names them yet
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from lexvl_anserini.training.objectives.caption_terms import naming
from lexvl_anserini.training.objectives.contrastive import info_nce, svdr, vdr
from lexvl_anserini.training.objectives.distillation import distil
from lexvl_anserini.training.objectives.regularisers import flops, l1

OBJECTIVES: Mapping[str, Callable[..., Tensor]] = {"vdr": vdr, "svdr": svdr, "info_nce": info_nce}
AUXILIARIES: Mapping[str, Callable[..., Tensor]] = {"naming": naming, "distil": distil}
REGULARISERS: Mapping[str, Callable[[Tensor], Tensor]] = {"l1": l1, "flops": flops}
# Objectives whose dimensions must be terms.
LEXICAL = frozenset({"vdr", "svdr", "naming"})
# Objectives whose documents must be texts; the pairs that recipes train read images.
OF_TEXTS = frozenset({"svdr"})
