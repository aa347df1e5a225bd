"""The verb `job`: a complete, commented job file to start from; or what a job will need of memory.

`tests/unit/test_job_template.py` holds the template to the schema: every key and every registered part is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpctrain.comm.group import Group
    from hpctrain.run.memory_estimate import MemoryEstimate


def command(builtin: bool) -> int:
    """Print the template, or the built-in job, on the first rank, and return the exit code."""
    from hpctrain.comm.environment import launched

    if launched().rank == 0:
        print(builtin_job() if builtin else TEMPLATE, end="", flush=True)
    return 0


def memory_command(job: Path | None, overrides: Sequence[str], ranks: int | None, nodes: int | None = None) -> int:
    """Print what a job (default: the built-in one) will need of memory, and return the exit code.

    `ranks` and `nodes` say on how many it will run; default: as many as were launched now, or on one node.
    """
    from hpctrain.run import launch

    def show(group: Group) -> None:
        from hpctrain.memory import resident_bytes
        from hpctrain.run.master import resolve
        from hpctrain.run.memory_estimate import estimate
        from hpctrain.tools.train import job_loader

        with group.agreed():
            if group.rank == 0:
                size = ranks or group.size
                before = resident_bytes()
                loaded = job_loader(job, overrides, None, False)()
                prepared = resolve(loaded, size)
                found = estimate(prepared, size, (resident_bytes(), before), _nodes(nodes, size, ranks, group))
                print(memory_table(loaded.name, found), flush=True)

    return launch.command(show)


def _nodes(given: int | None, size: int, ranks: int | None, group: Group) -> int:
    """Return on how many nodes a job will run; `UserError` for more nodes than ranks."""
    from hpctrain.errors import UserError

    nodes = given or (1 if ranks else group.nodes)
    if nodes > size:
        raise UserError(
            "a node has one rank at least", found=f"{nodes} nodes, {size} ranks", hint="give more ranks: --ranks"
        )
    return nodes


def memory_table(name: str, found: MemoryEstimate) -> str:
    """Return an estimate in words: each purpose with its MB on rank 0 and on each other rank."""
    from hpctrain.monitor.words import counted

    columns = ["rank 0"] + ["each other"] * (found.ranks > 1)
    rows = [(part.name, part.first, part.other) for part in found.parts]
    rows.append(("total: the peak of a rank", found.first, found.other))
    width = max(len(row[0]) for row in rows)
    lines = [f"memory of {name} on {counted(found.ranks, 'rank')}, in MB"]
    lines.append(f"  {'':<{width}}  " + "  ".join(f"{column:>10}" for column in columns))
    for label, *sizes in rows:
        cells = [f"{size / 1e6:>10,.1f}" for size in sizes[: len(columns)]]
        lines.append(f"  {label:<{width}}  " + "  ".join(cells))
    if found.ranks > 1:
        lines.append(f"  {'all ranks together':<{width}}  {found.total / 1e6:>10,.1f}")
    if found.compiling:
        lines.append(
            "Kernels of this job are not in the cache yet: compiling them, once, takes about "
            f"{found.compiling / 1e6:,.0f} MB more\non the first rank of each node."
        )
    return "\n".join(lines)


def builtin_job() -> str:
    """Return the text of the built-in job's file."""
    from hpctrain.job import BUILTIN_JOB

    return BUILTIN_JOB.read_text()


TEMPLATE = """\
# A job of hpctrain: everything that a training run is.
#
#   mpirun -n 4 python -m hpctrain train job.toml
#
# Only [data] needs your hand.  Lines that begin with "#" show the defaults, or another choice.
# --set KEY=VALUE on the command line overrides any key: --set optimizer.lr=0.01

[data]
files = "train.h5"                # an HDF5 file, a glob ("part-*.h5"), a folder or a list; relative to this file
# exclude = "stats*.h5"           # files that a glob or a folder catches although they hold no examples; default: none
input = "images"                  # the dataset of the inputs: the first axis counts the examples; or "jets[:, 0:53]"
                                  # (columns), "events[px, py]" (fields), "records_*", a group, or a list of these
target = "labels"                 # the dataset of the targets: integers and text are classes, numbers are regressed
# combine = "columns"             # several datasets: "columns" (one behind the other), "stack" (on a new last axis), or
                                  # "flat": any shapes; the layer {type = "columns", input = "images"} takes one out
# target_encoding = "one_hot"     # the targets have a column of 0 and 1 for each class; default: as they are
# examples = "rows"               # what an example is: "rows"; "files": each file; "groups": each group
# group = "*"                     # the groups that are examples: "sample_*", "runs/*"
# windows = {length = 48, horizon = 1, stride = 1, run = "run_id"}   # the rows are series, an example is a window of
                                  # them and the row `horizon` after it ("1:24": 1 to 24); default: no series
# missing = "error"               # where there is NaN: "error"; "drop": the example does not count; a number: put there
# weight = "weights"              # a dataset of numbers (rows,): how much each example counts; default: all the same
# mask = "mask"                   # a dataset of 0 and 1 in the labels' shape: which positions count; default: all
# ignore_label = -1               # this label does not count: positions without a label, padding; default: none
# channels_first = false          # true: the inputs are stored (rows, channels, height, width), or of other axes
split = {validation = 0.1, test = 0.2}   # fractions of the rows, drawn by run.seed; default: all rows train
                                  # by = "stratified" (of each class alike), by = "file" (whole files), group = "person"
                                  # (a dataset: its groups stay together); index = {train = "idx", test = "idx_test"};
                                  # of windows that overlap: by = "time" (the last ones test), by = "run"
# validation_files = "valid.h5"   # instead of split.validation: rows from files of their own
# test_files = "test.h5"          # instead of split.test
# prepare = ["standardise"]       # what is done to the inputs, in order, by statistics of the training part, which are
                                  # kept with the model; default: nothing.  Of all columns, or columns = [0, "4:9"]:
                                  # {name = "standardise", axis = "column", epsilon = 1e-12}, axis = "channel", "all";
                                  # {name = "min_max", to = [0, 1]}, {name = "log", offset = 1.0, base = 10},
                                  # {name = "clip", low = -5, high = 5}, {name = "scale", factor = 0.1, offset = 0},
                                  # {name = "fill", value = "mean"} (of NaN), {name = "one_hot", size = 4};
                                  # {name = "standardise", file = "stats.h5", mean = "mean", std = "std"}; min_max from
                                  # a file: min = "min", max = "max"
# prepare_target = ["standardise"]   # likewise of real targets: the loss is theirs, metrics and predictions are in
                                  # the targets' own units; "standardise", "min_max", "log", "scale"; default: nothing
# distribute = "auto"             # "shared" (every rank reads its own rows) where all ranks see the same files, else
                                  # "scatter" (rank 0 reads and hands out); the run says which.  "local": each node
                                  # reads its own shards; "mpio": where h5py is built with MPI
# staged = "$TMPDIR/shards"       # of "local": each node's folder of shards, as `stage` makes it
# memory = "auto"                 # what data may take on a rank ("512 MB"): half of what a node has left, over its
                                  # ranks; what does not fit is read again in every epoch, or mapped
# shuffle = "global"              # "global": all rows in a new order every epoch; "chunks": chunks of rows in a new
                                  # order, mixed within shuffle_buffer, for data larger than memory; "none": file order;
                                  # "local": each rank mixes its own rows: no exchange, depends on the number of ranks
# shuffle_buffer = "auto"         # of "chunks": the rows that are mixed with each other ("16 MB"); 64 MB, or a quarter
                                  # of data.memory where that is less

[model]                           # default: a small network that fits the data
layers = [
    "flatten",                                  # (a, b, c) -> (a*b*c)
    {type = "dense", units = 128},              # initializer = "he_uniform"
    "relu",                                     # or "tanh", "sigmoid", "gelu", "silu", "softplus", "softmax",
                                                # {type = "leaky_relu", slope = 0.01}, {type = "elu", alpha = 1.0}
    {type = "dropout", rate = 0.1},             # during training sets this fraction to zero
    {type = "dense", units = 10},               # the last layer: one output a class, or one a target value
]
                                  # over images: {type = "conv2d", channels = 32, kernel = 3, stride = 1,
                                  # padding = "same", dilation = 1, groups = 1, bias = true}, "conv1d", "conv3d";
                                  # {type = "depthwise_conv2d", kernel = 3, multiplier = 1}, "depthwise_conv1d",
                                  # "depthwise_conv3d"; {type = "conv_transpose2d", channels = 32, kernel = 2,
                                  # stride = 2, output_padding = 0}, "conv_transpose1d", "conv_transpose3d"
                                  # over sequences: {type = "embedding", size = 96, units = 128},
                                  # "learned_positions", {type = "sinusoidal_positions", base = 10000.0},
                                  # {type = "attention", heads = 4, causal = false, bias = true},
                                  # {type = "lstm", units = 64, return_sequences = true, bidirectional = false},
                                  # {type = "gru", units = 64}, "last_step"
# preset = "resnet20"             # instead of layers: a whole network, its options beside it: "mlp", "resnet8", "unet",
                                  # "cosmoflow", "gpt", "lstm", ...; docs/models.md lists layers and presets
# python = "my_model.py:build"    # instead of layers: a function build(input_shape, outputs) that returns them

# [loss]                          # default: by the target: softmax_cross_entropy for classes, mse for real numbers
# name = "softmax_cross_entropy"  # or "binary_cross_entropy", "mse", "mae", "huber" (delta = 1.0), "poisson",
                                  # "quantile" (levels = [0.1, 0.5, 0.9])
# smoothing = 0.0                 # of softmax_cross_entropy: this part of the wanted probability is spread evenly
# class_weights = [1.0, 2.0]      # of softmax_cross_entropy: how much the examples of each class count
# positive_weight = 1.0           # of binary_cross_entropy: how much targets of 1 count

# [metrics]                       # default: by the target
# names = ["accuracy", {name = "top_k", k = 5}]   # for classes; "mae", "rmse", "r2" for real numbers; for classes also
# names = ["auc", "balanced_accuracy", "perplexity", "confusion_matrix", "precision", "recall",
#          {name = "f1", average = "macro"}]      # "auto" (two classes: binary, else macro), "binary", "macro", "micro"

[optimizer]
name = "adam"                     # or "adamw", "sgd", "rmsprop", "adagrad", "lion"; for large batches "lamb", "lars"
lr = 0.001
# weight_decay = 0.0              # of all optimizers; default of adamw and lamb: 0.01, of lars: 0.0001
# decay_all = false               # true: biases and the scales of normalisation layers decay too
# beta1 = 0.9                     # of adam, adamw, lamb and lion, as is the next
# beta2 = 0.999                   # default of lion: 0.99
# epsilon = 1e-8                  # of adam, adamw, lamb (1e-6), lars, rmsprop and adagrad (1e-10)
# momentum = 0.0                  # of sgd, rmsprop and lars (0.9)
# nesterov = false                # of sgd
# rho = 0.99                      # of rmsprop
# trust = 0.001                   # of lars
# ema = 0.999                     # evaluate, and keep as the result, a moving average of the weights; default: none
# groups = [{pattern = "*.bias", lr_factor = 0.5, weight_decay_factor = 0.0, frozen = false}]   # tensors by name

[schedule]                        # what the learning rate is multiplied by
name = "constant"                 # or "step" (every = "10 epochs", factor = 0.1), "cosine" (floor = 0.0),
                                  # "exponential" (rate = 0.95, every = "1 epoch"),
                                  # "multi_step" (milestones = ["30 epochs", "60 epochs"], factor = 0.1),
                                  # "polynomial" (power = 1.0, floor = 0.0),
                                  # "one_cycle" (peak = 0.3, start = 0.04, final = 4e-6), without a warm-up, or
                                  # "reduce_on_plateau" (metric = "loss", factor = 0.1, patience = 10, cooldown = 0,
                                  # min_factor = 0.0, min_delta = 0.0), which follows the validation part
# warmup = "0 steps"              # "100 steps", "1 epoch": the learning rate rises in a line from zero
# scale_with_workers = "none"     # "linear", "sqrt": times workers / base_workers, or the root of that
# base_workers = 1                # number of workers that optimizer.lr is meant for
# workers = 4                     # default: how many there are when the run begins

[clip]
# value = 0.5                     # limit every element of the mean gradient to this size, first; default: never
# norm = 1.0                      # scale gradients down to this global norm; default: never

[strategy]
name = "all_reduce"               # every rank works on its part of each batch; the gradients are summed.
                                  # "sharded_optimizer": each rank keeps a part of the optimizer's state, and
                                  # updates that part of the weights (it takes `collective` alone)
# collective = "auto"             # "window" (sums in memory that the ranks of a node share), or over several nodes what
                                  # is quickest; "native", the MPI library's own; also "ring", "halving_doubling",
                                  # "tree", "double_tree"
# chosen = {collective = "ring", chunk_bytes = 131072, ranks = "4 x 1"}   # a run writes what "auto"
                                  # came to, and for which ranks, here
# overlap = "auto"                # gradients leave while the backward pass goes on: true, false; "auto": between nodes
# bucket = "auto"                 # with overlap: the least that leaves at a time, "1 MB"; "auto": measured at the start
# compression = {type = "int8", block = 256, stochastic = false}   # encode gradients, for networks slower than the
                                  # computing; default: they are sent as they are.  Or "float16", "bfloat16", "int4",
                                  # "one_bit", {type = "top_k", ratio = 0.01}, {type = "random_k", ratio = 0.1},
                                  # {type = "power_sgd", rank = 4}.  All have min_size = 1024, warm_up_steps = 0
                                  # (one_bit 500) and error_feedback = true

[run]
# name = "job"                    # names the run's folder; default: this file's name
epochs = 10                       # passes over the training rows
# steps = 1000                    # instead of epochs: updates
# global_batch = 32               # examples an update, over all ranks together
# micro_batch = 32                # examples a forward call on a rank: less memory; default: as many as there are
# accumulate = 1                  # global batches an update: a larger batch in the same memory
# reproducible = false            # true: the same bits at any number of ranks: sums go by micro-batches (default: 1/8)
# seed = 0                        # initial weights, split, order and dropout come from it
# dir = "runs/my-run"             # folder of the results; default: runs/NAME-001 and so on
# checkpoint_every = "1 epoch"    # or "200 steps", "10 min", "never"
# keep = 3                        # the newest checkpoints that are kept
# log_every = "1 s"               # or "10 steps": how often a line goes to metrics.jsonl
# threads_per_rank = 1            # threads of BLAS and numba
# early_stop = {metric = "loss", patience = 5, min_delta = 0.0}   # stop after 5 epochs without a better value
# progress = "auto"               # "auto": a bar on a terminal, lines in a file; or "bar", "lines", "none"
"""
