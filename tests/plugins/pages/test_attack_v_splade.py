"""Hostile checkpoints of V-SPLADE."""
# ruff: noqa: F401  the test and the fixtures of the core, with the rows of this table

import pytest

from tests.attack.test_attack_checkpoints import loader, models, test_hostile_checkpoints
from tests.plugins.pages.v_splade_folders import TINY_ENCODERS

pytestmark = [pytest.mark.heavy, pytest.mark.attack]
