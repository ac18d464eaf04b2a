"""The CLIPs of STAIR and of FDT over a Swin have the contracts of all encoders."""
# ruff: noqa: F401  tests and fixtures of the core, with the rows of this table

from pathlib import Path

import torch
from tiny_encoders import WORDPIECES, Tiny, pytest_generate_tests
from transformers import AutoTokenizer

from lexvl_plugins.train.clip_twin import StairTwin, TwinConfig, save_stair_twin
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.images.checkpoints import save_run
from lexvl_plugins.train.images.networks import load_networks
from lexvl_plugins.train.images.sides import SIDES
from lexvl_plugins.train.model_settings import ModelSettings
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
from tests.encoders.test_keys import damaged, test_missing_and_misshaped_keys_are_named, test_unexpected_keys_are_named
from tests.encoders.test_line import (
    arguments,
    corpora,
    indexed,
    pictures,
    test_a_picture_is_searched,
    test_a_text_is_searched,
)
from tests.plugins.train.test_clip_twins import twin_of_fdt
from tests.plugins.train.test_families import SWIN


def make_stair_twin(golden: Path, folder: Path) -> Path:
    """A CLIP over STAIR's networks with random weights."""
    tokenizer = AutoTokenizer.from_pretrained(str(golden / WORDPIECES))
    torch.manual_seed(3)
    text = {"width": 16, "layers": 2, "heads": 2, "max_length": 24}
    image = {"resolution": 32, "patch_size": 16, "width": 24, "layers": 2, "heads": 2}
    shapes = {"vocab_size": len(tokenizer), "text": text, "image": image, "dimensions": 12}
    twin = StairTwin(TwinConfig.read({**shapes, "pooling": {"image": "attention"}}, "config.json"))
    with torch.no_grad():  # positions and class token begin as zeros
        for parameter in twin.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    (folder / "twin").mkdir()
    save_stair_twin(twin, tokenizer, folder / "twin", torch.float32)
    return folder / "twin"


def make_swin_twin(golden: Path, folder: Path) -> Path:
    """A CLIP over FDT's texts and a Swin with random weights."""
    merges = folder / "bpe.txt"
    merges.write_text("#version\nr e\nre d</w>\n")
    recipe = twin_of_fdt("demo", merges, SWIN)
    assert isinstance(recipe.model, ModelSettings)
    torch.manual_seed(3)
    networks = load_networks(recipe.model, [], folder)
    sides = SIDES[recipe.model.kind](recipe.model, networks.text.columns, networks)
    (folder / "swin").mkdir()
    save_run(TowerPair(*sides, 0.05), recipe, recipe.model, folder / "swin")
    return folder / "swin"


TINY_ENCODERS = {
    "clip-twin of STAIR": Tiny("clip-twin", make_stair_twin),
    "clip-twin over Swin": Tiny("clip-twin", make_swin_twin),
}
