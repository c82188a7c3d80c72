"""Arguments of Trainer for pretraining, and the corpora that the options describe."""

from dataclasses import dataclass
from typing import ClassVar

from ..data.corpora import Corpus
from ..options import NewModelOptions, PretrainingDataOptions, PretrainingTrainerOptions
from ..support.errors import InputError
from ..training.arguments import CommonArguments


def corpora_of(data_args: PretrainingDataOptions, model_args: NewModelOptions) -> list[Corpus]:
    """Returns the corpora that the options describe."""
    sources = [(name, True) for name in data_args.dataset_name or []]
    sources += [(file, False) for file in data_args.train_file or []]
    if not sources:
        raise InputError("no corpus: set `train_file` or `dataset_name`.")
    names = ("dataset_config_name", "text_column_name", "document_boundary")
    columns = [per_corpus(data_args, name, len(sources)) for name in names]
    hub_options = model_args.download_options()
    return [
        Corpus(source, on_hub, config_name, text_column, boundary, hub_options)
        for (source, on_hub), config_name, text_column, boundary in zip(sources, *columns, strict=True)
    ]


def per_corpus(data_args: PretrainingDataOptions, name: str, count: int) -> list:
    """Returns the values of an option, one per corpus. Replaces "none" with None."""
    values = [None if value == "none" else value for value in getattr(data_args, name)]
    if len(values) not in (1, count):
        raise InputError(f"has {len(values)} values for {count} corpora; set one value, or one per corpus.", name)
    return values * count if len(values) == 1 else values


@dataclass
class PretrainingArguments(PretrainingTrainerOptions, CommonArguments):
    """Arguments for training: transformers' TrainingArguments with the defaults of BERT's pretraining."""

    refused: ClassVar[dict[str, tuple[object, str]]] = CommonArguments.refused | {
        "label_smoothing_factor": (0.0, "pretraining uses the same losses as BERT"),
        "train_sampling_strategy": ("random", "`seed` and the epoch determine the order of the examples"),
        "data_seed": (None, "`seed` determines the examples"),
        "include_num_input_tokens_seen": ("no", "non-padding tokens are always counted"),
        "accelerator_config.dispatch_batches": (None, "batches contain token indices and cannot be split"),
        "do_predict": (False, "use `do_eval`"),
    }

    def __post_init__(self):
        super().__post_init__()
        if self.total_train_batch_size is not None:
            self.set_batch_size(self.total_train_batch_size)

    def set_batch_size(self, total: int):
        """Sets the batch size per device and the gradient accumulation so that a step contains `total` examples."""
        devices = self.world_size * max(self.n_gpu, 1)
        if self.gradient_accumulation_steps != 1:
            raise InputError("cannot be combined with `gradient_accumulation_steps`.", "total_train_batch_size")
        per_device, rest = divmod(total, devices)
        if rest or not per_device:
            raise InputError(f"must be a multiple of {devices}, the number of devices.", "total_train_batch_size")
        batch_size = min(self.per_device_train_batch_size, per_device)
        while per_device % batch_size:
            batch_size -= 1
        self.per_device_train_batch_size = batch_size
        self.gradient_accumulation_steps = per_device // batch_size


ARGUMENTS = (NewModelOptions, PretrainingDataOptions, PretrainingArguments)
