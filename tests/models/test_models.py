"""The models have the sizes their papers print, and refuse data they cannot take."""

import pytest
import torch

from fedpriv.errors import UserError
from fedpriv.models import alexnet, cnn, linear, lstm, mlp, resnet
from tests.conftest import refused

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def size(model) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (mlp.mlp(MNIST, 10), 531_400),  # PrivateFL, 784-600-100-10 without biases
        (mlp.mlp((600,), 100, sizes=[512, 256, 128]), 483_840),  # PrivateFL, Purchase-100
        (linear.linear(MNIST, 10), 7_850),
        (cnn.pfa_cnn(MNIST, 10), 26_010),  # PFA
        (cnn.two_layer_cnn(MNIST, 10), 21_840),  # LDP-FL
        (cnn.two_layer_cnn(MNIST, 10, size="wide"), 832 + 51_264 + 524_800 + 5_130),  # 32, 64 and 512
        (resnet.resnet18(CIFAR, 10, norm="batch"), 11_173_962),  # the usual CIFAR ResNet-18
    ],
)
def test_parameter_counts(model, parameters):
    assert size(model) == parameters


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_every_image_model_takes_every_norm_and_activation(norm, activation):
    x = torch.rand(2, *CIFAR)
    for build in (mlp.mlp, cnn.pfa_cnn, cnn.two_layer_cnn, cnn.cifar_cnn, cnn.vgg_small, resnet.resnet18):
        model = build(CIFAR, 7, activation=activation, norm=norm).eval()
        assert model(x).shape == (2, 7)
        kinds = {type(m).__name__ for m in model.modules()}
        assert ("ReLU" in kinds) == (activation == "relu") and ("Tanh" in kinds) == (activation == "tanh")
        assert any("BatchNorm" in k for k in kinds) == (norm == "batch")
        assert ("GroupNorm" in kinds) == (norm == "group")


def test_alexnet_has_torchvisions_body_and_a_layer_on_top():
    model = alexnet.alexnet((3, 63, 63), 8)
    assert size(model) == 61_100_840 + 1000 * 8 + 8
    assert (
        alexnet.alexnet((3, 63, 63), 8, norm="group", activation="tanh")
        .eval()(torch.rand(1, 3, 63, 63))
        .shape
    )


def test_zero_start_of_logistic_regression():
    assert all((p == 0).all() for p in linear.linear(MNIST, 10).parameters())
    assert not all((p == 0).all() for p in linear.linear(MNIST, 10, init="default").parameters())


def test_lstm_gates_by_hand():
    """One word, one unit: h = sigmoid(o) tanh(sigmoid(i) tanh(g)) with the gates from the input alone."""
    model = lstm.lstm((1,), 2, 3, embedding=1, hidden=1, layers=1)
    cell = model.cells[0]
    word = model.embed(torch.tensor([[1]]))
    i, _, g, o = cell.input(word)[0, 0]
    expected = torch.sigmoid(o) * torch.tanh(torch.sigmoid(i) * torch.tanh(g))
    torch.testing.assert_close(cell(word)[0, 0, 0], expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda: cnn.pfa_cnn((54,), 7),
        lambda: cnn.pfa_cnn((1, 8, 8), 10),
        lambda: alexnet.alexnet(MNIST, 10),
        lambda: resnet.resnet18((54,), 7),
        lambda: resnet.resnet18(MNIST, 10, pretrained=True, stem="imagenet"),
        lambda: lstm.lstm(MNIST, 10, 0),
    ],
)
def test_data_that_does_not_fit_is_refused_in_one_line(build):
    refused(build)


def test_missing_pretrained_weights_are_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.urlopen", lambda *a, **k: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(UserError, match=r"resnet18-f37072fd\.pth"):
        resnet.resnet18(CIFAR, 10, stem="imagenet", pretrained=True)
