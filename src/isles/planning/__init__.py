"""What a run will take, before it is begun: measured on this machine, simulated for many."""

from isles.planning.forecast import Forecast, plan
from isles.planning.simulation import simulate

__all__ = ["Forecast", "plan", "simulate"]
