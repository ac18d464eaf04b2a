"""MTEB: `register_models()` makes the packaged models known to `mteb.get_model`."""

from __future__ import annotations


def register_models() -> list[str]:
    """Adds the packaged models to the registry of the running process, for `mteb.get_model`; returns their names."""
    from mteb.models import ModelMeta
    from mteb.models.model_implementations import MODEL_REGISTRY

    from lexvl_plugins.exchange.adapters import mteb_models

    metas = [meta for meta in vars(mteb_models).values() if isinstance(meta, ModelMeta)]
    MODEL_REGISTRY.update({str(meta.name): meta for meta in metas})
    return [str(meta.name) for meta in metas]
