"""A linear score from a few examples: what they have and others of a collection have not.

    c = (S + l I)^-1 (m - m_0),  l = PENALTY tr(S) / V

m is the mean of the examples, m_0 and S are mean and covariance of the others: ridge regression of "is an example" on
the vectors, up to a factor (Fisher, Annals of Eugenics 1936). With n others it is solved in n dimensions,
c = (d - X' (n l I + X X')^-1 X d) / l, where X has the centred others and d = m - m_0 (Woodbury).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse

# The weight of the penalty beside the mean variance of a term, chosen on photos (docs/photo-models.md).
PENALTY = 30.0

# Others of which mean and covariance are taken.
MOST_OTHERS = 2048


class HeldOut(NamedTuple):
    """An example that is scored by coefficients which it did not teach.

    share     of the others, those that score less
    distance  of its score from the mean of the others, in their standard deviations
    """

    share: float
    distance: float


@dataclass(frozen=True)
class Ridge:
    """The others of a collection.

    others   CSR [n, V]
    penalty  see above
    """

    others: sparse.csr_matrix
    penalty: float = PENALTY

    @cached_property
    def mean(self) -> np.ndarray:
        """m_0, float64 [V]."""
        return np.asarray(self.others.mean(axis=0), np.float64).ravel()

    @cached_property
    def deviation(self) -> np.ndarray:
        """The standard deviation of each term, float64 [V]."""
        squares = np.asarray(self.others.multiply(self.others).mean(axis=0), np.float64).ravel()
        return np.sqrt(np.maximum(squares - self.mean**2, 0))

    @cached_property
    def _level(self) -> float:
        """l, above 0 where all others are equal too."""
        return max(self.penalty * float((self.deviation**2).mean()), np.finfo(np.float64).tiny ** 0.5)

    @cached_property
    def _factor(self) -> Any:
        """The Cholesky factor of n l I + X X'."""
        from scipy.linalg import cho_factor

        products = (self.others @ self.others.T).toarray().astype(np.float64)
        rows = self.others @ self.mean
        gram = products - rows[:, None] - rows[None, :] + self.mean @ self.mean
        gram[np.diag_indices_from(gram)] += len(gram) * self._level
        return cho_factor(gram)

    def coefficients(self, examples: sparse.csr_matrix) -> np.ndarray:
        """The coefficients c [V] for examples [k, V]; the mean of the others has the score m_0 c."""
        from scipy.linalg import cho_solve

        difference = np.asarray(examples.mean(axis=0), np.float64).ravel() - self.mean
        solved = cho_solve(self._factor, self.others @ difference - self.mean @ difference)
        back = self.others.T @ solved - self.mean * solved.sum()
        return (difference - back) / self._level

    def without_each(self, examples: sparse.csr_matrix) -> list[HeldOut]:
        """How well each of two or more examples [k, V] is found by the coefficients of the other ones."""
        everyone, numbers = [], np.arange(examples.shape[0])
        for number in numbers:
            c = self.coefficients(examples[numbers != number])
            scores, own = self.others @ c, float((examples[[number]] @ c)[0])
            distance = (own - float(scores.mean())) / max(float(scores.std()), np.finfo(np.float64).tiny)
            everyone.append(HeldOut(float((scores < own).mean()), distance))
        return everyone
