"""What a page tells first: the verdict, what to run, and a bar for each choice."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

Table = tuple[list[str], list[list[str]]]

_COPY = """<script>
document.getElementById("copy").onclick = async (event) => {
  const text = document.getElementById("command"), said = event.target;
  try { await navigator.clipboard.writeText(text.textContent); }
  catch {  // an old browser, or a page that was opened from an insecure place
    getSelection().selectAllChildren(text);
    document.execCommand("copy");
  }
  said.textContent = "Copied";
  setTimeout(() => (said.textContent = "Copy"), 2000);
};
</script>"""


@dataclass(frozen=True)
class Bar:
    """The value of one choice; `text` is how it is written, `spread` a standard deviation over seeds, 0 if unknown."""

    name: str
    value: float
    spread: float
    text: str
    missed: bool = False  # the target: the value is only a lower bound
    factor: str = ""  # against the baseline


@dataclass(frozen=True)
class Bars:
    """One bar for each choice, best first."""

    title: str
    caption: str
    rows: list[Bar]


def verdict(sentence: str, command: str, first: str) -> list[str]:
    """The sentence, and the command that runs the choice `first`, with a button that copies it."""
    parts = [f'<p class="sentence">{escape(sentence)}</p>'] if sentence else []
    if command:
        parts.append(
            f'<div class="run"><span>Run {escape(first)}</span><code id="command">{escape(command)}</code>'
            f'<button id="copy" aria-live="polite">Copy</button></div>{_COPY}'
        )
    return parts


def bars(about: Bars, colours: dict[str, str]) -> list[str]:
    """HTML alone, so that it is there at once and wraps long names. `colours`: of the choices that have curves."""
    longest = max((bar.value + bar.spread for bar in about.rows), default=0.0) or 1.0
    order = list(colours)
    label = "; ".join(f"{bar.name} {bar.text}{bar.factor and f', {bar.factor}'}" for bar in about.rows)
    parts = [
        f"<h2>{escape(about.title)}</h2>",
        f"<p>{escape(about.caption)}</p>",
        f'<div class="bars" role="img" aria-label="{escape(f"{about.title}: {label}", quote=True)}">',
    ]
    for bar in about.rows:
        mark = f' data-choice="{order.index(bar.name)}"' if bar.name in order else ""
        low, high = (max(0.0, bar.value + sign * bar.spread) / longest for sign in (-1, 1))
        whisker = f'<i style="left:{low:.2%};width:{high - low:.2%}"></i>' if bar.spread > 0 else ""
        factor = f"<small>{escape(bar.factor)}</small>" if bar.factor else ""
        fill = f"width:{bar.value / longest:.2%};--colour:{colours.get(bar.name, 'var(--soft)')}"
        parts.append(
            f'<div class="bar"{mark}><span class="name">{escape(bar.name)}</span><span class="track">'
            f'<b{" class=missed" if bar.missed else ""} style="{fill}"></b>{whisker}</span>'
            f'<span class="value">{escape(bar.text)}{factor}</span></div>'
        )
    return [*parts, "</div>"]
