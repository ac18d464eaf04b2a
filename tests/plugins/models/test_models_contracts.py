"""BGE-M3 and UEmbed have the contracts of all encoders."""
# ruff: noqa: F401  tests and fixtures of the core, with the rows of this table

from tiny_encoders import pytest_generate_tests

from tests.encoders.conftest import located, place
from tests.encoders.test_contracts import (
    any_model,
    fresh,
    test_a_malicious_pickle_is_refused_and_not_run,
    test_a_vector_depends_on_its_own_item_only,
    test_an_encoder_is_loaded_again_from_what_its_manifest_says,
    test_any_text,
    test_bfloat16_keeps_the_direction,
    test_checkpoints_of_the_other_kind_are_refused,
    test_devices,
    test_directions,
    test_pictures_of_all_modes_and_sizes,
    test_weights_saved_in_another_format_give_the_same_vectors,
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
from tests.plugins.models.model_folders import TINY_ENCODERS
