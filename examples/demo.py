"""Handwritten digits: two baselines beside parallel HMC and parallel SMC, and what a run that is too short says.

Run: make demo
"""

import time
import warnings

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import isles

REPORT = "demo_report.html"
console = Console()


def digits(train):
    """8×8 digits, a small network, and inputs that are no digits: the same pixels in another order."""
    data = isles.data.load("digits", train=train)
    flat = lambda images: images.reshape(len(images), -1)
    network = isles.models.MLP(inputs=64, hidden=(10,), outputs=10)
    prior = isles.Gaussian(like=network.shapes(), std=isles.models.stds(network, weights=0.5, biases=0.5))
    problem = isles.classification(network.apply, prior, flat(data.x_train), data.y_train)
    others = np.random.default_rng(0).permuted(flat(data.x_test), axis=1)
    return problem, (flat(data.x_test), data.y_test), others


def compare(problem, test, others, burn_in, mutations):
    """Four answers to the same question, with the same prior."""
    kernel = isles.HMC(leapfrogs=10)
    run = lambda sampler: isles.sample(problem, sampler, islands=4, islands_per_block=2, engine="local")
    methods = {
        "MAP": lambda: isles.baselines.map_estimate(problem, learning_rate=0.05),
        "ensemble": lambda: isles.baselines.deep_ensemble(problem, members=10, learning_rate=0.05),
        "HMC∥": lambda: run(isles.MCMC(kernel, chains=16, burn_in=burn_in)),
        "SMC∥": lambda: run(isles.SMC(kernel, particles=32, mutations=mutations)),
    }
    table = Table(
        title=f"{problem.rows} digits to learn from, {len(test[1])} to test on", title_justify="left", box=SIMPLE,
        padding=(0, 1), pad_edge=False,
    )  # fmt: skip
    table.add_column("method")
    for column in ("accuracy", "NLL", "ECE", "H_ep", "on others", "AUROC", "epochs", "s"):
        table.add_column(column, justify="right")
    posteriors = {}
    for name, method in methods.items():
        console.print(f"[dim]{name} ...[/dim]")
        start = time.perf_counter()
        posteriors[name] = method()
        seconds = time.perf_counter() - start
        prediction, outside = posteriors[name].predict(test[0]), posteriors[name].predict(others)
        scores = isles.metrics.evaluate(prediction, test[1], outside)
        numbers = [scores["accuracy"], scores["nll"], scores["ece"], scores["epistemic entropy"]]
        numbers += [outside.epistemic.mean(), scores["auroc by epistemic"]]
        cells = [f"{number:.3f}" for number in numbers]
        table.add_row(name, *cells, f"{posteriors[name].epochs.total:,}", f"{seconds:.0f}")
    console.print(table)
    console.print(
        "H_ep, the epistemic entropy, is what more data could remove. It should be large on inputs that are no "
        "digits: one set of weights cannot know that (H_ep = 0), an ensemble hardly does, draws from the "
        "posterior do. HMC and SMC agree, since both have converged.\n"
    )
    return posteriors


def too_short():
    """The first 1000 images of MNIST, one leapfrog and one mutation a stage: far too short, and it says so."""
    data = isles.data.load("mnist")
    network = isles.models.mnist_cnn()
    prior = isles.Gaussian(like=network.shapes(), std=isles.models.kaiming(network))
    problem = isles.classification(network.apply, prior, data.x_train, data.y_train)
    console.print("[dim]MNIST, a short parallel SMC ...[/dim]")
    sampler = isles.SMC(isles.HMC(leapfrogs=1), particles=16, mutations=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", isles.IslesWarning)
        posterior = isles.sample(problem, sampler, islands=2, engine="local")
    scores = isles.metrics.evaluate(posterior.predict(data.x_test), data.y_test)
    console.print(
        f"MNIST, SMC with 1 mutation a stage: accuracy {scores['accuracy']:.3f}, NLL {scores['nll']:.3f}"
    )
    for warning in caught:
        console.print(f"[yellow]warning:[/yellow] {warning.message}", soft_wrap=True)


def main(train=500, burn_in=500, mutations=12):
    problem, test, others = digits(train)
    posteriors = compare(problem, test, others, burn_in, mutations)
    too_short()
    smc = posteriors.pop("SMC∥")
    path = isles.report(smc, REPORT, test=test, ood=others, title="Digits, parallel SMC", others=posteriors)
    console.print(f"\nThe report on the SMC run, to open in a browser: {path.resolve().as_uri()}")


if __name__ == "__main__":
    main()
