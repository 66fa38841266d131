"""Run folders and their files: written atomically, checksummed, locked, never pickled. No sampling lives here."""

from typing import TYPE_CHECKING, Any

from isles.store.files import Tensors, read, write

if TYPE_CHECKING:
    from isles.store.trees import pack, unpack

__all__ = ["Tensors", "pack", "read", "unpack", "write"]


def __getattr__(name: str) -> Any:
    """What needs JAX is imported when it is first used, so that a folder can be looked at without it."""
    if name not in ("pack", "unpack"):
        raise AttributeError(f"module 'isles.store' has no attribute {name!r}")
    from isles.store import trees

    return getattr(trees, name)
