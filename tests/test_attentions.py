"""Studies whose attention is a class of the user's: the examples of the docs, what is counted, trusted and refused."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from experiments.head_size.tasks import PREDICTIONS, SYNTHETIC, WITH_SOURCE, train_synthetic
from fixedbert.attention_fixed_head_bert import ATTENTION_CLASSES, FixedHeadBertSelfAttention, self_attention
from fixedbert.checkpoints import load_bert
from fixedbert.counts import forward_flops, parameters
from fixedbert.errors import InputError
from fixedbert.presets import preset_config
from fixedbert.study import DataSources, load_study, make_report, report_markdown, run_study, study_cost
from fixedbert.study.attentions import import_attentions
from fixedbert.study.run import execute
from fixedbert_cli import main

EXAMPLES = Path(__file__).parents[1] / "docs" / "attentions"
GROUPED, LATENT = "grouped_queries.GroupedQueries", "latent.LatentKeysAndValues"
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "attention_head_size": 6,
    "intermediate_size": 37,
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
}
STAGE = {"max_seq_length": 16, "total_train_batch_size": 4, "max_steps": 4}
OF_TEXT = {"preprocessing_num_workers": 1, "logging_steps": 2, "max_eval_samples": 13}
OF_TASKS = {"average": {"subset": 2, "mlp": 5}, "nearest": {"dimension": 3}, "extremes": {"features": 2}}
STUDY = {
    "question": "?",
    "axis": "attention_head_size",
    "learning_rates": [0.003],
    "seeds": [5],
    "objective": "recall",
    "model": SHAPE,
    "pretraining": STAGE,
}
OWN = """
from torch import nn

class Own(nn.Module):
    def __init__(self, config, is_causal=False, layer_idx=None, is_cross_attention=False):
        super().__init__()
        self.all_head_size = 7
        self.value = nn.Linear(config.hidden_size, 7)

    def forward(self, hidden_states, encoder_hidden_states=None, attention_mask=None, **kwargs):
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        scores = hidden_states @ source.mT
        if attention_mask is not None:
            scores = scores + attention_mask[:, 0]
        return scores.softmax(dim=-1) @ self.value(source), None
"""


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Neither classes nor folders of one test are there in the next."""
    monkeypatch.setattr("sys.path", [*sys.path])
    before = dict(ATTENTION_CLASSES)
    yield
    ATTENTION_CLASSES.clear()
    ATTENTION_CLASSES.update(before)


@pytest.fixture
def examples() -> dict[str, str]:
    return import_attentions([GROUPED, LATENT], EXAMPLES)


def config(attention: str | None = None, **changes):
    return preset_config("tiny", **{**SHAPE, "attention": attention, "max_position_embeddings": 16, **changes})


def write(folder: Path, code: str | None = None, **changes) -> str:
    if code is not None:
        (folder / "mine.py").write_text(code)
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump({**STUDY, **changes}))
    return str(file)


def naive(layer, name: str, hidden_states, source, mask):
    """Query by query and head by head, with the matrices of the examples' definitions."""
    H, P, V = 5, 6, layer.all_head_size // 5
    if name == GROUPED:
        head_of = [0, 0, 0, 1, 1]
        keys, values = layer.key(source), layer.value(source)
    else:
        head_of = [0, 1, 2, 3, 4]
        latent = source @ layer.latent.weight.T
        keys = latent @ layer.key.weight.T + layer.key.bias
        values = latent @ layer.value.weight.T + layer.value.bias
    queries = layer.query(hidden_states)
    output = torch.zeros(*hidden_states.shape[:2], H * V, dtype=torch.float64)
    for row in range(len(hidden_states)):
        for place in range(hidden_states.shape[1]):
            for head in range(H):
                q, other = queries[row, place, P * head : P * head + P], head_of[head]
                scores = torch.stack([q.dot(k) / P**0.5 for k in keys[row, :, P * other : P * other + P]])
                weights = (scores + mask[place]).exp()
                mixed = (weights / weights.sum()) @ values[row, :, V * other : V * other + V]
                output[row, place, V * head : V * head + V] = mixed
    return output


@pytest.mark.parametrize("name", [GROUPED, LATENT])
@pytest.mark.parametrize("value_size", [None, 4])
def test_examples_are_what_they_say(examples, name, value_size):
    """Guards: the examples of the docs against a plain definition in float64, masked, and with keys from elsewhere."""
    torch.manual_seed(0)
    layer = self_attention(config(examples[name], value_head_size=value_size)).double()
    assert layer.all_head_size == 5 * (value_size or 6)
    tokens, source = torch.randn(3, 7, 32, dtype=torch.float64), torch.randn(3, 9, 32, dtype=torch.float64)
    mask = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(diagonal=1)
    output, weights = layer(tokens, attention_mask=mask[None, None])
    assert torch.allclose(output, naive(layer, name, tokens, tokens, mask), rtol=0, atol=1e-12)
    assert weights.shape == (3, 5, 7, 7)
    output, _ = layer(tokens, encoder_hidden_states=source)
    assert torch.allclose(output, naive(layer, name, tokens, source, torch.zeros(7, 9)), rtol=0, atol=1e-12)


class Kernel(FixedHeadBertSelfAttention):
    """The attention of FixedHeadBert by torch's kernel."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        heads = [self.project(one, hidden_states, 6) for one in (self.query, self.key, self.value)]
        return scaled_dot_product_attention(*heads, attn_mask=attention_mask).transpose(1, 2).flatten(-2), None


def test_counts_are_true(examples):
    """Guards: parameters and FLOPs of a layer with another class, by hand; and torch counts what the formula does."""
    rest = 32 * 30 + 32 + 2 * 32 * 37 + 37 + 32 + 4 * 32  # W_o, feed-forward network, LayerNorms
    attention = {GROUPED: 33 * (30 + 12 + 12), LATENT: 33 * 30 + 32 * 16 + 2 * 17 * 30}
    products = {GROUPED: 32 * (30 + 12 + 12), LATENT: 32 * 30 + 32 * 16 + 2 * 16 * 30}
    for name, entry in examples.items():
        assert parameters(config(entry))[1] == 2 * (attention[name] + rest)
        per_token = products[name] + 2 * 16 * 30 + 32 * 30 + 2 * 32 * 37
        assert forward_flops(config(entry), 16) == 2 * 2 * per_token
    ATTENTION_CLASSES.update({"ours": FixedHeadBertSelfAttention, "kernel": Kernel})
    before = torch.random.get_rng_state()
    for entry in ("ours", "kernel"):
        assert forward_flops(config(entry), 16) == forward_flops(config(), 16)
    assert forward_flops(config("ours", value_head_size=4), 13) == forward_flops(config(value_head_size=4), 13)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_models_are_what_they_are_with_padding_and_packed(examples):
    """Guards: a model with another class gives the same for a text alone, padded, and in a row with another one, also
    where padding is not to be computed, and causal where it is a decoder."""
    torch.manual_seed(0)
    for entry in examples.values():
        model = AutoModelForMaskedLM.from_config(config(entry, initializer_range=0.3)).double().eval()
        model.base_model.unpad_inputs = True
        first, second = torch.randint(1, 99, (1, 5)), torch.randint(1, 99, (1, 8))
        alone = model(first).logits, model(second).logits
        padded = torch.cat([nn.functional.pad(first, (0, 3)), second])
        mask = torch.tensor([[1] * 5 + [0] * 3, [1] * 8])
        logits = model(padded, attention_mask=mask).logits
        assert torch.allclose(logits[0, :5], alone[0][0]) and torch.allclose(logits[1], alone[1][0])
        places = torch.tensor([[*range(5), *range(8)]])
        packed = model(torch.cat([first, second], dim=1), position_ids=places).logits
        assert torch.allclose(packed[0], torch.cat([alone[0][0], alone[1][0]]))
        decoder = AutoModelForCausalLM.from_config(config(entry, is_decoder=True, initializer_range=0.3)).eval()
        changed = torch.cat([second[:, :-1], second[:, -1:] + 1], dim=1)
        before, after = decoder(second).logits[0], decoder(changed).logits[0]
        assert torch.allclose(before[:-1], after[:-1], atol=1e-6) and not torch.allclose(before[-1], after[-1])


def test_weights_open_with_their_class_alone(examples, tmp_path):
    """Guards: a saved model with another class says which, and opens nowhere without it, not even where names and
    sizes of its weights are those of FixedHeadBert."""
    ATTENTION_CLASSES["kernel"] = Kernel
    for entry in (examples[LATENT], "kernel"):
        model = AutoModelForMaskedLM.from_config(config(entry))
        model.save_pretrained(tmp_path / entry)
        again = AutoModelForMaskedLM.from_pretrained(tmp_path / entry)
        assert torch.equal(again(torch.arange(7)[None]).logits, model.eval()(torch.arange(7)[None]).logits)
        assert json.loads((tmp_path / entry / "config.json").read_text())["attention"] == entry
        with pytest.raises(InputError, match="only the attention of FixedHeadBert itself can be converted"):
            load_bert(tmp_path / entry)
        del ATTENTION_CLASSES[entry]
        with pytest.raises(ValueError, match=f"names the attention {entry}, a class that is not part of fixedbert"):
            AutoModelForMaskedLM.from_pretrained(tmp_path / entry)


@pytest.mark.parametrize("objective", ["recall", "nearest", "extremes", "average", "memorise", "dense"])
def test_tasks_take_any_attention(examples, objective):
    """Guards: every synthetic task trains another class, repeatably, and claims nothing of theory for it."""
    stage = {**STAGE, "max_seq_length": 6, "total_train_batch_size": 32, **OF_TASKS.get(objective, {})}
    found = []
    for entry in (None, *examples.values()):
        results = train_synthetic(objective, config(entry, num_hidden_layers=1), stage, 0.01, seed=3)
        assert results == train_synthetic(objective, config(entry, num_hidden_layers=1), stage, 0.01, seed=3)
        found.append(results)
    assert all(results["loss"] is not None for results in found)
    ours, *others = (results.keys() for results in found)
    assert ours & {*PREDICTIONS} or objective == "dense"
    assert all(names == ours - {*PREDICTIONS} for names in others)
    if objective not in ("memorise", "recall"):  # whose measures are whole numbers
        assert len({results["loss"] for results in found}) == 3


@pytest.mark.parametrize("objective", SYNTHETIC)
def test_other_tokens_are_asked_for_where_they_are_given(tmp_path, objective):
    """Guards: a class that can only attend to its own tokens is refused for the tasks that give it others, by the
    trial before the run, and for no other task; the list of these tasks is complete."""
    code = OWN.replace("        source = ", "        assert encoder_hidden_states is None\n        source = ")
    stage = {**STAGE, "max_seq_length": 6, "total_train_batch_size": 32, **OF_TASKS.get(objective, {})}
    changes = {"objective": objective, "model": {**SHAPE, "num_hidden_layers": 1}, "pretraining": stage}
    study = load_study(write(tmp_path, code, attention="mine.Own", series={"a": {}}, **changes))
    (entry,) = import_attentions(["mine.Own"], tmp_path).values()
    arguments = objective, config(entry, num_hidden_layers=1), stage, 0.01, 3
    if objective in WITH_SOURCE:
        with pytest.raises(AssertionError):
            train_synthetic(*arguments)
        with pytest.raises(InputError, match="series a, shape 1: attention: mine.Own fails .AssertionError"):
            study.with_attentions(trust_remote_code=True)
    else:
        train_synthetic(*arguments)
        study.with_attentions(trust_remote_code=True)


def test_a_class_that_overlooks_other_tokens(tmp_path):
    """Guards: where keys and values are of other tokens, a class that takes its own for them is refused."""
    code = OWN.replace("is None else encoder_", "is None else ")
    stage = {**STAGE, "total_train_batch_size": 32}
    file = write(tmp_path, code, attention="mine.Own", series={"a": {}}, objective="memorise", pretraining=stage)
    with pytest.raises(InputError, match="its output does not depend on encoder_hidden_states"):
        load_study(file).with_attentions(trust_remote_code=True)


def test_no_least_error_of_other_classes(examples, monkeypatch):
    """Guards: the search for the least error of a head of FixedHeadBert, which takes long, is left out for others."""
    monkeypatch.setattr("experiments.head_size.tasks.mixing.floor", lambda P, size: 0.5)
    for entry, found in ((None, True), (examples[LATENT], False)):
        one_head = config(entry, num_attention_heads=1, num_hidden_layers=1)
        assert ("floor" in train_synthetic("dense", one_head, STAGE, 0.01, 3)) == found


@pytest.mark.parametrize("name", ["attentions_on_recall.yaml", "attentions_on_text.yaml"])
def test_studies_of_the_page(name, capsys):
    """Guards: the studies of the docs can be made, with equal parameters where they say so, and their cost be said."""
    made = load_study(str(EXAMPLES / name)).with_attentions(trust_remote_code=True)
    for series, shapes in made.shapes.items():
        for point, shape in enumerate(shapes):
            assert ("attention" in shape) == (series != "own keys and values")
            if "to" in made.series[series]:
                other = made.shapes["own keys and values"][made.reference_point(series, point)]
                counts = [parameters(preset_config("tiny", **one))[1] for one in (shape, other)]
                assert abs(counts[0] - counts[1]) <= 2 * (2 * 64 + 1) / 2
    main(["study", str(EXAMPLES / name), "--trust_remote_code", "--dry_run"])
    rates, seeds = len(made.learning_rates), len(made.seeds)
    assert f"\n{len(made.places()) * (rates + seeds - 1)} runs" in capsys.readouterr().out


def test_code_runs_only_where_it_is_asked_for(tmp_path):
    """Guards: without --trust_remote_code nothing is imported, and nothing written; a study without classes needs no
    flag, and has shapes and keys without a word of them."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{OWN}"
    file = write(tmp_path, code, series={"a": {"attention": "mine.Own"}})
    for arguments in ([], ["--dry_run"]):
        with pytest.raises(InputError, match="^`trust_remote_code` is needed: study small: attention: mine.Own"):
            main(["study", file, "--output_dir", str(tmp_path / "out"), *arguments])
    study = load_study(file)
    for use in (study_cost, lambda study: run_study(study, tmp_path / "out"), lambda study: study.places()):
        with pytest.raises(InputError, match="mine.Own is code") as caught:
            use(study)
        assert caught.value.field == "trust_remote_code"
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out").exists()
    study_cost(study, trust_remote_code=True)
    assert (tmp_path / "ran").exists()
    plain = load_study(write(tmp_path, attention="mine.Own", series={"a": {"attention": None}}))
    assert plain.attentions == [] and "attention" not in plain.shapes["a"][0]
    assert plain.run("a", 0, 0.003, 5).key == load_study(write(tmp_path, series={"a": {}})).run("a", 0, 0.003, 5).key


def test_classes_are_named_where_they_belong(tmp_path):
    """Guards: a class is not slipped in as a field of all shapes, nor past the import."""
    model = {"model": {**SHAPE, "attention": "mine.Own"}}
    for changes, message in (
        (model, "model: attention: it belongs beside model, or in a series"),
        ({"imported": {"mine.Own": "x"}}, "imported: no such key"),
    ):
        with pytest.raises(InputError, match=message):
            load_study(write(tmp_path, OWN, series={"a": {}}, **changes))


def test_changed_code_is_another_attention(tmp_path):
    """Guards: a class is imported anew each time; with other code its run has another key, and its record says so."""
    study = load_study(write(tmp_path, OWN, attention="mine.Own", series={"a": {}}))
    first = study.with_attentions(trust_remote_code=True).run("a", 0, 0.003, 5)
    (tmp_path / "mine.py").write_text(OWN.replace("7", "9"))
    again = study.with_attentions(trust_remote_code=True)
    run = again.run("a", 0, 0.003, 5)
    assert (
        first.key != run.key and first.config.attention.startswith("mine.Own@") and len(first.config.attention) == 17
    )
    assert [self_attention(one.config).all_head_size for one in (first, run)] == [7, 9]
    record = execute(run, tmp_path / "run", DataSources()) | again.labels(run)
    assert record["attention"] == run.config.attention and record["forward_flops"] == forward_flops(run.config, 16)
    text = report_markdown(make_report([record]))
    assert f"a: {run.config.attention}. Heads" in text and "- a: none predicted, found none" in text


def test_changed_code_of_a_base_class(tmp_path, monkeypatch):
    """Guards: a class whose base class has changed in another file is another attention too."""
    (tmp_path / "base.py").write_text(OWN)
    code = "from base import Own as Base\n\nclass Own(Base): pass"
    study = load_study(write(tmp_path, code, attention="mine.Own", series={"a": {}}))
    names = set()
    for code in (OWN, OWN.replace("7", "9")):
        (tmp_path / "base.py").write_text(code)
        monkeypatch.delitem(sys.modules, "base", raising=False)
        names |= set(study.with_attentions(trust_remote_code=True).imported.values())
    assert len(names) == 2


NOT_SAVED = OWN.replace("self.all", "self.register_buffer('b', self_made, False)\n        self.all")
NOT_SAVED = NOT_SAVED.replace("class Own", "import torch\nself_made = torch.ones(1)\n\nclass Own")


@pytest.mark.parametrize(
    "attention, code, message",
    [
        ("Own", OWN, "study small: attention: Own: a class is named as in my_module.MyAttention"),
        (3, OWN, "attention: 3: a class is named"),
        ("none.Own", OWN, "study small: attention: there is no module none in .* or on the Python path; give it"),
        ("mine.Other", OWN, "attention: mine.Other: .*mine.py has no such class derived from torch.nn.Module"),
        ("mine.nn", OWN, "attention: mine.nn: .*mine.py has no such class"),
        ("mine.Own", "import nothing_there", "the module mine cannot be imported .*nothing_there"),
        ("mine.Own", "def", r"the module mine cannot be imported \(SyntaxError: "),
        ("mine.Own", OWN.replace(", is_causal=False", ""), "series a, shape 1: attention: mine.Own fails .TypeError"),
        ("mine.Own", OWN.replace("7)", "6)"), r"its output has the shape \(2, 16, 6\) where \(2, 16, 7\) is needed"),
        ("mine.Own", OWN.replace("all_head", "any_head"), "AttributeError: .*all_head_size"),
        ("mine.Own", OWN.replace("scores + att", "scores + 0 * att"), "tokens see what attention_mask hides"),
        ("mine.Own", NOT_SAVED, "the buffer b is not persistent"),
    ],
)
def test_bad_classes(tmp_path, attention, code, message):
    """Guards: a class that is not there, cannot be built or does not do what it has to is refused in a sentence."""
    file = write(tmp_path, code, attention=attention, series={"a": {}})
    with pytest.raises(InputError, match=message) as caught:
        main(["study", file, "--trust_remote_code", "--output_dir", str(tmp_path / "out")])
    assert str(caught.value).count("study small") == 1 and not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("text") / "text.jsonl"
    words = "the function takes one string and returns two lists of three words".split()
    rows = [" ".join(words[(7 * number + 3 * place) % len(words)] for place in range(60)) for number in range(40)]
    file.write_text("".join(json.dumps({"text": f"{row}. {row}."}) + "\n" for row in rows))
    return str(file)


def test_stages_and_fine_tuning_keep_the_class(examples, text, vocabulary, download, tmp_path):
    """Guards: the second stage and MNLI go on from the weights of the class, and the record has what was built."""
    first = {**STAGE, **OF_TEXT}
    changes = {"objective": "mlm", "pretraining": [first, {**first, "max_seq_length": 24}]}
    changes["fine_tuning"] = {"mnli": {"max_steps": 2, "train_batch_size": 4, "max_seq_length": 32, "bf16": False}}
    study = load_study(write(tmp_path, attention=LATENT, series={"latent": {}}, **changes))
    study = replace(study, folder=EXAMPLES).with_attentions(trust_remote_code=True)
    run = study.run("latent", 0, 0.003, 5)
    sources = DataSources(train_file=[text], tokenizer_name=vocabulary, glue_dir=download)
    record = execute(run, tmp_path / "run", sources)
    assert record["attention"] == run.config.attention == examples[LATENT]
    assert record["forward_flops"] == forward_flops(run.config, 24) and "mnli_accuracy" in record["results"]
    stages = [AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / f"stage-{number}") for number in (1, 2)]
    assert record["parameters"] == stages[1].num_parameters()
    latents = [stage.base_model.encoder.layer[0].get_submodule("attention.self.latent").weight for stage in stages]
    moved = (latents[1] - latents[0]).norm() / latents[0].norm()
    assert 0 < moved < 0.8  # not drawn anew


@pytest.mark.slow
def test_studies_with_classes_run_resume_and_report(text, vocabulary, tmp_path):
    """Guards: processes that train find the classes; a study, killed and continued, has the lines of one that was not;
    its report names the classes; and with other code it is another study."""
    for example in EXAMPLES.glob("*.py"):
        shutil.copy(example, tmp_path)
    own = "own keys and values"
    equal = {"equal": "parameters", "to": own}
    series = {own: {}, "grouped": {"attention": GROUPED, **equal}, "latent": {"attention": LATENT, **equal}}
    study = load_study(write(tmp_path, objective="clm", pretraining={**STAGE, **OF_TEXT}, series=series))
    sources = DataSources(train_file=[text], tokenizer_name=vocabulary)
    report = run_study(study, tmp_path / "whole", sources, processes=1, trust_remote_code=True)
    markdown = report_markdown(report)
    assert "grouped: grouped_queries.GroupedQueries@" in markdown and f"{own}: " not in markdown
    assert (tmp_path / "whole" / "report.md").read_text() == markdown
    lines = (tmp_path / "whole" / "runs.jsonl").read_text().splitlines(keepends=True)
    counts = {record["series"]: record["non_embedding_parameters"] for record in map(json.loads, lines)}
    assert len(lines) == 3
    assert max(abs(counts[name] - counts[own]) for name in ("grouped", "latent")) <= 2 * (2 * 32 + 1) / 2
    killed = tmp_path / "killed"
    killed.mkdir()
    shutil.copy(tmp_path / "whole" / "study.json", killed)
    (killed / "runs.jsonl").write_text("".join(lines[:1]) + lines[1][:60])
    run_study(study, killed, sources, processes=1, trust_remote_code=True)

    def comparable(folder):
        records = map(json.loads, (folder / "runs.jsonl").read_text().splitlines())
        return sorted(({**record, "seconds": 0} for record in records), key=lambda record: record["key"])

    assert comparable(killed) == comparable(tmp_path / "whole")
    (tmp_path / "latent.py").write_text((tmp_path / "latent.py").read_text().replace("= 16", "= 8"))
    with pytest.raises(InputError, match="latent, shape 1 is not what it was"):
        run_study(study, killed, sources, processes=1, trust_remote_code=True)
