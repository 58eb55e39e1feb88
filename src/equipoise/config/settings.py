"""The plain settings of a recipe: everything that is one value and no choice on an axis.

One line a setting; files, flags, `--help` and checks all read this table. Imports nothing heavy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..core.errors import UserError, did_you_mean
from ..core.method import refuse_endless
from ..core.torchrun import MOST_WORKERS


class Setting(NamedTuple):
    name: str
    kind: type
    default: Any  # None: not set, or decided by other choices (the help says how)
    help: str
    group: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float | None = None


_WHO, _LENGTH, _STEP, _OPT, _OUT = (
    "workers",
    "length (whichever comes first)",
    "step",
    "optimizer",
    "run folder",
)

_TABLE = [
    Setting(
        "workers",
        int,
        None,
        "number of workers (default: 4, or as many as the cluster has)",
        _WHO,
        least=1,
        most=MOST_WORKERS,
    ),
    Setting(
        "virtual",
        bool,
        None,
        "run all workers inside this process, one at a time (default with --cluster)",
        _WHO,
    ),
    Setting(
        "cluster",
        str,
        None,
        "cluster file to simulate: speeds of workers, bandwidth and latency of links",
        _WHO,
    ),
    Setting(
        "device",
        str,
        "cpu",
        "where models live; local workers take the devices in turn. auto: an accelerator if there is one",
        _WHO,
        choices=("auto", "cpu", "cuda", "mps", "xpu"),
    ),
    Setting("deterministic", bool, False, "sum in rank order: bit-equal runs", _WHO),
    Setting("timeout", float, 300.0, "seconds to wait for a silent worker", _WHO, above=0),
    Setting(
        "elastic",
        str,
        None,
        "let workers be lost and join: MIN:MAX of them, or MIN alone (default: the first loss ends the run)",
        _WHO,
    ),
    Setting("deadline", float, 30.0, "with --elastic: seconds until a silent worker is left out", _WHO, above=0),
    Setting("respawn", int, 0, "with --elastic: how many lost local workers are started again", _WHO, least=0),
    Setting("listen", str, None, "with --elastic: HOST:PORT for other hosts to join (default: this host alone)", _WHO),
    Setting(
        "snapshot_every",
        int,
        16,
        "with --elastic: steps that a loss may cost where every step has a round; elsewhere it is one round",
        _WHO,
        least=1,
    ),
    Setting("slow", str, None, "slow workers down, to try out unequal ones: a factor each, such as 1,1,2,4", _WHO),
    Setting(
        "epochs",
        float,
        None,
        "passes over the data (default: 1 if nothing else ends the run, 100 if a target does)",
        _LENGTH,
        above=0,
    ),
    Setting("steps", int, None, "optimizer steps", _LENGTH, least=1),
    Setting("samples", int, None, "examples consumed by all workers", _LENGTH, least=1),
    Setting("budget", str, None, "time, such as 90s or 10m; simulated time with --cluster", _LENGTH),
    Setting("until", str, None, "a target, such as accuracy=0.85 or loss=0.3, at an evaluation", _LENGTH),
    Setting("loss", str, None, "package.module:function, or model if it returns its own (default: by the task)", _STEP),
    Setting("seed", int, 0, "seed of everything that is drawn", _STEP, least=0),
    Setting("micro", int, None, "most examples per forward pass; larger batches are accumulated", _STEP, least=1),
    Setting("clip", float, None, "clip the gradient to this norm", _STEP, above=0),
    Setting(
        "autocast",
        str,
        "none",
        "compute in lower precision; float16 with a loss scale",
        _STEP,
        choices=("none", "bfloat16", "float16"),
    ),
    Setting(
        "nonfinite",
        str,
        "stop",
        "on a NaN or infinity in one worker: stop, skip its step, or leave it out of the round",
        _STEP,
        choices=("stop", "skip", "leave-out"),
    ),
    Setting("buffers", str, "local", "BatchNorm statistics", _STEP, choices=("local", "average", "recompute")),
    Setting("drop_last", bool, False, "leave out the last, smaller batch of an epoch", _STEP),
    Setting("optimizer", str, "sgd", "on every worker", _OPT, choices=("sgd", "adam", "adamw")),
    Setting("lr", float, None, "learning rate (default: 0.1 for sgd, 0.001 for adam and adamw)", _OPT, above=0),
    Setting("momentum", float, 0.0, "of sgd", _OPT, least=0, below=1),
    Setting("nesterov", bool, False, "Nesterov's momentum", _OPT),
    Setting("sam", float, None, "sharpness-aware minimisation within this radius: two gradients a step", _OPT, above=0),
    Setting("weight_decay", float, 0.0, "L2 for sgd and adam, decoupled for adamw", _OPT, least=0),
    Setting(
        "schedule",
        str,
        "constant",
        "learning rate over the part of the run that is done",
        _OPT,
        choices=("constant", "linear", "cosine"),
    ),
    Setting(
        "scaling",
        str,
        "none",
        "of the learning rate when all workers' batch is no longer the first one",
        _OPT,
        choices=("none", "linear", "sqrt", "adascale"),
    ),
    Setting("warmup", float, 0.0, "part of the run in which the rate rises to lr", _OPT, least=0, below=1),
    Setting("out", str, None, "folder of the run (default: runs/DATA-SYNC-N)", _OUT),
    Setting("checkpoint_every", int, None, "steps between checkpoints (default: every epoch)", _OUT, least=1),
    Setting("keep", int, 2, "checkpoints to keep", _OUT, least=1),
    Setting("evaluate_every", float, 1.0, "epochs between evaluations; 0.25: four in each", _OUT, above=0),
    Setting("log_every", int, 10, "steps between logged ones", _OUT, least=1),
    Setting("tensorboard", bool, False, "the same as --track tensorboard", _OUT),
    Setting("track", str, None, "show numbers elsewhere too: tensorboard, wandb, mlflow, separated by commas", _OUT),
]

SETTINGS = {setting.name: setting for setting in _TABLE}
LENGTHS = ("epochs", "steps", "samples", "budget", "until")
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def checked(name: str, value: Any, where: str) -> Any:
    """The value of a setting as its kind wants it, or a UserError that names its place and the fix."""
    setting = SETTINGS[name]
    place = f"{where} = {str(value)[:60]!r}" if isinstance(value, str) else f"{where} = {value!r}"
    refuse_endless(value, place)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if setting.kind is float and number:
        value = float(value)
    elif setting.kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e6 is a handy way to write a whole number
    elif name in ("budget", "elastic") and number:
        value = str(value)
    fits = isinstance(value, setting.kind) and isinstance(value, bool) == (setting.kind is bool)
    if not fits:
        raise UserError(f"{place}: takes {_WORDS[setting.kind]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{place}: must be finite")
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"{place}: holds a null byte")
    if setting.choices and value not in setting.choices:
        raise UserError(f"{place}: {did_you_mean(value, list(setting.choices))}")
    if setting.least is not None and value < setting.least:
        raise UserError(f"{place}: must be at least {setting.least}")
    if setting.above is not None and not value > setting.above:
        raise UserError(f"{place}: must be above {setting.above}")
    if setting.most is not None and value > setting.most:
        raise UserError(f"{place}: must be at most {setting.most}")
    if setting.below is not None and not value < setting.below:
        raise UserError(f"{place}: must be below {setting.below}")
    return value
