"""`Posterior`: weighted draws of all islands, expectations, predictions, and a file to keep them in."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from isles import checks, expectations, export, keys, predictions, saving, store, weights
from isles.layout import Layout, Params
from isles.likelihoods import Apply, Likelihood, known
from isles.problem import Problem
from isles.samplers.block import BlockResult, Plan, Sampler
from isles.samplers.mcmc import MCMC
from isles.summary import Diagnostics, find_warnings, summarise

Floats = np.ndarray[Any, Any]


class Estimate(NamedTuple):
    """A posterior expectation and its standard error over islands (None for one island).

    The error is the spread of islands. It does not hold the bias of order 1/N that adaptive samplers have, nor
    that of chains which have not forgotten their start.
    """

    value: Any
    standard_error: Any


class Epochs(NamedTuple):
    """Likelihood evaluations over all data: what one particle waits for, and the sum over all particles."""

    parallel: int
    total: int


@dataclass(frozen=True)
class Posterior:
    """Weighted draws from a posterior, island by island.

    Made by `isles.sample`. P islands hold N draws each; for MCMC, N = chains × draws; for MPMCMC,
    the points of all kept steps.
    """

    layout: Layout
    positions: Floats | None  # (P, N, d)
    log_prior: Floats  # (P, N)
    log_likelihood: Floats  # (P, N)
    log_weights: Floats  # (P, N) within each island
    island_log_evidence: Floats | None  # (P,); None for MCMC
    chain_shape: tuple[int, int] | None  # (chains, draws) of an island, for MCMC
    shared_start: bool
    trace: dict[str, Floats]  # name -> (stages, P); NaN after an island's last stage
    epochs: Epochs
    nonfinite: Floats  # (P,) evaluations that gave NaN, +inf or a non-finite gradient
    dead: Floats  # (P,) particles whose first draw had no likelihood
    island_sums: dict[str, Any]  # collected functions: pytrees of (P, ...)
    island_sum_weights: Floats  # (P,)
    sampler: str
    adaptive: bool
    weighting: str  # "evidence" or "equal"
    seed: int
    plan: Plan | None = None
    draw_steps: int = 1  # steps of a chain from one stored draw to the next
    rounding: float = 0.0  # nat, of tempered log-likelihoods in the working dtype
    missing: tuple[int, ...] = ()  # islands of the run that are not here
    warnings: tuple[str, ...] = ()
    likelihood: Likelihood | None = None  # with the network, without data; None for a user's own log_likelihood
    kind: str = "posterior"  # or what else the draws are, such as "deep ensemble"

    def __repr__(self) -> str:
        islands, draws = self.log_weights.shape
        evidence = "" if self.log_evidence is None else f", log evidence {self.log_evidence:.2f}"
        kind = "" if self.kind == "posterior" else f", {self.kind}"
        return f"Posterior({islands} islands x {draws} draws of {self.layout.size} parameters{evidence}{kind})"

    @property
    def log_evidence(self) -> float | None:
        """log of the mean of the islands' evidence estimates; None for MCMC."""
        if self.island_log_evidence is None:
            return None
        return weights.combined_log_evidence(self.island_log_evidence)[0]

    @property
    def log_evidence_standard_error(self) -> float | None:
        """Standard error of `log_evidence` from the islands' spread; None for MCMC and for one island.

        It does not hold the bias of order 1/N of an adaptive sampler; `sampler.frozen(pilot)` has none.
        """
        if self.island_log_evidence is None:
            return None
        return weights.combined_log_evidence(self.island_log_evidence)[1]

    @property
    def evidence_kind(self) -> str | None:
        """`"unbiased"` if nothing was adapted, else `"consistent"` (bias of order 1/N); None for MCMC."""
        if self.island_log_evidence is None:
            return None
        return "consistent" if self.adaptive else "unbiased"

    @property
    def island_weights(self) -> Floats:
        """(P,) ω_p, sums to 1: proportional to evidence, or equal."""
        if self.weighting == "evidence" and self.island_log_evidence is not None:
            return weights.island_weights(self.island_log_evidence)
        alive = np.isfinite(self.log_weights).any(axis=1)
        return np.asarray(alive / alive.sum())

    @property
    def island_ess(self) -> float | None:
        """1/Σω_p², method.md (8), the number of islands that carry weight; None for one island."""
        return None if len(self.log_weights) == 1 else weights.ess(self.island_weights)

    @property
    def weights(self) -> Floats:
        """(P, N) weights of all draws, sums to 1."""
        return self.island_weights[:, None] * weights.normalise(self.log_weights)

    @property
    def draws(self) -> Params:
        """Parameters with leading axes (P, N)."""
        return self.layout.unravel_numpy(self._positions())

    @property
    def chains(self) -> Params:
        """Parameters with leading axes (P, chains, draws); MCMC only."""
        return self.layout.unravel_numpy(self.chain_positions())

    def chain_positions(self) -> Floats:
        """Flat draws (P, chains, draws, d); MCMC only."""
        if self.chain_shape is None:
            raise ValueError(
                "particles of SMC and AIS, and points of MPMCMC, form no chains; use .draws with .weights"
            )
        positions = self._positions()
        return positions.reshape(len(positions), *self.chain_shape, -1)

    @property
    def collected(self) -> dict[str, Estimate]:
        """Posterior means of the functions given as `collect=`."""
        scale = np.where(self.island_sum_weights > 0, self.island_sum_weights, 1.0)
        divide = lambda sums: sums / scale.reshape(-1, *[1] * (sums.ndim - 1))
        return {name: self._estimate(jax.tree.map(divide, sums)) for name, sums in self.island_sums.items()}

    def expectation(self, function: Callable[[Params], Any]) -> Estimate:
        """Σ_{p,i} W_{p,i} function(θ_{p,i}), a pytree, with its standard error over islands."""
        within = weights.normalise(self.log_weights)
        return self._estimate(expectations.island_sums(self.layout, function, self._positions(), within))

    def predict(
        self, x: Any, *, per_draw: bool = False, chunk_rows: int | None = None
    ) -> predictions.Classes | predictions.Values | predictions.DrawClasses | predictions.DrawValues:
        """The predictive distribution at inputs x (n, ...), averaged over all draws by weight.

        Args:
            x: inputs, rows as those of the training data.
            per_draw: what each draw predicts, with the draws' weights, instead of the average.
            chunk_rows: rows evaluated at a time; by default a function of shapes that keeps memory bounded.

        Returns:
            For classification `Classes` (probabilities and entropies), for regression `Values` (mean, variance,
            quantiles); with `per_draw`, `DrawClasses` or `DrawValues`.
        """
        mixture = self._mixture(x, chunk_rows)
        return mixture.per_draw(self.log_weights.shape) if per_draw else mixture.predict()

    def log_predictive(self, x: Any, y: Any, *, chunk_rows: int | None = None) -> Floats:
        """(n,) log Σ W p(y | x, θ): the log predictive density, or probability, of each datum."""
        return self._mixture(x, chunk_rows).log_density(y)

    def mean(self) -> Params:
        """Posterior mean of the parameters."""
        return self.layout.unravel_numpy(np.einsum("pn,pnd->d", self.weights, self._positions()))

    def std(self) -> Params:
        """Posterior standard deviation of every parameter."""
        mean = np.einsum("pn,pnd->d", self.weights, self._positions())
        pairs = zip(self.weights, self._positions(), strict=True)  # a float64 copy of one island at a time
        return self.layout.unravel_numpy(
            np.sqrt(np.sum([w @ (points - mean) ** 2 for w, points in pairs], axis=0))
        )

    def resample(self, count: int, seed: int = 0) -> Params:
        """`count` equally weighted draws, in random order; leaves have that leading axis."""
        return self.layout.unravel_numpy(self.resampled(count, seed)._positions()[0])

    def resampled(self, count: int, seed: int = 0) -> Posterior:
        """The draws of `resample` as a posterior of one island with equal weights, which predicts too."""
        checks.count("count", count)
        uniforms = keys.uniforms(keys.root(seed), keys.Purpose.POSTERIOR, 0, np.zeros(1), count + 1)[0]
        chosen = weights.inverse_cdf(self.weights.ravel(), (np.arange(count) + uniforms[0]) / count)
        chosen = chosen[np.argsort(uniforms[1:])]
        return dataclasses.replace(
            self,
            positions=self._positions().reshape(1, -1, self.layout.size)[:, chosen],
            log_prior=self.log_prior.reshape(1, -1)[:, chosen],
            log_likelihood=self.log_likelihood.reshape(1, -1)[:, chosen],
            log_weights=np.zeros((1, count)),
            island_log_evidence=None,
            chain_shape=None,
            shared_start=False,
            trace={},
            nonfinite=self.nonfinite.sum(keepdims=True),
            dead=self.dead.sum(keepdims=True),
            island_sums={},
            island_sum_weights=np.zeros(1),
            weighting="equal",
            plan=None,
        )

    def select(self, island: int, draws: slice = slice(None)) -> Posterior:
        """One island alone, or some of its draws, with the weights they have among themselves."""
        one = slice(island, island + 1)
        part = lambda values: values[one, draws]
        return dataclasses.replace(
            self,
            positions=None if self.positions is None else part(self.positions),
            log_prior=part(self.log_prior),
            log_likelihood=part(self.log_likelihood),
            log_weights=part(self.log_weights),
            island_log_evidence=None if self.island_log_evidence is None else self.island_log_evidence[one],
            chain_shape=None,
            trace={name: values[:, one] for name, values in self.trace.items()},
            nonfinite=self.nonfinite[one],
            dead=self.dead[one],
            island_sums=jax.tree.map(lambda sums: sums[one], self.island_sums),
            island_sum_weights=self.island_sum_weights[one],
            missing=(),
        )

    def with_weights(self, weighting: str) -> Posterior:
        """The same draws with islands weighted by `"evidence"` or `"equal"`-ly."""
        checks.choice("weighting", weighting, ["evidence", "equal"])
        if weighting == "evidence" and self.island_log_evidence is None:
            raise ValueError(
                "MCMC estimates no evidence, nor do resampled draws and baselines; they are weighted equally"
            )
        return dataclasses.replace(self, weighting=weighting)

    def diagnostics(self) -> Diagnostics:
        """A table of what the run says about itself, with warnings; `print` it."""
        return summarise(self)

    def require_plan(self) -> Plan:
        """What the run's first island adapted to, for `sampler.frozen`."""
        if self.plan is None:
            raise ValueError(
                "only a finished run of SMC or AIS can freeze a sampler; this posterior has no tempering path"
            )
        return self.plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one safetensors file; `isles.load` reads it back."""
        store.write(path, *saving.pack(self))

    def to_arviz(self, x: Any = None, y: Any = None) -> Any:
        """The draws as ArviZ keeps them, for its summaries, plots and leave-one-out scores.

        ArviZ has no weighted draws. For SMC and AIS as many draws as there are, (P, N), are chosen in order,
        each as often as its weight says; `sample_stats` holds the weights they had and the islands they come
        from. For MCMC, every chain is one of ArviZ's.

        Args:
            x: inputs of data, and
            y: their labels or targets, for the log-likelihood of every datum, which `arviz.loo` needs.
        """
        return export.to_arviz(self, x, y)

    def _mixture(self, x: Any, chunk_rows: int | None) -> predictions.Mixture:
        if self.likelihood is None:
            raise ValueError(
                "this posterior's log_likelihood is your own function, which does not say what it predicts; use "
                "posterior.expectation(lambda params: ...), or isles.classification or isles.regression"
            )
        return predictions.prepare(self.layout, self.likelihood, self._positions(), self.weights, x, chunk_rows)

    def _positions(self) -> Floats:
        if self.positions is None:
            raise ValueError(
                "this run kept no draws (keep='none'); read .collected, or run with keep='all' or 'thinned'"
            )
        return self.positions

    def _estimate(self, island_means: Any) -> Estimate:
        omega = self.island_weights
        islands = len(omega)
        axis = lambda values: omega.reshape(-1, *[1] * (values.ndim - 1))
        weighted = lambda w, values: (w * np.where(w == 0, 0.0, values)).sum(axis=0)
        value = jax.tree.map(lambda values: weighted(axis(values), values), island_means)  # method.md (5)
        if islands == 1:
            return Estimate(value, None)
        error = lambda values, centre: np.sqrt(  # method.md (6)
            islands / (islands - 1) * weighted(axis(values) ** 2, (values - centre) ** 2)
        )
        return Estimate(value, jax.tree.map(error, island_means, value))


def load(
    path: str | os.PathLike[str],
    *,
    problem: Problem | None = None,
    apply: Apply | None = None,
    like: Params = None,
) -> Posterior:
    """Read a posterior that `Posterior.save` wrote.

    A file holds no functions. A posterior of a network from `isles.models` predicts as it is; to predict with your
    own network, pass `apply` or `problem`.

    Args:
        path: the file.
        problem: what was sampled, and no other: a draw is evaluated to see that. It brings back the likelihood and
            the structure of the parameters.
        apply: the network that `isles.classification` or `isles.regression` was given.
        like: parameters of the same structure; needed where they are not made of dicts, lists and tuples.
    """
    if problem is not None and (apply is not None or like is not None):
        raise ValueError("problem= brings the network and the structure along; leave out apply= and like=")
    tensors, facts = store.read(path)
    if facts.get("format") != 1:
        raise ValueError(f"{path} has format {facts.get('format')!r}; this version of isles reads format 1")
    if problem is None:
        likelihood = saving.rebuild(facts.get("likelihood"), apply)
    else:
        like, likelihood = problem.layout.struct(), known(problem)
    values = saving.unpack(tensors, facts, like)
    posterior = Posterior(**values | {"likelihood": likelihood, "epochs": Epochs(*facts["epochs"])})
    if problem is not None:
        saving.check_problem(posterior, problem)
    return posterior


def merge(
    layout: Layout,
    likelihood: Likelihood | None,
    sampler: Sampler,
    results: Sequence[BlockResult],
    keep: str,
    *,
    seed: int,
) -> Posterior:
    """One posterior from the results of blocks, in order."""
    join = lambda name: np.concatenate([getattr(result, name) for result in results])
    has = lambda name: getattr(results[0], name) is not None
    stages = max(len(result.records) for result in results)

    def trace(name: str) -> Floats:
        columns = []
        for result in results:
            column = np.full((stages, len(result.epochs)), np.nan)
            if result.records:  # a block of dead islands has none
                column[: len(result.records)] = [record[name] for record in result.records]
            columns.append(column)
        return np.concatenate(columns, axis=1)

    recorded = [result.records[0] for result in results if result.records]
    names = [name for name in recorded[0] if all(name in one for one in recorded)] if recorded else []
    epochs = join("epochs")
    log_weights = join("log_weights")
    chain_shape = None
    if isinstance(sampler, MCMC):
        chain_shape = (sampler.chains, log_weights.shape[1] // sampler.chains)
    sums = {
        name: jax.tree.map(lambda *parts: np.concatenate(parts), *[result.sums[name] for result in results])
        for name in results[0].sums
    }
    posterior = Posterior(
        layout=layout,
        positions=join("positions") if has("positions") else None,
        log_prior=join("log_prior"),
        log_likelihood=join("log_likelihood"),
        log_weights=log_weights,
        island_log_evidence=join("log_evidence") if has("log_evidence") else None,
        chain_shape=chain_shape,
        shared_start=isinstance(sampler, MCMC) and sampler.shared_start,
        trace={name: trace(name) for name in names},
        epochs=Epochs(int(epochs.max()), int(epochs.sum())),
        nonfinite=join("nonfinite"),
        dead=join("dead"),
        island_sums=sums,
        island_sum_weights=join("sum_weights"),
        sampler=repr(sampler),
        adaptive=sampler.is_adaptive,
        weighting="equal" if not has("log_evidence") else "evidence",
        seed=seed,
        plan=next((result.plan for result in results if result.plan is not None), None),
        draw_steps=sampler.thin * sampler.spacing(keep) if isinstance(sampler, MCMC) else 1,
        rounding=max(result.rounding for result in results),
        likelihood=likelihood,
    )
    messages = [message for result in results for message in result.warnings]
    found = dict.fromkeys([*messages, *find_warnings(posterior, sampler)])
    return dataclasses.replace(posterior, warnings=tuple(found))
