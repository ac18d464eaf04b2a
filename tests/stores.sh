#!/usr/bin/env bash
# The contract of the stores (docs/plugins/stores.md) with all that can be installed; the first call installs it.
# Usage: bash tests/stores.sh [pytest arguments]
#   LEXVL_TEST_OPENSEARCH=opensearch+http://HOST:9200   a server in place of the installed one; also LEXVL_TEST_QDRANT:
#   the URL of an index without its name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source runs/setup.sh test,opensearch,qdrant,store-servers
python -m pytest tests/plugins/stores/test_stores.py tests/plugins/stores/test_stores_parts.py "$@"
