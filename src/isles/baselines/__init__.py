"""What the field compares with. Each result is a `Posterior` that predicts, and whose `kind` says what it is."""

from isles.baselines.dropout import Thinned, mc_dropout
from isles.baselines.langevin import sghmc, sgld
from isles.baselines.laplace import laplace
from isles.baselines.optimise import deep_ensemble, map_estimate
from isles.baselines.variational import mean_field

__all__ = ["Thinned", "deep_ensemble", "laplace", "map_estimate", "mc_dropout", "mean_field", "sghmc", "sgld"]
