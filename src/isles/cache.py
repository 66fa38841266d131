"""Compiled programs are kept on disk, so that the second run of a program starts in seconds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from isles import files

MAX_BYTES = 1 << 30


def keep_compiled() -> None:
    """Turn on JAX's compilation cache, unless the user has set one up or turned it off."""
    setting = lambda name: getattr(jax.config, name)
    if setting("jax_compilation_cache_dir") is not None or not setting("jax_enable_compilation_cache"):
        return
    programs = files.cache_folder() / "programs" / machine()
    try:
        programs.mkdir(parents=True, exist_ok=True)
        _prune(programs)
    except OSError:
        return  # a read-only home costs time, not answers
    jax.config.update("jax_compilation_cache_dir", str(programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # it may have been found to be off already


def machine() -> str:
    """A short name. Compiled code depends on the processor's features, the compiler and the number of threads."""
    features = platform.processor() + platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    key = f"{features} {version('jax')} {version('jaxlib')} {os.environ.get('NPROC')}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _prune(programs: Path) -> None:
    """Remove the oldest programs once they fill `MAX_BYTES`, down to half of it."""
    files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(programs))
    size = sum(size for _, size, _ in files)
    if size <= MAX_BYTES:
        return
    for _, freed, path in files:
        with contextlib.suppress(FileNotFoundError):  # another process prunes too
            os.unlink(path)
        size -= freed
        if size <= MAX_BYTES // 2:
            return
