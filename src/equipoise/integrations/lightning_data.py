"""The loaders of Lightning: its training loader gets the batches of an `eq.Sampler`, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ..batch.fixed import Fixed
from ..batch.proportional import Proportional
from ..core.errors import UserError
from ..loop.sampler import Sampler
from ..order.sequential import Sequential


class EpochBatches:
    """The batches of a sampler for a loop that counts them itself.

    A loop may make an iterator and drop it: what it has drawn and not used is drawn again. It may also end an epoch
    early (`limit_train_batches`): the rest of that epoch is given up, and the next one begins.
    """

    def __init__(self, batches: Sampler):
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        sampler = self.batches
        begun = sampler.finished > 0
        sampler.give_back()
        if begun and sampler.position.steps_left:
            if sampler.order.watches:
                raise UserError(
                    f"{type(sampler.order).__name__} learns from whole epochs, and this one ended early: leave out "
                    "limit_train_batches"
                )
            for _ in sampler:
                pass
        yield from sampler

    def __len__(self) -> int:
        """The steps of a whole epoch, also in the middle of one."""
        if not isinstance(self.batches.batch_choice, (Fixed, Proportional)):
            raise TypeError("batch sizes change, and with them the number of batches")
        return self.batches.position.steps_of_epoch()


class SampledLoader(DataLoader[Any]):
    """A loader over `EpochBatches` that says to Lightning that it can be resumed; the strategy keeps its position."""

    def __iter__(self) -> Any:
        # A loader draws a seed for its processes whenever it makes an iterator. It must not come from the generator
        # that the model uses: a resumed loop makes one iterator more.
        batches: Any = self.batch_sampler
        sampler = batches.batches
        assert isinstance(self.generator, torch.Generator)
        self.generator.manual_seed(hash((sampler.seed, sampler.comm.rank, sampler.epoch)) % 2**63)
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def sampled(loader: Any, **choices: Any) -> tuple[Any, Sampler | None]:
    """The training loader of a user with the batches of an `eq.Sampler`, and that sampler.

    choices: of `eq.Sampler`; where they are None, batch size and shuffling are those of the loader. A loader that
    cannot be indexed is left as it is, and there is no sampler.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        if any(choices[name] is not None for name in ("partition", "order", "batch")):
            raise UserError("partition, order and batch need a DataLoader over a data set that can be indexed")
        return loader, None
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UserError(f"{type(loader).__name__} makes its batches itself: return a torch.utils.data.DataLoader")
    sampler = loader.batch_sampler
    if isinstance(sampler, Sampler):
        if any(choices[name] is not None for name in ("partition", "order", "batch")):
            raise UserError("the training loader has an eq.Sampler: pass partition, order and batch to that one")
    elif loader.batch_size is None or not isinstance(loader.sampler, (RandomSampler, SequentialSampler)):
        raise UserError(
            f"the training loader has a {type(sampler if loader.batch_size is None else loader.sampler).__name__}, and "
            "workers cannot share its examples: pass shuffle=True, or an eq.Sampler as its batch_sampler"
        )
    else:
        if choices["order"] is None and isinstance(loader.sampler, SequentialSampler):
            choices["order"] = Sequential()
        choices["batch"] = loader.batch_size if choices["batch"] is None else choices["batch"]
        sampler = Sampler(loader.dataset, drop_last=loader.drop_last, **choices)
    batches: Any = EpochBatches(sampler)
    return (
        SampledLoader(
            loader.dataset,
            batch_sampler=batches,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator(),
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        ),
        sampler,
    )
