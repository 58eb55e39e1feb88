"""BatchNorm refuses a batch of one example: which worker had one, and what helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import UserError

if TYPE_CHECKING:
    from .attach import attach


def refuse_one_example(error: BaseException, rank: int, step: int) -> None:
    """Raise torch's refusal as a `UserError`; do nothing with any other error."""
    if isinstance(error, ValueError) and "more than 1 value per channel" in str(error):
        raise UserError(
            f"worker {rank} had one example in step {step}, and BatchNorm needs two: take larger batches, leave out "
            "short ones with drop_last, or use GroupNorm"
        ) from error


def refuse_one_in_own_loop(together: attach, error: BaseException | None) -> None:
    """The same for an error that ends a loop of the user's own, if its sampler drew a single example for this step."""
    sampler = together.sampler
    if error is not None and sampler is not None and sampler.alone(together.accumulate):
        refuse_one_example(error, together.comm.rank, together.clock.step + 1)
