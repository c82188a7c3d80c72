"""A model cut layer after layer, against independent calculations on whole models in float64."""

import copy
import errno
from pathlib import Path

import pytest
import torch
from small_models import D, F, H, L, P, inputs_of, model_of

from fixedbert.conversion.growing import Heads, convert, heads_of
from fixedbert.shrinking.budget import heads_for_parameters, parameters
from fixedbert.shrinking.layers import HiddenStates, LayerByLayer, errors_from_original, watched
from fixedbert.support.errors import InputError


def text(rows: int = 61, seed: int = 2):
    """Batches of 13; the last one is smaller."""
    ids = torch.randint(99, (rows, L), generator=torch.Generator().manual_seed(seed))
    return iter(ids.split(13))


def double(head: str = "Model", **changes):
    return model_of(head, **{"initializer_range": 0.2, **changes}).double().eval()


def cut_of(model, tmp_path, *args, **kwargs):
    """The cut model, and the errors of its layers."""
    cut = copy.deepcopy(model)
    errors = LayerByLayer(cut, text).cut(tmp_path / "states", *args, **kwargs)
    return cut, errors


@torch.no_grad()
def outputs_of(model, hidden_states=None):
    """All the text at once: what each layer takes (N, L, D), and its attention's and its network's output."""
    ids, found, handles = torch.cat(list(text())), [], []
    for layer in model.base_model.encoder.layer:
        seen: dict = {}
        found.append(seen)
        hooks = {"attention.self.query": "input", "attention.output.dense": "attention", "output.dense": "network"}
        for name, key in hooks.items():

            def keep(_, args, output, key=key, seen=seen):
                seen[key] = args[0] if key == "input" else output

            handles.append(layer.get_submodule(name).register_forward_hook(keep))
    if hidden_states is None:
        model(input_ids=ids)
    else:  # each layer by itself, on given inputs
        for layer, states in zip(model.base_model.encoder.layer, hidden_states, strict=True):
            layer(states)
    for handle in handles:
        handle.remove()
    return found


def relative(other, reference) -> float:
    return float(((other - reference).norm() / reference.norm()).detach())


SHAPES = {
    "sizes": [Heads(H, 4, 3)] * 3,
    "heads": [Heads(3, P, P)] * 3,
    "all, by layer": [Heads(4, 5, 2), Heads(H, P, P), Heads(2, 1, 6)],
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("head", ["Model", "LMHeadModel"])
def test_errors_are_those_measured(tmp_path, name, head):
    """Guards: the errors that are printed are those of whole models, run at once, of an encoder and of a decoder."""
    model = double(head)
    cut, errors = cut_of(model, tmp_path, SHAPES[name])
    before, after = outputs_of(model), outputs_of(cut)
    same_inputs = model.base_model.encoder.layer
    assert heads_of(cut.config) == SHAPES[name] == [error.after for error in errors]
    for number, error in enumerate(errors):
        assert error.from_original == pytest.approx(
            relative(after[number]["attention"], before[number]["attention"]), rel=1e-9, abs=1e-12
        )
        work = LayerByLayer(model, text)
        with watched(same_inputs[number].attention) as seen, torch.no_grad():
            work.attend(same_inputs[number].attention, after[number]["input"])
        assert error.error == pytest.approx(relative(after[number]["attention"], seen.output), rel=1e-9, abs=1e-12)
        assert (error.error == 0) == (error.after == error.before)
    assert errors_from_original(cut, model, text()) == pytest.approx([error.from_original for error in errors])
    assert not list((tmp_path / "states").glob("*.partial"))


def test_neurons_are_cut_by_the_cut_model(tmp_path):
    """Guards: the error of feed-forward networks with fewer neurons is measured on what they take in the cut model."""
    model = double()
    cut, errors = cut_of(model, tmp_path, [Heads(H, 4, 4)] * 3, intermediate_size=20)
    after = outputs_of(cut)
    for number, (error, layer) in enumerate(zip(errors, model.encoder.layer, strict=True)):
        attended = cut.encoder.layer[number].attention(after[number]["input"])[0]
        right = layer.output.dense(layer.intermediate(attended))
        assert error.feed_forward_error == pytest.approx(relative(after[number]["network"], right), rel=1e-9)
        assert 0 < error.feed_forward_error < 0.9
    assert cut.config.intermediate_size == 20 and cut.encoder.layer[2].intermediate.dense.weight.shape == (20, D)


def test_cut_model_is_an_ordinary_checkpoint(tmp_path):
    """Guards: another number, size and size of values in each layer come back from a directory, with the function."""
    model = double("ForMaskedLM")
    cut, _ = cut_of(model, tmp_path, SHAPES["all, by layer"], intermediate_size=30)
    cut.save_pretrained(tmp_path / "saved")
    loaded = type(cut).from_pretrained(tmp_path / "saved", dtype=torch.float64).eval()
    inputs = inputs_of("ForMaskedLM")
    torch.testing.assert_close(loaded(**inputs).logits, cut(**inputs).logits, rtol=0, atol=1e-12)
    assert loaded.config.head_counts == [4, H, 2] and loaded.config.value_head_sizes == [2, P, 6]


def test_unchanged_sizes_touch_nothing(tmp_path):
    """Guards: where nothing is cut all weights are the same bits, and all errors zero."""
    model = double()
    cut, errors = cut_of(model, tmp_path, heads_of(model.config))
    for name, tensor in cut.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert [(error.error, error.from_original, error.feed_forward_error) for error in errors] == [(0, 0, 0)] * 3


@pytest.mark.parametrize("grown", [(9, 7, None), (P, 8, 11)])
def test_grown_models_are_themselves_again(tmp_path, grown):
    """Guards: what growth adds is cut away again without a trace, on any input: the function is back to 1e-10."""
    model = double("ForPreTraining")
    size, number, value_size = grown
    large = convert(model, size, number, value_head_size=value_size)
    cut, errors = cut_of(large, tmp_path, [Heads(H, P, P)] * 3)
    inputs = inputs_of("ForPreTraining")
    for one, other in zip(cut(**inputs).to_tuple(), model(**inputs).to_tuple(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert max(error.error for error in errors) < 1e-12


def test_values_of_one_head_are_predicted_exactly(tmp_path):
    """Guards: for one head the predicted error of values is the measured one, in the first layer."""
    model = double(num_attention_heads=1, attention_head_size=9)
    work = LayerByLayer(copy.deepcopy(model), text)
    curves, predicted = work.curves()
    _, errors = cut_of(model, tmp_path, [Heads(1, 9, 4)] * 3)
    assert errors[0].error == pytest.approx(predicted[0].values[4], rel=1e-8)
    assert errors[0].values == pytest.approx(predicted[0].values)
    assert curves[0].error(Heads(1, 9, 4)) ** 0.5 == pytest.approx(errors[0].error, rel=1e-8)


def test_heads_left_out_are_predicted_exactly(tmp_path):
    """Guards: the predicted error of leaving heads out is the measured one, in the first layer."""
    model = double()
    _, predicted = LayerByLayer(copy.deepcopy(model), text).curves()
    _, errors = cut_of(model, tmp_path, [Heads(2, P, P)] * 3)
    assert errors[0].error == pytest.approx(predicted[0].heads[3], rel=1e-5)


@pytest.mark.parametrize("tolerance", [0.05, 0.3])
def test_tolerance_is_kept(tmp_path, tolerance):
    """Guards: no layer's measured error is above the tolerance, and with the larger one something is cut."""
    model = double()
    cut, errors = cut_of(model, tmp_path, tolerance=tolerance)
    assert max(error.error for error in errors) <= tolerance
    saved = sum(parameters(error.before, D) - parameters(error.after, D) for error in errors)
    assert saved > 0 or tolerance == 0.05
    assert heads_of(cut.config) == [error.after for error in errors]


@pytest.mark.parametrize("multiple", [1, 2])
def test_share_of_parameters_is_kept(multiple):
    """Guards: sizes and heads are found within the budget, in multiples, and a step less would be above it."""
    model = double()
    curves, _ = LayerByLayer(model, text).curves()
    whole = 3 * parameters(Heads(H, P, P), D)
    heads = heads_for_parameters(curves, 0.6 * whole, multiple)
    found = sum(parameters(of_layer, D) for of_layer in heads)
    most_of_a_step = max(parameters(Heads(H, P, P), D) // H, 2 * multiple * H * (D + 1))
    assert 0.6 * whole - most_of_a_step < found <= 0.6 * whole
    assert all(of_layer.size % multiple == 0 and of_layer.value_size % multiple == 0 for of_layer in heads)
    with pytest.raises(InputError, match="`keep` leaves less than one head"):
        heads_for_parameters(curves, 10)


def test_small_errors_come_first():
    """Guards: heads that nothing is lost by are the first that `keep` cuts: here all that growth has added."""
    model = double()
    large = convert(model, 8, 6)
    curves, _ = LayerByLayer(large, text).curves()
    share = parameters(Heads(H, P, P), D) * 3
    assert heads_for_parameters(curves, share) == [Heads(H, P, P)] * 3


@pytest.mark.parametrize("size", [2 * P, 4 * P])
def test_scores_cost_what_they_cost_before_growth(size):
    """Guards: where half of the size loses nothing, scores are not taken for free, nor cut before all else."""
    model = double()
    (before, *_), _ = LayerByLayer(model, text).curves()
    (after, *_), _ = LayerByLayer(convert(model, size, value_head_size=P), text).curves()
    assert float(after.scores[:, 3].sum()) == pytest.approx(float(before.scores[:, 3].sum()), rel=0.2)


def test_tolerance_below_rounding_ends(tmp_path):
    """Guards: where any cut is rounded by more than the tolerance, although nothing is predicted, none is made."""
    large = convert(model_of("Model", initializer_range=0.2, hidden_size=128).eval(), 2 * P, 8)
    _, errors = cut_of(large, tmp_path, tolerance=1e-8)
    assert max(error.error for error in errors) <= 1e-8


@pytest.mark.parametrize("name", ["output.dense", "self.query"])
def test_layers_without_effect(tmp_path, name):
    """Guards: a layer whose attention gives nothing, or whose queries are all zero, is cut, with errors of zero."""
    model = double()
    for parameter in model.encoder.layer[1].attention.get_submodule(name).parameters():
        parameter.data.zero_()
    curves, predicted = LayerByLayer(copy.deepcopy(model), text).curves()
    heads_for_parameters(curves, parameters(Heads(H, P, P), D))
    _, errors = cut_of(model, tmp_path, [Heads(H, 4, P)] * 3)
    assert errors[1].error < 1e-12 and errors[1].scores == pytest.approx(predicted[1].scores, nan_ok=False)
    assert name != "output.dense" or errors[1].from_original == 0


@pytest.mark.parametrize("name", ["output.dense", "self.query"])
def test_damaged_weights(tmp_path, name):
    """Guards: weights that are not finite end in a sentence that says so, not in one about the text."""
    model = double()
    model.encoder.layer[1].attention.get_submodule(name).weight.data[0, 0] = torch.nan
    with pytest.raises(InputError, match="layer 1: what it computes is not finite"):
        LayerByLayer(model, text).curves()
    for kind, way in {"sizes": {"heads": [Heads(H, 4, 4)] * 3}, "tolerance": {"tolerance": 0.1}}.items():
        with pytest.raises(InputError, match="layer 1: what it computes is not finite"):
            LayerByLayer(copy.deepcopy(model), text).cut(tmp_path / kind, **way)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk():
    """Guards: hidden states that find no room raise an error that can be reported; a map would kill the process."""
    states = HiddenStates(Path("/dev/full"), L, D, torch.float32, torch.device("cpu"))
    with pytest.raises(OSError) as error:
        states[slice(13, 26)] = torch.ones(13, L, D)
    assert error.value.errno == errno.ENOSPC


def test_text_that_is_too_short(tmp_path):
    """Guards: fewer tokens than 4 for each dimension of a moment are refused, those of all heads and neurons too."""
    model = double()

    def short():
        return text(rows=3)  # 21 tokens

    with pytest.raises(InputError, match=r"the text has 21 tokens; give 24 or more"):
        LayerByLayer(model, short).cut(tmp_path / "a", [Heads(H, 4, 4)] * 3)
    with pytest.raises(InputError, match=rf"the text has 21 tokens; give {4 * H * P} or more"):
        LayerByLayer(model, short).cut(tmp_path / "b", [Heads(4, P, P)] * 3)
    with pytest.raises(InputError, match=rf"the text has 35 tokens; give {4 * F} or more"):
        LayerByLayer(model, lambda: text(rows=5)).cut(tmp_path / "c", heads_of(model.config), intermediate_size=5)


def test_text_without_variance(tmp_path):
    """Guards: a layer whose keys or values are the same for all tokens is no measure of anything."""
    for part in ("key", "value"):
        model = double()
        model.encoder.layer[1].attention.self.get_submodule(part).weight.data.zero_()
        with pytest.raises(InputError, match="layer 1: the text shows no variance"):
            LayerByLayer(model, text).cut(tmp_path / part, [Heads(H, 4, 4)] * 3)
