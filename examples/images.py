"""Images, and inputs of kinds that were never seen: digits 0 to 7 are learnt, 8 and 9 are to be noticed.

Run: python examples/images.py
"""

import isles


def main(train=300, mutations=8):
    data = isles.data.load("digits", train=train)
    flat = lambda images: images.reshape(len(images), -1)
    known, seen = data.y_train < 8, data.y_test < 8

    network = isles.models.MLP(inputs=64, hidden=(10,), outputs=8)
    prior = isles.Gaussian(like=network.shapes(), std=1.0)
    problem = isles.classification(network.apply, prior, flat(data.x_train)[known], data.y_train[known])
    sampler = isles.SMC(isles.HMC(leapfrogs=10), particles=32, mutations=mutations)
    answers = {
        "one network": isles.baselines.map_estimate(problem, learning_rate=0.05, prior=False),
        "one network, with the prior": isles.baselines.map_estimate(problem, learning_rate=0.05),
        "the posterior": isles.sample(problem, sampler, islands=2),
    }

    print(f"{'':28}accuracy    NLL   AUROC by entropy   by epistemic entropy")
    for name, answer in answers.items():
        inside, outside = answer.predict(flat(data.x_test)[seen]), answer.predict(flat(data.x_test)[~seen])
        scores = isles.metrics.evaluate(inside, data.y_test[seen], outside)
        found = f"{scores['auroc by entropy']:16.3f}   {scores['auroc by epistemic']:20.3f}"
        print(f"{name:28}{scores['accuracy']:8.3f}  {scores['nll']:5.3f}   {found}")
    print("AUROC: how often an 8 or 9 is less certain than a digit of a known kind. One network has no epistemic")
    print("entropy, so it cannot tell a new kind of input from one that is merely hard to read.")


if __name__ == "__main__":
    main()
