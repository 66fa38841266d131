"""Tempered SMC end to end: BlackJAX, particles and PyMC against isles.

Equal particles, mutations, leapfrogs, step sizes and stages, on one core. Where a peer takes a tempering schedule,
both follow the one that a pilot run of isles found; else both temper to an ESS of one half, and times are compared
per stage or per likelihood evaluation. Every library works in its default precision: float32 in isles and
BlackJAX, float64 in particles and PyMC.
"""

from __future__ import annotations

from benchmarks import harness

harness.one_core()

import logging  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

warnings.filterwarnings("ignore", category=UserWarning)  # PyTensor's on BLAS; NUMBA mode does not use its BLAS
warnings.filterwarnings("ignore", category=FutureWarning)  # ArviZ announces its next version

import blackjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import particles  # noqa: E402
import pymc  # noqa: E402
from blackjax.smc import extend_params, resampling  # noqa: E402
from particles import distributions, smc_samplers  # noqa: E402

import isles  # noqa: E402
from benchmarks import problems  # noqa: E402
from benchmarks.contest import Answer, Contender, contest  # noqa: E402
from benchmarks.problems import Case  # noqa: E402
from isles.samplers import mutation  # noqa: E402


@dataclass(frozen=True)
class Setting:
    """What all libraries share."""

    particles: int
    mutations: int
    leapfrogs: int
    step_size: float

    def sampler(self, schedule: Any = None) -> isles.SMC:
        """SMC with HMC, nothing adapted but the tempering."""
        kernel = isles.HMC(leapfrogs=self.leapfrogs, step_size=self.step_size)
        return isles.SMC(kernel, self.particles, self.mutations, schedule=schedule)


def isles_smc(case: Case, sampler: isles.SMC, islands: int = 1) -> Contender:
    """isles; every island is a replicate."""

    def read(posterior: isles.Posterior) -> Answer:
        means = jax.vmap(jax.vmap(case.summary))(posterior.draws).mean(axis=1)
        stages = np.isfinite(posterior.trace["tempering"]).sum(axis=0).mean()
        estimates = np.column_stack([means, posterior.island_log_evidence])
        return Answer(estimates, {"run": 1, "stage": stages, "likelihood evaluation": posterior.epochs.total})

    return Contender("isles", lambda seed: isles.sample(case.problem, sampler, islands=islands, seed=seed), read)


def blackjax_smc(
    name: str,
    case: Case,
    log_likelihood: Callable[[Any], Any],
    setting: Setting,
    schedule: Any = None,
    *,
    runs: int = 1,
    batch_size: int = 0,
) -> Contender:
    """BlackJAX as one compiled program, from prior draws to estimates; adaptive where no schedule is given.

    Its stages mutate at the last tempering and then weigh to the next, so its output is weighted.
    """
    parameters = {
        "step_size": setting.step_size,
        "inverse_mass_matrix": jnp.ones(case.dimension),
        "num_integration_steps": setting.leapfrogs,
    }
    build = blackjax.adaptive_tempered_smc if schedule is None else blackjax.tempered_smc
    algorithm = build(
        case.log_prior, log_likelihood, blackjax.hmc.build_kernel(), blackjax.hmc.init, extend_params(parameters),
        resampling.systematic, num_mcmc_steps=setting.mutations, batch_size=batch_size,
        **({"target_ess": 0.5} if schedule is None else {}),
    )  # fmt: skip
    temperings = None if schedule is None else jnp.asarray(schedule, jnp.float32)

    def run(key: Any) -> Any:
        key_prior, key_run = jax.random.split(key)
        state = algorithm.init(case.draw(key_prior, setting.particles))
        start = state._replace(tempering_param=jnp.float32(0)), 0, jnp.float32(0)

        def stage(carry: Any) -> Any:
            state, number, log_evidence = carry
            key = jax.random.fold_in(key_run, number)
            state, info = algorithm.step(key, state, *([] if temperings is None else [temperings[number]]))
            return state, number + 1, log_evidence + info.log_likelihood_increment

        state, stages, log_evidence = jax.lax.while_loop(lambda carry: carry[0].tempering_param < 1, stage, start)
        return jnp.append(state.weights @ jax.vmap(case.summary)(state.particles), log_evidence), stages

    program = jax.jit(lambda keys: jax.lax.map(run, keys))

    def read(result: Any) -> Answer:
        estimates, stages = map(np.asarray, result)
        return Answer(estimates, {"run": 1, "stage": stages.mean()})

    start = lambda seed: jax.block_until_ready(program(jax.random.split(jax.random.key(seed), runs)))
    return Contender(name, start, read)


def against_blackjax(
    report: harness.Report, case: Case, setting: Setting, islands: int = 1, rounds: int = harness.ROUNDS
) -> None:
    """A fixed schedule with BlackJAX on plain JAX and on isles' likelihood, then adaptive tempering."""
    pilot = isles.sample(case.problem, setting.sampler(), seed=1000)
    schedule = pilot.trace["tempering"][:, 0]
    truth = None
    if case.log_evidence is not None:
        truth = np.append(np.full(case.dimension, np.nan), case.log_evidence)
    peer = lambda name, likelihood, *schedule, **more: blackjax_smc(
        f"BlackJAX {name}", case, likelihood, setting, *schedule, **more
    )
    sampler = setting.sampler(schedule)
    fixed = [peer("SMC", case.plain, schedule)]
    if case.plain is not case.problem.log_likelihood:
        fixed.append(peer("SMC on isles' likelihood", case.fused, schedule))
    race = partial(contest, report, per=("stage",), truth=truth, rounds=rounds)
    race(case.name, isles_smc(case, sampler), fixed)
    if islands > 1:
        many = [peer("SMC", case.plain, schedule, runs=islands)]
        race(f"{case.name}, {islands} islands", isles_smc(case, sampler, islands), many, rounds=harness.ROUNDS)
    adaptive = isles_smc(case, setting.sampler())
    race(case.name, adaptive, [peer("adaptive SMC", case.plain)], per=("stage", "run"))


def share_of_mutations(report: harness.Report, case: Case, setting: Setting) -> None:
    """Where the time of one island goes: into compiled mutations, or around them."""
    inside, program = [0.0], mutation.mutate_piece

    def watched(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = jax.block_until_ready(program(*arguments))
        inside[0] += time.perf_counter() - start
        return result

    sampler = setting.sampler(isles.sample(case.problem, setting.sampler(), seed=1000).trace["tempering"][:, 0])
    mutations, runs = list[float](), list[float]()
    mutation.mutate_piece = watched
    try:
        for seed in range(1 + harness.ROUNDS):
            inside[0], start = 0.0, time.perf_counter()
            isles.sample(case.problem, sampler, seed=seed)
            runs.append(time.perf_counter() - start)
            mutations.append(inside[0])
    finally:
        mutation.mutate_piece = program
    share = harness.ratio(mutations[1:], runs[1:])  # the first compiles
    report.row(f"isles, {case.name}", "share of a run in compiled mutations", harness.shown(share), share=share)


def cnn_against_blackjax(report: harness.Report) -> None:
    """The first stages of a CNN: its likelihood to the power that they lead to."""
    case, setting = problems.mnist_cnn(power=0.1), Setting(32, 1, 2, 0.02)
    schedule = [0.3, 1.0]
    peers = [
        # one particle after another: twice as fast here as all at once
        blackjax_smc("BlackJAX SMC", case, case.plain, setting, schedule, batch_size=1),
        blackjax_smc("BlackJAX SMC on isles' likelihood", case, case.fused, setting, schedule),
    ]
    contest(report, case.name, isles_smc(case, setting.sampler(schedule)), peers, per=("stage",))


class Regression(smc_samplers.StaticModel):
    """The logistic regression for particles, vectorised over rows and particles."""

    evaluations = 0

    def loglik(self, theta: Any, t: int | None = None) -> Any:
        """Log-likelihoods (N,)."""
        self.evaluations += len(theta)
        signed = theta["beta"] @ self.data.T
        return (np.minimum(signed, 0) - np.log1p(np.exp(-np.abs(signed)))).sum(axis=1)


def particles_smc(count: int, mutations: int) -> Contender:
    """Particles: adaptive tempering with a random walk scaled by the particles' covariance."""
    x, y = problems.credit_data()
    prior = distributions.StructDist({"beta": distributions.MvNormal(cov=np.eye(x.shape[1]))})

    def run(seed: int) -> particles.SMC:
        np.random.seed(seed)  # noqa: NPY002 (the library draws from here)
        model = Regression(data=np.where(y == 1, 1, -1)[:, None] * x, prior=prior)
        move = smc_samplers.AdaptiveMCMCSequence(len_chain=mutations + 1)
        kernel = smc_samplers.AdaptiveTempering(model, wastefree=False, move=move)
        algorithm = particles.SMC(kernel, N=count, resampling="systematic")
        algorithm.run()
        return algorithm

    def read(algorithm: particles.SMC) -> Answer:
        estimates = np.append(algorithm.W @ algorithm.X.theta["beta"], algorithm.logLt)
        units = {"likelihood evaluation": algorithm.fk.model.evaluations, "stage": algorithm.t}
        return Answer(estimates[None], units)

    return Contender("particles SMC", run, read)


class Watched(pymc.smc.MH):
    """PyMC's random walk, which says how many steps its stages took, and when sampling began and ended."""

    last: Watched

    def setup_kernel(self) -> None:
        """Called once all is compiled and the prior is drawn."""
        super().setup_kernel()
        self.stages, self.evaluations, self.began = 0, 0, time.perf_counter()
        Watched.last = self

    def mutate(self) -> None:
        """One stage."""
        super().mutate()
        self.stages, self.ended = self.stages + 1, time.perf_counter()
        self.evaluations += self.draws * (self.n_steps - 1)


def pymc_smc(count: int) -> Contender:
    """PyMC in its fastest mode; it chooses the number of steps of a stage itself."""
    x, y = problems.credit_data()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    with pymc.Model() as model:
        beta = pymc.Normal("beta", 0, 1, shape=x.shape[1])
        pymc.Bernoulli("y", logit_p=pymc.math.dot(x, beta), observed=y)

    def run(seed: int) -> Any:
        trace = pymc.sample_smc(
            count, Watched, model=model, random_seed=seed, chains=1, cores=1, compile_kwargs={"mode": "NUMBA"},
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
        return trace, Watched.last

    def read(result: Any) -> Answer:
        trace, kernel = result
        means = trace.posterior["beta"].values[0].mean(axis=0)
        units = {"likelihood evaluation": kernel.evaluations, "stage": kernel.stages}
        estimates = np.append(means, kernel.log_marginal_likelihood)
        return Answer(estimates[None], units, kernel.ended - kernel.began)

    return Contender("PyMC SMC", run, read)


def random_walks(report: harness.Report) -> None:
    """Random-walk SMC: time per likelihood evaluation, and per effective sample of the posterior means."""
    case, count, mutations = problems.credit(), 256, 10  # about as many as PyMC chooses
    ours = isles_smc(case, isles.SMC(isles.MH(), count, mutations))
    truth = isles.sample(case.problem, Setting(count, 10, 5, 0.1).sampler(), islands=1, seed=1000)
    scale = np.append(truth.std(), 0.0)
    peers = [particles_smc(count, mutations), pymc_smc(count)]
    per = "likelihood evaluation", "effective sample"
    contest(report, f"{case.name}, random walk", ours, peers, per=per, scale=scale)


def main() -> None:
    """All rows, and the file."""
    report = harness.Report("peers_smc")
    # runs of 20 ms, of which five are too few to tell a tenth
    against_blackjax(report, problems.gaussian(), Setting(1024, 5, 5, 0.2), islands=16, rounds=20 * harness.ROUNDS)
    share_of_mutations(report, problems.gaussian(), Setting(1024, 5, 5, 0.2))
    against_blackjax(report, problems.credit(), Setting(1024, 4, 5, 0.1))
    random_walks(report)
    cnn_against_blackjax(report)
    report.write()


if __name__ == "__main__":
    main()
