"""What the field compares with. Each result is a `Posterior` that predicts, and whose `kind` says what it is."""

from isles.baselines.optimise import deep_ensemble, map_estimate

__all__ = ["deep_ensemble", "map_estimate"]
