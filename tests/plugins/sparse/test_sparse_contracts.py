"""Models of SparseEncoder and sparse autoencoders have the contracts of all encoders."""
# ruff: noqa: F401  tests and fixtures of the core, with the rows of this table

from tiny_encoders import pytest_generate_tests

from tests.encoders.conftest import located, place
from tests.encoders.test_contracts import (
    any_model,
    fresh,
    test_a_vector_depends_on_its_own_item_only,
    test_an_encoder_is_loaded_again_from_what_its_manifest_says,
    test_any_text,
    test_pictures_of_all_modes_and_sizes,
    test_what_cannot_be_read_is_skipped_if_told,
    tiny,
)
from tests.encoders.test_line import (
    arguments,
    corpora,
    indexed,
    pictures,
    test_a_picture_is_searched,
    test_a_text_is_searched,
)
from tests.plugins.sparse.sparse_folders import TINY_ENCODERS
