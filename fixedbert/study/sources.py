"""Where the texts of a study come from, and their check before a run starts."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from ..data.corpora import CorpusReader
from ..data.formats import corpus_files, file_format
from ..data.glue import load_task
from ..data.squad import load_squad
from ..errors import InputError
from ..training.arguments import ModelArguments, flags, parse
from ..training.pretraining_data import PretrainingDataArguments
from .studies import Study
from .synthetic import SYNTHETIC

SQUAD_FILES = {"train_file": "train-v1.1.json", "validation_file": "dev-v1.1.json"}


@dataclass(frozen=True)
class DataSources:
    """
    Where the texts of a study are: arguments of run_pretraining.py; `glue_dir` is --data_dir of run_glue.py, and
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
        Read the first document of every file with columns, and of a text file; of MNLI and SQuAD all rows.

        Raises:
            InputError: texts that the study needs are not named, not there, or of another form.
        """
        objectives = {series.get("objective", study.objective) for series in study.series.values()}
        if objectives - set(SYNTHETIC):
            if not (self.train_file or self.dataset_name):
                raise InputError(f"study {study.name}: no corpus: give train_file, or dataset_name.")
            for stage in study.pretraining:
                self.check_corpora(stage)
        if "squad" in study.fine_tuning and self.squad_dir:
            for name in SQUAD_FILES.values():
                if not Path(self.squad_dir, name).is_file():
                    raise InputError(f"{self.squad_dir}: there is no {name} in it.", "squad_dir")
                load_squad(str(Path(self.squad_dir, name)))
        if "mnli" in study.fine_tuning and self.glue_dir:
            if not Path(self.glue_dir).is_dir():
                raise InputError(f"{self.glue_dir}: no such folder.", "glue_dir")
            load_task("mnli", self.glue_dir)

    def check_corpora(self, stage: dict):
        names = {option.name for option in fields(PretrainingDataArguments)}
        of_texts = {name: value for name, value in {**stage, **self.settings()}.items() if name in names}
        (arguments,) = parse(flags(of_texts), PretrainingDataArguments)
        corpora = arguments.corpora(ModelArguments())
        corpora += [replace(corpora[0], source=file, on_hub=False) for file in arguments.validation_file or []]
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

    def settings(self) -> dict[str, str | list[str]]:
        """What decides which texts pretraining has."""
        return {name: value for name, value in asdict(self).items() if value is not None and not name.endswith("_dir")}

    def pretraining_flags(self) -> list[str]:
        return flags({**self.settings(), "store_dir": self.store_dir})

    def fine_tuning_flags(self, task: str) -> list[str]:
        if task == "mnli":
            return flags({"task_name": "mnli", "data_dir": self.glue_dir})
        if self.squad_dir is None:
            return flags({"dataset_name": "rajpurkar/squad"})
        return flags({name: str(Path(self.squad_dir, file)) for name, file in SQUAD_FILES.items()})
