"""Bad settings: an error before any sampling that gives the value, the rule and the remedy."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isles


@dataclass(frozen=True)
class StateOnly(isles.Kernel):
    """A user's kernel that forgets to say how it went."""

    def step(self, problem: Any, key: Any, state: Any, tempering: Any, tuning: Any) -> Any:
        return state


PROBLEM = isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: -jnp.sum(theta**2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: isles.SMC(particles=0), "particles=0 must be at least 1"),
        (lambda: isles.SMC(particles=-3), "particles=-3 must be at least 1"),
        (lambda: isles.SMC(particles=2.5), "particles=2.5 must be a whole number"),
        (lambda: isles.SMC(particles=True), "particles=True must be a whole number, not a bool"),
        (lambda: isles.SMC(mutations=0), "mutations=0 must be at least 1"),
        (lambda: isles.SMC(mutations="many"), "mutations='many' must be a whole number"),
        (lambda: isles.SMC(ess_fraction=1.0), "ess_fraction=1.0 must lie strictly between 0 and 1"),
        (lambda: isles.SMC(ess_fraction=float("nan")), "ess_fraction=nan"),
        (lambda: isles.SMC(schedule=[0.5, 0.2, 1.0]), r"schedule=\[0.5, 0.2, 1\] must rise from above 0"),
        (
            lambda: isles.SMC(schedule=[0.1, 1], ess_fraction=0.9),
            "ess_fraction=0.9 chooses temperings, and schedule=",
        ),
        (
            lambda: isles.sample(PROBLEM, isles.SMC(), islands="4"),
            "islands='4' must be a whole number of type int",
        ),
        (lambda: isles.Gaussian(like=np.zeros(2), std={"a": 1.0}), "std for parameter array is .*; give numbers"),
        (lambda: isles.SMC("hmc"), "kernel='hmc' must be a kernel such as isles.HMC"),
        (lambda: isles.SMC(isles.HMC), r"kernel=HMC is a class; make one: HMC\(\)"),
        (lambda: isles.MCMC("hmc"), "kernel='hmc' must be a kernel"),
        (lambda: isles.AIS(isles.MH), "kernel=MH is a class"),
        (lambda: isles.SMC().frozen(isles.SMC()), "takes the posterior of a pilot run, not SMC"),
        (
            lambda: isles.classification(lambda w, x: x @ w, PROBLEM.prior, np.ones((3, 2)), [0, 1]),
            r"y has shape \(2,\); 3 rows of x need labels of shape \(3,\); give a label for each row",
        ),
        (lambda: isles.report("runs/d"), "takes a posterior, not 'runs/d'; .*isles.load"),
        (lambda: isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda w, b: w @ b), "give data="),
        (
            lambda: isles.sample(PROBLEM, isles.SMC(StateOnly())),
            "StateOnly.step returns State; it must return a pair",
        ),
        (lambda: isles.SMC(schedule=[0.1, 0.9]), "must rise from above 0 to exactly 1"),
        (lambda: isles.SMC(schedule=[0.1, np.nan, 1.0]), "must rise from above 0 to exactly 1"),
        (lambda: isles.sample(PROBLEM, isles.SMC), "must be a sampler such as isles.SMC"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), collect=lambda p: p), "must be a dict of functions"),
        (lambda: isles.Problem(isles.Gaussian, lambda theta: 0.0), "must be isles.Gaussian"),
        (lambda: isles.SMC(schedule=[]), "schedule must be a list"),
        (lambda: isles.SMC(resampling="lottery"), "resampling='lottery' must be one of 'systematic'"),
        (lambda: isles.MCMC(burn_in=-1), "burn_in=-1 must be at least 0"),
        (lambda: isles.MCMC(draws=0), "draws=0 must be at least 1"),
        (lambda: isles.MCMC(thin=1.0), "thin=1.0 must be a whole number"),
        (lambda: isles.MCMC(burn_in=2**31), "at most 2"),
        (lambda: isles.AIS(mutations=0), "mutations=0"),
        (lambda: isles.HMC(trajectory=1.0, leapfrogs=3), "not both"),
        (lambda: isles.HMC(trajectory=-1.0), "trajectory=-1.0 must be positive"),
        (lambda: isles.HMC(leapfrogs=0), "leapfrogs=0 must be at least 1"),
        (lambda: isles.HMC(step_size=0.0), "step_size=0.0 must be positive"),
        (lambda: isles.HMC(step_size="big"), "step_size='big' must be a number"),
        (lambda: isles.HMC(target_acceptance=1.2), "target_acceptance=1.2"),
        (lambda: isles.HMC(mass="heavy"), "mass='heavy' must be one of 'identity', 'population'"),
        (lambda: isles.MALA(mass="heavy"), "mass='heavy'"),
        (lambda: isles.PCN(scale="small"), "scale='small' must be one of 'population', 'prior'"),
        (lambda: isles.PCN(step_size=1.5, scale="prior"), "step_size=1.5 must be at most 1"),
        (lambda: isles.MH(scale="small"), "scale='small'"),
        (lambda: isles.Decorrelate(1.5), "threshold=1.5"),
        (lambda: isles.Decorrelate(max=0), "max=0"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), islands=0), "islands=0 must be at least 1"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), islands=1.5), "islands=1.5 must be a whole number"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), seed=-1), "seed=-1 must be at least 0"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), seed=None), "seed=None must be a whole number"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), seed=2**64), "must be below 2"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), islands_per_block=0), "islands_per_block=0"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), chunk_rows=5), "chunk_rows=5 needs data"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), keep="some"), "keep='some' must be one of"),
        (lambda: isles.sample(PROBLEM, isles.SMC(), collect={"a": 3}), r"collect\['a'\]=3 must be a function"),
        (lambda: isles.sample(PROBLEM, isles.HMC()), "must be a sampler such as isles.SMC"),
        (lambda: isles.sample("problem", isles.SMC()), "must be like package.module:function"),
        (lambda: isles.sample(3, isles.SMC()), "must be an isles.Problem"),
        (
            lambda: isles.sample(PROBLEM, isles.SMC(kernel="hmc")),
            "kernel='hmc' must be a kernel such as isles.HMC",
        ),
        (lambda: isles.sample(PROBLEM, isles.SMC(isles.HMC(mass=-1.0))), "mass=-1.0 must be positive"),
        (lambda: isles.sample(PROBLEM, isles.SMC(isles.HMC(mass=[1.0, 2.0, 3.0]))), "does not broadcast"),
        (lambda: isles.Problem("prior", lambda theta: 0.0), "must be isles.Gaussian"),
        (lambda: isles.Problem(PROBLEM.prior, 3), "log_likelihood=3 must be a function"),
    ],
)
def test_bad_settings_give_value_rule_and_remedy(build: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build()


class Laplace:
    """A prior that is not Gaussian: a pair of functions is all it takes."""

    def sample(self, key: Any) -> Any:
        return {"theta": jax.random.laplace(key, (2,))}

    def log_prob(self, params: Any) -> Any:
        return jnp.sum(-jnp.abs(params["theta"]) - jnp.log(2.0))


def test_pcn_on_another_prior_is_a_clear_error() -> None:
    problem = isles.Problem(Laplace(), lambda params: -jnp.sum(params["theta"] ** 2))
    with pytest.raises(ValueError, match="this problem's prior is Laplace; use HMC, MALA or MH"):
        isles.sample(problem, isles.SMC(isles.PCN()))


@pytest.mark.parametrize(
    "kernel", [isles.HMC(leapfrogs=3), isles.HMC(mass="population"), isles.MALA(), isles.MH()]
)
def test_other_priors_work_with_every_other_kernel(kernel: Any) -> None:
    """Laplace prior × Gaussian likelihood, against quadrature."""
    problem = isles.Problem(Laplace(), lambda params: -2.0 * jnp.sum((params["theta"] - 1) ** 2))
    posterior = isles.sample(problem, isles.SMC(kernel, 256, 15), islands=64, seed=1)
    grid = np.linspace(-10, 10, 200_001)
    density = 0.5 * np.exp(-np.abs(grid) - 2 * (grid - 1) ** 2)
    evidence = density.sum() * (grid[1] - grid[0])
    mean = (grid * density).sum() / density.sum()
    value, error = posterior.expectation(lambda params: jnp.mean(params["theta"]))
    assert abs(value - mean) < 4 * error and error < 0.01
    ratios = np.exp(posterior.island_log_evidence - 2 * np.log(evidence))
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / 8 and ratios.std() / 8 < 0.03


def test_a_bounded_prior_keeps_its_bounds() -> None:
    class Uniform:
        def sample(self, key: Any) -> Any:
            return jax.random.uniform(key, (2,))

        def log_prob(self, params: Any) -> Any:
            return jnp.where((params > 0).all() & (params < 1).all(), 0.0, -jnp.inf)

    problem = isles.Problem(Uniform(), lambda theta: 3.0 * theta[0])
    for kernel in (isles.MH(), isles.HMC(leapfrogs=3)):
        posterior = isles.sample(problem, isles.SMC(kernel, 256, 20), islands=32, seed=2)
        assert posterior.positions.min() >= 0 and posterior.positions.max() <= 1
        assert posterior.log_evidence == pytest.approx(np.log((np.e**3 - 1) / 3), abs=0.03)


@pytest.mark.parametrize("sampler", [isles.SMC(particles=1, mutations=3), isles.MCMC(chains=1, burn_in=9)])
@pytest.mark.parametrize("islands", [1, 3])
def test_one_particle_is_allowed(sampler: Any, islands: int) -> None:
    alone = isinstance(sampler, isles.SMC)
    with pytest.warns(isles.IslesWarning, match="or isles.AIS") if alone else contextlib.nullcontext():
        posterior = isles.sample(PROBLEM, sampler, islands=islands)
    assert posterior.draws.shape == (islands, 1, 2)
    if alone:
        assert (posterior.trace["tempering"] == 1).all(), "one particle goes to the posterior in one stage"
    np.testing.assert_allclose(posterior.weights.sum(), 1)


def test_zero_dimensional_leaves_and_nested_pytrees() -> None:
    like = {"scale": np.float32(0.0), "layers": [{"w": np.zeros((2, 3)), "b": np.zeros(3)}, (np.zeros(1),)]}
    problem = isles.Problem(
        isles.Gaussian(like=like), lambda p: -(p["scale"] ** 2) - jnp.sum(p["layers"][0]["w"] ** 2)
    )
    posterior = isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=3), 16, 3), islands=2)
    assert posterior.draws["scale"].shape == (2, 16)
    assert posterior.draws["layers"][0]["w"].shape == (2, 16, 2, 3)
    assert posterior.draws["layers"][1][0].shape == (2, 16, 1)
    assert posterior.mean()["layers"][0]["b"].shape == (3,)


def test_max_stages_ends_a_stalled_run() -> None:
    problem = isles.Problem(PROBLEM.prior, lambda theta: -1e4 * jnp.sum((theta - 1) ** 2))
    with pytest.raises(RuntimeError, match="after max_stages=2 stages; lower ess_fraction"):
        isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=3), 16, 1, max_stages=2))


def test_a_binding_leapfrog_limit_is_reported() -> None:
    kernel = isles.HMC(trajectory=5.0, max_leapfrogs=3)
    with pytest.warns(isles.IslesWarning, match="max_leapfrogs cut"):
        isles.sample(PROBLEM, isles.SMC(kernel, 32, 3))


def test_a_kernel_that_cannot_be_hashed_is_a_clear_error() -> None:
    @dataclass
    class Loose(isles.Kernel):
        scale: Any = None

    with pytest.raises(TypeError, match=r"Loose must be hashable.*frozen dataclass"):
        isles.sample(PROBLEM, isles.SMC(Loose(scale=np.ones(2))))


def test_more_particles_than_memory_is_an_error_at_once() -> None:
    with pytest.raises(MemoryError, match="take fewer particles on more islands"):
        isles.sample(PROBLEM, isles.SMC(particles=10**12))


FEATURES = np.random.default_rng(0).normal(size=(6, 4))
LABELS = [0, 1, 2, 0, 1, 2]


def linear(w: Any, x: Any) -> Any:
    return x @ w


def classify(x: Any = FEATURES, y: Any = LABELS, apply: Any = linear, shape: Any = (4, 3), **options: Any) -> Any:
    return isles.classification(apply, isles.Gaussian(like=np.zeros(shape)), x, y, **options)


def regress(x: Any = FEATURES, y: Any = LABELS, apply: Any = linear, shape: Any = (4,)) -> Any:
    return isles.regression(apply, isles.Gaussian(like=np.zeros(shape)), x, y, noise_std=1.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: classify(y=[1] * 6), r"all 6 labels are 1: there is nothing to tell apart.*classes=3"),
        (lambda: classify(y=[0] * 6, shape=4), r"all 6 labels are 0: .*classes=2"),
        (lambda: classify(classes=4), r"classes=4, but apply returns logits of shape \(6, 3\), .* of 3 classes"),
        (lambda: classify(classes=1), "classes=1 must be at least 2"),
        (lambda: classify(y=[0, 1, 2, 3, 0, 1]), r"labels run from 0 to 3.*labels must lie in 0\.\.2"),
        (lambda: classify(y=LABELS[:5]), r"y has shape \(5,\); 6 rows of x need labels of shape \(6,\)"),
        (lambda: classify(x=np.where(FEATURES > 1, np.nan, FEATURES)), r"x holds \d+ values that are not finite"),
        (lambda: classify(x=[["a"] * 4] * 6), "x has dtype <U1; convert it to numbers first"),
        (lambda: classify(x=[[1.0], [1.0, 2.0]]), "x is not an array.*rows of equal shapes"),
        (
            lambda: classify(shape=(5, 3)),
            r"fails for x of shape \(6, 4\).*input width must fit x",
        ),
        (lambda: classify(apply=lambda w, x: (x @ w)[:3]), r"logits of shape \(3, 3\) for 6 rows of x"),
        (lambda: classify(apply="net"), r"apply='net' must be a function of \(params, x\)"),
        (lambda: classify(apply=lambda w, x: [x @ w]), "apply returns list; it must return one array"),
        (lambda: regress(shape=(5,)), r"apply\(params, x\) fails for x of shape \(6, 4\)"),
        (lambda: regress(shape=(4, 2)), r"apply returns shape \(6, 2\); y of shape \(6,\) needs \(6,\)"),
        (lambda: regress(y=LABELS[:5]), "x has 6 rows and y has 5; they must match"),
        (lambda: regress(x=np.full((6, 4), np.inf)), "x holds 24 values that are not finite"),
        (lambda: regress(y=[np.nan] * 6), "y holds 6 values that are not finite"),
    ],
)
def test_data_that_do_not_fit_the_network(build: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_one_class_is_allowed_when_it_is_meant() -> None:
    problem = classify(y=[1] * 6, classes=3)
    assert problem.log_likelihood.classes == 3
    assert float(problem.log_likelihood(jnp.zeros((4, 3)), problem.data)) == pytest.approx(-6 * np.log(3))


@pytest.mark.filterwarnings("ignore::isles.IslesWarning")
def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    posterior = isles.sample(PROBLEM, isles.MCMC(burn_in=1))
    for write in (posterior.save, lambda path: isles.report(posterior, path)):
        with pytest.raises(
            OSError, match=rf"there is no folder {tmp_path}/none to write a.html to; make it first$"
        ):
            write(tmp_path / "none" / "a.html")
    with pytest.raises(TypeError, match=r"test must be a pair of inputs and labels, \(x, y\), not ndarray"):
        isles.report(posterior, tmp_path / "a.html", test=np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("finish", "settings", "refused"),
    [
        (jnp.mean, {}, True),
        (jnp.mean, {"chunk_rows": 2}, True),
        (jnp.mean, {"chunk_rows": 5}, False),  # all rows are seen together
        (lambda values: jnp.sum(values) + 1, {}, True),
        (jnp.sum, {}, False),
        (lambda values: jnp.sum(values.reshape(5, 1)), {"chunk_rows": 5}, False),
        (lambda values: jnp.mean(values) * jnp.nan, {}, False),  # no number to judge by
    ],
)
def test_a_likelihood_that_is_not_a_sum_over_rows_is_refused(finish: Any, settings: Any, refused: bool) -> None:
    build = lambda: isles.Problem(
        isles.Gaussian(like=np.zeros(())), lambda theta, y: -finish((y - theta) ** 2), np.arange(5.0), **settings
    )
    if refused:
        with pytest.raises(
            ValueError, match=r"not a sum over rows: .* for both; .* chunk_rows=5 if all rows must"
        ):
            build()
    else:
        assert build().rows == 5
