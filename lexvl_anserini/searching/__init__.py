"""Search over opened indexes: one query, many, refined, explained, rescored."""
