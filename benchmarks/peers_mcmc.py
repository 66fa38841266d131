"""HMC with 32 chains end to end: BlackJAX and NumPyro against isles.

Equal chains, steps, leapfrogs and step size, nothing adapted, chains from prior draws, float32, on one core.
Effective samples are those of the worst coordinate by one estimator for all (bulk ESS of ArviZ).
"""

from __future__ import annotations

from benchmarks import harness

harness.one_core()

import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from typing import Any  # noqa: E402

warnings.filterwarnings("ignore", category=FutureWarning)  # ArviZ announces its next version

import arviz  # noqa: E402
import blackjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import numpyro  # noqa: E402

import isles  # noqa: E402
from benchmarks import problems  # noqa: E402
from benchmarks.contest import Answer, Contender, contest  # noqa: E402
from benchmarks.problems import Case  # noqa: E402

CHAINS = 32


@dataclass(frozen=True)
class Setting:
    """What all libraries share."""

    burn_in: int  # steps that are not kept
    draws: int  # steps that are
    leapfrogs: int
    step_size: float

    def answer(self, case: Case, draws: Any) -> Answer:
        """Means of each chain, and the work done; leaves of draws are (chains, draws, ...)."""
        values = np.asarray(jax.vmap(jax.vmap(case.summary))(draws))
        units = {"gradient": CHAINS * (self.burn_in + self.draws) * self.leapfrogs}
        if self.draws >= 100:
            ess = [arviz.ess(values[:, :, i], method="bulk") for i in range(values.shape[-1])]
            units["effective sample"] = float(np.min(ess))
        return Answer(values.mean(axis=1), units)


def isles_hmc(case: Case, setting: Setting) -> Contender:
    """isles, one island of chains; its first draw is the state after burn-in, hence the one step more."""
    kernel = isles.HMC(leapfrogs=setting.leapfrogs, step_size=setting.step_size)
    sampler = isles.MCMC(kernel, CHAINS, setting.burn_in + 1, setting.draws)
    read = lambda posterior: setting.answer(case, jax.tree.map(lambda leaf: leaf[0], posterior.chains))
    return Contender("isles", lambda seed: isles.sample(case.problem, sampler, seed=seed), read)


def blackjax_hmc(
    name: str, case: Case, log_likelihood: Callable[[Any], Any], setting: Setting, vectorised: bool = True
) -> Contender:
    """BlackJAX as one compiled program; chains side by side, or one after another."""
    kernel = blackjax.hmc(
        lambda params: case.log_prior(params) + log_likelihood(params),
        step_size=setting.step_size,
        inverse_mass_matrix=jnp.ones(case.dimension),
        num_integration_steps=setting.leapfrogs,
    )

    def chain(start: Any) -> Any:
        position, key = start

        def step(state: Any, key: Any) -> Any:
            state, _ = kernel.step(key, state)
            return state, state.position

        key_burn_in, key_draws = jax.random.split(key)
        burn_in = lambda i, state: kernel.step(jax.random.fold_in(key_burn_in, i), state)[0]
        state = jax.lax.fori_loop(0, setting.burn_in, burn_in, kernel.init(position))
        return jax.lax.scan(step, state, jax.random.split(key_draws, setting.draws))[1]

    @jax.jit
    def program(key: Any) -> Any:
        key_prior, key_run = jax.random.split(key)
        starts = case.draw(key_prior, CHAINS), jax.random.split(key_run, CHAINS)
        return jax.vmap(chain)(starts) if vectorised else jax.lax.map(chain, starts)

    run = lambda seed: jax.device_get(program(jax.random.key(seed)))
    return Contender(name, run, lambda draws: setting.answer(case, draws))


def numpyro_hmc(
    name: str, case: Case, log_likelihood: Callable[[Any], Any], setting: Setting, vectorised: bool = True
) -> Contender:
    """NumPyro inside one compiled program, since its `run` alone compiles anew in every call."""
    kernel = numpyro.infer.HMC(
        potential_fn=lambda params: -(case.log_prior(params) + log_likelihood(params)),
        step_size=setting.step_size,
        num_steps=setting.leapfrogs,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    chains = numpyro.infer.MCMC(
        kernel, num_warmup=setting.burn_in, num_samples=setting.draws, num_chains=CHAINS if vectorised else 1,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip

    def run(start: Any) -> Any:
        position, key = start
        chains.run(key, init_params=position)
        return chains.get_samples(group_by_chain=vectorised)

    @jax.jit
    def program(key: Any) -> Any:
        key_prior, key_run = jax.random.split(key)
        positions = case.draw(key_prior, CHAINS)
        if vectorised:
            return run((positions, key_run))
        return jax.lax.map(run, (positions, jax.random.split(key_run, CHAINS)))

    start = lambda seed: jax.device_get(program(jax.random.key(seed)))
    return Contender(name, start, lambda draws: setting.answer(case, draws))


def logistic_regression(report: harness.Report) -> None:
    """Long enough for effective samples."""
    case, setting = problems.credit(), Setting(burn_in=300, draws=500, leapfrogs=10, step_size=0.04)
    peers = [
        blackjax_hmc("BlackJAX HMC", case, case.plain, setting),
        blackjax_hmc("BlackJAX HMC on isles' likelihood", case, case.fused, setting),
        numpyro_hmc("NumPyro HMC", case, case.plain, setting),
    ]
    contest(report, case.name, isles_hmc(case, setting), peers, per=("gradient", "effective sample"))


def cnn(report: harness.Report) -> None:
    """A few steps from the prior: what is compared is where they lead."""
    case, setting = problems.mnist_cnn(), Setting(burn_in=0, draws=1, leapfrogs=2, step_size=0.001)
    peers = [  # chains of a plain CNN one after another: two to three times as fast here as side by side
        blackjax_hmc("BlackJAX HMC", case, case.plain, setting, vectorised=False),
        blackjax_hmc("BlackJAX HMC on isles' likelihood", case, case.fused, setting),
        numpyro_hmc("NumPyro HMC", case, case.plain, setting, vectorised=False),
    ]
    contest(report, case.name, isles_hmc(case, setting), peers, per=("gradient",))


def main() -> None:
    """All rows, and the file."""
    report = harness.Report("peers_mcmc")
    logistic_regression(report)
    cnn(report)
    report.write()


if __name__ == "__main__":
    main()
