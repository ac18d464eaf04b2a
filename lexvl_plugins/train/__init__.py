"""Training: recipes, stages and the loop; corpora of training pairs, and hard negatives for them."""

from __future__ import annotations

from lexvl_anserini.encoders.cards import CROSS_MODAL, Card
from lexvl_anserini.ground.registry import CommandRow, CorpusRow, Way

TRAIN = CommandRow("lexvl_plugins.train.command", "Train and encode", "Train encoders by a recipe")
MINE = CommandRow("lexvl_plugins.train.mine", "Train and encode", "Mine hard negatives for training from a run")
_FILTER = "lexvl_plugins.train.corpora.filter_pairs"
FILTER_PAIRS = CommandRow(_FILTER, "Train and encode", "Keep the pairs of shards whose image and text fit")
DPR_CORPUS = CorpusRow("lexvl_plugins.train.corpora.text_pairs:load_dpr_file", has_path=True)
PAIRS_CORPUS = CorpusRow("lexvl_plugins.train.corpora.text_pairs:load_pairs", has_path=True)
TRIPLES_CORPUS = CorpusRow("lexvl_plugins.train.corpora.text_pairs:load_triples", has_path=True)
SENTENCES_CORPUS = CorpusRow("lexvl_plugins.train.corpora.text_pairs:load_own_queries", has_path=True)
TITLES_CORPUS = CorpusRow("lexvl_plugins.train.corpora.text_pairs:load_own_queries", has_path=True)
WEBDATASET_CORPUS = CorpusRow("lexvl_plugins.train.corpora.webdataset:load_webdataset", has_path=True)
CLIP_TWIN = Card(
    loader="lexvl_plugins.train.clip_twin:load_clip_twin",
    paper="the baselines of STAIR (arXiv 2301.13081) and FDT (arXiv 2303.14865), which `train` makes",
    modalities=CROSS_MODAL,
    lengths=("text_max_length",),
    example="--corpus coco --checkpoint FOLDER",
)

# Other plug-ins that this one imports.
NEEDS = ("papers",)
_HOME = "lexvl_plugins.train.reproduction:"
_TRAINED = ("measure_trained", "list_trained_needs", "estimate_trained", "can_be_trained")
TRAINED = Way(*(_HOME + name for name in _TRAINED))
COUNT = Way(f"{_HOME}count_parameters", fitting=f"{_HOME}can_be_counted")
