"""Where the texts of a study come from, and the check of texts and arguments before a run starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fixedbert.data.corpora import Corpus, CorpusReader, corpus_files
from fixedbert.data.readers import file_format
from fixedbert.fine_tuning.fine_tune import FineTuningTask
from fixedbert.fine_tuning.glue import TextClassification
from fixedbert.fine_tuning.questions import load_squad
from fixedbert.fine_tuning.squad import QuestionAnswering
from fixedbert.fine_tuning.texts import load_task
from fixedbert.pretraining.arguments import ARGUMENTS, PretrainingDataArguments
from fixedbert.support.errors import InputError
from fixedbert.training.arguments import ModelArguments, check_types, make_arguments

from .studies import Study

SQUAD_FILES = {"train_file": "train-v1.1.json", "validation_file": "dev-v1.1.json"}
FINE_TUNED: dict[str, type[FineTuningTask]] = {"mnli": TextClassification, "squad": QuestionAnswering}


@dataclass(frozen=True)
class DataSources:
    """
    Where the texts of a study are: arguments of pretraining; `glue_dir` is `data_dir` of GLUE's arguments, and
    `squad_dir` a folder with SQuAD 1.1's train-v1.1.json and dev-v1.1.json. Without these two the Hub is asked.
    """

    train_file: list[str] | None = None
    validation_file: list[str] | None = None
    dataset_name: list[str] | None = None
    dataset_config_name: list[str] | None = None
    document_boundary: list[str] | None = None
    tokenizer_name: str | None = None
    store_dir: str | None = None
    glue_dir: str | None = None
    squad_dir: str | None = None

    def check(self, study: Study):
        """
        Check the arguments of all scripts; read the first document of every file with columns, and of a text file; of
        MNLI and SQuAD read all rows.

        Raises:
            InputError: a script does not take one of its arguments, or texts that the study needs are not named, not
                there, or of another form.
        """
        stages = study.stages_on_text()
        if stages and not (self.train_file or self.dataset_name):
            raise InputError(f"study {study.name}: no corpus: give train_file, or dataset_name.")
        read: list[list[Corpus]] = []
        for place, stage in stages:
            with named(f"study {study.name}, {place}"):
                check_types(stage, *ARGUMENTS)
            corpora = self.corpora(stage)
            if corpora not in read:
                check_corpora(corpora)
                read.append(corpora)
        for task, arguments in study.fine_tuning.items():
            own = {name: value for name, value in arguments.items() if name != "train_batch_size"}  # of all devices
            with named(f"study {study.name}, fine_tuning: {task}"):
                check_types(own, *FINE_TUNED[task].arguments)
        if "squad" in study.fine_tuning and self.squad_dir:
            for name in SQUAD_FILES.values():
                if not Path(self.squad_dir, name).is_file():
                    raise InputError(f"{self.squad_dir}: there is no {name} in it.", "squad_dir")
                load_squad(str(Path(self.squad_dir, name)))
        if "mnli" in study.fine_tuning and self.glue_dir:
            if not Path(self.glue_dir).is_dir():
                raise InputError(f"{self.glue_dir}: no such folder.", "glue_dir")
            load_task("mnli", self.glue_dir)

    def corpora(self, stage: dict) -> list[Corpus]:
        """Corpora of a stage, to train on and held out."""
        names = {option.name for option in fields(PretrainingDataArguments)}
        of_texts = {name: value for name, value in {**stage, **self.settings()}.items() if name in names}
        (arguments,) = make_arguments(of_texts, PretrainingDataArguments)
        corpora = arguments.corpora(ModelArguments())
        return corpora + [replace(corpora[0], source=file, on_hub=False) for file in arguments.validation_file or []]

    def settings(self) -> dict[str, str | list[str]]:
        """What decides which texts pretraining has."""
        return {name: value for name, value in asdict(self).items() if value is not None and not name.endswith("_dir")}

    def fine_tuning_data(self, task: str) -> dict[str, Any]:
        """The fields of the task's data arguments that say where its texts are."""
        if task == "mnli":
            return {"task_name": ["mnli"]} | ({"data_dir": self.glue_dir} if self.glue_dir else {})
        if self.squad_dir is None:
            return {"dataset_name": "rajpurkar/squad"}
        return {name: str(Path(self.squad_dir, file)) for name, file in SQUAD_FILES.items()}


def check_corpora(corpora: list[Corpus]):
    """Raises InputError where no document can be read from one of them."""
    for corpus in corpora:
        local = not (corpus.on_hub or corpus.is_sample)
        parts = [replace(corpus, source=str(file)) for file in corpus_files(corpus.source)] if local else [corpus]
        has_document = False
        for part in parts:
            # A text file has no columns that could be missing, and can be a single document.
            if not has_document or file_format(Path(part.source)) != ".txt":
                has_document |= next(iter(CorpusReader(part)), None) is not None
        if not has_document:
            raise InputError(f"{corpus.source}: there is no document in it.")


@contextmanager
def named(place: str) -> Iterator[None]:
    """Errors of arguments begin with the place in the study that has them."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
