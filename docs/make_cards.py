"""Builds docs/methods/: a page of cards per axis, from the methods' docstrings and docs/cards.toml.

    python docs/make_cards.py

A card has the method's name, when to use it, its docstring with the equations set as LaTeX, and for a sync a picture.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from equipoise.config import registry
from equipoise.core.toml import read_toml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "hooks"))
import equations  # noqa: E402

AXES = {
    "partition": "Which examples does each worker own?",
    "order": "In which order does a worker visit its examples?",
    "batch": "How many examples per step?",
    "period": "When do workers communicate?",
    "topology": "Which workers communicate with each other?",
    "sync": "What do workers exchange, and how do they combine it?",
}
INDEX = """# Method cards
Each card states what a method computes, what it stores and sends, when to use it and when not to. The text comes from the
method's docstring. `equipoise list AXIS NAME` prints the options of a method.

Notation: worker $i$ of $N$ holds the model $x_i$ and the gradient $g_i$; $a$ is the learning rate; $W$ is the mixing matrix of
the topology; $H$ is the period; $\\pi_i$ is the worker's share of the examples.
"""
PICTURES = """
The plots show the largest distance of any worker from the global optimum on heterogeneous quadratics: 8 workers, full
gradients, a constant step. The curve of an exact method keeps falling. The curve of a biased method stalls.
"""


def card(entry: registry.Entry, text: dict[str, str]) -> str:
    cls = registry.get(entry.axis, entry.name)
    parts = [
        f"## {entry.name}",
        f"`eq.{entry.axis}.{cls.__name__}`: {entry.summary}.",
        f"- **Use it:** {text['use']}\n- **Avoid it:** {text['avoid']}",
        equations.markdown(inspect.getdoc(cls) or ""),
    ]
    picture = HERE / "pictures" / f"{entry.axis}-{entry.name}.png"
    if picture.exists():
        parts.append(f"![Distance to the optimum against rounds for {entry.name}](../pictures/{picture.name})")
    return "\n\n".join(parts)


def pages() -> dict[str, str]:
    """File names in docs/methods and their contents."""
    cards = read_toml(HERE / "cards.toml")
    result = {"index.md": INDEX}
    for axis, question in AXES.items():
        entries = registry.entries(axis)
        links = [f"[{entry.name}]({axis}.md#{entry.name})" for entry in entries]
        result["index.md"] += f"\n## {axis.capitalize()}\n{question} [The axis](../{axis}.md).\n\n" + " · ".join(links) + "\n"
        head = f"# Cards: {axis}\n{question} See [the {axis} axis](../{axis}.md) for the comparison of these methods.\n"
        head += PICTURES if axis == "sync" else ""
        result[f"{axis}.md"] = "\n".join([head, *(card(entry, cards[axis][entry.name]) + "\n" for entry in entries)])
    return result


if __name__ == "__main__":
    (HERE / "methods").mkdir(exist_ok=True)
    for name, text in pages().items():
        (HERE / "methods" / name).write_text(text)
