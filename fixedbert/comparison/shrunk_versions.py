"""Shrunk versions of a model that compete with it within a tolerance."""

from dataclasses import asdict, replace
from pathlib import Path

from ..options import CompareOptions, ShrinkOptions
from ..shrinking.search import search
from ..tasks.rows import Rows
from .candidates import Candidate, shrunk_candidate
from .choice import points_lost

NOT_COMPARED = ("output_dir", "cache_dir", "token", "runtime")  # options that may change when a search resumes


def search_directory(options: CompareOptions) -> Path:
    """Returns the directory next to the output that contains the versions until the comparison is complete."""
    return Path(f"{options.output_dir}.search")


def shrunk_versions(options: CompareOptions, first: Candidate, rows: Rows, half: int) -> list[Candidate]:
    """
    Shrinks the first model to several speeds. Returns versions that lose at most `tolerance` on the first `half` of
    the rows.
    """
    original = replace(first, features=first.features[:half], predictions={})
    original.predict_all(options.batch_size)

    def lost(directory: Path) -> float:
        version = shrunk_candidate(original, directory)
        version.predict_all(options.batch_size)
        return points_lost(original, version, rows, range(half))

    files = [*options.models, *(options.train_file or ()), *filter(None, [options.validation_file])]
    given = {name: value for name, value in asdict(options).items() if name not in NOT_COMPARED} | {"files": files}
    found = search(shrink_options(options), options.tolerance or 0.0, lost, given)
    return [shrunk_candidate(first, directory) for directory in found]


def shrink_options(options: CompareOptions) -> ShrinkOptions:
    names = ["text_column_names", "query_column_name", "max_seq_length", "skip_bad_rows", "batch_size"]
    names += ["train_file", "model_revision", "cache_dir", "token"]
    given = {name: getattr(options, name) for name in names}
    return ShrinkOptions(model=options.models[0], output_dir=str(search_directory(options)), speedup=[2.0], **given)
