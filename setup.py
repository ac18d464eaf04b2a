from setuptools import find_packages, setup

import lexvl_anserini  # noqa: F401  ends with one sentence where this Python is not supported

# The folder eval/ is installed as lexvl_eval: users have folders of the name eval, and one would hide the other.
# Its published numbers, which people look for in runs/expected, go with it.
NUMBERS = "lexvl_eval.expected"
evaluation = [name.replace("eval", "lexvl_eval", 1) for name in find_packages(include=["eval", "eval.*"])]
library = find_packages(include=["lexvl_anserini", "lexvl_anserini.*"])

setup(packages=[*library, *evaluation, NUMBERS], package_dir={"lexvl_eval": "eval", NUMBERS: "runs/expected"})
