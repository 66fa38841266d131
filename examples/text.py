"""Text by embeddings: a Bayesian head on the features of a frozen sentence encoder, for film reviews.

The features come from ISLES_DATA or the cache; docs/data.md shows how to compute them with an encoder.
Run: python examples/text.py
"""

import isles


def main(train=500, test=1000):
    data = isles.data.load("imdb", train=train, test=test, download=False)
    head = isles.models.logistic(features=data.x_train.shape[1], classes=2)
    prior = isles.Gaussian(like=head.shapes(), std=3.0)  # features have length 1, so logits are about 3 a priori
    problem = isles.classification(head.apply, prior, data.x_train, data.y_train)
    posterior = isles.sample(problem, isles.SMC(isles.HMC(leapfrogs=10), particles=32, mutations=5), islands=2)

    prediction = posterior.predict(data.x_test)
    print(isles.metrics.evaluate(prediction, data.y_test))
    sure = isles.metrics.selective_accuracy(prediction, data.y_test)
    print(f"accuracy {sure.accuracy[-1]:.3f}, on the surer half {sure.accuracy[test // 2 - 1]:.3f}")
    print(f"the review to read yourself: number {prediction.entropy.argmax()}")


if __name__ == "__main__":
    main()
