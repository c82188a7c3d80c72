"""The stock twin: a BERT of transformers computes what any shape computes, at the least width that can."""

import json
import re

import pytest
import torch
import transformers
from small_models import HEADS, UNEQUAL, B, D, bert_of, config_of, inputs_of, model_of

from fixedbert import convert, to_bert
from fixedbert.errors import InputError
from fixedbert.stock_twin import stock_shape
from fixedbert_cli import main

SAME_WIDTH = {
    "zero heads": {"attention_head_size": 4},
    "larger heads": {"num_attention_heads": 3},
    "every layer its own": {
        "num_attention_heads": 4,
        "layer_attention_heads": [4, 1, 2],
        "attention_head_size": [6, 8, 3],
        "value_head_size": [3, 8, 5],
    },
    "add": {"attention_head_size": 4, "head_embedding": "add"},
    "mul": {"attention_head_size": 4, "head_embedding": "mul"},
    "add, values of their own": {"attention_head_size": 4, "head_embedding": "add", "value_head_size": 3},
}
WIDER = {"5 of 6": {}, "unequal": UNEQUAL, "mul, values of their own": {"head_embedding": "mul", "value_head_size": 9}}


def random_model(head: str, **changes):
    """In float64, without a parameter that is zero or one, which would hide mistakes."""
    model = model_of(head, **changes).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@torch.no_grad()
def assert_twins(model, twin, copies: int, inputs: dict):
    """Outputs of the twin are those of the model, or so many copies of them where they are hidden units."""
    assert type(twin).__module__.startswith("transformers.models.bert") and twin.config.hidden_size == copies * D
    outputs = (network(**inputs, return_dict=True).to_tuple() for network in (model, twin))
    pairs = [(a, b) for a, b in zip(*outputs, strict=True) if isinstance(a, torch.Tensor)]
    assert pairs
    for a, b in pairs:
        for copy in b.chunk(copies, dim=-1) if b.shape[-1] == copies * D else [b]:
            assert (copy - a).abs().max() <= 1e-10


@pytest.mark.parametrize("changes", SAME_WIDTH.values(), ids=SAME_WIDTH)
def test_twin_of_the_same_width(changes):
    """Guards: zero heads, larger heads, unequal layers and values and shared projections all become BERT's heads."""
    model = random_model("ForPreTraining", **changes)
    assert_twins(model, to_bert(model), 1, inputs_of("ForPreTraining"))


@pytest.mark.parametrize("changes", WIDER.values(), ids=WIDER)
@pytest.mark.parametrize("head", HEADS)
def test_wider_twin(head, changes):
    """Guards: where BERT has too little width, every head class computes the same with every hidden unit repeated."""
    model = random_model(head, **changes)
    assert_twins(model, to_bert(model, allow_wider=True), 3 if changes else 2, inputs_of(head))


def test_twin_is_loaded_by_transformers_alone(tmp_path):
    """Guards: the directory is a BERT's: no code, no other model type, the decoder tied, the function from disk."""
    model = random_model("ForPreTraining")
    to_bert(model, allow_wider=True).save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "bert" and "auto_map" not in config
    twin = transformers.AutoModelForPreTraining.from_pretrained(tmp_path).eval()
    assert twin.cls.predictions.decoder.weight is twin.bert.embeddings.word_embeddings.weight
    assert_twins(model, twin, 2, inputs_of("ForPreTraining"))


def test_all_hidden_states_and_attentions():
    """Guards: each layer by itself has the copies, and the heads the probabilities of before."""
    model = random_model("Model").eval()
    twin = to_bert(model, allow_wider=True)
    for network in (model, twin):
        network.set_attn_implementation("eager")
    inputs = inputs_of("Model") | {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        one, other = model(**inputs), twin(**inputs)
    for a, b in zip(one.hidden_states, other.hidden_states, strict=True):
        assert (a.repeat(1, 1, 2) - b).abs().max() <= 1e-10
    for a, b in zip(one.attentions, other.attentions, strict=True):
        assert b.shape[1] == 8 and (a - b[:, :5]).abs().max() <= 1e-10


@pytest.mark.parametrize("changes", [{}, {"attention_head_size": 13}])
def test_decoder_that_is_not_tied(changes):
    """Guards: a decoder with weights of its own keeps them, wider or not."""
    model = random_model("ForMaskedLM", num_attention_heads=4, tie_word_embeddings=False, **changes)
    twin = to_bert(model, allow_wider=True)
    assert not torch.equal(twin.cls.predictions.decoder.weight, twin.bert.embeddings.word_embeddings.weight)
    assert_twins(model, twin, 2 if changes else 1, inputs_of("ForMaskedLM"))


def test_cross_attention():
    """Guards: a wider decoder that reads an encoder reads the encoder's wider twin."""
    model = random_model("LMHeadModel", add_cross_attention=True)
    twin = to_bert(model, allow_wider=True)
    states = torch.randn(B, 3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    inputs = inputs_of("LMHeadModel") | {"use_cache": False}
    with torch.no_grad():
        one = model(**inputs, encoder_hidden_states=states).logits
        other = twin(**inputs, encoder_hidden_states=states.repeat(1, 1, 2)).logits
    assert (one - other).abs().max() <= 1e-10


def test_twin_without_a_pooler():
    """Guards: none is invented, and none is counted in the sentence about what the twin costs."""
    model = type(model_of("Model"))(config_of("Model"), add_pooling_layer=False).double().eval()
    twin = to_bert(model, allow_wider=True)
    assert twin.pooler is None
    assert_twins(model, twin, 2, inputs_of("Model"))
    with pytest.raises(InputError, match=f"{twin.num_parameters():,} parameters instead"):
        to_bert(model)


def test_twin_of_what_was_a_roberta():
    """Guards: of a RoBERTa with larger heads the twin is a BERT."""
    model = convert(bert_of("ForSequenceClassification", "Roberta").double(), attention_head_size=13)
    assert_twins(model, to_bert(model, allow_wider=True), 2, inputs_of("ForSequenceClassification"))


@pytest.mark.parametrize(
    ("heads", "size", "expected"),
    [
        (4, 8, (1, 4)),
        (3, 8, (1, 4)),
        (5, 4, (1, 8)),
        (5, 6, (2, 8)),
        (1, 33, (2, 1)),
        (5, 16, (3, 6)),  # width 64 has 4 heads of 16 alone, width 96 has 6
        (7, 32, (7, 7)),
        (8, 16, (4, 8)),
    ],
)
def test_smallest_width_and_fewest_heads(heads, size, expected):
    """Guards: no twin is wider than it must be, and of those with as many parameters it computes the fewest scores."""
    assert stock_shape(config_of("Model", num_attention_heads=heads, attention_head_size=size)) == expected


def test_wider_twin_is_for_those_who_ask_for_it():
    """Guards: without the flag one sentence says what width is needed, what it costs, exactly, and which flag."""
    model = model_of("ForPreTraining", **UNEQUAL)
    count = to_bert(model, allow_wider=True).num_parameters()
    sentence = (
        "no BERT of width 32 has 5 or more heads of 13 or more, as its heads * head size is its width: one of width "
        f"96 has this function, with {count:,} parameters instead of {model.num_parameters():,}; give --allow_wider."
    )
    with pytest.raises(InputError, match=re.escape(sentence)):
        to_bert(model)


def test_qk_norm_has_no_twin():
    """Guards: normalised queries and keys are refused in one sentence, and with the flag too."""
    for allow_wider in (False, True):
        with pytest.raises(InputError, match="qk_norm: BERT normalises neither queries nor keys, so no BERT has"):
            to_bert(model_of("Model", num_attention_heads=4, qk_norm=True), allow_wider)


def test_widening_rounds_nothing(caplog):
    """Guards: three copies cost no precision in bfloat16: every number of the twin is one of the model's, or zero."""
    model = random_model("ForPreTraining", attention_head_size=16).bfloat16()
    twin = to_bert(model, allow_wider=True)
    assert twin.dtype == torch.bfloat16 and twin.config.hidden_size == 96 and not caplog.records
    old = model.state_dict()
    for name, tensor in twin.state_dict().items():
        assert set(tensor.unique().tolist()) - {0.0} == set(old[name].unique().tolist()) - {0.0}, name
    to_bert(model_of("Model", num_attention_heads=3).bfloat16())
    assert "Queries times 1.155 are rounded to torch.bfloat16" in caplog.text


@pytest.mark.parametrize("changes", [{}, {"num_attention_heads": 3}], ids=["heads", "dimensions"])
def test_what_was_added_stays_zero_in_training(changes):
    """Guards: a twin of the same width trains as the model does: what was added gets no gradient."""
    model = random_model("ForSequenceClassification", attention_head_size=4, **changes)
    twin = to_bert(model)
    inputs = inputs_of("ForSequenceClassification", labels=True)
    for network in (model, twin):
        network(**inputs).loss.backward()
    heads, size = model.config.num_attention_heads, 4
    new_heads = twin.config.num_attention_heads
    scale = (32 / new_heads / size) ** 0.5  # of queries, whose gradient is divided by it
    for one, other in zip(model.bert.encoder.layer, twin.bert.encoder.layer, strict=True):
        for part, divisor in (("query.weight", scale), ("query.bias", scale), ("key.weight", 1), ("value.weight", 1)):
            old = one.attention.self.get_parameter(part).grad.view(heads, size, -1) / divisor
            new = other.attention.self.get_parameter(part).grad.view(new_heads, 32 // new_heads, -1).clone()
            assert (new[:heads, :size] - old).abs().max() <= 1e-10 and old.any()
            new[:heads, :size] = 0
            assert not new.any()
        output = other.attention.output.dense.weight.grad.view(32, new_heads, -1).clone()
        output[:, :heads, :size] = 0
        assert not output.any()


@pytest.mark.parametrize("head", ["Model", "ForPreTraining", "ForSequenceClassification"])
def test_round_trip_is_exact(head):
    """Guards: BERT to FixedHeadBert and back is BERT, bit for bit, with its configuration."""
    bert = bert_of(head)
    back = to_bert(convert(bert))
    assert type(back) is type(bert)
    assert back.state_dict().keys() == bert.state_dict().keys()
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in bert.state_dict().items())
    of_saving = {"architectures": None, "dtype": None}
    assert back.config.to_diff_dict() | of_saving == bert.config.to_diff_dict() | of_saving


def test_nothing_is_shared_with_the_model():
    """Guards: training the twin leaves the model alone."""
    model = model_of("ForMaskedLM", attention_head_size=4)
    addresses = {parameter.data_ptr() for parameter in model.parameters()}
    assert not addresses & {parameter.data_ptr() for parameter in to_bert(model).parameters()}


@pytest.fixture
def sentence_model(tmp_path, vocabulary):
    """A function that saves a sentence-transformers model with these modules after the encoder."""

    def save(*kinds: str):
        folder = tmp_path / "model"
        tokenizer = transformers.BertTokenizer(vocab=vocabulary)
        model_of("Model", vocab_size=len(tokenizer)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        modules = []
        for number, kind in enumerate(["Transformer", *kinds]):
            path = f"{number}_{kind}" if number else ""
            (folder / path).mkdir(exist_ok=True)
            modules += [
                {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            ]
        (folder / "modules.json").write_text(json.dumps(modules))
        pooling = {"word_embedding_dimension": D, "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        return folder

    return save


def test_command_writes_the_twin_of_a_sentence_model(sentence_model, tmp_path, capsys):
    """Guards: pooling fits the wider embeddings, cosines stay, and the line and the card say what they cost."""
    source = sentence_model("Pooling", "Normalize")
    with pytest.raises(InputError, match=r"model: no BERT of width 32 .* give --allow_wider$"):
        main(["convert", str(source), "--output_dir", str(tmp_path / "twin"), "--bert"])
    main(["convert", str(source), "--output_dir", str(tmp_path / "twin"), "--bert", "--allow_wider"])
    printed = capsys.readouterr().out
    model, twin = (transformers.AutoModel.from_pretrained(place).eval() for place in (source, tmp_path / "twin"))
    said = (
        f"{twin.num_parameters() / model.num_parameters():.2f} times as many; every hidden unit 2 times: "
        "hidden states have 64 numbers, 2 copies of 32, and the same cosines; the same function in evaluation only"
    )
    assert said in printed and said in (tmp_path / "twin" / "README.md").read_text()
    assert float(printed.split("largest difference of outputs ")[1]) < 1e-4
    pooling = json.loads((tmp_path / "twin" / "1_Pooling" / "config.json").read_text())
    assert pooling == {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    ids = inputs_of("Model")["input_ids"] % model.config.vocab_size
    with torch.no_grad():
        one, other = (network(ids).last_hidden_state.mean(dim=1) for network in (model, twin))
    cosines = [torch.nn.functional.cosine_similarity(x[1:], x[:-1]) for x in (one, other)]
    assert other.shape == (B, 64) and torch.allclose(*cosines, atol=1e-5)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    embeddings = [
        sentence_transformers.SentenceTransformer(str(place), device="cpu").encode(["one two", "three"])
        for place in (source, tmp_path / "twin")
    ]
    assert embeddings[1].shape == (2, 64)
    assert abs(embeddings[1][:, :D] * 2**0.5 - embeddings[0]).max() < 1e-5  # the first block, of length 1 / sqrt(2)
    assert abs(embeddings[0] @ embeddings[0].T - embeddings[1] @ embeddings[1].T).max() < 1e-5


def test_dense_layer_after_pooling_does_not_fit_a_wider_twin(sentence_model, tmp_path):
    """Guards: weights that take embeddings of the old width are not left behind a wider model, and no files either."""
    source = sentence_model("Pooling", "Dense")
    with pytest.raises(InputError, match="modules.json: has Dense, which a wider BERT cannot feed"):
        main(["convert", str(source), "--output_dir", str(tmp_path / "twin"), "--bert", "--allow_wider"])
    assert not (tmp_path / "twin").exists()


def test_wider_is_for_a_bert(tmp_path):
    """Guards: the flag without --bert is no silent nothing."""
    with pytest.raises(InputError, match="--allow_wider is for a BERT, which --bert asks for: give both"):
        main(["convert", "x", "--output_dir", str(tmp_path / "out"), "--allow_wider"])
