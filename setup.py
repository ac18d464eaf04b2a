from setuptools import find_packages, setup

import lexvl_anserini  # noqa: F401  ends with one sentence where this Python is not supported

# The folder eval/ is installed as lexvl_eval: users have folders of the name eval, and one would hide the other.
# Its published numbers and the recipes, which people look for in runs/, go with it.
SHIPPED = {f"lexvl_eval.{name}": f"runs/{name}" for name in ("expected", "recipes")}
evaluation = [name.replace("eval", "lexvl_eval", 1) for name in find_packages(include=["eval", "eval.*"])]
library = find_packages(include=["lexvl_anserini", "lexvl_anserini.*", "lexvl_plugins", "lexvl_plugins.*"])

setup(packages=[*library, *evaluation, *SHIPPED], package_dir={"lexvl_eval": "eval", **SHIPPED})
