#!/usr/bin/env bash
# Builds the documentation site from README.md, docs/ and the docstrings, without network: build/site/index.html.
# Usage: bash docs/build.sh [--no-run] [--repository OWNER/NAME]
#   --no-run       leaves the tutorials without their outputs
#   --repository   where Colab's badges and the links of notebooks lead, on GitHub (default $GITHUB_REPOSITORY; none: no badges)
# A warning, a cell that fails, a link or an anchor that leads nowhere, or a file that a page would load from another
# host ends the build with exit code 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh docs
exec python docs/site/build.py "$@"
