"""Measuring: a run and its judgements become measurements, measurements become tables.

run, qrels -> strict order -> values -> rows -> text, Markdown, LaTeX, CSV, JSON
(inputs.py)   (order.py)  (metrics.py) (tables.py) (render.py)

Commands: `python -m eval.score` (any run and qrels), `eval.beir`, `eval.msmarco`, `eval.table` (systems by measures),
`eval.compare` (significance), `eval.quantisation` (what integer impacts cost), `eval.efficiency` (benchmarks).
Importing the package loads nothing heavy; ranx is imported in `metrics.py` when a first measure is computed.
"""
