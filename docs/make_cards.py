"""Builds docs/methods/ (a page of cards per axis) and docs/api/ of the axes, from the registry and docs/cards.toml.

    python docs/make_cards.py

A card has the method's name, when to use it, its docstring with the equations set as LaTeX, its options, and for a
sync a picture and what happens when workers come and go.
A page of docs/api names the classes of an axis; mkdocstrings fills in signatures and options.
"""

from __future__ import annotations

import dataclasses
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
    "wire": "How do vectors travel: as they are, or compressed?",
}
INDEX = """# Method cards
Each card states what a method computes, what it stores and sends, when to use it and when not to. The text comes from
the method's docstring. On the command line options are dotted, such as `--sync.pull 0.5`.

Notation: worker $i$ of $N$ holds the model $x_i$ and the gradient $g_i$; $a$ is the learning rate; $W$ is the mixing
matrix of the topology; $H$ is the period; $\\pi_i$ is the worker's share of the examples.
"""
LIMITS = {"least": "at least", "above": "above", "most": "at most", "below": "below"}
PICTURES = """
The plots show the largest distance of any worker from the global optimum on heterogeneous quadratics: 8 workers, full
gradients, a constant step. The curve of an exact method keeps falling. The curve of a biased method stalls.
"""


def options(cls: type) -> str:
    """The options of a method as a table; empty if it has none."""
    rows = []
    for field in dataclasses.fields(cls):
        default = field.default_factory() if callable(field.default_factory) else field.default
        shown = "required" if default is dataclasses.MISSING else f"`{default!r}`"
        limits = [
            f"{LIMITS[key]} {value}" for key, value in field.metadata.items() if key in LIMITS and value is not None
        ]
        limits += [", ".join(f"`{choice!r}`" for choice in field.metadata.get("choices") or ())]
        text = "; ".join(part for part in (field.metadata.get("help", ""), *limits) if part)
        rows.append(f"| `{field.name}` | {shown} | {text.replace('|', '&#124;').replace('<', '&lt;')} |")
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows]) if rows else ""


def change(cls: type, text: dict[str, str]) -> str:
    """What happens when workers are lost or join: a sentence, and what its class says of the state."""
    if "change" not in text:
        return ""
    kinds = {"of all": cls.COMMON, "of each worker": cls.OWN}
    kept = [f"{whose} {', '.join(f'`{name}`' for name in names)}" for whose, names in kinds.items() if names]
    return f"\n- **Workers come and go:** {text['change']}" + (
        f" State that is kept: {'; '.join(kept)}." if kept else ""
    )


def card(entry: registry.Entry, text: dict[str, str]) -> str:
    cls = registry.get(entry.axis, entry.name)
    parts = [
        f"## {entry.name}",
        f"`eq.{entry.axis}.{cls.__name__}`: {entry.help}.",
        f"- **Use it:** {text['use']}\n- **Avoid it:** {text['avoid']}" + change(cls, text),
        equations.markdown(inspect.getdoc(cls) or ""),
        *filter(None, [options(cls)]),
    ]
    picture = HERE / "pictures" / f"{entry.axis}-{entry.name}.png"
    if picture.exists():
        parts.append(f"![Distance to the optimum against rounds for {entry.name}](../pictures/{picture.name})")
    return "\n\n".join(parts)


def reference(axis: str) -> str:
    """The API page of an axis: its contract, then its methods."""
    classes = [registry.get(axis, entry.name) for entry in registry.entries(axis)]
    contract = next(c for c in classes[0].__mro__ if c.__module__ == f"equipoise.{axis}.base")
    directives = [f"::: {c.__module__}.{c.__qualname__}" for c in (contract, *classes)]
    head = f"# eq.{axis}\n{AXES[axis]} The contract comes first, then the methods. [Cards](../methods/{axis}.md)."
    return "\n\n".join([head, *directives]) + "\n"


def pages() -> dict[str, str]:
    """Paths below docs and the contents of the files."""
    cards = read_toml(HERE / "cards.toml")
    index = INDEX
    result = {}
    for axis, question in AXES.items():
        # The order of cards.toml keeps families together.
        entries = sorted(registry.entries(axis), key=lambda entry: list(cards[axis]).index(entry.name))
        links = [f"[{entry.name}]({axis}.md#{entry.name})" for entry in entries]
        index += f"\n## {axis.capitalize()}\n{question} [The axis](../{axis}.md).\n\n" + " · ".join(links) + "\n"
        head = f"# Cards: {axis}\n{question} See [the {axis} axis](../{axis}.md) for the comparison of these methods.\n"
        head += PICTURES if axis == "sync" else ""
        text = [card(entry, cards[axis][entry.name]) + "\n" for entry in entries]
        result[f"methods/{axis}.md"] = "\n".join([head, *text])
        result[f"api/{axis}.md"] = reference(axis)
    return {"methods/index.md": index, **result}


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(text)
