"""Everything else is built on this: records, errors, files, registries, vocabulary, quantising."""
