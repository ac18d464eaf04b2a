#!/usr/bin/env bash
# The search page and the pages of papers in a browser; the first call installs what it needs: playwright, Debian's
# Chromium (as root), axe-core.
# Usage: bash tests/browser.sh [--install] [pytest arguments]
#   --install   install only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh "${LEXVL_TEST_EXTRAS:-test,browser}"

if [ -z "$(command -v chromium || command -v chromium-browser || command -v google-chrome)" ]; then
  echo "installing Chromium with apt-get" >&2
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null || {
    echo "error: tests/browser.sh: no Chromium; install it (Debian, as root: apt-get install chromium)" >&2
    exit 1
  }
fi
if [ ! -e node_modules/axe-core/axe.min.js ]; then
  npm install --silent --no-save --no-package-lock axe-core@4.14 >&2 ||
    echo "no axe-core (npm install axe-core@4.14): its test is skipped" >&2
fi
if [ "${1:-}" = "--install" ]; then exit 0; fi
python -m pytest tests/plugins/serve/test_page.py tests/plugins/serve/test_publishing.py tests/plugins/papers/test_site.py "$@"
