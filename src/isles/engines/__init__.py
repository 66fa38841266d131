"""Engines: each runs the blocks of a run somewhere. What a block computes lives in `samplers`."""
