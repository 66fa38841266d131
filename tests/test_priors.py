"""Priors: draws, density, whitening and ratios that belong together, against scipy and float64."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from scipy import stats

import isles
from isles.layout import Layout
from isles.priors import Custom, flat_prior
from truth import assert_estimate

LIKE = {"b": np.zeros(2), "w": [np.zeros((2, 3)), np.zeros(())]}
SIZE = 9
RNG = np.random.default_rng(0)
FULL_MEAN = {"b": RNG.normal(size=2), "w": [RNG.normal(size=(2, 3)), RNG.normal()]}
FULL_STD = {"b": RNG.uniform(0.1, 9, size=2), "w": [RNG.uniform(0.1, 9, size=(2, 3)), 0.7]}
ROOT = RNG.normal(size=(SIZE, SIZE))
COVARIANCE = ROOT @ ROOT.T / SIZE + 0.3 * np.eye(SIZE)


def flat(tree: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


CASES = {  # arguments of Gaussian, and the mean and covariance they mean
    "default": ({}, np.zeros(SIZE), np.eye(SIZE)),
    "scalars": ({"mean": -1.5, "std": 0.3}, np.full(SIZE, -1.5), 0.09 * np.eye(SIZE)),
    "per leaf": (
        {"mean": {"b": 1.0, "w": [2.0, 3.0]}, "std": {"b": 0.5, "w": [2.0, 4.0]}},
        np.repeat([1.0, 2.0, 3.0], [2, 6, 1]),
        np.diag(np.repeat([0.25, 4.0, 16.0], [2, 6, 1])),
    ),
    "prefix": (
        {"mean": {"b": 1.0, "w": 2.0}, "std": {"b": 0.5, "w": 3.0}},
        np.repeat([1.0, 2.0], [2, 7]),
        np.diag(np.repeat([0.25, 9.0], [2, 7])),
    ),
    "rows": (
        {"mean": 0, "std": {"b": np.array([0.1, 0.2]), "w": [np.array([1.0, 2.0, 3.0]), 5.0]}},
        np.zeros(SIZE),
        np.diag(np.square([0.1, 0.2, 1, 2, 3, 1, 2, 3, 5])),
    ),
    "full": ({"mean": FULL_MEAN, "std": FULL_STD}, flat(FULL_MEAN), np.diag(flat(FULL_STD) ** 2)),
    "covariance": ({"mean": FULL_MEAN, "covariance": COVARIANCE}, flat(FULL_MEAN), COVARIANCE),
}
EVERY = pytest.mark.parametrize(("arguments", "mean", "covariance"), CASES.values(), ids=CASES)


class TestGaussian:
    @EVERY
    def test_density_is_scipys(self, arguments: Any, mean: Any, covariance: Any) -> None:
        truth = stats.multivariate_normal(mean, covariance)
        points = np.random.default_rng(1).normal(size=(20, SIZE)) * 2 + mean
        with jax.enable_x64(True):
            prior = isles.Gaussian(LIKE, **arguments)
            values = [float(prior.log_prob(prior.layout.unravel(jnp.asarray(point)))) for point in points]
        np.testing.assert_allclose(values, truth.logpdf(points), rtol=1e-11)

    @pytest.mark.defect("SBMC: the prior that is scored is not the prior that is sampled")
    @EVERY
    def test_draws_have_the_stated_moments(self, arguments: Any, mean: Any, covariance: Any) -> None:
        prior, n = isles.Gaussian(LIKE, **arguments), 40_000
        trees = jax.vmap(prior.sample)(jax.random.split(jax.random.key(2), n))
        assert jax.tree.structure(trees) == jax.tree.structure(LIKE)
        draws = np.concatenate([np.reshape(leaf, (n, -1)) for leaf in jax.tree.leaves(trees)], axis=1)
        z = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).T).T  # should be N(0, I)
        assert_estimate(z.mean(axis=0), z.std(axis=0) / np.sqrt(n), 0.0, bound=0.006)
        products = z[:, :, None] * z[:, None, :]
        assert_estimate(products.mean(axis=0), products.std(axis=0) / np.sqrt(n), np.eye(SIZE), bound=0.01)

    @EVERY
    def test_the_mean_score_of_draws_is_the_negative_entropy(
        self, arguments: Any, mean: Any, covariance: Any
    ) -> None:
        prior = isles.Gaussian(LIKE, **arguments)
        draws = jax.vmap(prior.draw)(jax.random.split(jax.random.key(3), 20_000))
        scores = np.asarray(jax.vmap(prior.log_density)(draws), np.float64)
        entropy = stats.multivariate_normal(mean, covariance).entropy()
        assert_estimate(scores.mean(), scores.std() / np.sqrt(len(scores)), -entropy, bound=0.02)

    @EVERY
    def test_whiten_and_unwhiten_are_inverse(self, arguments: Any, mean: Any, covariance: Any) -> None:
        z = np.random.default_rng(4).normal(size=SIZE)
        with jax.enable_x64(True):
            prior = isles.Gaussian(LIKE, **arguments)
            theta = prior.unwhiten(jnp.asarray(z))
            np.testing.assert_allclose(theta, mean + np.linalg.cholesky(covariance) @ z, rtol=1e-12)
            np.testing.assert_allclose(prior.whiten(theta), z, rtol=1e-11)

    @EVERY
    def test_gradient_is_that_of_the_density(self, arguments: Any, mean: Any, covariance: Any) -> None:
        point = np.random.default_rng(5).normal(size=SIZE)
        with jax.enable_x64(True):
            prior = isles.Gaussian(LIKE, **arguments)
            slope = prior.gradient(jnp.asarray(point))
            np.testing.assert_allclose(slope, -np.linalg.solve(covariance, point - mean), rtol=1e-10, atol=1e-13)
            np.testing.assert_allclose(slope, jax.grad(prior.log_density)(jnp.asarray(point)), rtol=1e-11)

    @EVERY
    def test_log_ratio_is_a_difference_of_densities(self, arguments: Any, mean: Any, covariance: Any) -> None:
        a, b = np.random.default_rng(6).normal(size=(2, SIZE))
        truth = stats.multivariate_normal(mean, covariance)
        with jax.enable_x64(True):
            ratio = isles.Gaussian(LIKE, **arguments).log_ratio(jnp.asarray(a), jnp.asarray(b))
        assert float(ratio) == pytest.approx(truth.logpdf(a) - truth.logpdf(b), rel=1e-10)

    @EVERY
    def test_variances_are_the_marginal_ones(self, arguments: Any, mean: Any, covariance: Any) -> None:
        variances = isles.Gaussian(LIKE, **arguments).variances()
        assert variances.dtype == np.float64
        np.testing.assert_allclose(variances, np.diag(covariance), rtol=1e-6)

    @pytest.mark.parametrize("std", [1.0, 0.3])
    @pytest.mark.parametrize("mean", [0.0, 0.7])
    def test_log_ratio_in_float32_is_exact_where_the_difference_of_densities_is_not(
        self, mean: float, std: float
    ) -> None:
        d = 100_000
        prior = isles.Gaussian(np.zeros(d, np.float32), mean, std)
        rng = np.random.default_rng(7)
        old = (mean + std * rng.normal(size=d)).astype(np.float32)
        new = (old + 1e-3 * std * rng.normal(size=d)).astype(np.float32)
        centre, scale = np.float64(prior.mean), np.float64(prior.factor)
        a, b = ((point.astype(np.float64) - centre) / scale for point in (old, new))
        truth = 0.5 * np.sum((a - b) * (a + b))
        naive = prior.log_density(jnp.asarray(new)) - prior.log_density(jnp.asarray(old))
        assert abs(float(naive) - truth) > 1e-3
        assert abs(float(prior.log_ratio(jnp.asarray(new), jnp.asarray(old))) - truth) < 1e-6

    @EVERY
    def test_it_passes_through_jit_as_an_argument(self, arguments: Any, mean: Any, covariance: Any) -> None:
        prior = isles.Gaussian(LIKE, **arguments)
        point = jnp.linspace(-1, 1, SIZE)
        value = jax.jit(lambda prior, point: prior.log_density(point))(prior, point)
        assert float(value) == pytest.approx(float(prior.log_density(point)), rel=1e-6)


class TestLeaves:
    def test_a_single_array_and_a_number_are_parameters_too(self) -> None:
        assert isles.Gaussian(np.zeros(3)).sample(jax.random.key(0)).shape == (3,)
        prior = isles.Gaussian(0.0, std=2.0)
        assert prior.sample(jax.random.key(0)).shape == ()
        assert float(prior.log_prob(jnp.float32(3.0))) == pytest.approx(stats.norm(0, 2).logpdf(3), rel=1e-6)

    def test_shapes_alone_are_enough(self) -> None:
        like = jax.eval_shape(lambda: {"a": jnp.zeros((2, 2)), "b": jnp.zeros(())})
        assert isles.Gaussian(like, std={"a": 1.0, "b": 2.0}).variances().tolist() == [1, 1, 1, 1, 4]

    def test_empty_leaves_hold_no_coordinates(self) -> None:
        prior = isles.Gaussian({"a": np.zeros((0, 3)), "b": np.zeros(2)}, std=0.5)
        draw = prior.sample(jax.random.key(0))
        assert draw["a"].shape == (0, 3) and draw["b"].shape == (2,)

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, np.float32])
    def test_each_leaf_keeps_its_dtype_and_the_vector_is_float32(self, dtype: Any) -> None:
        prior = isles.Gaussian({"a": jnp.zeros(2, dtype), "b": jnp.zeros(3, np.float32)})
        draw = prior.sample(jax.random.key(1))
        assert draw["a"].dtype == dtype and draw["b"].dtype == np.float32
        assert prior.draw(jax.random.key(1)).dtype == prior.log_prob(draw).dtype == np.float32

    def test_one_float64_leaf_makes_the_vector_float64(self) -> None:
        with jax.enable_x64(True):
            prior = isles.Gaussian({"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float64)})
            draw = prior.sample(jax.random.key(1))
            assert draw["a"].dtype == np.float32 and draw["b"].dtype == np.float64
            assert prior.draw(jax.random.key(1)).dtype == prior.log_prob(draw).dtype == np.float64

    @pytest.mark.parametrize("name", ["draw", "log_density", "gradient", "whiten", "log_ratio"])
    @pytest.mark.parametrize("arguments", [{"std": 2.0}, {"covariance": np.eye(3)}], ids=["std", "covariance"])
    def test_float32_parameters_stay_float32_where_float64_is_enabled(self, name: str, arguments: Any) -> None:
        with jax.enable_x64(True):
            prior = isles.Gaussian(np.zeros(3, np.float32), **arguments)
            given = {"draw": (jax.random.key(0),), "log_ratio": (prior.mean, prior.mean)}.get(name, (prior.mean,))
            assert getattr(prior, name)(*given).dtype == np.float32

    def test_ravel_and_unravel_are_inverse(self) -> None:
        layout = Layout.of(LIKE)
        vector = jnp.arange(SIZE, dtype=jnp.float32)
        assert (layout.ravel(layout.unravel(vector)) == vector).all()
        many = np.arange(4.0 * SIZE).reshape(2, 2, SIZE)
        tree = layout.unravel_numpy(many)
        assert tree["w"][0].shape == (2, 2, 2, 3) and tree["w"][1].shape == (2, 2)
        assert (tree["w"][1] == many[..., -1]).all()
        assert layout.names == ("b", "w/0", "w/1") and layout.sizes == (2, 6, 1)


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"std": 0.0}, "std=0.0 must be positive"),
            ({"std": {"b": 1.0, "w": [-2.0, 1.0]}}, "std=-2.0 must be positive"),
            ({"std": np.nan}, "std holds nan"),
            ({"std": np.inf}, "std holds inf"),
            ({"std": 1e-60}, "does not fit float32"),
            ({"std": 1e60}, "does not fit float32"),
            ({"mean": {"b": np.array([0.0, np.nan]), "w": 0.0}}, "mean holds nan"),
            ({"mean": np.zeros(5)}, "mean for parameter b has shape (5,), which does not broadcast to (2,)"),
            ({"std": {"b": 1.0, "w": [np.ones((3, 2)), 1.0]}}, "std for parameter w/0 has shape (3, 2)"),
            ({"std": {"b": 1.0}}, "std must be a number, or a pytree that matches the parameters (b, w/0, w/1)"),
            ({"std": {"b": 1.0, "v": 1.0}}, "std must be a number, or a pytree that matches"),
            ({"std": 1.0, "covariance": np.eye(SIZE)}, "give std or covariance, not both"),
            ({"covariance": np.eye(SIZE - 1)}, "covariance has shape (8, 8); 9 parameters need (9, 9)"),
            ({"covariance": np.eye(SIZE) - 0.5}, "positive definite; its smallest eigenvalue is -3.5"),
            ({"covariance": np.zeros((SIZE, SIZE))}, "positive definite"),
            ({"covariance": np.full((SIZE, SIZE), np.nan)}, "covariance holds nan"),
            ({"covariance": np.eye(SIZE) + np.triu(np.ones((SIZE, SIZE)), 1)}, "must be symmetric"),
            ({"covariance": 1e-100 * np.eye(SIZE)}, "does not fit float32"),
            ({"mean": 1e300}, "does not fit float32"),
        ],
    )
    def test_what_makes_no_gaussian_is_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            isles.Gaussian(LIKE, **arguments)

    @pytest.mark.parametrize("leaf", [np.zeros(2, int), 3, True, np.zeros(2, complex)])
    def test_leaves_that_are_not_floating_are_refused(self, leaf: Any) -> None:
        with pytest.raises(TypeError, match=r"parameter b/0 has dtype .*floating-point"):
            isles.Gaussian({"a": 0.0, "b": [leaf]})

    @pytest.mark.parametrize("like", [{}, [], None, {"a": None}, np.zeros(0), {"a": np.zeros((0, 2))}])
    def test_parameters_without_coordinates_are_refused(self, like: Any) -> None:
        with pytest.raises(ValueError, match=r"parameters .*(hold no array|no coordinates)"):
            isles.Gaussian(like)

    @pytest.mark.parametrize("prior", [None, 1.0, object(), lambda theta: 0.0])
    def test_what_is_no_prior_is_refused(self, prior: Any) -> None:
        with pytest.raises(TypeError, match=r"must be isles.Gaussian\(...\) or an object with sample\(key\)"):
            flat_prior(prior)


class Exponential:
    """θ > 0, in a dict: a user's own prior."""

    def sample(self, key: Array) -> dict[str, Array]:
        return {"rate": jax.random.exponential(key, (3,)) / 2}

    def log_prob(self, params: dict[str, Array]) -> Array:
        rate = params["rate"]
        return jnp.sum(jnp.where(rate > 0, np.log(2).astype(rate.dtype) - 2 * rate, -jnp.inf))


class Box:
    """Uniform on the unit square, scored by a Python number."""

    def sample(self, key: Array) -> Array:
        return jax.random.uniform(key, (2,))

    def log_prob(self, params: Array) -> Any:
        return 0.0


class Scored:
    """Standard normal draws with any score."""

    def __init__(self, score: Any) -> None:
        self.score = score

    def sample(self, key: Array) -> Array:
        return jax.random.normal(key, (2,))

    def log_prob(self, params: Array) -> Any:
        return self.score(params)


class TestCustom:
    def test_it_samples_and_scores_as_its_own(self) -> None:
        prior = flat_prior(Exponential())
        assert isinstance(prior, Custom) and prior.layout.names == ("rate",) and prior.layout.size == 3
        draws = np.asarray(jax.vmap(prior.draw)(jax.random.split(jax.random.key(0), 20_000)), np.float64)
        assert_estimate(draws.mean(axis=0), draws.std(axis=0) / np.sqrt(20_000), 0.5, bound=0.004)
        expected = stats.expon(scale=0.5).logpdf(draws[0]).sum()
        assert float(prior.log_density(jnp.asarray(draws[0], jnp.float32))) == pytest.approx(expected, rel=1e-5)

    def test_gradient_and_ratio_follow_the_density(self) -> None:
        prior = flat_prior(Exponential())
        inside, other = jnp.array([0.1, 0.2, 3.0]), jnp.array([0.4, 0.2, 1.0])
        assert prior.gradient(inside).tolist() == [-2, -2, -2]
        assert float(prior.log_ratio(inside, other)) == pytest.approx(-2 * (3.3 - 1.6), rel=1e-5)

    def test_outside_the_support_the_density_is_zero_and_the_gradient_finite(self) -> None:
        prior = flat_prior(Exponential())
        outside, inside = jnp.array([-0.1, 0.2, 3.0]), jnp.ones(3)
        assert float(prior.log_density(outside)) == -np.inf
        assert float(prior.log_ratio(outside, inside)) == -np.inf
        assert np.isfinite(prior.gradient(outside)).all()

    def test_a_nan_score_counts_as_outside(self) -> None:
        prior = flat_prior(Scored(lambda theta: jnp.sum(jnp.log(theta))))
        assert float(prior.log_density(jnp.array([-1.0, 1.0]))) == -np.inf
        assert np.isfinite(prior.gradient(jnp.array([-1.0, 0.0]))).all()

    def test_a_score_that_is_a_python_number_is_welcome(self) -> None:
        prior = flat_prior(Box())
        assert float(prior.log_density(jnp.zeros(2))) == 0
        assert prior.gradient(jnp.zeros(2)).tolist() == [0, 0]

    def test_variances_are_those_of_draws(self) -> None:
        np.testing.assert_allclose(flat_prior(Exponential()).variances(), 0.25, rtol=4 * np.sqrt(8 / 1024))

    @pytest.mark.parametrize(
        "score", [lambda theta: -0.5 * theta**2, lambda theta: jnp.int32(0), lambda theta: theta[:1]]
    )
    def test_a_score_that_is_no_floating_scalar_is_refused(self, score: Any) -> None:
        with pytest.raises(ValueError, match="must return one floating-point scalar: sum over the parameters"):
            flat_prior(Scored(score))
