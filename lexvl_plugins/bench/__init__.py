"""Benchmarks on this machine: a suite returns ratios and shares of one run, never a pass or a failure.

python -m lexvl_plugins.bench --suite index
python -m lexvl_plugins.bench --suite search
python -m lexvl_plugins.bench --suite overview --format markdown
python -m lexvl_plugins.bench --protocol vdr-g --shards impacts/photos-vdr --dense-shards impacts/photos-dense
python -m lexvl_plugins.bench --suite overhead --checkpoint minilm
python -m lexvl_plugins.bench --suite startup

command       the command line, and the table of suites
suite         what a suite takes (Options) and returns (Report)
index, search, process, overview, protocols   the suites; process has startup and overhead
collection, vectors, mixture   the documents and queries of a suite: a user's own or synthetic
systems, baselines   what index and search compare: ours, stock Pyserini, Lucene alone, FAISS; SINDI, Seismic
papers        what papers say about how they measure latency
processes     child processes, each measured on its own, that take turns
"""
