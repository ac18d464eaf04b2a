"""What made a run, as ir_metadata."""

import pytest
import yaml

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import RunManifest
from lexvl_anserini.runs.trec import write_run
from lexvl_plugins.exchange.adapters.ir_metadata import write_ir_metadata


def test_the_manifest_of_a_run_is_described(tmp_path):
    encoder = {"name": "vdr", "checkpoint": "lexvl-mini", "options": {"topk": 8}}
    corpus, versions = {"name": "beir/scifact"}, {"torch": "2.9"}
    facts = ("beir/scifact", "beir/scifact", "test", None, corpus, encoder, {}, "scifact@12", 10, False)
    write_run(tmp_path / "a.trec", [], RunManifest(*facts, versions=versions))  # type: ignore[arg-type]
    path = write_ir_metadata(tmp_path / "a.trec")
    assert path.name == "a.trec.ir_metadata.yml"
    described = yaml.safe_load(path.read_text())
    assert described["tag"] == "a"
    assert described["data"]["test collection"] == {"name": "beir/scifact", "source": "beir/scifact", "split": "test"}
    [retrieval] = described["method"]["retrieval"]
    expected = {"name": "vdr", "checkpoint": "lexvl-mini", "index": "scifact@12", "depth": 10, "options": {"topk": "8"}}
    assert retrieval == expected
    assert described["platform"]["software"]["libraries"]["python"] == ["torch 2.9"]
    with pytest.raises(DataError, match="b.trec: no manifest beside it, so nothing says what made it; search again"):
        write_ir_metadata(tmp_path / "b.trec")
