"""Run folders and their files: written atomically, checksummed, locked, never pickled. No sampling lives here."""

from isles.store.files import Tensors, read, write
from isles.store.trees import pack, unpack

__all__ = ["Tensors", "pack", "read", "unpack", "write"]
