"""Builds docs/methods.md: a card per registered method, from its docstring and docs/cards.toml.

python docs/make_cards.py
"""

from __future__ import annotations

import inspect
from pathlib import Path

from equipoise.config import registry
from equipoise.core.toml import read_toml

HERE = Path(__file__).parent
AXES = {
    "sync": "What do workers exchange, how do they combine it?",
    "topology": "Who talks to whom?",
    "partition": "Which examples does a worker own?",
    "order": "In which order does it visit them?",
    "batch": "How many per step?",
    "period": "When do workers talk?",
}
HEAD = """# Method cards
Built from the docstrings and `docs/cards.toml` by `python docs/make_cards.py`. The pictures (`python docs/make_pictures.py`) show the largest
distance of a worker from the optimum of the mean, on quadratics that differ between 8 workers, with full gradients: an exact method
falls for ever, a biased one stops. `equipoise list AXIS NAME` shows a method's options.
"""


def card(entry: registry.Entry, words: dict[str, str]) -> str:
    cls = registry.get(entry.axis, entry.name)
    lines = [f"### {entry.name}", f"`eq.{entry.axis}.{cls.__name__}`: {entry.summary}."]
    picture = HERE / "pictures" / f"{entry.axis}-{entry.name}.png"
    if picture.exists():
        lines.append(f"\n![{entry.name} on the toy problem](pictures/{picture.name})")
    lines.append(f"\n```text\n{inspect.getdoc(cls)}\n```")
    lines.append(f"**Use it** when {words['use']}.  \n**Not** when {words['avoid']}.\n")
    return "\n".join(lines)


def page() -> str:
    cards = read_toml(HERE / "cards.toml")
    parts = [HEAD]
    for axis, question in AXES.items():
        parts.append(f"## {axis}: {question[0].lower()}{question[1:]}")
        parts += [card(entry, cards[axis][entry.name]) for entry in registry.entries(axis)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    (HERE / "methods.md").write_text(page())
