"""Encoders by name, from libraries that isles does not require."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from isles.data.dataset import Array

FORMS = "'sentence-transformers:NAME' or 'torchvision:NAME'"
HEADS = ("fc", "classifier", "heads", "head")  # torchvision's names of what follows the features


def split(spec: str) -> tuple[str, str]:
    """The library and the name of its model."""
    library, _, model = spec.partition(":")
    if library not in MAKERS or not model:
        raise ValueError(f"encoder={spec!r} must be {FORMS}, or a function of a batch")
    return library, model


def named(spec: str) -> Callable[[Any], Array]:
    """The encoder that a string names."""
    library, model = split(spec)
    if find_spec(library.replace("-", "_")) is None:
        raise ModuleNotFoundError(f"encoder={spec!r} needs the package {library}: pip install 'isles[encode]'")
    return MAKERS[library](model)


def _sentence_transformers(name: str) -> Callable[[Any], Array]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(name)

    def encoder(texts: Sequence[str]) -> Array:
        return np.asarray(model.encode(list(texts), show_progress_bar=False))

    return encoder


def _torchvision(name: str) -> Callable[[Any], Array]:
    import torch
    from torchvision import models

    weights = models.get_model_weights(name).DEFAULT
    model = models.get_model(name, weights=weights).eval()
    head = next((head for head in HEADS if hasattr(model, head)), None)
    if head is None:
        raise ValueError(f"encoder='torchvision:{name}' has no head to leave out; give a function of a batch")
    setattr(model, head, torch.nn.Identity())
    prepare = weights.transforms()

    def encoder(images: Sequence[Array] | Array) -> Array:
        images = np.asarray(images)
        if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
            raise ValueError(
                f"images of shape {images.shape} and type {images.dtype} must be (rows, height, width, 3) of bytes"
            )
        with torch.inference_mode():
            batch = prepare(torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))))
            return np.asarray(model(batch).flatten(1))

    return encoder


MAKERS = {"sentence-transformers": _sentence_transformers, "torchvision": _torchvision}
