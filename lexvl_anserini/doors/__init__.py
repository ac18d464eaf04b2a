"""Doors to other projects and to more machines; no core room imports them."""
