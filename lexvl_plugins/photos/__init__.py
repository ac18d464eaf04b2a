"""A folder of your own pictures: indexed, followed and searched; and the demo, which runs the whole line."""

from __future__ import annotations

from lexvl_anserini.ground.registry import CommandRow, CorpusRow

DEMO = CommandRow("lexvl_plugins.photos.demo", "Start here", "The whole line on drawn images, with its tables")
PHOTOS = CommandRow("lexvl_plugins.photos.command", "Start here", "Search a folder of your own pictures")
SAMPLES_CORPUS = CorpusRow("lexvl_plugins.photos.samples:load_samples", checkpoint="photos")
