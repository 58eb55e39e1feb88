"""`equipoise export RUN`: the trained weights of a run as a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import CheckpointError, UserError
from .parser import Parser

if TYPE_CHECKING:
    from ..loop.job import Job

_DESCRIPTION = """The file holds a state_dict. To load it into the plain model:

  state = torch.load("model.pt", weights_only=True)
  state = safetensors.torch.load_file("model.safetensors")
  model.load_state_dict(state)

mean is the mean over workers at the end of the run, as in RUN/model.pt; of the newest checkpoint where a run was
killed. centre is the centre variable of the newest checkpoint, for syncs that have one (diloco, easgd, lgrawa, ...).

examples:
  equipoise export runs/demo-1 --format safetensors --out digits.safetensors
  equipoise export runs/digits-easgd-1 --of centre --out centre.pt
"""


def configure(parser: Parser) -> None:
    parser.usage, parser.epilog = "equipoise export RUN [flags]", _DESCRIPTION
    parser.add_argument("run", metavar="RUN", help="folder of a run; of a comparison: a run of its best choice")
    parser.add_argument("--of", default="mean", metavar="mean|centre", help="which model (default: mean)")
    parser.add_argument(
        "--format", default=None, metavar="pt|safetensors", help="file format (default: by the name of --out, or pt)"
    )
    parser.add_argument("--out", default=None, metavar="FILE", help="where to write (default: RUN/OF.FORMAT)")


def run(arguments: argparse.Namespace) -> int:
    of, format = arguments.of, arguments.format
    if of not in ("mean", "centre"):
        raise UserError(f"--of {of}: takes mean or centre")
    if format not in (None, "pt", "safetensors"):
        raise UserError(f"--format {format}: takes pt or safetensors")
    from ..checkpoint.weights import format_of, load_weights, save_weights
    from .run_folders import one_run

    folder = one_run(arguments.run)
    path = Path(arguments.out) if arguments.out is not None else folder / f"{of}.{format or 'pt'}"
    if format_of(path) != (format or format_of(path)):
        raise UserError(f"--format {format} and --out {path} do not belong together: leave one of them out")
    ended = of == "mean" and (folder / "model.pt").exists()
    state = load_weights(folder / "model.pt") if ended else _from_checkpoint(folder, of)
    save_weights(state, path)
    elements = sum(t.numel() for t in state.values())
    print(f"written: {path} ({of} model, {len(state)} tensors, {elements:,} numbers)")
    return 0


def _from_checkpoint(folder: Path, of: str) -> dict[str, Any]:
    """The model of the newest checkpoint."""
    if (folder / "events.jsonl").exists() and not (folder / "recipe.toml").exists():
        raise CheckpointError(
            f"{folder} was written from Python, and its model is not known here: a run that has ended has its mean in "
            "model.pt; for the centre call together.model_state('centre') in a loop with eq.attach"
        )
    from ..loop.from_recipe import assemble
    from .flatness import load
    from .resume import read

    job: Job = assemble(read(folder))[0]
    return load(job, folder, of)[0].state_dict()
