"""BM25 as impacts: each word of a document gets the weight that Lucene's BM25 gives it, so that a dot product ranks.

    w(d, t) = ln(1 + (N - df + 0.5) / (df + 0.5)) x tf / (tf + k1 (1 - b + b |d| / avgdl))

The symbols are those of `encoders.families.bm25`; |d| is exact here. A query weighs each of its words by the
number of times that it has the word. N, df and avgdl are of the whole corpus, so that no encoder could compute the
vector of one document: the weights are computed of all texts that `encode --encoder bm25` wrote.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Vocabulary

if TYPE_CHECKING:
    from scipy import sparse

# Documents: the greatest weight of the corpus becomes 255. Queries: their weights are counts already.
BM25_QUANTISER = Quantiser(SideQuantiser("calibrated", 8), SideQuantiser("fixed", None, 1.0))


def bm25_weights(
    texts: Iterable[str], analyse: Callable[[str], Iterable[str]], k1: float, b: float
) -> tuple[sparse.csr_matrix, Vocabulary]:
    """The weights of all texts, CSR [n, V] float32, and their words, the most frequent first.

    All postings are in memory, 8 bytes each.

    Args:
        analyse: the words of a text.
        k1, b: as in `BM25Settings`.
    """
    from scipy import sparse

    numbers: dict[str, int] = {}
    dims, frequencies, ends = array("i"), array("f"), array("q", [0])
    for text in texts:
        counts = Counter(analyse(text))
        dims.extend([numbers.setdefault(word, len(numbers)) for word in counts])
        frequencies.extend(counts.values())
        ends.append(len(dims))
    indices, tf = np.frombuffer(dims, np.int32), np.frombuffer(frequencies, np.float32)
    indptr, words = np.frombuffer(ends, np.int64), np.array(list(numbers), object)
    documents_of = np.bincount(indices, minlength=len(words))
    order = np.lexsort((words, -documents_of))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    postings = np.diff(indptr)
    rows = np.repeat(np.arange(len(postings)), postings)
    lengths = np.bincount(rows, tf, len(postings))
    with_text = int(np.count_nonzero(lengths))
    idf = np.log1p((with_text - documents_of + 0.5) / (documents_of + 0.5)).astype(np.float32)
    norms = (k1 * (1 - b + b * lengths / (lengths.sum() / max(with_text, 1) or 1))).astype(np.float32)
    weights = idf[indices] * tf / (tf + norms[rows])
    matrix = sparse.csr_matrix((weights, place[indices], indptr), shape=(len(postings), len(words)))
    matrix.sort_indices()
    return matrix, Vocabulary(words[order], "words of BM25")
