"""Names on the command line, and the class behind each. Python users pass objects and need none of this.

One line a method. This file imports nothing, so that `equipoise list` answers at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

AXES = ("partition", "order", "batch", "period", "topology", "sync", "data", "model")


class Entry(NamedTuple):
    axis: str
    name: str
    target: str  # "module:Class" below the package
    summary: str


_TABLE = """
partition | iid            | partition.iid:IID                       | a random, equal share for every worker
partition | contiguous     | partition.contiguous:Contiguous         | equal slices of the data as it lies
partition | sorted         | partition.sorted:Sorted                 | sorted by label, X % shuffled, cut into equal slices
partition | shards         | partition.shards:Shards                 | sorted by label, cut into shards, a few dealt to each worker
partition | dirichlet      | partition.dirichlet:Dirichlet           | each class spread over workers by Dirichlet(alpha); small alpha is more skewed
partition | stratified     | partition.stratified:Stratified         | at random, but every class in proportion to the workers' speeds
partition | submodular     | partition.submodular:Submodular         | proportional to speeds, balanced by class, features like the whole
partition | from-file      | partition.from_file:FromFile            | the blocks of a partition file
order     | sequential     | order.sequential:Sequential             | as the examples lie, every epoch
order     | reshuffle      | order.reshuffle:Reshuffle               | a fresh random order every epoch
order     | shuffle-once   | order.shuffle_once:ShuffleOnce          | one random order, kept
order     | flip-flop      | order.flip_flop:FlipFlop                | a random order, then the same one backwards
order     | paired-reversal | order.paired_reversal:PairedReversal   | blocks in random order, then all of it backwards
order     | herding        | order.herding:Herding                   | greedy herding on the last epoch's gradients; small data only
order     | grab           | order.grab:GraB                         | balanced by gradients less their mean
order     | pair-balance   | order.pair_balance:PairBalance          | balanced by differences of neighbours' gradients
order     | cd-grab        | order.cd_grab:CDGraB                    | pair balance coordinated over all workers
order     | id-grab        | order.id_grab:IDGraB                    | every worker balances its own block
batch     | fixed          | batch.fixed:Fixed                       | one size, or one per worker
batch     | schedule       | batch.schedule:Schedule                 | sizes by a plan, over epochs, samples or steps
batch     | norm-test      | batch.norm_test:NormTest                | grows when the noise is large beside the gradient
batch     | inner-product  | batch.inner_product:InnerProduct        | grows when steps are not surely descents
batch     | augmented      | batch.augmented:Augmented               | inner-product test, and one for the noise across the gradient
batch     | noise-scale    | batch.noise_scale:NoiseScale            | follows the gradient noise scale tr S / |G|^2
batch     | cabs           | batch.cabs:CABS                         | coupled to the learning rate: a tr S / loss
batch     | proportional   | batch.proportional:Proportional         | in proportion to the workers' blocks: as many steps, as long, for all
period    | every          | period.every:Every                      | a round every H optimizer steps
period    | post-local     | period.post_local:PostLocal             | every step at first, then every H steps
period    | qsr            | period.qsr:QSR                          | rounds become rarer as the learning rate falls
period    | growing        | period.growing:Growing                  | each round longer than the one before
period    | total-steps    | period.total_steps:TotalSteps           | a round when all workers together have taken N H steps
topology  | complete       | topology.complete:Complete              | everybody talks to everybody
topology  | ring           | topology.ring:Ring                      | two neighbours on a circle
topology  | path           | topology.path:Path                      | a line: a ring with one link cut
topology  | star           | topology.star:Star                      | everybody talks to one hub
topology  | torus          | topology.torus:Torus                    | a grid whose opposite sides touch: four neighbours
topology  | hypercube      | topology.hypercube:Hypercube            | numbers that differ in one bit; a power of two of workers
topology  | exponential    | topology.exponential:Exponential        | sends to 1, 2, 4, ... further on; directed
topology  | one-peer       | topology.one_peer:OnePeer               | sends to one worker a round, 1, 2, 4, ... further on in turn; directed
topology  | base-k         | topology.base_k:BaseK                   | at most k peers a round; one period is the exact mean for any number of workers
topology  | matching       | topology.matching:Matching              | random pairs, drawn anew each round
topology  | random         | topology.random:Random                  | a random connected graph (Erdos-Renyi)
topology  | edges          | topology.edges:Edges                    | your own graph: a file with a line `a b [weight]` per link
sync      | none           | sync.none:NoSync                        | no communication: workers train alone
sync      | all-reduce     | sync.all_reduce:AllReduce               | gradients averaged at every step (data parallel)
sync      | periodic-average | sync.periodic_average:PeriodicAverage | parameters averaged every H steps (Local SGD)
sync      | slowmo         | sync.slowmo:SlowMo                      | Local SGD with a slow momentum over rounds
sync      | diloco         | sync.diloco:DiLoCo                      | Local SGD with an outer Nesterov step; fragments, overlap
sync      | d-psgd         | sync.d_psgd:DPSGD                       | models averaged with the neighbours' (gossip)
sync      | d2             | sync.d2:D2                              | gossip that takes its own bias back; exact on unequal data
sync      | dsgt           | sync.dsgt:DSGT                          | gossip of models and of trackers of the mean gradient; exact
sync      | detag          | sync.detag:DeTAG                        | gradient tracking with accelerated gossip by phases; exact, for sparse graphs
sync      | defacto        | sync.defacto:DeFacto                    | gossip rounds whose product is the exact mean
sync      | mg-dsgd        | sync.mg_dsgd:MGDSGD                     | gathered gradients, then rounds of accelerated gossip
sync      | sgp            | sync.sgp:SGP                            | gossip along one-way links, de-biased by push-sum weights
sync      | qg-dsgdm       | sync.qg_dsgdm:QGDSGDm                   | gossip with a momentum that follows the mixed model
sync      | dsgdm-n        | sync.dsgdm_n:DSGDmN                     | gossip with each worker's own Nesterov momentum
sync      | k-gt           | sync.k_gt:KGT                           | gradient tracking with local steps; exact on unequal data
sync      | edm            | sync.edm:EDM                            | D2 with momentum; exact on unequal data
sync      | relay          | sync.relay:RelaySGD                     | models relayed along a spanning tree; exact on unequal data
sync      | matcha         | sync.matcha:MATCHA                      | gossip over randomly drawn matchings, within a budget
sync      | ad-psgd        | sync.ad_psgd:ADPSGD                     | pairs average in the background with models one round old
sync      | easgd          | sync.easgd:EASGD                        | workers and a centre attract each other (elastic averaging)
sync      | eamsgd         | sync.eamsgd:EAMSGD                      | elastic averaging with each worker's own Nesterov momentum
sync      | lsgd           | sync.lsgd:LSGD                          | pull to the worker with the least training loss
sync      | mgrawa         | sync.mgrawa:MGRAWA                      | pull to a centre weighted by inverse gradient norms, one weight per worker
sync      | lgrawa         | sync.lgrawa:LGRAWA                      | pull to a centre weighted by inverse gradient norms, one weight per layer
data      | digits         | data.digits:Digits                      | 1,797 handwritten digits, 8 x 8, bundled with scikit-learn
data      | fashion-mnist  | data.fashion_mnist:FashionMNIST         | idx files, plain or gzip, in --data.dir
data      | cifar10        | data.cifar10:CIFAR10                    | npz with JPEG images, or the cifar-10-batches-py folder, in --data.dir
data      | text           | data.text:Text                          | words of plain text files, for language models
data      | tsv            | data.tsv:TSV                            | sentences and labels, tab-separated with a header (SST-2 style)
data      | synthetic      | data.synthetic:Synthetic                | made-up regression or classification
model     | logistic       | models.logistic:Logistic                | one linear layer
model     | mlp            | models.mlp:MLP                          | fully connected layers with ReLU
model     | lenet          | models.lenet:LeNet                      | two convolutions, three linear layers
model     | vgg            | models.vgg:VGG                          | plain stacks of convolutions with BatchNorm
model     | resnet         | models.resnet:ResNet                    | small residual network with BatchNorm
model     | lstm           | models.lstm:LSTM                        | embedding, LSTM, tied output
model     | transformer    | models.transformer:Transformer          | small causal transformer
"""


def _entries() -> dict[tuple[str, str], Entry]:
    rows = [[cell.strip() for cell in line.split("|", 3)] for line in _TABLE.strip().splitlines()]
    return {(row[0], row[1]): Entry(*row) for row in rows}


_ENTRIES = _entries()


def names(axis: str) -> list[str]:
    """The names known on an axis, in the order of the table."""
    return [entry.name for entry in _ENTRIES.values() if entry.axis == axis]


def entries(axis: str | None = None) -> list[Entry]:
    return [entry for entry in _ENTRIES.values() if axis in (None, entry.axis)]


def get(axis: str, name: str) -> type:
    """The class behind a name; an unknown name is refused with the nearest known one."""
    import importlib

    from ..core.errors import UserError, did_you_mean

    entry = _ENTRIES.get((axis, name.replace("_", "-")))
    if entry is None:
        raise UserError(f"unknown {axis} {name!r}: {did_you_mean(name, names(axis))}")
    module, cls = entry.target.split(":")
    return getattr(importlib.import_module(f"equipoise.{module}"), cls)


def name_of(method: Any) -> str:
    """The registered name of an object, or its class name."""
    cls = type(method)
    target = f"{cls.__module__.removeprefix('equipoise.')}:{cls.__name__}"
    for entry in _ENTRIES.values():
        if entry.target == target:
            return entry.name
    return cls.__name__
