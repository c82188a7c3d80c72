"""Tests for matching the labels in the data with the labels of a model."""

import numpy as np
import pytest
from transformers import BertConfig, EvalPrediction

from fixedbert.fine_tuning.prediction_files import submitted_names
from fixedbert.support.errors import InputError
from fixedbert.tasks.glue_metrics import GlueEvaluation
from fixedbert.tasks.labels import MULTI, REGRESSION, SINGLE, Labels, default_names, known_names

MNLI = ("entailment", "neutral", "contradiction")
FINE_TUNED = {"architectures": ["BertForSequenceClassification"]}


def config_with(*names, **fields):
    id2label = dict(enumerate(names))
    return BertConfig(id2label=id2label, label2id={name: number for number, name in id2label.items()}, **fields)


def align(names, config, train, problem_type=None):
    """Matches labels with these names, or the model's own. Returns their ids and whether the head is replaced."""
    if names is None:
        labels = Labels.of(config)
    else:
        labels = Labels(problem_type or (SINGLE if names else REGRESSION), {name: name for name in names})
    new_head = labels.align(config, train)
    return labels.ids, new_head


@pytest.mark.parametrize(
    "names, known, label_ids",
    [
        (["0", "2"], ("LABEL_0", "LABEL_1", "LABEL_2"), {"0": 0, "2": 2}),
        (["label-2", "label-0"], ("LABEL_0", "LABEL_1", "LABEL_2"), {"label-2": 2, "label-0": 0}),
        (["no", "yes"], ("YES", "perhaps", "NO"), {"no": 2, "yes": 0}),
        (["entailment", "not_entailment"], ("Not-Entailment", "ENTAILMENT"), {"entailment": 1, "not_entailment": 0}),
        (["-1", "1"], ("1", "-1"), {"-1": 1, "1": 0}),  # a sign is not a hyphen between words
        (["a", "A"], ("A", "a"), {"a": 1, "A": 0}),  # these differ only in case, but both exist
        (None, ("yes", "no"), {"yes": 0, "no": 1}),
    ],
)
def test_labels_are_matched_by_name(names, known, label_ids):
    """Label names are matched regardless of case and separators, and LABEL_0 is 0. The model keeps its head."""
    config = config_with(*known, **FINE_TUNED)
    assert align(names, config, train=False) == (label_ids, False)
    assert default_names(config) == [*known] and config.problem_type == "single_label_classification"


def test_different_labels_need_a_new_head(capsys):
    """Different labels or problem types replace the head in training, which is printed, and are otherwise refused."""
    config = config_with(*MNLI)
    assert align(["entailment", "not_entailment"], config, train=True)[1]
    assert config.num_labels == 2 and config.id2label == {0: "entailment", 1: "not_entailment"}
    printed = capsys.readouterr().out
    assert "(entailment, neutral, contradiction) with a new head for one label per text" in printed
    assert align([], config, train=True) == ({}, True)
    assert config.num_labels == 1 and config.problem_type == "regression"
    assert align([], config, train=True) == ({}, False)
    assert not align([], BertConfig(), train=True)[1]  # a pretrained model has no head
    with pytest.raises(InputError, match="the model predicts scores, but the data contain one label per text .entail"):
        align(["entailment", "not_entailment"], config, train=False)
    with pytest.raises(InputError, match="neither the data nor the model has labels"):
        align(None, BertConfig(), train=False)
    config = config_with("a", "b", problem_type=MULTI, **FINE_TUNED)
    with pytest.raises(InputError, match="the model predicts several labels per text .a, b., but"):
        align(["a", "b"], config, False, SINGLE)
    assert align(None, config, False) == ({"a": 0, "b": 1}, False) and config.problem_type == MULTI
    assert align([], config, False, MULTI) == ({}, False)  # evaluation data in which no text has a label
    assert align(["a", "b"], config, True, SINGLE)[1] and config.problem_type == SINGLE
    assert "head for several labels per text (a, b) with a new head for one label per text" in capsys.readouterr().out


@pytest.mark.parametrize("names", [["no", "yes"], ["1", "2"], ["LABEL_1", "LABEL_2"], ["0", "LABEL_1"], []])
def test_unnamed_labels_that_differ(names):
    """A model with the default names LABEL_0 and LABEL_1 refuses other labels. In training, its head is replaced."""
    config = config_with("LABEL_0", "LABEL_1", **FINE_TUNED)
    assert not align(None, config, train=False)[1] and default_names(config) == ["LABEL_0", "LABEL_1"]
    with pytest.raises(InputError, match=r"per text \(LABEL_0, LABEL_1\), but the data contain .* correct id2label"):
        align(names, config, train=False)
    assert align(names, config, train=True)[1] and default_names(config) == (names or ["LABEL_0"])
    assert known_names(config_with("LABEL_0", **FINE_TUNED)) == []  # a single output means regression


@pytest.mark.parametrize("names, known", [(["no", "No"], ("no", "yes")), (["NO"], ("no", "No"))])
def test_ambiguous_names_do_not_match(names, known):
    """Two labels never match the same output, nor one label two outputs."""
    with pytest.raises(InputError, match="the model predicts"):
        align(names, config_with(*known, **FINE_TUNED), train=False)


def test_metrics_and_submissions_use_the_labels_of_the_task():
    """For any label ids of the model, F1 uses GLUE's positive class, and submissions use GLUE's labels."""
    names = ["EQUIVALENT", "NOT_EQUIVALENT"]
    evaluation = GlueEvaluation("mrpc", Labels.of(config_with(*names)))
    logits = np.eye(2)[[0, 0, 1, 1, 1]]
    found = evaluation(EvalPrediction(logits, np.array([0, 1, 1, 1, 0])))
    assert found == {"accuracy": 0.6, "f1": 0.5, "combined_score": 0.55}
    assert submitted_names("mrpc", names) == ["1", "0"]
    assert submitted_names("rte", ["not entailment", "Entailment"]) == ["not_entailment", "entailment"]
    with pytest.raises(InputError, match="predicts LABEL_0, LABEL_1, but .* unacceptable, acceptable; .* id2label"):
        submitted_names("cola", ["LABEL_0", "LABEL_1"])
