"""Evaluation: a run and its judgements become measurements, measurements become tables.

run, qrels -> relevant documents and their places -> values -> table -> text, Markdown, LaTeX, CSV, JSON
(measures/inputs)  (measures/found, ties)     (measures/metrics)       (report/tables) (report/render)

Each command is one file: options, one call, print. `measures/` computes, `report/` formats, `efficiency/` has the
benchmarks, `reproduction/` the numbers that papers print.

score ....................... any run against any judgements
beir, msmarco ............... the same with the measures and rules of these datasets
coco, flickr30k, flickr8k, demo ... images with captions: R@k as the papers define it (`lexvl score-demo`)
table, compare .............. systems side by side; systems against a baseline, with significance
results ..................... stored results as one table, as MTEB's JSON, as a pandas frame
quantisation, pruning, ann .. what integer impacts, shorter vectors and approximate search lose
split ....................... topics in seeded halves or folds
zeroshot, linear_probe ...... images classified by prompts with class names, or by a linear classifier
completeness ................ complete sentences against partial ones
terms ....................... the terms of corpora, documents and images
sheet ....................... a contact sheet of queries and their hits
codewords ................... a sheet of the images and words where single terms are strongest
efficiency .................. benchmarks on this machine

Importing the package loads nothing heavy; `measures/metrics` loads ranx's measures when it computes the first.
"""
