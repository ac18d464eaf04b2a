"""Dense vectors cut to their first dimensions (Matryoshka). Loads no model library."""

from __future__ import annotations

import numpy as np

from lexvl_anserini.ground.errors import UsageError


def cut(vectors: np.ndarray, dimensions: int | None, normalise: bool) -> np.ndarray:
    """The first `dimensions` of each vector (None: all), then of unit length if `normalise`; float32 [n, D].

    Models trained with Matryoshka representations keep most of their quality. A vector of zeros stays zeros.
    """
    vectors = vectors[:, :dimensions].astype(np.float32, copy=False)
    if not normalise:
        return np.ascontiguousarray(vectors)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def checked_dimensions(dimensions: int | None, width: int) -> int | None:
    """`dimensions`, after checking that the model's vectors have as many."""
    if dimensions is not None and not 1 <= dimensions <= width:
        raise UsageError(f"dimensions {dimensions}: expected 1 to {width}, the width of this model's vectors")
    return dimensions
