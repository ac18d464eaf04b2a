"""Benchmarks on this machine: ratios and shares of one run, never a pass or a failure.

python -m eval.efficiency --suite index
python -m eval.efficiency --suite search
python -m eval.efficiency --suite cost --output cost.json
python -m eval.efficiency --suite overview --format markdown
python -m eval.efficiency --suite encode
python -m eval.efficiency --suite overhead --checkpoint minilm
python -m eval.efficiency --suite memory
python -m eval.efficiency --suite startup
"""
