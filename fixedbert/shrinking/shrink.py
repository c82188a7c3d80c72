"""
Shrink: a BERT made lighter to a speed, with the same answers; as a directory like any other.

1. rows.py: rows of the model's task, without labels.
2. layers.py: what layers compute with them, and what moves the answers (answers.py): one pass forwards and backwards.
3. cut.py: what each cut of heads, sizes and neurons costs the answers; latency.py: what it saves.
4. budget.py: the cuts of all layers that cost least for the target, on the clock of the whole model.
5. layers.py again: what stays is refitted, layer after layer, towards the original's hidden states.
6. repair.py: training towards the original's answers, where it is asked for.
"""

import copy
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import PartialState
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.auxiliary_files import CARD, auxiliary_directory, copy_auxiliary_files
from ..conversion.checkpoints import load_bert, model_directory
from ..conversion.convert import check_equivalence
from ..conversion.families import build_model
from ..conversion.growing import Heads, heads_of, int_or_list, per_layer, set_heads, to_fixed_head_bert
from ..counts import forward_flops
from ..data.tokenizers import check_vocab_size, load_tokenizer
from ..model.configuration_fixed_head_bert import FixedHeadBertConfig
from ..model.modeling_fixed_head_bert import FixedHeadBertPreTrainedModel
from ..publishing.model_card import checkpoint_card
from ..publishing.pooling import SentencePooling, read_pooling
from ..support.errors import InputError
from ..support.files import new_directory, output_path, read_json_object, to_json
from ..training.interruption import train
from ..training.output import check_same_data, output_directory
from .budget import Option, Shape, cheapest, head_choices, neuron_choices
from .calibration import Rows, shapes_of_batches
from .latency import LatencyTable, duration, machine_name, measure, ratio
from .layers import LayerCosts, check_tokens, layers_of, refit, shapes_of, statistics
from .predictions import Answering, Batch, Comparison, answering, compare, head_in
from .repair import Repair, RepairTrainer
from .report import PICTURE, RESULTS, Shrinking, draw, making, shown

CUT = "cut"  # where the cut model is kept while it is trained
HELD_OUT = 6  # of so many rows one is for the comparison of the answers
TRIES = 6  # to meet a speed on the clock of the whole model
NEAR, ENOUGH = 0.99, 1.04  # times the speed that is asked for: no more tries


@dataclass(frozen=True)
class Target:
    """
    What a model is cut to: one of a speed, a time, a number of parameters or of operations, or sizes.

    Args:
        speedup: how many times faster than the original, on this machine.
        milliseconds: for a batch of the rows, in the mean of short, middling and long ones.
        params: parameters of the model, at most.
        flops: operations of a forward pass for a row of the mean length, at most.
        attention_head_size, value_head_size, num_attention_heads, intermediate_size: of all layers or of each, at most
            the old; which heads and neurons stay is chosen.
    """

    speedup: float | None = None
    milliseconds: float | None = None
    params: float | None = None
    flops: float | None = None
    attention_head_size: int | list[int] | None = None
    value_head_size: int | list[int] | None = None
    num_attention_heads: int | list[int] | None = None
    intermediate_size: int | list[int] | None = None

    def __post_init__(self):
        budgets = ("speedup", "milliseconds", "params", "flops")
        given = [name for name in budgets if getattr(self, name) is not None]
        sizes = [name for name in asdict(self) if name not in budgets and getattr(self, name) is not None]
        if len(given) + bool(sizes) != 1:
            raise InputError(
                "give one of `speedup`, `milliseconds`, `params`, `flops`, or sizes and numbers of heads."
            )
        for name in given:
            if not getattr(self, name) > (name == "speedup"):
                raise InputError(f"{getattr(self, name)}: give more than {int(name == 'speedup')}.", name)

    @property
    def is_time(self) -> bool:
        return self.speedup is not None or self.milliseconds is not None

    @property
    def is_sizes(self) -> bool:
        return not self.is_time and self.params is None and self.flops is None

    def shapes(self, config: FixedHeadBertConfig) -> list[Shape]:
        """The sizes that are asked for, by layer; refused where they are no cut of what there is."""
        old, neurons = heads_of(config), config.neuron_counts
        size, value_size = self.attention_head_size, self.value_head_size
        if value_size is None and config.value_head_size is None:
            value_size = size
        counts = per_layer(self.num_attention_heads, "num_attention_heads", [heads.number for heads in old])
        sizes = per_layer(size, "attention_head_size", [heads.size for heads in old])
        value_sizes = per_layer(value_size, "value_head_size", [heads.value_size for heads in old])
        left = per_layer(self.intermediate_size, "intermediate_size", neurons)
        new = [Shape(Heads(*heads), count) for *heads, count in zip(counts, sizes, value_sizes, left, strict=True)]
        for number, (before, after) in enumerate(zip(map(Shape, old, neurons), new, strict=True)):
            pairs = [*zip(before.heads, after.heads, strict=True), (before.neurons, after.neurons)]
            if any(not 0 <= then <= now for now, then in pairs) or min(after.heads[1:]) < 1:
                raise InputError(
                    f"layer {number}: {after.heads} and {after.neurons} neurons for {before.heads} and "
                    f"{before.neurons}: shrinking leaves at most what was there; fixedbert convert makes more."
                )
        return new


@dataclass
class Work:
    """
    A model that is made lighter, with its rows: those that it is cut by, others for the comparison of the answers, and
    those of the training.
    """

    name: str
    model: FixedHeadBertPreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pooling: SentencePooling | None
    rows: list[Batch]
    held_out: list[Batch]
    examples: list[Batch]
    ask: Answering
    seed: int = 0
    table: LatencyTable | None = None

    @classmethod
    def load(cls, model: str | Path, rows: Rows, training: int = 0, **hub_options) -> "Work":
        loaded, tokenizer, pooling = load(model, rows.do_lower_case, **hub_options)
        if 0 in (*loaded.config.head_counts, *loaded.config.neuron_counts):
            raise InputError(f"{model}: a layer has no heads or no neurons; give the model that it was cut from.")
        read = partial(rows.read, loaded, tokenizer, pooling is not None)
        found, count = read(max(rows.most, training)), rows.most // HELD_OUT
        if rows.task_name is None:
            count = max(1, min(len(found), rows.most) // HELD_OUT)
            others, found = found[:count], found[count:]
        else:
            others = read(count, kind="validation")
        kept, held_out, examples = (
            rows.batches(loaded, tokenizer, part) for part in (found[: rows.most], others, found[:training])
        )
        asked = answering(loaded, pooling)
        return cls(str(model), loaded, tokenizer, pooling, kept, held_out, examples, asked, rows.seed)

    def costs(self) -> list[LayerCosts]:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)  # answers are drawn
            sums, tokens = statistics(self.model, self.rows, self.ask)
        return [
            LayerCosts(*parts, tokens)
            for parts in zip(layers_of(self.model), shapes_of(self.model), sums, strict=True)
        ]

    @property
    def length(self) -> int:
        """Tokens of a row in the mean."""
        masks = [batch["attention_mask"] for batch in self.rows]
        return round(sum(int(mask.sum()) for mask in masks) / sum(len(mask) for mask in masks))

    def operations(self, model: FixedHeadBertPreTrainedModel) -> int:
        """Floating-point operations of the layers for a row of the mean length."""
        return self.length * forward_flops(model.config, self.length)

    def timed(self, model: FixedHeadBertPreTrainedModel) -> Callable[[], object]:
        """A pass through batches of short, middling and long rows, without padding."""
        inputs = [torch.full(shape, 5, device=model.device) for shape in shapes_of_batches(self.rows)]
        return lambda: [model.base_model(input_ids=ids) for ids in inputs]


def shrink(  # noqa: PLR0913  the options of the command
    model: str | Path | PreTrainedModel,
    output_dir: str | Path,
    speedup: float | None = None,
    milliseconds: float | None = None,
    params: float | None = None,
    flops: float | None = None,
    attention_head_size: int | list[int] | None = None,
    value_head_size: int | list[int] | None = None,
    num_attention_heads: int | list[int] | None = None,
    intermediate_size: int | list[int] | None = None,
    task_name: str | None = None,
    data_dir: str | Path | None = None,
    train_file: str | Path | list[str] | list[Path] | None = None,
    text_column_names: str | None = None,
    latency_table: str | Path | None = None,
    max_seq_length: int | None = None,
    max_samples: int = 1500,
    batch_size: int = 32,
    distil_steps: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
    do_lower_case: bool | None = None,
    revision: str = "main",
    cache_dir: str | None = None,
    token: str | None = None,
) -> Shrinking:
    """
    Make a model lighter: to a speed or to a size.

    Args:
        model: a model, or the directory or Hub id of one that `fixedbert.convert` takes.
        output_dir: a new directory for the result, with its tokenizer, a card, shrinking.json and shrinking.png.
        speedup: how many times faster than the original, on this machine. One target is given of this and the next.
        milliseconds, params, flops: of a batch of the rows, of the whole model, of a row of the mean length.
        attention_head_size, value_head_size, num_attention_heads, intermediate_size: sizes by hand, one for all layers
            or a list.
        task_name, data_dir: the model's task of GLUE, and its folder where it is not the Hub's.
        train_file: or files with rows of its task. Labels are not used.
        text_column_names: columns with the texts, such as "premise,hypothesis".
        latency_table: a file with times, which is written where it is not there.
        max_seq_length, max_samples, batch_size: tokens of a row at most, rows to cut by, and rows at once.
        distil_steps: steps of training towards the original's answers, after the cut; 600 takes about ten minutes.
        learning_rate: of this training, 5e-5 by default.
        tokenizer: of a model in memory.
        do_lower_case: whether the tokenizer lowers letters; by default as it says.
        revision, cache_dir, token: for a model on the Hub.

    Returns:
        What was reached, with `folder`, where the model is.

    Raises:
        InputError: as `shrink_to`.
        KeyboardInterrupt: Ctrl-C; during the training after a checkpoint, from which the same call goes on.
    """
    hub_options = {"revision": revision, "cache_dir": cache_dir, "token": token}
    sizes = (attention_head_size, value_head_size, num_attention_heads, intermediate_size)
    asked = (speedup, milliseconds, params, flops, *sizes)
    files = paths(train_file)
    data_dir = None if data_dir is None else str(data_dir)
    if distil_steps is not None and isinstance(model, PreTrainedModel):
        raise InputError(
            "needs a directory, from which the same call can go on: save the model and its tokenizer first.",
            "distil_steps",
        )
    columns = None if text_column_names is None else tuple(text_column_names.split(","))
    chosen = (task_name, data_dir, files, max_seq_length, max_samples, batch_size, seed, do_lower_case, columns)
    with model_directory(model, tokenizer) as source:
        target, rows = Target(*asked), Rows(*chosen)
        if learning_rate is not None and distil_steps is None:
            raise InputError("is for the training that `distil_steps` asks for: give both.", "learning_rate")
        rate = Repair.learning_rate if learning_rate is None else learning_rate
        repair = None if distil_steps is None else Repair(distil_steps, rate, seed)
        return shrink_to(source, output_dir, rows, target, latency_table, repair, **hub_options)


def paths(given: str | Path | list[str] | list[Path] | None) -> list[str] | None:
    if given is None:
        return None
    return [str(place) for place in ([given] if isinstance(given, str | Path) else given)]


def shrink_to(
    model: str | Path,
    output_dir: str | Path | None,
    rows: Rows,
    target: Target,
    latency_table: str | Path | None = None,
    repair: Repair | None = None,
    **hub_options,
) -> Shrinking:
    """
    Make a model lighter, and write it into a new directory as a FixedHeadBert, with its tokenizer, a card,
    shrinking.json and shrinking.png. With `repair` it is trained after that; the same call goes on with a training
    that was interrupted.

    Args:
        model: directory or Hub id of one that `load_bert` takes.
        latency_table: a file with times that were measured; without it they are measured, and where it does not exist
            yet, written there. By those of another machine the cut is chosen, without the clock of this one.
        hub_options: `revision`, `token` and `cache_dir` of from_pretrained.

    Raises:
        InputError: no such model, a model that cannot be cut (MHE, qk_norm, cross-attention), rows that are not its
            task's or too few, a target that cannot be reached, or several processes.
    """
    name = output_path(output_dir).name
    if latency_table is not None and not target.is_time:
        raise InputError("is for `speedup` or `milliseconds`: leave it out.", "latency_table")
    if latency_table is not None and not Path(latency_table).parent.is_dir():
        raise InputError(f"{latency_table}: the folder is not there; make it first.", "latency_table")
    if repair is None:
        with new_directory(output_dir) as folder:
            work = Work.load(model, rows, **hub_options)
            found, cut = lighter(work, target, latency_table)
            cut.save_pretrained(folder)
            found = write_beside(folder, name, found, cut, rows.do_lower_case, **hub_options)
        return replace(found, folder=str(output_dir))
    args = repair.arguments(output_path(output_dir))
    given = {"model": str(model), "revision": hub_options.get("revision")}
    with output_directory(args, given | asdict(rows) | asdict(target) | asdict(repair)) as checkpoint:
        work = Work.load(model, rows, training=repair.steps * rows.batch_size, **hub_options)
        first = args.directory / CUT
        if not first.exists():
            with new_directory(first) as folder:
                found, cut = lighter(work, target, latency_table)
                cut.save_pretrained(folder)
                write_beside(folder, name, found, cut, rows.do_lower_case, **hub_options)
        student, _, _ = load(first)
        found = replace(read_shrinking(first / RESULTS), model=str(model))
        examples = [{name: x.cpu() for name, x in batch.items()} for batch in work.examples]
        content = hashlib.sha256(b"".join(batch["input_ids"].numpy().tobytes() for batch in examples))
        check_same_data(args.directory, content.hexdigest())
        trainer = RepairTrainer(student, work.model, work.ask, args=args, train_dataset=examples)
        train(trainer, checkpoint)
        student.requires_grad_().eval()
        repaired = compare(work.model, student, work.held_out, work.ask)
        if repaired.divergence < found.comparison.divergence:
            found = replace(found, distil_steps=repair.steps, repaired=repaired)
        else:
            found = replace(found, distil_steps=repair.steps)
            student, _, _ = load(first)
            student.save_pretrained(args.directory)
            PartialState().print(
                f"training took the answers from {found.comparison.divergence:.2g} to {repaired.divergence:.2g}: the "
                "model is written as it was before; give a lower `learning_rate` or more `distil_steps`"
            )
        found = write_beside(args.directory, name, found, student, rows.do_lower_case, **hub_options)
        for folder in (*args.directory.glob("checkpoint-*"), first):  # a run that is killed here needs its cut
            shutil.rmtree(folder)
    return replace(found, folder=str(output_dir))


def lighter(
    work: Work, target: Target, latency_table: str | Path | None
) -> tuple[Shrinking, FixedHeadBertPreTrainedModel]:
    """Cut and refit, without writing."""
    asked = target.shapes(work.model.config) if target.is_sizes else None  # refused before the work begins
    check_tokens(shapes_of(work.model), work.rows)
    if target.is_time:
        work.table = latencies(work, latency_table)
    costs = work.costs()
    chosen, cut, by_table = choose(work, costs, target, asked)
    refit(work.model, cut, work.rows)
    batches = len(shapes_of_batches(work.rows))
    before, after, speedup = ratio(work.timed(work.model), work.timed(cut), work.model.device)
    found = Shrinking(
        work.name,
        sum(len(batch["input_ids"]) for batch in work.rows),
        work.length,
        shapes_of(work.model),
        chosen,
        predicted_cost(costs, chosen),
        compare(work.model, cut, work.held_out, work.ask),
        (work.model.num_parameters(), cut.num_parameters()),
        (work.operations(work.model), work.operations(cut)),
        (before / batches, after / batches),
        speedup,
        by_table,
        machine=machine_name(),
        table_of="" if work.table is None or work.table.is_of_this_machine else work.table.machine,
        asked=target.speedup,
        head=head_in(work.model),
    )
    return found, cut


def read_shrinking(file: Path) -> Shrinking:
    """What was written there."""
    fields = read_json_object(file, "remove the directory")
    shapes = {name: [Shape(Heads(*x["heads"]), x["neurons"]) for x in fields[name]] for name in ("before", "after")}
    pairs = {name: tuple(fields[name]) for name in ("parameters", "operations", "seconds")}
    return Shrinking(**fields | shapes | pairs | {"comparison": Comparison(**fields["comparison"])})


def latencies(work: Work, file: str | Path | None) -> LatencyTable:
    """The table in `file`; measured here where there is none."""
    shapes = shapes_of(work.model)
    inputs = shapes_of_batches(work.rows)
    if file is not None and Path(file).exists():
        table = LatencyTable.read(Path(file), work.model.config.hidden_size, shapes)
        if not table.is_of_this_machine:
            PartialState().print(
                f"{file}: times of {table.machine}, by which alone the cut is chosen; here {machine_name()}"
            )
        if inputs != table.inputs:
            sizes = (", ".join(f"{rows} x {tokens}" for rows, tokens in x) for x in (table.inputs, inputs))
            PartialState().print(
                "{}: measured for batches of {} tokens, while these rows make {}: the cut is chosen by it all the "
                "same; without the file it is measured again".format(file, *sizes)
            )
        return table
    table = measure(work.model, shapes, inputs)
    if file is not None:
        table.write(Path(file))
    return table


def choose(
    work: Work, costs: list[LayerCosts], target: Target, asked: list[Shape] | None
) -> tuple[list[Shape], FixedHeadBertPreTrainedModel, float | None]:
    """The shapes of all layers, the model cut to them but not refitted, and the speed-up by the table."""
    if asked is not None:
        return asked, with_shapes(work.model, costs, asked), None
    prices = prices_of(work, target)
    parts = [options(layer, prices) for layer in costs]
    layers = sum(prices.heads(shape.heads) + prices.neurons(shape.neurons) for shape in shapes_of(work.model))
    least = sum(min(option.price for option in part) for pair in parts for part in pair)
    wanted, rest = budget_of(work, target, layers, least)
    budget, fast, slow = wanted, (0.0, 0.0), None  # budgets with the share of the time wanted that they took
    fitting: list[tuple] = []  # whether it misses, by how much, its number, and the cut
    for _ in range(TRIES):
        found = cheapest([part for pair in parts for part in pair], budget - rest)
        chosen = [Shape(heads.choice, neurons.choice) for heads, neurons in zip(found[::2], found[1::2], strict=True)]
        cut = with_shapes(work.model, costs, chosen)
        if not target.is_time:
            return chosen, cut, None
        _, _, speedup = ratio(work.timed(work.model), work.timed(cut), work.model.device)
        by_table = (layers + rest) / (rest + sum(option.price for option in found))
        if work.table is not None and not work.table.is_of_this_machine:
            return chosen, cut, by_table
        reached = speedup * wanted / (layers + rest)  # of what was asked for
        fitting.append((reached < NEAR, abs(reached - 1), len(fitting), chosen, cut, by_table))
        if NEAR <= reached <= ENOUGH:
            break
        if reached < 1:
            slow = budget, 1 / reached
        else:
            fast = budget, 1 / reached
        budget = between(fast, slow) if slow else budget * reached
        budget = max(budget, rest + (budget - rest) / 2, rest + least)
    missed, *_, chosen, cut, by_table = min(fitting)
    if missed:
        PartialState().print(f"the time asked for is not reached on the clock, in {TRIES} tries; the nearest is taken")
    return chosen, cut, by_table


def between(fast: tuple[float, float], slow: tuple[float, float]) -> float:
    """The budget that takes the time wanted, by a line through two that took less and more."""
    (low, less), (high, more) = fast, slow
    return low + (high - low) * min(max((1 - less) / (more - less), 0.1), 0.9)


class Prices(NamedTuple):
    """What an attention with these heads, and a feed-forward network with so many neurons, take of the budget."""

    heads: Callable[[Heads], float]
    neurons: Callable[[int], float]


def prices_of(work: Work, target: Target) -> Prices:
    width, length = work.model.config.hidden_size, work.length
    if work.table is not None:
        return Prices(work.table.of_heads().__getitem__, work.table.of_neurons().__getitem__)

    def parameters(heads: Heads) -> float:
        inner = 2 * heads.size + heads.value_size
        return heads.number * (inner * (width + 1) + heads.value_size * width)

    def operations(heads: Heads) -> float:
        return 2 * length * heads.number * (2 * width + length) * (heads.size + heads.value_size)

    if target.params is not None:
        return Prices(parameters, lambda neurons: neurons * (2 * width + 1))
    return Prices(operations, lambda neurons: 4 * length * width * neurons)


def options(layer: LayerCosts, prices: Prices) -> tuple[list[Option], list[Option]]:
    """What can be left of an attention and of a feed-forward network, with its cost and its price."""
    heads, neurons = head_choices(layer.shape.heads), neuron_choices(layer.shape.neurons)
    return (
        [Option(choice, layer.of_heads(choice), prices.heads(choice)) for choice in heads],
        [Option(choice, layer.of_neurons(choice), prices.neurons(choice)) for choice in neurons],
    )


def budget_of(work: Work, target: Target, layers: float, least: float) -> tuple[float, float]:
    """
    What the model may take, and what it takes beside its `layers`; refused where it is less than the `least` that they
    can be cut to, or no less than there is.
    """
    scale = 1.0  # of the clock now to that of the table, which can be of a busier hour, or of other rows
    if work.table is not None:
        rest, unit = work.table.rest, "seconds"
        if work.table.is_of_this_machine:
            seconds = duration(work.timed(work.model), work.model.device) / len(shapes_of_batches(work.rows))
            scale = seconds / (layers + rest)
        if target.speedup is None:
            wanted = (target.milliseconds or 0) / 1000 / scale
        else:
            wanted = (layers + rest) / target.speedup
    elif target.params is not None:
        rest, wanted, unit = work.model.num_parameters() - layers, target.params, "parameters"
    else:
        rest, unit = work.operations(work.model) - layers, "operations"
        wanted = target.flops or 0
    if wanted >= layers + rest:
        raise InputError(
            f"the model takes {scale * (layers + rest):.4g} {unit}, and the target is {scale * wanted:.4g}: nothing "
            "to cut."
        )
    if wanted < least + rest:
        raise InputError(
            f"the least that can be left takes {scale * (least + rest):.4g} {unit}, and the target is "
            f"{scale * wanted:.4g}: at most {int(100 * (layers + rest) / (least + rest)) / 100:.2f} times less can be "
            "reached."
        )
    return wanted, rest


def predicted_cost(costs: list[LayerCosts], shapes: list[Shape]) -> float:
    return sum(
        layer.of_heads(shape.heads) + layer.of_neurons(shape.neurons)
        for layer, shape in zip(costs, shapes, strict=True)
    )


def with_shapes(
    model: FixedHeadBertPreTrainedModel, costs: list[LayerCosts], shapes: list[Shape]
) -> FixedHeadBertPreTrainedModel:
    """A copy of the model, cut to these shapes."""
    config = copy.deepcopy(model.config)
    set_heads(config, [shape.heads for shape in shapes])
    config.intermediate_size = int_or_list([shape.neurons for shape in shapes])
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    prefix = next(name for name in tensors if "encoder.layer.0." in name).split("encoder.layer.0.")[0]
    for number, (layer, shape) in enumerate(zip(costs, shapes, strict=True)):
        place = f"{prefix}encoder.layer.{number}."
        changed: dict[str, Tensor] = {}
        if shape.heads != layer.shape.heads:
            changed |= {f"attention.{name}": tensor for name, tensor in layer.cut_heads(shape.heads).items()}
        if shape.neurons != layer.shape.neurons:
            changed |= layer.cut_neurons(shape.neurons)
        tensors |= {place + name: tensor.to(model.dtype) for name, tensor in changed.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}  # of no heads, a bias is left
    return build_model(type(model), config, tensors, model).eval()


def write_beside(
    folder: Path,
    name: str,
    found: Shrinking,
    cut: FixedHeadBertPreTrainedModel,
    do_lower_case: bool | None,
    **hub_options,
) -> Shrinking:
    """
    Write what belongs beside the weights: tokenizer, pooling of sentences, results, picture and card.
    """
    auxiliary = auxiliary_directory(found.model, **hub_options)
    _, metadata = copy_auxiliary_files(found.model, auxiliary, folder, do_lower_case)
    written = {name: value for name, value in asdict(found).items() if name != "folder"}
    written |= {"model": shown(found.model)}
    (folder / RESULTS).write_text(to_json(written, indent=1) + "\n")
    draw(found, folder / PICTURE)
    names, count = (type(cut).__name__, name), cut.num_parameters()
    checkpoint_card(cut.config, *names, making(found), count=count, **metadata).save(folder / CARD)
    return found


def load(
    model: str | Path, do_lower_case: bool | None = None, **hub_options
) -> tuple[FixedHeadBertPreTrainedModel, PreTrainedTokenizerBase, SentencePooling | None]:
    """A model to cut, as a FixedHeadBert in float32, its tokenizer, and how it makes an embedding of a text."""
    if PartialState().num_processes > 1:
        raise InputError("shrinking takes one process: start it without accelerate launch.")
    found = load_bert(model, **hub_options)
    config = found.config
    reasons = {
        "head_embedding": "all heads share one projection, so that none can be cut by itself",
        "qk_norm": "queries and keys are normalised, and their norms would change",
        "add_cross_attention": "what cross-attention sees is not in the rows",
    }
    for name, reason in reasons.items():
        if getattr(config, name, None):
            raise InputError(f"{model}: cannot be shrunk with {name}={getattr(config, name)!r}: {reason}.")
    fixed = found if isinstance(found, FixedHeadBertPreTrainedModel) else to_fixed_head_bert(found)
    if fixed is not found:
        check_equivalence(found, fixed)
    if found.dtype != torch.float32:
        PartialState().print(
            f"{model}: weights in {found.dtype}; the lighter model is computed and written in float32"
        )
    beside = auxiliary_directory(model, **hub_options)
    tokenizer = load_tokenizer(str(beside), do_lower_case, trust_remote_code=False)
    check_vocab_size(tokenizer, fixed.config.vocab_size, model)
    fixed.config.unpad_inputs = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return fixed.eval().to(device, torch.float32), tokenizer, read_pooling(beside)
