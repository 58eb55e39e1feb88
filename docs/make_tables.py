"""Write the measured tables of README and docs, so that one figure stands in one place and every table has its script.

    python docs/make_tables.py            # write
    python docs/make_tables.py --check    # exit code 1 if a table differs from what was measured

docs/measured/NAME.json is written by a benchmark (`--table` or `--json`). docs/measured/pages/PAGE.json has tables as
they were read off a benchmark's output: cells, with the date, the commit and the command of the measurement. A table
stands between two markers:

    <!-- measured: NAME VIEW -->
    <!-- end -->
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"(<!-- measured: (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SHOWN = (  # of README
    *("DDP", "DDP + bf16 hook", "DDP + PowerSGD hook 2", "decent-dp ring", "Accelerate LocalSGD"),
    *("torchft LocalSGD", "torchft DiLoCo"),
)


def lines(head: list[str], body: list[list[str]]) -> str:
    rule = "|" + "|".join("---" for _ in head) + "|\n"
    return f"| {' | '.join(head)} |\n{rule}" + "".join(f"| {' | '.join(row)} |\n" for row in body)


def digits(value: float) -> str:
    """Three significant ones, no exponent."""
    if not math.isfinite(value):
        return "-"
    places = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{places}f}"


def stored(measured: dict[str, Any], table: str) -> str:
    """A table whose cells are in the file."""
    return lines(measured[table]["head"], measured[table]["rows"])


def five_users(measured: dict[str, Any], user: str) -> str:
    """The choices of one user, the fastest first."""
    body = []
    for row in measured[user]["rows"]:
        recipe, spent = row["recipe"], row["spent"]
        if row["reached"] < row["seeds"]:
            time = f"reached with {row['reached']} of {row['seeds']} seeds"
        else:
            time = f"{digits(row['seconds'])} ± {digits(row['deviation'])}"
        period = recipe.get("period", 1)
        steps = period["steps"] if isinstance(period, dict) else period
        settings = [f"lr {recipe['lr']:g}", *([f"period {steps}"] if steps > 1 else [])]
        settings += [f"momentum {recipe['momentum']:g}"] if "momentum" in recipe else []
        waiting = f"{spent['wait'] / sum(spent.values()):.0%}" if spent else ""
        cells = [row["choice"], time, f"{row['examples']:,.0f}", digits(row["bytes"] / 1e6), waiting, ", ".join(settings)]
        body.append([*cells, f"{row['local_accuracy']:.2f}"] if user == "many" else cells)
    body[0][0] = f"**{body[0][0]}**"
    target = measured[user]["until"].replace("=", " ")
    head = ["choice", f"simulated s to {target}", "examples", "MB sent", "waiting", "tuned"]
    return lines([*head, "accuracy of a worker"] if user == "many" else head, body)


def wire_time(measured: dict[str, Any], rate: str) -> str:
    """All candidates at one rate: seconds (mean of the seeds, and their range) and the ratio to DDP."""
    equal, unequal = (measured[f"{rate} {speeds}"] for speeds in ("equal", "unequal"))
    mean = {name: [statistics.mean(t[name]["seconds"]) for t in (equal, unequal) if name in t] for name in equal}
    mean = {name: both for name, both in mean.items() if len(both) == 2}
    body = []
    for name in sorted(mean, key=lambda name: sum(mean[name])):
        cells = [f"**{name}**" if equal[name]["ours"] else name, digits(equal[name]["kB"])]
        for table, seconds, base in zip((equal, unequal), mean[name], mean["DDP"], strict=True):
            each = table[name]["seconds"]
            cells += [f"{digits(seconds)} ({digits(min(each))} to {digits(max(each))})", digits(base / seconds)]
        body.append(cells)
    return lines(["", "kB sent per step", "equal: seconds", "DDP / it", "1:1:2:4: seconds", "DDP / it"], body)


def wire_time_short(measured: dict[str, Any], rate: str) -> str:
    """Ours that are best, and the peers."""
    equal, unequal = (measured[f"{rate} {speeds}"] for speeds in ("equal", "unequal"))
    mean = {(n, i): statistics.mean(t[n]["seconds"]) for i, t in enumerate((equal, unequal)) for n in t}
    ours = {min((n for n in t if t[n]["ours"]), key=lambda n: mean[n, i]) for i, t in enumerate((equal, unequal))}
    names = sorted([*ours, *_SHOWN], key=lambda name: sum(mean.get((name, i), math.inf) for i in (0, 1)))
    body = [
        [f"**Equipoise: {name}**" if name in ours else name, *(digits(mean.get((name, i), math.nan)) for i in (0, 1))]
        for name in names
    ]
    return lines([f"seconds to 42 %, 4 hosts, {rate.replace('mbit', ' Mbit')}", "equal speeds", "1:1:2:4"], body)


def wire_cost(measured: dict[str, float], model: str) -> str:
    """Coding beside 16 steps of each model, and beside the time saved."""
    models = list(dict.fromkeys(name.split(",")[0] for name in measured))
    wires = list(dict.fromkeys(name.split(", ")[1].split(":")[0] for name in measured))
    body = []
    for wire in sorted(wires, key=lambda wire: measured[f"{models[0]}, {wire}: coding / 16 steps"]):
        shares = [measured[f"{m}, {wire}: coding / 16 steps"] for m in models]
        saved = [measured[f"{m}, {wire}: coding / time saved at 1 Gbit/s"] for m in models]
        body.append([f"`{wire}`", *(f"{share:.3f}" for share in shares), f"{min(saved):.2f} to {max(saved):.2f}"])
    return lines(["wire", *(f"/ 16 steps, {m}" for m in models), "/ time saved at 1 Gbit"], body)


def detag(measured: dict[str, Any], view: str) -> str:
    """Final losses, mean and range of the seeds; bold where a method is ahead of the three rivals in every seed."""
    settings = list(measured)
    ends = {s: {row["method"]: [curve[-1] for curve in row["curves"]] for row in measured[s]} for s in settings}
    methods = dict.fromkeys(row["method"] for s in settings for row in measured[s])
    body = []
    for method in methods:
        sent = {row["method"]: row["sent"] for s in reversed(settings) for row in measured[s]}[method]
        cells = [method, f"{sent:g}"]
        for setting in settings:
            losses = ends[setting].get(method)
            if losses is None:
                cells.append("")
                continue
            rivals = [ends[setting][name] for name in ("D-PSGD", "D2", "DSGT") if name != method]
            ahead = all(own < min(others) for own, *others in zip(losses, *rivals, strict=True))
            mean = f"{statistics.mean(losses):.3f}"
            cells.append(f"{f'**{mean}**' if ahead else mean} ({min(losses):.3f} to {max(losses):.3f})")
        body.append(cells)
    return lines(["", "vectors per step", *settings], body)


_FREE = ("D-RR", "flip-flop", "paired reversal")


def order_seconds(measured: dict[str, Any], task: str) -> str:
    """Losses at equal epochs and at equal seconds (epochs times the cost of a step), mean and range of the seeds.

    A plain order takes all epochs; one that costs c of a plain step the first epochs / c of them.
    """
    runs, costs = measured[task], measured["costs"]
    body, at_equal = [], {}
    for name, seeds in runs.items():
        epochs = len(next(iter(seeds.values())))
        paid = min(epochs, int(epochs / costs[name]))
        ends = [statistics.mean(values[epochs - 3 : epochs]) for _, values in sorted(seeds.items())]
        at_equal[name] = [statistics.mean(values[paid - 3 : paid]) for _, values in sorted(seeds.items())]
        body.append([name, f"{costs[name]:.2f}", _range(ends), str(paid), _range(at_equal[name])])
    for row in body:
        free = [at_equal[name] for name in _FREE if name in at_equal]
        ahead = sum(all(mine < other[i] for other in free) for i, mine in enumerate(at_equal[row[0]]))
        row.append("" if row[0] in _FREE else f"{ahead} of {len(at_equal[row[0]])}")
    head = ["order", "cost of a step", f"loss after {epochs} epochs", "epochs at equal seconds", "loss then"]
    return lines([*head, "seeds in which it is ahead of all free orders"], body)


def _range(values: list[float]) -> str:
    return f"{digits(statistics.mean(values))} ({digits(min(values))} to {digits(max(values))})"


def order_cost(measured: dict[str, float], view: str) -> str:
    """Time of an ordered step / a plain step."""
    names = list(dict.fromkeys(name.split(": ")[1] for name in measured if name.endswith(" / plain")))
    tasks = list(dict.fromkeys(name.split(": ")[0] for name in measured))
    body = [[n.split(" / ")[0], *(f"{measured[f'{task}: {n}']:.2f}" for task in tasks)] for n in names]
    return lines(["", *tasks], body)


def order_processes(measured: dict[str, float], view: str) -> str:
    """Time and bytes of an order on processes."""
    names = [name.removesuffix(" step / D-RR step") for name in measured if name.endswith(" step / D-RR step")]
    body = [
        [n, f"{measured[f'{n} step / D-RR step']:.2f}", f"{measured[f'{n}: extra bytes / all-reduce']:.4f}"]
        for n in names
    ]
    return lines(["order", "step / D-RR step", "extra bytes / all-reduce bytes"], body)


def order_gossip(measured: dict[str, float], view: str) -> str:
    """Largest prefix norms by world size."""
    keys = [name.split(", ") for name in measured]
    orders = list(dict.fromkeys(key[0] for key in keys))
    columns = list(dict.fromkeys((key[1], key[2]) for key in keys))
    body = [[o, *(f"{measured[f'{o}, {d}, {w}']:.1f}" for d, w in columns)] for o in orders]
    return lines(["", *(f"{d.replace('dimensions', 'dim.')}, {w.replace('workers', 'w.')}" for d, w in columns)], body)


VIEWS: dict[str, Callable[[Any, str], str]] = {
    "five_users": five_users,
    "wire_time": wire_time,
    "wire_time_short": wire_time_short,
    "wire_cost": wire_cost,
    "detag": detag,
    "order_seconds": order_seconds,
    "order_cost": order_cost,
    "order_processes": order_processes,
    "order_gossip": order_gossip,
}
FILES = {"wire_time_short": "wire_time"}


def rendered(text: str) -> str:
    def block(match: re.Match[str]) -> str:
        name, view = match[2], match[3]
        path = ROOT / "docs" / "measured" / f"{FILES.get(name, name)}.json"
        return match[1] + VIEWS.get(name, stored)(json.loads(path.read_text()), view.replace("_", " ")) + match[4]

    return _BLOCK.sub(block, text)


def main() -> int:
    stale = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        new = rendered(text)
        if new != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"tables differ from docs/measured in {', '.join(stale)}: run python docs/make_tables.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
