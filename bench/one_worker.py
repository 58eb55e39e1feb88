"""`eq.train` with one worker compared with a hand-written loop: 1M-parameter MLP, batch 32, momentum SGD."""

from __future__ import annotations

import torch
from common import arguments, images, interleaved, median_ratio, mlp, report, sgd
from torch import nn

import equipoise as eq


def main() -> None:
    args = arguments(__doc__, steps=150, repetitions=9, threads=1)
    torch.set_num_threads(args.threads)
    inputs, targets = images()
    loss = nn.CrossEntropyLoss()
    test = inputs[:8], targets[:8]

    def by_hand(steps: int) -> None:
        model = mlp()
        optimizer = sgd(model.parameters())
        done = 0
        while done < steps:
            order = torch.randperm(len(inputs))
            for start in range(0, len(order), 32):
                index = order[start : start + 32]
                optimizer.zero_grad()
                value = loss(model(inputs[index]), targets[index])
                value.backward()
                optimizer.step()
                done += 1
                if done == steps:
                    break

    def ours(steps: int) -> None:
        eq.train(mlp, loss, (inputs, targets), test=test, optimizer=sgd, steps=steps, batch=32)

    # A long run less a short one: what remains is the price of steps, without building and evaluating.
    short, long = 20, 20 + args.steps
    seconds = interleaved(
        {
            "ours long": lambda: ours(long),
            "hand long": lambda: by_hand(long),
            "ours short": lambda: ours(short),
            "hand short": lambda: by_hand(short),
        },
        args.repetitions,
    )
    mine = [a - b for a, b in zip(seconds["ours long"], seconds["ours short"], strict=True)]
    hand = [a - b for a, b in zip(seconds["hand long"], seconds["hand short"], strict=True)]
    print(f"hand-written step {1e3 * sorted(hand)[len(hand) // 2] / args.steps:.2f} ms, {args.threads} thread(s)")
    report("One worker", [("eq.train step / hand-written step", median_ratio(mine, hand), 1.05)], args.json)


if __name__ == "__main__":
    main()
