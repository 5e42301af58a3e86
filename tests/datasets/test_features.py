"""`fedpriv features`: what a file holds, how an extraction goes on, which mistakes are one line; and DN."""

import json
import sys
from dataclasses import fields
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedpriv.building import build
from fedpriv.datasets.features import Features
from fedpriv.encoders import extract
from fedpriv.encoders.base import Encoder
from fedpriv.encoders.checkpoint import checkpoint
from fedpriv.encoders.resnext29 import resnext29
from fedpriv.encoders.settings import FeatureSettings
from fedpriv.errors import UserError
from fedpriv.models.parts import Network
from fedpriv.transforms.elementwise import elementwise
from fedpriv.vision import tv_models
from tests.helpers.files import idx

TRAIN, TEST, CHUNK = 20, 7, 8  # five images short of full chunks: 3 + 1 chunks
RANDOM = np.random.default_rng(0)
IMAGES = {"train": RANDOM.integers(0, 256, (TRAIN, 28, 28)), "t10k": RANDOM.integers(0, 256, (TEST, 28, 28))}
NAME = "mnist_checkpoint-resnet18.npz"


def raises(problem: BaseException):
    """A function that does nothing else."""

    def function(*arguments, **options):
        raise problem

    return function


@pytest.fixture(scope="module")
def resnet():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return tv_models.resnet18(num_classes=3).eval()


@pytest.fixture
def command(fedpriv, tmp_path, monkeypatch, resnet):
    """Call `fedpriv features` on 20 + 7 images with a checkpoint; no test meets real data or a network."""
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    for door in ("urllib.request.urlopen", "torch.hub.urlopen"):
        monkeypatch.setattr(door, raises(OSError("no network")))
    monkeypatch.setattr("fedpriv.datasets.mnist_sets.MNIST.counts", (TRAIN, TEST))
    monkeypatch.setattr(extract, "CHUNK", CHUNK)
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for side, images in IMAGES.items():
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(len(images)) % 10)):
            path = tmp_path / "MNIST" / "raw" / f"{side}-{kind}-ubyte"
            path.write_bytes(idx(array.astype(np.uint8)))
    torch.save(resnet.state_dict(), tmp_path / "net.pt")
    usual = ["dataset=mnist", "encoder=checkpoint", "weights=net.pt", "arch=resnet18", "size=32"]

    def call(*arguments: str, plain: bool = False):
        return fedpriv("features", *([] if plain else [*usual, "batch_size=4"]), *arguments)

    return call


@pytest.fixture
def one_line(command):
    """The error of a refused command, checked to be a single line."""

    def call(*arguments: str, plain: bool = False) -> str:
        done = command(*arguments, plain=plain)
        (line,) = [line for line in done.err.splitlines() if not line.startswith("Downloading")]
        assert done.code == 2 and line.startswith("error: "), done.err
        return line

    return call


@pytest.fixture
def encoded(monkeypatch):
    """The number of images in every call of an encoder."""
    calls = []
    before = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, x: (calls.append(len(x)), before(self, x))[1])
    return calls


def direct(resnet, images, mean, std):
    """The same features by torchvision alone: every step written out."""
    with torch.no_grad():
        x = torch.from_numpy(images[:, None]).float().div(255).repeat(1, 3, 1, 1)
        x = nn.functional.interpolate(x, (32, 32), mode="bilinear", antialias=True)
        x = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        return nn.Sequential(*list(resnet.children())[:-1], nn.Flatten())(x).numpy()


@pytest.mark.parametrize(
    ("options", "mean", "std"),
    [([], [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), (["normalize=half"], [0.5] * 3, [0.5] * 3)],
)
def test_the_file_holds_what_the_network_gives(command, tmp_path, resnet, options, mean, std):
    done = command("dtype=float32", *options)
    assert done.code == 0, done.err
    assert NAME in done.out
    with np.load(tmp_path / "features" / NAME) as content:
        train, test = (direct(resnet, images, mean, std) for images in IMAGES.values())
        assert content["x_train"].dtype == np.float32 and train.std() > 0.1
        np.testing.assert_allclose(content["x_train"], train, atol=1e-5)
        np.testing.assert_allclose(content["x_test"], test, atol=1e-5)
        assert content["y_train"].tolist() == [*range(10), *range(10)]
        assert content["y_test"].tolist() == [*range(7)]
        np.testing.assert_allclose(content["mean"], train.mean(0), atol=1e-5)
        np.testing.assert_allclose(content["variance"], train.var(0), atol=1e-5)
        source = json.loads(str(content["source"]))
    assert source["encoder"] == "checkpoint" and source["input"]["size"] == 32
    assert source["input"]["mean"] == pytest.approx(mean if len(source["input"]["mean"]) == 3 else mean[:1])
    assert [path.name for path in (tmp_path / "features").iterdir()] == [NAME]


def test_half_precision_is_the_default_and_training_reads_it(command, fedpriv, tmp_path):
    assert command().code == 0
    data = Features(path=NAME).load(tmp_path)
    assert data.shape == (512,) and data.classes == 10
    with np.load(tmp_path / "features" / NAME) as content:
        assert content["x_train"].dtype == np.float16
    run = ["dataset=features", f"dataset.path={NAME}", "dataset.dn=half", "model=linear", "clients=2"]
    done = fedpriv("run", *run, "rounds=1", "partition=iid", "batch_size=4")
    assert done.code == 0, done.err


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_a_killed_extraction_continues_and_ends_the_same(command, tmp_path, monkeypatch, encoded, stop):
    assert command("output=whole.npz").code == 0
    assert encoded == [4, 4, 4, 4, 4, 4, 3]  # chunks of 8, 8, 4 and 7
    encoded.clear()
    network = nn.Module.__call__

    def dies(self, x):
        if isinstance(self, tv_models.ResNet) and len(encoded) > 3:
            raise stop
        return network(self, x)

    monkeypatch.setattr(nn.Module, "__call__", dies)
    done = command()
    assert done.code == (130 if stop is KeyboardInterrupt else 2)
    if stop is KeyboardInterrupt:
        assert done.err == "stopped after 8 of 27 images; the same command continues\n"
    assert not (tmp_path / "features" / NAME).exists()
    monkeypatch.setattr(nn.Module, "__call__", network)
    encoded.clear()
    done = command()
    assert done.code == 0 and "continuing after 8 of 27 images" in done.out
    assert encoded == [4, 4, 4, 4, 3]  # without the first chunk
    assert (tmp_path / "features" / NAME).read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_finished_file_is_left_alone_until_told(command, one_line, tmp_path, encoded):
    assert command().code == 0
    encoded.clear()
    done = command("batch_size=5", "device=cpu")  # neither changes what is asked for
    assert done.code == 0 and "already there" in done.out and encoded == []
    line = one_line("size=16")
    assert "size=32" in line and "overwrite=true" in line and NAME in line
    assert command("size=16", "overwrite=true").code == 0 and len(encoded) == 7
    with np.load(tmp_path / "features" / NAME) as content:
        assert json.loads(str(content["source"]))["size"] == 16
    np.savez(tmp_path / "mine.npz", x_train=np.zeros(3))
    assert "unknown source" in one_line("output=mine.npz")


def test_chunks_of_another_setting_do_not_mix(command, one_line, tmp_path, monkeypatch, resnet, encoded):
    with monkeypatch.context() as patch:
        patch.setattr(extract, "moments", raises(KeyboardInterrupt()))
        assert command().code == 130  # all chunks done, the file not written
    for options, word in (["dtype=float32"], "dtype=float16"), (["normalize=half"], "normalize=imagenet"):
        line = one_line(*options)
        assert word in line and ".mnist_checkpoint-resnet18.parts" in line and "overwrite=true" in line
    raw = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    before = raw.read_bytes()
    raw.write_bytes(before[:-1] + b"\0")  # one pixel
    assert "data_sha256=" in one_line()
    raw.write_bytes(before)
    other = {**resnet.state_dict(), "conv1.weight": resnet.conv1.weight.detach() * 2}
    torch.save(other, tmp_path / "net.pt")  # another file of the same name
    assert "weights_sha256=" in one_line()
    encoded.clear()
    assert command("overwrite=true").code == 0 and sum(encoded) == TRAIN + TEST


@pytest.mark.parametrize(
    ("nests", "prefix"),
    [
        ([], "backbone."),
        (["state_dict"], "module."),
        (["state_dict"], "module.encoder."),
        (["model"], "convnet."),
        (["state_dict", "encoder"], ""),
    ],
)
def test_simclr_style_files_are_found_through_nests_and_prefixes(tmp_path, resnet, nests, prefix):
    state = {prefix + name: value for name, value in resnet.state_dict().items() if "num_batches" not in name}
    state |= {"projection_head.0.weight": torch.ones(4, 512), f"{prefix}fc.2.bias": torch.ones(4)}
    content = {"epoch": 800, **state} if not nests else state
    for nest in reversed(nests):
        content = {nest: content, "epoch": 800}
    torch.save(content, tmp_path / "simclr.pt")
    encoder = checkpoint(tmp_path / "simclr.pt", "resnet18", 32, "unit")
    images = torch.from_numpy(IMAGES["t10k"].astype(np.uint8)).unsqueeze(1)
    expected = direct(resnet, IMAGES["t10k"], [0.0] * 3, [1.0] * 3)
    np.testing.assert_allclose(encoder(images).numpy(), expected, atol=1e-5)


def test_files_that_do_not_fit_are_refused_by_name(one_line, tmp_path, resnet):
    state = resnet.state_dict()
    torch.save({k: v for k, v in state.items() if "layer2.0" not in k}, tmp_path / "net.pt")
    line = one_line()
    assert "resnet18" in line and "layer2.0.conv1.weight" in line and "more" in line and "net.pt" in line
    torch.save({**state, "conv1.weight": torch.zeros(64, 3, 3, 3)}, tmp_path / "net.pt")
    assert "conv1.weight has shape (64, 3, 3, 3), in resnet18 it has (64, 3, 7, 7)" in one_line()
    torch.save({**state, "encoder.conv1.weight": state["conv1.weight"] + 1}, tmp_path / "net.pt")
    assert "two networks in it have a conv1.weight" in one_line()
    torch.save([1, 2], tmp_path / "net.pt")
    assert "no state dict" in one_line()
    (tmp_path / "net.pt").write_text("hello")
    assert "not a file of torch.save" in one_line()
    torch.save({**state, "layer4.1.bn2.bias": torch.full((512,), 1e6)}, tmp_path / "net.pt")
    assert "dtype=float32" in one_line()


def test_resnext29_is_the_8x64d_network_by_either_set_of_names(tmp_path):
    """Xie et al., Table 7: 34.4 million parameters; 1024 maps of 8x8 before pooling."""
    network = resnext29().eval()
    assert round(sum(p.numel() for p in network.parameters()) / 1e6, 1) == 34.4
    assert network.layer1[0].conv2.groups == 8 and network.layer1[0].conv2.in_channels == 8 * 64
    sizes = []
    network.layer3.register_forward_hook(lambda module, x, y: sizes.append(tuple(y.shape)))
    images = torch.from_numpy(RANDOM.integers(0, 256, (2, 3, 32, 32)).astype(np.uint8))
    with torch.no_grad():
        x = (images / 255 - torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)) / torch.tensor(
            [0.2023, 0.1994, 0.2010]
        ).view(3, 1, 1)
        expected = network(x)
    assert sizes == [(2, 1024, 8, 8)] and expected.shape == (2, 1024)

    def published(name: str) -> str:
        """torchvision's name -> the one in the CIFAR-100 checkpoint."""
        if not name.startswith("layer"):
            return "module." + name.replace("conv1", "conv_1_3x3").replace("bn1", "bn_1")
        layer, block, rest = name.split(".", 2)
        stage = f"stage_{layer[-1]}"
        part, kind = rest.rsplit(".", 1)
        part = {
            "conv1": "conv_reduce", "bn1": "bn_reduce", "conv2": "conv_conv", "bn2": "bn",
            "conv3": "conv_expand", "bn3": "bn_expand", "downsample.0": "shortcut.shortcut_conv",
            "downsample.1": "shortcut.shortcut_bn",
        }[part]  # fmt: skip
        return f"module.{stage}.{stage}_bottleneck_{block}.{part}.{kind}"

    assert published("layer2.0.bn2.weight") == "module.stage_2.stage_2_bottleneck_0.bn.weight"
    assert published("layer1.2.conv1.weight") == "module.stage_1.stage_1_bottleneck_2.conv_reduce.weight"
    state = {k: v for k, v in network.state_dict().items() if "num_batches" not in k}
    for content in (state, {"state_dict": {published(k): v for k, v in state.items()}}):
        torch.save(content, tmp_path / "net.pt")
        encoder = checkpoint(tmp_path / "net.pt", "resnext29_8x4d", None, "cifar")
        torch.testing.assert_close(encoder(images), expected)


def test_images_are_resized_as_pillow_does(tmp_path):
    pixels = RANDOM.integers(90, 160, (1, 3, 32, 32)).astype(np.uint8)
    for mode, method in ("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC):
        for size in (224, 12):
            seen = Encoder(nn.Identity(), size, (0.0,), (1.0,), mode)(torch.from_numpy(pixels))[0]
            shown = Image.fromarray(pixels[0].transpose(1, 2, 0)).resize((size, size), method)
            assert np.abs(seen.numpy().transpose(1, 2, 0) * 255 - np.asarray(shown)).max() < 1.6


def test_imagenet_weights_lose_their_classifier(command, tmp_path, resnet):
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(tv_models.resnet18().state_dict() | body(resnet), folder / "resnet18-f37072fd.pth")
    done = command("dataset=mnist", "encoder=resnet", "size=32", "dtype=float32", plain=True)
    assert done.code == 0, done.err
    with np.load(tmp_path / "features" / "mnist_resnet-resnet18.npz") as content:
        expected = direct(resnet, IMAGES["t10k"], [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        np.testing.assert_allclose(content["x_test"], expected, atol=1e-5)


def body(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in network.state_dict().items() if not name.startswith("fc.")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("dataset=mnist encodr=resnet", "encodr=resnet|did you mean encoder=|batch_size"),
        ("dataset=mnist resnet", "resnet: no such option|encoder"),
        ("dataset=mnist", "encoder= is missing|resnet, resnext, clip, checkpoint"),
        ("encoder=resnet", "dataset= is missing|mnist"),
        ("dataset=mnits encoder=resnet", "dataset=mnits|mnist"),
        ("dataset=imdb encoder=resnet", "dataset=imdb: no set of images|cifar10"),
        ("dataset=covtype encoder=resnet", "dataset=covtype: no set of images"),
        ("dataset=features encoder=resnet", "dataset=features: no set of images"),
        ("dataset=mnist encoder=vgg", "encoder=vgg|resnet, resnext, clip, checkpoint"),
        ("dataset=mnist encoder=resnet arch=resnet19", "arch=resnet19|resnet18, resnet50"),
        ("dataset=mnist encoder=resnet size=big", "size=big|whole number"),
        ("dataset=mnist encoder=resnet size=0", "size=0|at least 1"),
        ("dataset=mnist encoder=resnet dtype=int8", "dtype=int8|float16, float32"),
        ("dataset=mnist encoder=resnet overwrite=maybe", "overwrite=maybe|true or false"),
        ("dataset=mnist encoder=resnet weights=net.pt", "weights=net.pt|only for encoder=checkpoint"),
        ("dataset=mnist encoder=checkpoint", "weights= is missing"),
        ("dataset=mnist encoder=checkpoint weights=no.pt", "weights=no.pt: no such file"),
        ("dataset=mnist encoder=checkpoint weights=net.pt normalize=mean", "normalize=mean|imagenet"),
        ("dataset=mnist encoder=resnet output=x.npy", "output=x.npy|.npz"),
        ("dataset=mnist encoder=resnet arch=resnet50", "encoder=resnet|resnet50-0676ba61.pth|TORCH_HOME"),
        ("dataset=mnist encoder=resnext", "encoder=resnext|resnext50_32x4d-7cdf4587.pth|no network"),
        ("dataset=cifar10 encoder=checkpoint weights=net.pt arch=resnet18", "cifar-10-python|no network"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(one_line, arguments, words):
    line = one_line(*arguments.split(), plain=True)
    assert all(word in line for word in words.split("|")), line


def test_a_place_that_cannot_be_written_is_one_line(one_line):
    line = one_line("output=net.pt/x.npz")
    assert "net.pt/.x.parts: cannot be written" in line and "set output=" in line


def test_two_at_once_do_not_write_into_each_other(one_line, tmp_path):
    parts = tmp_path / "features" / ".mnist_checkpoint-resnet18.parts"
    parts.mkdir(parents=True)
    with extract.alone(parts):
        assert "being written by another run" in one_line()


def test_help_names_every_option_and_encoder(command):
    done = command("--help", plain=True)
    assert done.code == 0
    for word in (
        *(f.name for f in fields(FeatureSettings)),
        "resnext29_8x4d",
        "open_clip_torch",
        "dn=source",
    ):
        assert word in done.out
    assert max(map(len, done.out.splitlines())) <= 130


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedpriv f", "features"),
        ("fedpriv features enc", "encoder=resnet encoder=resnext encoder=clip encoder=checkpoint"),
        ("fedpriv features dataset=mnist ov", "overwrite="),
    ],
)
def test_tab_completion(fedpriv, monkeypatch, line, expected):
    monkeypatch.setenv("COMP_LINE", line)
    assert expected in fedpriv("-sc", "query=bash").out


def test_clip_that_is_not_installed_is_one_line(one_line, monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    line = one_line("dataset=mnist", "encoder=clip", plain=True)
    assert line.endswith("pip install open_clip_torch")


def test_clip_is_asked_for_as_open_clip_wants_it(command, one_line, tmp_path, monkeypatch):
    """A stand-in with open_clip's three calls: quick GELU for OpenAI's weights, its own size and scaling."""
    asked = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual = nn.Identity()
            scaling = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
            self.visual.preprocess_cfg = {"size": (28, 28), "interpolation": "bicubic", **scaling}

        def encode_image(self, x):
            return x.mean((2, 3))

    fake = ModuleType("open_clip")
    fake.list_pretrained = lambda: [("ViT-B-32", "openai"), ("ViT-B-32", "laion2b"), ("RN50", "openai")]
    fake.create_model = lambda *names, **options: (asked.append((names, options)), Model())[1]
    monkeypatch.setitem(sys.modules, "open_clip", fake)
    clip = ("dataset=mnist", "encoder=clip", "dtype=float32")
    assert command(*clip, plain=True).code == 0
    assert asked == [(("ViT-B-32", "openai"), {"force_quick_gelu": True, "force_image_size": None})]
    with np.load(tmp_path / "features" / "mnist_clip-ViT-B-32.npz") as content:
        expected = (IMAGES["t10k"].mean((1, 2)) / 255 - 0.5) / 0.25
        np.testing.assert_allclose(content["x_test"], np.tile(expected[:, None], 3), atol=1e-4)
    assert command(*clip, "pretrained=laion2b", "overwrite=true", plain=True).code == 0
    assert asked[-1][1]["force_quick_gelu"] is False
    assert "ViT-B-32, RN50" in one_line(*clip, "arch=ViT-X", plain=True)
    assert "openai, laion2b" in one_line(*clip, "pretrained=nobody", "output=new.npz", plain=True)
    fake.create_model = raises(OSError("no\nnetwork"))
    assert "(no network)" in one_line(*clip, "output=new.npz", plain=True)


# -- data normalisation


def save(path, train, test, y=(0, 1), **more):
    np.savez(path, x_train=np.array(train), y_train=y, x_test=np.array(test), y_test=[1], **more)


@pytest.fixture
def private(tmp_path):
    save(tmp_path / "private.npz", [[1.0, 4.0], [0.5, 0.0]], [[2.5, 0.5]])
    return tmp_path


def dn(folder, **options):
    data = Features(path="private.npz", **options).load(folder)
    return data.prepare(data.x_train).tolist(), data.prepare(data.x_test).tolist()


def test_dn_none_and_unit_change_nothing_and_half_is_what_the_paper_says(private):
    for kind in ("none", "unit"):
        assert dn(private, dn=kind) == ([[1.0, 4.0], [0.5, 0.0]], [[2.5, 0.5]])
    train, test = dn(private, dn="half")  # (x - 0.5) / 0.7071...
    assert train == [pytest.approx([0.7071068, 4.9497475]), pytest.approx([0.0, -0.7071068])]
    assert test == [pytest.approx([2.8284271, 0.0])]


@pytest.mark.parametrize("stored", [True, False])
def test_dn_source_takes_the_statistics_of_another_file(private, stored):
    """Columns 1, 3, 5 and 2, 2, 2: means 3 and 2, variances 8/3 and 0, to which 1e-5 is added."""
    public = [[1.0, 2.0], [3.0, 2.0], [5.0, 2.0]]
    kept = {"mean": [3.0, 2.0], "variance": [8 / 3, 0.0]} if stored else {}
    train = np.full((3, 2), 9.0) if stored else public  # if stored, the features are not looked at
    (private / "features").mkdir()
    save(private / "features" / "public.npz", train, [[0.0, 0.0]], y=(0, 1, 1), **kept)
    train, test = dn(private, dn="source", statistics="public.npz")
    slope = (8 / 3 + 1e-5) ** -0.5
    assert train[0] == pytest.approx([-2 * slope, 2 / 1e-5**0.5], rel=1e-5)
    assert test[0] == pytest.approx([-0.5 * slope, -1.5 / 1e-5**0.5], rel=1e-5)


def test_dn_never_uses_the_private_features_themselves(private):
    (private / "link.npz").symlink_to(private / "private.npz")
    for name in ("private.npz", str(private / "private.npz"), "link.npz"):
        refused(private, "dataset.path itself", "not private", dn="source", statistics=name)
    save(private / "copy.npz", [[7.0, 7.0], [8.0, 8.0]], [[0.0, 0.0]])  # other features of the same samples
    refused(private, "copy.npz", "same labels", "public", dn="source", statistics="copy.npz")


def test_dn_mistakes_are_one_line(private):
    refused(private, "dataset.statistics", "private.npz", dn="source")
    refused(private, "no file nowhere.npz", dn="source", statistics="nowhere.npz")
    refused(private, "dn=half", "dataset.dn=source", dn="half", statistics="public.npz")
    np.savez(private / "wide.npz", mean=np.zeros(3), variance=np.ones(3))
    refused(private, "wide.npz", "2 features", dn="source", statistics="wide.npz")
    np.savez(private / "bad.npz", mean=np.zeros(2), variance=[-1.0, 1.0])
    refused(private, "bad.npz", "negative", dn="source", statistics="bad.npz")
    np.savez(private / "empty.npz", y=np.zeros(2))
    refused(
        private, "empty.npz", "neither mean and variance nor x_train", dn="source", statistics="empty.npz"
    )
    (private / "text.npz").write_text("hello")
    refused(private, "cannot read", "text.npz", dn="source", statistics="text.npz")


def refused(folder, *words, **options):
    with pytest.raises(UserError) as problem:
        dn(folder, **options)
    assert "\n" not in str(problem.value) and all(word in str(problem.value) for word in words), problem.value


def test_dn_after_the_transform_normalises_what_the_transform_makes(private):
    """Means 1 and 2, variances 4 and 0: 3 x + 1 of (1, 4) is (4, 13), and (4 - 1) / 2 is 1.5 to 1e-5."""
    save(private / "public.npz", [[9.0, 9.0]], [[0.0, 0.0]], y=(1,), mean=[1.0, 2.0], variance=[4.0, 1.0])
    options = {"path": "private.npz", "dn": "source", "statistics": "public.npz"}
    data = Features(**options, after_transform=True).load(private)
    assert data.x_train.tolist() == [[1.0, 4.0], [0.5, 0.0]], "as stored"
    affine = elementwise((2,), alpha_init=3.0, beta_init=1.0)
    seen = Network(affine, nn.Identity(), data.standard)(data.x_train)[0]
    assert seen.tolist() == pytest.approx([1.5, 11.0], rel=1e-4)
    before = Features(**options).load(private)
    assert before.standard is None and before.x_train[0].tolist() == pytest.approx([0.0, 2.0], abs=1e-4)
    plain = Features(path="private.npz").load(private)
    assert len({data.fingerprint, before.fingerprint, plain.fingerprint}) == 3


def test_both_engines_normalise_after_the_transform(private, config):
    """And nothing of it is uploaded: as many weights are sent as without."""
    save(private / "public.npz", [[9.0, 9.0]], [[0.0, 0.0]], y=(1,), mean=[1.0, 2.0], variance=[4.0, 1.0])
    own = ["dataset=features", f"data_dir={private}", "dataset.path=private.npz", "model=linear", "clients=1"]
    own += ["transform=linear", "dp=none", "rounds=2", "partition=iid", "dataset.dn=source"]
    own += ["dataset.statistics=public.npz"]
    ends = {}
    for after in ("true", "false"):
        for engine in ("fast", "loop"):
            run = build(config(*own, f"dataset.after_transform={after}", f"engine={engine}")).trainer
            for _ in range(2):  # the transform begins as the identity: the first round is the same
                run.round()
            ends[after, engine] = run.theta
    torch.testing.assert_close(ends["true", "fast"], ends["true", "loop"])
    assert not torch.allclose(ends["true", "fast"], ends["false", "fast"])
    assert ends["true", "fast"].shape == ends["false", "fast"].shape
