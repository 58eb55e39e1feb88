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
from typing import Any, NamedTuple

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
    """The choices of one user, the fastest first, and the verdict of `equipoise compare`."""
    body = []
    for row in measured[user]["rows"]:
        recipe, spent = row["recipe"], row["spent"]
        if row["reached"] < row["seeds"]:
            time = f"reached with {row['reached']} of {row['seeds']} seeds"
        else:
            spread = f" ± {digits(row['deviation'])}" if row["seeds"] > 1 else ""
            time = f"{digits(row['seconds'])}{spread}"
        period = recipe.get("period", 1)
        steps = period["steps"] if isinstance(period, dict) else period
        settings = [f"lr {recipe['lr']:g}", *([f"period {steps}"] if steps > 1 else [])]
        settings += [f"momentum {recipe['momentum']:g}"] if "momentum" in recipe else []
        waiting = f"{spent['wait'] / sum(spent.values()):.0%}" if spent else ""
        cells = [
            row["choice"],
            time,
            f"{row['examples']:,.0f}",
            digits(row["bytes"] / 1e6),
            waiting,
            ", ".join(settings),
        ]
        body.append([*cells, f"{row['local_accuracy']:.2f}"] if user == "many" else cells)
    body[0][0] = f"**{body[0][0]}**"
    target = measured[user]["until"].replace("=", " ")
    head = ["choice", f"simulated s to {target}", "examples", "MB sent", "waiting", "tuned"]
    table = lines([*head, "accuracy of a worker"] if user == "many" else head, body)
    return f"{table}\n*Verdict of `compare`:* {measured[user]['sentence']}\n"


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


def adaptive_batch(measured: dict[str, Any], task: str) -> str:
    """Rules against the first one, the small constant batch with the same seeds: quality, what is lost, rounds."""
    rows = measured[task]
    small, text = next(iter(rows.values())), task.startswith("text")
    body = []
    for name, row in rows.items():
        mean, own = (statistics.mean(r["quality"][: len(row["quality"])]) for r in (row, small))
        lost = f"{100 * (mean / own - 1):.1f} %" if text else f"{own - mean:.1f}"
        part = statistics.mean(row["rounds"]) / statistics.mean(small["rounds"])
        each = ", ".join(f"{value:.3f}" if text else f"{value:.1f}" for value in row["quality"])
        shown = f"{mean:.3f}" if text else f"{mean:.1f}"
        counts = [f"{statistics.mean(row['rounds']):.0f}", "" if row is small else f"{part:.2f}"]
        body.append(
            [name, shown, each, "" if row is small else lost, *counts, digits(statistics.mean(row["megabytes"]))]
        )
    metric = "test loss" if text else "accuracy %"
    return lines(["local batch", metric, "seeds", "lost", "rounds", "fraction", "MB sent"], body)


class SeedsRow(NamedTuple):
    """A rule of adaptive_batch_seeds.py at one rate."""

    period: int
    rule: str
    outer: str  # momentum; empty where models are averaged
    rate: float
    rounds: int
    quality: str


def seeds_rows(measured: dict[str, Any], tuning: bool) -> list[SeedsRow]:
    """Over the seeds that chose the rates, or over those that are reported."""
    found = []
    for name, row in measured.items():
        match = re.fullmatch(r"H = (\d+), (.*?)(?:, outer (\S+))?, rate (\S+)", name)
        assert match is not None, name
        period, rule, outer, rate = match.groups()
        if values := [pair for seed, pair in row["seeds"].items() if (int(seed) >= 10) == tuning]:
            accuracy, loss = zip(*values, strict=True)
            quality = f"{statistics.mean(accuracy):.2f} ± {statistics.stdev(accuracy):.2f}; {statistics.mean(loss):.3f}"
            found.append(SeedsRow(int(period), rule, outer or "", float(rate), row["rounds"], quality))
    return sorted(found, key=lambda row: row.period)


def adaptive_batch_seeds(measured: dict[str, Any], view: str) -> str:
    """Accuracy and loss of each rule: by rate, or with the outer step, each at the rate that was chosen for it."""
    rows = seeds_rows(measured, view == "tuning")
    if view == "outer":
        plain = [row for row in rows if not row.outer and row.rate == 0.014 and row.rule.startswith("constant")]
        chosen = sorted([*plain, *(row for row in rows if row.outer)], key=lambda row: (row.period, -row.rounds))
        body = [[f"{r.period}", r.rule, r.outer or "-", f"{r.rate:g}", f"{r.rounds}", r.quality] for r in chosen]
        return lines(["H", "local batch", "outer momentum", "rate", "rounds", "accuracy %; loss"], body)
    rates = sorted({row.rate for row in rows if not row.outer}, reverse=True)
    cells: dict[tuple[int, str, int], dict[float, str]] = {}
    for row in rows:
        if not row.outer:
            cells.setdefault((row.period, row.rule, row.rounds), {})[row.rate] = row.quality
    body = [
        [f"{period}", rule, f"{rounds}", *(found.get(rate, "") for rate in rates)]
        for (period, rule, rounds), found in cells.items()
    ]
    return lines(["H", "local batch", "rounds", *(f"rate {rate:g}: accuracy %; loss" for rate in rates)], body)


def partition_processes(measured: dict[str, Any], view: str) -> str:
    """Seconds with blocks by speed, relative to equal blocks, for both ways of being slow."""
    body = []
    for mean, clocked in measured["clocked"].items():
        parts = [
            f"{rows[blocks]['seconds'] / rows['equal']['seconds']:.2f}"
            for rows in (clocked, measured["slowed"].get(mean))
            for blocks in ("declared", "measured")
            if rows is not None
        ]
        body.append([mean, *parts[:2], f"{clocked['reachable']:.2f}", *(parts[2:] or ["", ""])])
    head = ["mean batch", "clocked: declared", "measured", "reachable", "slowed: declared", "measured"]
    return lines(head, body)


def gossip(measured: dict[str, Any], view: str) -> str:
    """Steps beside DDP's in the same run, or ours beside those of decent-dp that send as much."""
    places = [place for place in ("one host", "1gbit", "100mbit") if place in measured]
    heads = {"one host": "one host", "1gbit": "1 Gbit", "100mbit": "100 Mbit"}
    first, names = measured["one host"], []
    for place in places:
        names += [name for name in measured[place]["ratios"] if name not in names]
    wanted = [name for name in names if name.endswith("/ DDP") == (view == "DDP")]
    if view == "peer":
        wanted = [name for name in wanted if all(name in measured[place]["ratios"] for place in places)]
        wanted = [name for name in wanted if "ring," not in name]  # two neighbours, twice the bytes
    body = []
    for name in wanted:
        ours = name.split(" / ")[0]
        sent = first["vectors"].get(ours, 1.0)  # decent-dp talks to one neighbour in each step
        cells = [
            f"{measured[place]['ratios'][name]:.2f}" if name in measured[place]["ratios"] else "" for place in places
        ]
        body.append([ours if view == "DDP" else name, *([f"{sent:g}"] if view == "DDP" else []), *cells])
    columns = [heads[place] for place in places]
    if view == "DDP":
        return lines(["step / DDP", "vectors sent per worker", *columns], body)
    return lines(["step / step", *columns], body)


def wire_training(measured: dict[str, Any], sync: str) -> str:
    """Losses of the mean model, their differences from float32 of the same seed, and the spread of these."""
    tables = {title: rows for title, rows in measured["tables"].items() if title.endswith(f", {sync}")}
    tasks = [title.split(",")[0] for title in tables]
    head = ["wire", "message", "sent"]
    for task in tasks:
        head += [f"{task}: loss", "over float32, %", "seeds", "test accuracy, %"]
    body = []
    for wire in dict.fromkeys(wire for rows in tables.values() for wire in rows):
        cells, factors = [], ["-", "-"]
        for rows in tables.values():
            seeds, base = rows.get(wire, []), rows["float32"]
            if not seeds:
                cells += ["-"] * 4
                continue
            if factors == ["-", "-"]:
                factors = [
                    digits(4 * seeds[0]["elements"] / seeds[0]["message"]),
                    digits(base[0]["sent"] / seeds[0]["sent"]),
                ]
            over = [100 * (row["loss"] / other["loss"] - 1) for row, other in zip(seeds, base, strict=False)]
            spread = f" ({min(over):+.2f} to {max(over):+.2f})" if len(over) > 1 else ""
            cells += [
                f"{statistics.mean(row['loss'] for row in seeds):.4f}",
                "" if wire == "float32" else f"{statistics.mean(over):+.2f}{spread}",
                str(len(seeds)),
                f"{100 * statistics.mean(row['test_accuracy'] for row in seeds):.1f}",
            ]
        body.append([f"`{wire}`", *factors, *cells])
    return lines(head, body)


def plan_validation(measured: dict[str, Any], view: str) -> str:
    """The first choice of each case: what was promised, what it took, and what the fastest of those measured took."""
    body = []
    for name, case in measured.items():
        real = {choice: average(row["real"]) for choice, row in case["choices"].items()}
        own, fastest = case["choices"][case["first"]], min(real, key=lambda choice: real[choice])
        (low, high), ratio = case["interval"], real[case["first"]] / real[fastest]
        body.append(
            [
                name,
                case["first"],
                f"{digits(case['seconds'])} ({digits(low)} to {digits(high)})",
                " ".join("-" if seconds is None else digits(seconds) for seconds in own["real"]),
                "the first" if ratio == 1 else f"{fastest}: {digits(real[fastest])}",
                f"{ratio:.2f}" if ratio <= 1.1 else f"**{ratio:.2f}**",
            ]
        )
    head = ["case", "first choice", "predicted s (interval)", "real s, new seeds", "the fastest", "first / fastest"]
    return lines(head, body)


def average(seconds: list[float | None]) -> float:
    """Infinite if a run did not reach the target in time."""
    return math.inf if None in seconds else statistics.mean(s for s in seconds if s is not None)


_RIVALS = ("D-PSGD", "D2", "DSGT")


def detag(measured: dict[str, Any], view: str) -> str:
    """Of one network, final losses by setting; or `costs`, what one setting costs."""
    return detag_costs(measured["lenet"]) if view == "costs" else detag_losses(measured[view])


def detag_losses(measured: dict[str, Any]) -> str:
    """Final losses, mean and range of the seeds; bold where another is ahead of the three rivals in every seed."""
    methods = (*_RIVALS, "DeTAG")
    body = []
    for setting, rows in measured["settings"].items():
        ends = {row["method"]: [curve[-1] for curve in row["curves"]] for row in rows}
        cells = [setting]
        for method in methods:
            losses = ends[method]
            rivals = [ends[name] for name in _RIVALS]
            ahead = method not in _RIVALS and all(
                own < min(others) for own, *others in zip(losses, *rivals, strict=True)
            )
            mean = f"{statistics.mean(losses):.3f}"
            cells.append(f"{f'**{mean}**' if ahead else mean} ({min(losses):.3f} to {max(losses):.3f})")
        body.append(cells)
    return lines(["", *methods], body)


def detag_costs(measured: dict[str, Any]) -> str:
    """0 % shuffled: losses after as many steps, rounds and vectors, and after the seconds that D2 takes for all steps.

    A step of D2 is one round of one vector.
    """
    steps, rows = measured["steps"], {row["method"]: row for row in measured["settings"]["0 % shuffled"]}
    links = rows["D2"]["seconds"]

    def after(row: dict[str, Any], count: float) -> float:
        """The mean over seeds of the loss after so many steps."""
        curve = [statistics.mean(losses) for losses in zip(*row["curves"], strict=True)]
        at = min(count / steps, 1.0) * len(curve) - 1
        low = max(int(at), 0)
        return curve[low] + (at - low) * (curve[min(low + 1, len(curve) - 1)] - curve[low])

    body = []
    for name, row in rows.items():
        counts = [1.0, 1.0 / row["rounds"], 1.0 / row["sent"]]
        counts += [links[link] / row["seconds"][link] for link in links]
        losses = [after(row, steps * min(count, 1.0)) for count in counts]
        body.append([name, f"{row['rounds']:g}", f"{row['sent']:g}", *(f"{loss:.3f}" for loss in losses)])
    units = [f"{steps:,} {unit}" for unit in ("steps", "rounds", "vectors")]
    units += [f"{steps * seconds:.0f} s at {link}" for link, seconds in links.items()]
    return lines(["", "rounds per step", "vectors per step", *(f"after {unit}" for unit in units)], body)


def detag_links(measured: list[dict[str, Any]], view: str) -> str:
    """Simulated seconds by ring, links and choice: mean and range of the seeds, R, H and the learning rate."""
    choices = list(dict.fromkeys(row["choice"] for row in measured))
    by = {(row["workers"], row["links"], row["choice"]): row for row in measured}
    body = []
    for workers, links in dict.fromkeys((row["workers"], row["links"]) for row in measured):
        cells = [f"{workers} workers, {links}"]
        for row in (by[workers, links, choice] for choice in choices):
            reached = [seconds for seconds in row["seconds"] if math.isfinite(seconds)]
            time = f"reached with {len(reached)} of {len(row['seconds'])} seeds"
            if len(reached) == len(row["seconds"]):
                time = f"{digits(statistics.mean(reached))} ({digits(min(reached))} to {digits(max(reached))})"
            cells.append(f"{time}; R {row['rounds']}, H {row['period']}, rate {row['rate']:g}")
        body.append(cells)
    return lines(["", *choices], body)


_FREE = ("D-RR", "flip-flop", "paired reversal")


def order_seconds(measured: dict[str, Any], task: str) -> str:
    """Losses at equal epochs, and at equal seconds where the cost of a step was measured; mean and range of the seeds.

    A plain order takes all epochs; one that costs c of a plain step the first epochs / c of them, where the loss is
    interpolated between two epochs. Only epochs that are learned from cost anything, where their number is known.
    """
    runs, costs, rates = measured[task], measured["costs"].get(task, {}), measured["rates"].get(task, {})
    seeds = sorted(set.intersection(*(set(of) for of in runs.values())))
    epochs = len(next(iter(runs.values()))[seeds[0]])
    costs = dict.fromkeys(_FREE, 1.0) | costs
    for name, learned in measured["learned"].get(task, {}).items():
        costs[name] = 1 + (costs[name] - 1) * statistics.mean(learned[seed] for seed in seeds) / epochs
    paid = {name: min(float(epochs), epochs / costs.get(name, 1.0)) for name in runs}
    ends = {name: [_settled(of[seed], epochs) for seed in seeds] for name, of in runs.items()}
    then = {name: [_settled(of[seed], paid[name]) for seed in seeds] for name, of in runs.items()}
    body = []
    for name in runs:
        row = [name, *([rates[name]] if rates else [])]
        row += [f"{costs[name]:.2f}" if name in costs else "not measured", _range(ends[name])]
        row += [f"{paid[name]:.3g}", _range(then[name])] if name in costs else ["-", "-"]
        used = then if name in costs else ends
        ahead = sum(all(mine < used[other][i] for other in _FREE) for i, mine in enumerate(used[name]))
        body.append([*row, "" if name in _FREE else f"{ahead} of {len(seeds)}"])
    head = ["order", *(["rate"] if rates else []), "cost of a step", f"loss after {epochs} epochs"]
    return lines([*head, "epochs at equal seconds", "loss then", "seeds ahead of all free orders"], body)


def order_lengths(measured: dict[str, Any], task: str) -> str:
    """What a run of the tuning seed would have ended at, had it been this long: by order and rate."""
    tuned = measured["tuning"][task]
    epochs = max(len(values) for by_rate in tuned.values() for values in by_rate.values())
    lengths = [epochs * part // 20 for part in (2, 4, 6, 10, 15, 20)]
    rates = sorted({rate for by_rate in tuned.values() for rate in by_rate}, key=float)
    body = []
    for rate, name in ((rate, name) for rate in rates for name in tuned if rate in tuned[name]):
        values = tuned[name][rate]
        cells = [digits(_settled(values[:end], end)) if end <= len(values) else "-" for end in lengths]
        body.append([rate, name, *cells])
    return lines(["rate", "order", *(f"{end} epochs" for end in lengths)], body)


def _settled(values: list[float], epochs: float) -> float:
    """The mean over a quarter of the epochs, up to this one: where a random order's last epoch ends is luck."""
    whole, count = int(epochs), len(values) // 4
    before, after = (statistics.mean(values[max(0, end - count) : end]) for end in (whole, min(whole + 1, len(values))))
    return before + (epochs - whole) * (after - before)


def _range(values: list[float]) -> str:
    return f"{digits(statistics.mean(values))} ({digits(min(values))} to {digits(max(values))})"


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
    body = [[o, *(f"{measured.get(f'{o}, {d}, {w}', math.nan):.1f}" for d, w in columns)] for o in orders]
    return lines(["", *(f"{d.replace('dimensions', 'dim.')}, {w.replace('workers', 'w.')}" for d, w in columns)], body)


def choosing(measured: dict[str, Any], view: str) -> str:
    """The choices of one problem and situation, the fastest first."""
    rows = measured[view]
    body = []
    for name in sorted(rows, key=lambda name: average(rows[name]["seconds"])):
        row = rows[name]
        reached = [seconds for seconds in row["seconds"] if seconds is not None]
        if len(reached) < len(row["seconds"]):
            body.append([name, f"reached with {len(reached)} of {len(row['seconds'])} seeds", *[""] * 5])
            continue
        mean = {key: statistics.mean(row[key]) for key in ("samples", "rounds", "bytes", "wait")}
        time = f"{digits(statistics.mean(reached))} ± {digits(statistics.stdev(reached))}"
        cost = [f"{mean['samples']:,.0f}", f"{mean['rounds']:,.0f}", digits(mean["bytes"] / 1e6), f"{mean['wait']:.0%}"]
        body.append([name, time, *cost, row["setting"]])
    head = ["choice", "simulated s", "examples", "rounds", "MB sent", "waiting", "learning rate, period"]
    return lines(head, body)


VIEWS: dict[str, Callable[[Any, str], str]] = {
    "five_users": five_users,
    "wire_time": wire_time,
    "wire_time_short": wire_time_short,
    "wire_cost": wire_cost,
    "adaptive_batch": adaptive_batch,
    "adaptive_batch_seeds": adaptive_batch_seeds,
    "partition_processes": partition_processes,
    "wire_training": wire_training,
    "gossip": gossip,
    "plan_validation": plan_validation,
    "detag": detag,
    "detag_links": detag_links,
    "order_seconds": order_seconds,
    "order_lengths": order_lengths,
    "order_processes": order_processes,
    "order_gossip": order_gossip,
    "choosing": choosing,
}
FILES = {"wire_time_short": "wire_time", "order_lengths": "order_seconds"}


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
