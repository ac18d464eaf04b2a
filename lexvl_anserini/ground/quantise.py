"""Float weights -> integer impacts: impact = round(weight * scale), clipped to 2^bits - 1, zeros dropped.

One `Quantiser` has both sides. The manifest saves it, so that an index and its queries always agree. Lucene sums scores
in float32, which is exact below 2^24: no score may reach that value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from lexvl_anserini.ground.errors import ArtefactError, LexvlError, UsageError
from lexvl_anserini.ground.records import SCORE_LIMIT, QuantiserEntry, TermWeights, Vocabulary, count_bits_over

if TYPE_CHECKING:
    from scipy import sparse

# calibrated  scale = (2^bits - 1) / the percentile of a sample's largest weights
# peak        each vector by itself: its largest weight becomes 2^bits - 1 (the ranking of a query does not change)
# fixed       the given scale
# binary      every weight becomes 1
Scheme = Literal["calibrated", "peak", "fixed", "binary"]


class CsrRows(NamedTuple):
    """The arrays of a CSR matrix [n, V], for a process that answers one query: importing scipy takes longer than that.

    Attributes:
        data: [nnz], the stored values.
        indices: [nnz], their columns, ascending in each row.
        indptr: [n + 1], row i has the entries indptr[i]..indptr[i + 1].
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]


Matrix: TypeAlias = "CsrRows | sparse.csr_matrix"


@dataclass(frozen=True)
class SideQuantiser:
    """How one side (documents or queries) is quantised.

    Attributes:
        scheme: see `Scheme`.
        bits: impacts are clipped to 2^bits - 1; None does not clip (only `fixed`).
        scale: impacts per unit of weight; None before calibration, and for peak and binary.
        percentile: of the per-vector maxima of the sample that becomes the largest impact (calibrated).
    """

    scheme: Scheme
    bits: int | None = 8
    scale: float | None = None
    percentile: float = 100.0

    def __post_init__(self) -> None:
        schemes, bits, scale = get_args(Scheme), self.bits, self.scale
        problems = {
            f"unknown quantiser scheme {self.scheme!r}; known: {', '.join(schemes)}": self.scheme not in schemes,
            f"{bits} bits: expected 1 to 16": bits is not None and not 1 <= bits <= 16,
            "quantiser 'fixed' needs a scale, for example 100": scale is None and self.scheme == "fixed",
            f"scale {scale}: expected a number above 0": scale is not None and not 0 < scale < np.inf,
            f"quantiser {self.scheme!r} needs bits": bits is None and self.scheme in ("calibrated", "peak"),
            f"percentile {self.percentile}: expected above 0 and at most 100": not 0 < self.percentile <= 100,
        }
        if problem := next((text for text, applies in problems.items() if applies), None):
            raise UsageError(problem)

    @property
    def largest(self) -> int | None:
        """The largest possible impact, None if unbounded."""
        if self.scheme == "binary":
            return 1
        return None if self.bits is None else (1 << self.bits) - 1

    def calibrate(self, sample: Matrix) -> SideQuantiser:
        """Sets the scale from sample vectors [n, V]; schemes other than `calibrated` stay as they are.

        A sample without any weight gives scale 1.
        """
        if self.scheme != "calibrated":
            return self
        assert self.largest is not None
        peaks = compute_row_max(sample)
        peaks = peaks[peaks > 0]
        top = float(np.percentile(peaks, self.percentile)) if len(peaks) else float(self.largest)
        return replace(self, scale=self.largest / top)


class Quantised(NamedTuple):
    """Integer vectors, and how many postings were cut to the largest impact, and rounded to 0."""

    impacts: Any  # CSR [n, V] int64 >= 1, of the type of the weights
    clipped: int
    dropped: int

    def by_term(self, terms: Sequence[str]) -> list[dict[str, int]]:
        """One {term: impact} for each vector; `terms` names the dimensions [V]."""
        impacts = self.impacts
        bounds = zip(impacts.indptr[:-1], impacts.indptr[1:], strict=True)
        return [
            {terms[d]: w for d, w in zip(impacts.indices[a:b].tolist(), impacts.data[a:b].tolist(), strict=True)}
            for a, b in bounds
        ]

    def in_vocabulary(self, vocabulary: Vocabulary) -> list[TermWeights]:
        """As `by_term`, whose terms are looked up when they are read; `vocabulary` names the dimensions [V]."""
        dimensions, weights, ends = self.impacts.indices, self.impacts.data, self.impacts.indptr.tolist()
        bounds = zip(ends, ends[1:], strict=False)
        return [TermWeights(vocabulary, dimensions[a:b], weights[a:b]) for a, b in bounds]


class TooLargeImpact(LexvlError):
    """An impact that Lucene's sums could not hold exactly, or a weight that is no number from 0 on, with its place."""

    def __init__(self, impact: float, row: int, dimension: int):
        reason = " reaches 2^24; lower the scale or give bits to clip"
        reason = reason if impact > 0 else ", expected 0 or more; the model is broken"
        super().__init__(f"an impact of {impact:.0f}{reason}")
        self.row, self.dimension = row, dimension


@dataclass(frozen=True)
class Quantiser:
    """Both sides; by default documents are calibrated to 8 bits, and the largest weight of each query becomes 255."""

    document: SideQuantiser = SideQuantiser("calibrated", 8)
    query: SideQuantiser = SideQuantiser("peak", 8)

    @classmethod
    def named(
        cls,
        scheme: str = "calibrated",
        bits: int = 8,
        query_bits: int = 8,
        scale: float | None = None,
        percentile: float = 100.0,
    ) -> Quantiser:
        """The quantiser of the command line.

        Args:
            scheme: calibrated; fixed (documents by `scale`, clipped); naver (both sides round(100 w), not clipped, as
                the SPLADE authors export).
            bits: of document impacts.
            query_bits: of query weights; lowered per query where a score could reach 2^24.
            scale: impacts per unit of weight, for `fixed`.
            percentile: for `calibrated`; below 100 clips outliers for a finer scale.
        """
        if scale is not None and scheme != "fixed":
            raise UsageError(f"a scale is for the quantiser 'fixed'; {scheme!r} has its own")
        if scheme == "naver":
            return cls(SideQuantiser("fixed", None, 100.0), SideQuantiser("fixed", None, 100.0))
        query = SideQuantiser("peak", query_bits)
        if scheme == "fixed":
            return cls(SideQuantiser("fixed", bits, scale), query)
        if scheme != "calibrated":
            raise UsageError(f"unknown quantiser {scheme!r}; known: calibrated, fixed, naver")
        return cls(SideQuantiser("calibrated", bits, percentile=percentile), query)

    def for_towers(self, query_binary: bool, document_binary: bool) -> Quantiser:
        """The quantiser, with the scheme "binary" for each tower whose weights are all 1."""
        binary = SideQuantiser("binary", 1)
        return Quantiser(binary if document_binary else self.document, binary if query_binary else self.query)

    def calibrate(self, document_weights: Matrix) -> Quantiser:
        """Sets the document scale from a sample of document vectors [n, V]."""
        return replace(self, document=self.document.calibrate(document_weights))

    def settle(self) -> Quantiser:
        """The quantiser with the scale that calibration found as a given one, for further documents."""
        calibrated = self.document.scheme == "calibrated" and self.document.scale is not None
        return replace(self, document=replace(self.document, scheme="fixed")) if calibrated else self

    def documents(self, weights: Matrix) -> Quantised:
        """CSR [n, V] float weights -> impacts; TooLargeImpact where one would reach 2^24."""
        side = self.document
        if side.scheme == "binary":
            return ones(weights)
        if side.scheme == "peak":
            scales = expand_rows(weights, compute_peak_scales(weights, side.largest or 1))
            return quantise_rows(weights, scales, side.largest)
        if side.scale is None:
            raise LexvlError("the quantiser is not calibrated; call calibrate with a sample of document vectors")
        return quantise_rows(weights, side.scale, side.largest)

    def queries(self, weights: Matrix, max_impact: int | None = None) -> Quantised:
        """CSR [n, V] float weights -> integer query weights.

        With `peak`, a query whose score could reach 2^24 against documents of `max_impact` gets fewer bits. Default of
        `max_impact`: the largest impact of the document side; 1 if that is unbounded.
        """
        side = self.query
        most = max_impact or self.document.largest or 1
        if side.scheme == "binary":
            return bound_impacts(ones(weights), most)
        if side.scheme != "peak":
            assert side.scale is not None
            return bound_impacts(quantise_rows(weights, side.scale, side.largest), most)
        assert side.bits is not None
        top = np.full(weights.shape[0], (1 << side.bits) - 1, dtype=np.float64)
        for _ in range(side.bits):
            result = quantise_rows(weights, expand_rows(weights, compute_peak_scales(weights, top)), side.largest)
            over = sum_rows(result.impacts) * most >= SCORE_LIMIT
            if not over.any():
                break
            top[over] = (top[over] - 1) // 2  # one bit less
        return bound_impacts(result, most)

    def to_json(self) -> QuantiserEntry:
        """For the manifest."""
        return QuantiserEntry(document=asdict(self.document), query=asdict(self.query))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quantiser:
        """From the manifest."""
        try:
            return cls(SideQuantiser(**data["document"]), SideQuantiser(**data["query"]))
        except (KeyError, TypeError, UsageError) as error:
            raise ArtefactError(f"manifest: not a quantiser of this version ({error}); encode again") from error


def compute_row_max(matrix: Matrix) -> np.ndarray:
    """Largest stored value per row, 0 for an empty one; float64 [n]."""
    result = np.zeros(matrix.shape[0])
    np.maximum.at(result, expand_rows(matrix, np.arange(matrix.shape[0])), matrix.data)
    return result


def sum_rows(matrix: Matrix) -> np.ndarray:
    """Sum per row."""
    result = np.zeros(matrix.shape[0], matrix.data.dtype)
    np.add.at(result, expand_rows(matrix, np.arange(matrix.shape[0])), matrix.data)
    return result


def replace_values(matrix: Matrix, values: np.ndarray) -> Any:
    """A matrix of the same type with these values of its entries; those of 0 are left out."""
    present = values != 0
    indptr = np.concatenate([[0], np.cumsum(present)])[matrix.indptr].astype(matrix.indptr.dtype)
    arrays = values[present], matrix.indices[present], indptr
    return CsrRows(*arrays, matrix.shape) if isinstance(matrix, CsrRows) else type(matrix)(arrays, shape=matrix.shape)


def compute_peak_scales(weights: Matrix, largest: Any) -> np.ndarray:
    """Per row, the scale that makes its largest weight `largest`; float64 [n]."""
    peaks = compute_row_max(weights)
    return np.divide(largest, peaks, out=np.ones_like(peaks), where=peaks > 0)


def expand_rows(matrix: Matrix, values: np.ndarray) -> np.ndarray:
    """`values` [n] repeated for each stored entry of its row."""
    return np.repeat(values, np.diff(matrix.indptr))


def ones(weights: Matrix) -> Quantised:
    """Every stored weight becomes 1."""
    return Quantised(replace_values(weights, np.ones(len(weights.data), np.int64)), 0, 0)


def quantise_rows(weights: Matrix, scale: Any, largest: int | None) -> Quantised:
    """round(weight * scale), half to even, clipped to `largest`, zeros dropped."""
    rounded = np.rint(weights.data.astype(np.float64) * scale)
    clipped = 0
    if largest is not None:
        clipped = int((rounded > largest).sum())
        np.minimum(rounded, largest, out=rounded)
    # A weight that is not a number fails every comparison.
    if not ((rounded >= 0) & (rounded < SCORE_LIMIT)).all():
        place = int(np.argmin((rounded >= 0) & (rounded < SCORE_LIMIT)))
        row = int(np.searchsorted(weights.indptr, place, side="right")) - 1
        raise TooLargeImpact(rounded[place], row, int(weights.indices[place]))
    impacts = replace_values(weights, rounded.astype(np.int64))
    return Quantised(impacts, clipped, len(rounded) - len(impacts.data))


def bound_impacts(result: Quantised, max_impact: int) -> Quantised:
    """`result`, after checking that no score can reach 2^24."""
    sums = sum_rows(result.impacts)
    if len(sums) and (worst := int(sums.max()) * max_impact) >= SCORE_LIMIT:
        raise LexvlError(
            f"query {int(sums.argmax())} could score {worst}, at or above 2^24, where Lucene's sums are not exact; "
            f"use {count_bits_over(worst)} bits less on either side, or fewer query terms"
        )
    return result
