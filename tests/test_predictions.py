"""Predictions: against scipy's formulas draw by draw and a closed form; weights, files and bounded memory."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

import isles
import targets
from isles import predictions
from isles.models import MLP

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 2))
NEW = RNG.normal(size=(17, 2))


def posterior_of(problem: isles.Problem, islands: int = 3, draws: int = 20, seed: int = 0) -> isles.Posterior:
    """Random draws with random weights within and between islands: predictions need no more."""
    rng = np.random.default_rng(seed)
    shape = (islands, draws)
    log_weights = rng.normal(size=shape)
    log_weights[0, 0] = -np.inf
    positions = rng.normal(size=(*shape, problem.dimension)).astype(np.float32)
    states = jax.vmap(jax.vmap(lambda position: problem.evaluate(position, gradient=False)))(positions)
    return isles.Posterior(
        layout=problem.layout, positions=positions,
        log_prior=np.asarray(states.log_prior), log_likelihood=np.asarray(states.log_likelihood),
        log_weights=log_weights,
        island_log_evidence=rng.normal(size=islands), chain_shape=None, shared_start=False, trace={},
        epochs=isles.Epochs(1, islands * draws), nonfinite=np.zeros(islands), dead=np.zeros(islands),
        island_sums={}, island_sum_weights=np.zeros(islands), sampler="by hand", adaptive=True,
        weighting="evidence", seed=0, likelihood=problem.log_likelihood,
    )  # fmt: skip


def softmax_net(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w["a"]) @ w["b"]


SOFTMAX_LIKE = {"a": np.zeros((2, 4)), "b": np.zeros((4, 3))}


@pytest.fixture(scope="module")
def classifier() -> isles.Posterior:
    return posterior_of(isles.classification(softmax_net, isles.Gaussian(SOFTMAX_LIKE), X, np.arange(23) % 3))


def classes_by_hand(posterior: isles.Posterior, x: np.ndarray) -> tuple[Any, ...]:
    """Weights and probabilities of every draw in float64, island by island."""
    draws = jax.tree.map(lambda leaf: leaf.astype(np.float64), posterior.draws)
    logits = np.tanh(x @ draws["a"]) @ draws["b"]
    return posterior.weights, special.softmax(logits, axis=-1)


@pytest.mark.parametrize("sizes", [(64, None), (7, None), (7, 5), (64, 1)], ids=str)
def test_class_probabilities_and_entropies(classifier: isles.Posterior, sizes: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(predictions, "CHUNK_DRAWS", sizes[0])
    prediction = classifier.predict(NEW, chunk_rows=sizes[1])
    w, p = classes_by_hand(classifier, NEW)
    mean = np.einsum("pn,pnrk->rk", w, p)
    aleatoric = np.einsum("pn,pnr->r", w, stats.entropy(p, axis=-1))
    np.testing.assert_allclose(prediction.probabilities, mean, rtol=1e-5)
    np.testing.assert_allclose(prediction.probabilities.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(prediction.entropy, stats.entropy(mean, axis=1), rtol=1e-5)
    np.testing.assert_allclose(prediction.aleatoric, aleatoric, rtol=1e-5)
    np.testing.assert_array_equal(prediction.entropy, prediction.epistemic + prediction.aleatoric)
    np.testing.assert_array_equal(prediction.labels, mean.argmax(axis=1))
    y = np.arange(17) % 3
    np.testing.assert_allclose(prediction.log_density(y), np.log(mean[np.arange(17), y]), rtol=1e-5)
    np.testing.assert_array_equal(
        classifier.log_predictive(NEW, y, chunk_rows=sizes[1]), prediction.log_density(y)
    )


def test_what_each_draw_predicts(classifier: isles.Posterior) -> None:
    each = classifier.predict(NEW, per_draw=True)
    w, p = classes_by_hand(classifier, NEW)
    assert each.probabilities.shape == (3, 20, 17, 3)
    np.testing.assert_allclose(each.probabilities, p, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(each.weights, w)


def test_other_weights_give_other_predictions(classifier: isles.Posterior) -> None:
    equal = classifier.with_weights("equal").predict(NEW).probabilities
    _, p = classes_by_hand(classifier, NEW)
    within = special.softmax(classifier.log_weights, axis=1)
    np.testing.assert_allclose(equal, np.einsum("pn,pnrk->rk", within / 3, p), rtol=1e-5)
    assert np.abs(equal - classifier.predict(NEW).probabilities).max() > 0.01
    few = classifier.resampled(4000, seed=1)
    assert few.log_weights.shape == (1, 4000) and few.log_evidence is None
    np.testing.assert_allclose(few.predict(NEW).probabilities, classifier.predict(NEW).probabilities, atol=2e-3)
    np.testing.assert_array_equal(few.draws["a"][0], classifier.resample(4000, seed=1)["a"])


def test_draws_of_weight_zero_are_not_looked_at(classifier: isles.Posterior) -> None:
    positions = classifier.positions.copy()
    positions[0, 0] = np.nan
    damaged = dataclasses.replace(classifier, positions=positions)
    np.testing.assert_array_equal(damaged.predict(NEW).probabilities, classifier.predict(NEW).probabilities)
    positions[1, 2] = np.nan
    with pytest.raises(ValueError, match=r"row 0 of x is not finite for draw 22 .*scale x as the training data"):
        dataclasses.replace(classifier, positions=positions).predict(NEW)


@pytest.mark.parametrize("columns", [(), (1,)])
def test_one_logit_gives_two_classes(columns: tuple[int, ...]) -> None:
    like = np.zeros((2, *columns))
    problem = isles.classification(lambda w, x: x @ w, isles.Gaussian(like), X, np.arange(23) % 2)
    posterior = posterior_of(problem)
    p = special.expit(NEW @ posterior.positions.astype(float).reshape(3, 20, 2, 1))[..., 0]
    mean = np.einsum("pn,pnr->r", posterior.weights, p)
    np.testing.assert_allclose(posterior.predict(NEW).probabilities, np.stack([1 - mean, mean], axis=1), rtol=1e-5)


def test_sure_draws_that_disagree_are_all_epistemic() -> None:
    """Two draws of equal weight, each certain of another class: ln 2 of total entropy, none of it noise."""
    problem = isles.classification(
        lambda w, x: x @ w, isles.Gaussian(np.zeros((1, 2))), np.ones((4, 1)), [0, 1, 0, 1]
    )
    posterior = dataclasses.replace(
        posterior_of(problem, 1, 2),
        positions=np.array([[[0, 5e3], [5e3, 0]]], np.float32),
        log_weights=np.zeros((1, 2)),
    )
    prediction = posterior.predict(np.ones((1, 1)))
    np.testing.assert_allclose(prediction.entropy, np.log(2), rtol=1e-15)
    np.testing.assert_array_equal(prediction.aleatoric, 0)
    far = posterior.log_predictive(np.ones((1, 1)), [1])
    np.testing.assert_allclose(far, -np.log(2))
    one = dataclasses.replace(posterior, positions=posterior.positions[:, :1], log_weights=np.zeros((1, 1)))
    assert one.log_predictive(np.ones((1, 1)), [0])[0] == -5e3, "in log space nothing underflows"
    assert one.predict(np.ones((1, 1))).epistemic[0] == 0


def regression_net(w: Any, x: Any) -> Any:
    return x @ w


NOISES = {
    "number": (0.3, (2, 2), (2,)),
    "learned": ("learned", (2, 2), (2,)),
    "predicted": ("predicted", (2, 4), (2,)),
    "predicted, one output": ("predicted", (2, 2), ()),
    "function": (lambda w: 0.1 + jnp.abs(w[0]), (2, 2), (2,)),
    "one output": (0.3, (2,), ()),
}


def regressor(kind: str) -> tuple[isles.Posterior, np.ndarray, np.ndarray, np.ndarray]:
    """A posterior, with the weights (D,), means and stds (D, rows, ...) that it should predict from."""
    noise, shape, targets_shape = NOISES[kind]
    y = RNG.normal(size=(23, *targets_shape))
    problem = isles.regression(regression_net, isles.Gaussian(np.zeros(shape)), X, y, noise_std=noise)
    posterior = posterior_of(problem)
    draws = jax.tree.map(lambda leaf: leaf.reshape(60, *leaf.shape[2:]).astype(np.float64), posterior.draws)
    w = draws["network"] if kind == "learned" else draws
    output = NEW @ w if shape[1:] else np.einsum("ri,di->dr", NEW, w)
    if kind == "learned":
        stds = np.broadcast_to(np.exp(draws["log_noise_std"])[:, None, None], output.shape)
    elif kind.startswith("predicted"):
        output, stds = output[..., : shape[1] // 2], np.exp(output[..., shape[1] // 2 :])
    elif kind == "function":
        stds = np.broadcast_to(0.1 + np.abs(draws[:, None, 0]), output.shape)
    else:
        stds = np.full_like(output, 0.3)
    target = (60, 17, *targets_shape)
    return posterior, posterior.weights.ravel(), output.reshape(target), stds.reshape(target)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("chunk_rows", [None, 5])
def test_values_with_every_kind_of_noise(kind: str, chunk_rows: int | None, monkeypatch: Any) -> None:
    posterior, w, means, stds = regressor(kind)
    if chunk_rows:
        monkeypatch.setattr(predictions, "CHUNK_DRAWS", 16)
    prediction = posterior.predict(NEW, chunk_rows=chunk_rows)
    mean = np.tensordot(w, means, 1)
    assert prediction.mean.shape == means.shape[1:]
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(prediction.epistemic, np.tensordot(w, (means - mean) ** 2, 1), rtol=1e-4)
    np.testing.assert_allclose(prediction.aleatoric, np.tensordot(w, stds**2, 1), rtol=1e-4)
    np.testing.assert_array_equal(prediction.std, np.sqrt(prediction.epistemic + prediction.aleatoric))
    y = np.random.default_rng(4).normal(size=mean.shape)
    log_p = stats.norm(means, stds).logpdf(y).reshape(60, 17, -1).sum(axis=2)
    expected = special.logsumexp(log_p, axis=0, b=w[:, None])
    np.testing.assert_allclose(posterior.log_predictive(NEW, y, chunk_rows=chunk_rows), expected, rtol=1e-4)
    np.testing.assert_allclose(prediction.log_density(y), expected, rtol=1e-4)
    each = posterior.predict(NEW, per_draw=True)
    np.testing.assert_allclose(each.means.reshape(means.shape), means, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(each.stds.reshape(means.shape), stds, rtol=1e-5)


@pytest.mark.parametrize("kind", ["one output", "predicted"])
def test_quantiles_invert_the_mixtures_cdf(kind: str) -> None:
    posterior, w, _, _ = regressor(kind)
    each = posterior.predict(NEW, per_draw=True)
    means, stds = (array.reshape(60, *array.shape[2:]) for array in (each.means, each.stds))
    prediction = posterior.predict(NEW)
    levels = np.array([1e-9, 0.05, 0.3, 0.5, 0.95, 1 - 1e-9])
    found = prediction.quantile(levels)
    assert found.shape == (6, *prediction.mean.shape)
    for level, quantile in zip(levels, found, strict=True):
        tail = stats.norm.cdf if level <= 0.5 else stats.norm.sf
        mass = np.tensordot(w, tail(quantile, means, stds), 1)
        np.testing.assert_allclose(mass, min(level, 1 - level), rtol=1e-9)
    cdf = lambda t: w @ stats.norm.cdf(t, means[:, 3].reshape(60, -1)[:, 0], stds[:, 3].reshape(60, -1)[:, 0])
    root = optimize.brentq(lambda t: cdf(t) - 0.3, -50, 50, xtol=1e-13)
    assert found[2, 3].ravel()[0] == pytest.approx(root, abs=1e-10)
    low, high = prediction.interval(0.9)
    np.testing.assert_allclose([low, high], prediction.quantile([0.05, 0.95]), rtol=1e-12)
    assert prediction.quantile(0.5).shape == prediction.mean.shape
    with pytest.raises(ValueError, match=r"q=1\.0 must lie strictly between 0 and 1"):
        prediction.quantile(1.0)
    with pytest.raises(ValueError, match=r"level=90\.0 must lie strictly"):
        prediction.interval(90)


def test_large_means_leave_the_spread_intact() -> None:
    """Variances of means about 3e4 ± 0.1: a difference of sums of squares would lose it in chunks."""
    with jax.enable_x64(True):
        problem = isles.regression(
            lambda w, x: w + 0 * x[:, 0], isles.Gaussian(np.zeros(())), X, X[:, 0], noise_std=1
        )
        posterior = posterior_of(problem, 2, 200)
        positions = 3e7 + np.random.default_rng(1).normal(size=(2, 200, 1)) * 0.1
        posterior = dataclasses.replace(posterior, positions=positions)
        found = posterior.predict(X).epistemic[0]
    w, centred = posterior.weights, positions[..., 0] - 3e7
    assert found == pytest.approx(np.sum(w * centred**2) - np.sum(w * centred) ** 2, rel=1e-6)


def test_predictions_of_a_conjugate_regression(small: targets.Conjugate) -> None:
    """Posterior predictive N(x·m, x·C·x + σ²), from the sampler to the interval."""
    posterior = isles.sample(small.problem, isles.SMC(isles.HMC(leapfrogs=5), 512, 10), islands=8, seed=1)
    x = np.random.default_rng(2).normal(size=(50, 4))
    prediction = posterior.predict(x)
    spread = np.einsum("ri,ij,rj->r", x, small.covariance, x)
    std = np.sqrt(spread + 1)
    assert np.abs((prediction.mean - x @ small.mean) / std).max() < 0.05
    np.testing.assert_allclose(prediction.epistemic, spread, rtol=0.15)
    np.testing.assert_allclose(prediction.aleatoric, 1, rtol=1e-6)
    low, high = prediction.interval(0.8)
    np.testing.assert_allclose((high - low) / std, 2 * stats.norm.ppf(0.9), rtol=0.03)


def test_memory_does_not_grow_with_draws_times_rows(monkeypatch: Any) -> None:
    """All draws' predictions at once would be 7 MB, of classes and of values."""
    monkeypatch.setattr(predictions, "CHUNK_BYTES", 1 << 21)
    x = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    y = np.ones((60, 8))
    classes = isles.classification(lambda w, x: x @ w, isles.Gaussian(np.zeros((2, 20))), x, np.arange(500) % 20)
    values = isles.regression(lambda w, x: x @ w, isles.Gaussian(np.zeros((2, 8))), x[:60], y, noise_std=1)
    classifier, regressor = posterior_of(classes, 1, 95), posterior_of(values, 1, 1000)

    def peak(run: Any) -> float:
        run()  # compiled before anything is counted
        tracemalloc.start()
        try:
            run()
            return tracemalloc.get_traced_memory()[1] / 2**20
        finally:
            tracemalloc.stop()

    assert peak(lambda: classifier.predict(x)) < 3
    prediction = regressor.predict(x[:60])
    assert peak(lambda: prediction.quantile(0.3)) < 3
    assert peak(lambda: regressor.log_predictive(x[:60], y)) < 3
    assert peak(lambda: classifier.predict(x, per_draw=True)) > 7, "the measure sees what is allocated"


NETWORK = MLP(inputs=2, hidden=(4,), outputs=3, activation="tanh")
FILES = {
    "softmax": lambda: isles.classification(NETWORK, isles.Gaussian(NETWORK.shapes()), X, np.arange(23) % 3),
    "plain": lambda: isles.classification(NETWORK.plain, isles.Gaussian(NETWORK.shapes()), X, np.arange(23) % 3),
    "number": lambda: isles.regression(
        NETWORK.apply, isles.Gaussian(NETWORK.shapes()), X, np.ones((23, 3)), noise_std=0.2
    ),
    "learned": lambda: isles.regression(
        NETWORK.apply, isles.Gaussian(NETWORK.shapes()), X, np.ones((23, 3)), noise_std="learned"
    ),
    "bernoulli": lambda: isles.classification(
        MLP(2, (), 1).apply, isles.Gaussian(MLP(2, (), 1).shapes()), X, np.arange(23) % 2
    ),
}


def central(prediction: Any) -> np.ndarray:
    return prediction.probabilities if isinstance(prediction, isles.Classes) else prediction.mean


@pytest.mark.parametrize("kind", FILES)
def test_a_file_predicts_without_problem_or_data(kind: str, tmp_path: Path) -> None:
    posterior = posterior_of(FILES[kind]())
    posterior.save(tmp_path / "one")
    loaded = isles.load(tmp_path / "one")
    np.testing.assert_array_equal(central(loaded.predict(NEW)), central(posterior.predict(NEW)))
    loaded.save(tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_your_own_network_comes_back_when_it_is_given(classifier: isles.Posterior, tmp_path: Path) -> None:
    path = tmp_path / "posterior"
    classifier.save(path)
    loaded = isles.load(path)
    with pytest.raises(ValueError, match=r"a file, which cannot hold your network; .*isles\.load\(path, apply="):
        loaded.predict(NEW)
    problem = isles.classification(softmax_net, isles.Gaussian(SOFTMAX_LIKE), X, np.arange(23) % 3)
    expected = classifier.predict(NEW).probabilities
    for again in (isles.load(path, apply=softmax_net), isles.load(path, problem=problem)):
        np.testing.assert_array_equal(again.predict(NEW).probabilities, expected)
    loaded.save(path)  # what was not known stays open
    np.testing.assert_array_equal(isles.load(path, apply=softmax_net).predict(NEW).probabilities, expected)
    other = isles.classification(lambda w, x: x @ w, isles.Gaussian(np.zeros((2, 3))), X, np.arange(23) % 3)
    with pytest.raises(ValueError, match=r"the parameters given have shapes .* those of the file"):
        isles.load(path, problem=other)
    with pytest.raises(ValueError, match="leave out apply= and like="):
        isles.load(path, problem=problem, apply=softmax_net)


def test_a_noise_function_comes_back_with_its_problem(tmp_path: Path) -> None:
    posterior = regressor("function")[0]
    posterior.save(tmp_path / "p")
    with pytest.raises(ValueError, match=r"cannot hold your noise_std function; .*problem="):
        isles.load(tmp_path / "p", apply=regression_net).predict(NEW)


def test_a_likelihood_of_your_own_predicts_nothing(tmp_path: Path) -> None:
    problem = isles.Problem(isles.Gaussian(like=np.zeros(2)), lambda theta: -jnp.sum(theta**2))
    posterior = dataclasses.replace(posterior_of(problem), likelihood=None)
    posterior.save(tmp_path / "p")
    for one in (posterior, isles.load(tmp_path / "p"), isles.load(tmp_path / "p", problem=problem)):
        with pytest.raises(ValueError, match=r"your own function.*use posterior\.expectation"):
            one.predict(NEW)
    with pytest.raises(ValueError, match=r"not one of isles; pass problem= instead"):
        isles.load(tmp_path / "p", apply=regression_net)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.where(NEW > 1, np.nan, NEW), r"x holds \d+ values that are not finite"),
        (np.ones((4, 3)), r"x has shape \(4, 3\), but the network was given rows of shape \(2,\)"),
        (np.ones(2), r"x must have shape \(rows, 2\): x\[None\] for a single row"),
        (np.ones((0, 2)), r"x has shape \(0, 2\); it needs rows"),
        (1.0, r"x has shape \(\); it needs rows"),
        ("words", "x has dtype <U5; convert it to numbers"),
        ([["a", "b"]], "x has dtype <U1"),
        ([[1, 2], [3]], "x is not an array"),
        (None, "x holds Python objects"),
    ],
)
def test_inputs_that_do_not_fit(classifier: isles.Posterior, x: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        classifier.predict(x)


def test_answers_that_do_not_fit(classifier: isles.Posterior) -> None:
    with pytest.raises(ValueError, match=r"labels run from 0 to 3.*labels must lie in 0\.\.2"):
        classifier.log_predictive(NEW[:4], [0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"y has shape \(3,\); 17 rows"):
        classifier.log_predictive(NEW, [0, 1, 2])
    with pytest.raises(ValueError, match="chunk_rows=0 must be at least 1"):
        classifier.predict(NEW, chunk_rows=0)
    posterior = regressor("number")[0]
    with pytest.raises(ValueError, match=r"y has shape \(17,\); it must have shape \(17, 2\)"):
        posterior.log_predictive(NEW, np.ones(17))
    with pytest.raises(ValueError, match="y holds 34 values that are not finite"):
        posterior.predict(NEW).log_density(np.full((17, 2), np.nan))
    with pytest.raises(ValueError, match="this run kept no draws"):
        dataclasses.replace(posterior, positions=None).predict(NEW)


def test_a_prediction_shows_its_size_and_not_its_numbers() -> None:
    prediction = isles.Classes(np.log(np.full((100, 4), 0.25)), np.zeros(100), np.zeros(100))
    assert repr(prediction) == "Classes(100 rows, 4 classes)"
