"""A tower that reads pictures."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from word_towers import TERMS, WordTower

from lexvl_anserini.data.pictures.images import FAIL, read_images
from lexvl_anserini.ground.progress import silent


class PictureTower(WordTower):
    """Weight of a term: a share of the picture's red, so that a vector shows which picture it is of."""

    def read(self, document):
        return document.image

    def weights(self, inputs, batch_size=32, progress=silent, on_error=FAIL):
        matrix = np.zeros((len(inputs), len(TERMS)), dtype=np.float32)
        pictures = read_images(inputs, workers=2, on_error=on_error)
        for picture in pictures:
            matrix[picture.position, [0, -1]] = np.asarray(picture.value)[0, 0, 0] / 255, 1
            progress(1)
        return sparse.csr_matrix(matrix)
