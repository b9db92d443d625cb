"""The networks of `networks.py` in PyTorch. Images have the shape (batch, channels, height, width)."""

from __future__ import annotations

import torch
from torch import nn

WORDS = 5000


class _Residual(nn.Module):
    """Adds the outputs of layers to their inputs or to the outputs of a shortcut."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module | None = None, output: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.shortcut, self.output = layers, shortcut or nn.Identity(), output or nn.Identity()

    def forward(self, x):
        return self.output(self.shortcut(x) + self.layers(x))


class _Mean(nn.Module):
    """Computes the mean over dimensions."""

    def __init__(self, *dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x):
        return x.mean(self.dimensions)


def _convolution(inputs: int, filters: int, size: int = 3, strides: int = 1, groups: int = 1, activation=None):
    layer = nn.Conv2d(inputs, filters, size, strides, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(filters), activation or nn.ReLU())


def mlp():
    """Returns an MLP of 784, 128 and 10 units."""
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def small_convolutions():
    """Returns two small convolutions with strides, followed by a dense layer."""
    layers = [nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 6 * 6, 10))


def convolutions():
    """Returns the network of the MNIST tutorial."""
    layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(64 * 5 * 5, 10))


def resnet_20():
    """Returns ResNet-20."""
    layers, width = [_convolution(3, 16)], 16
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            first = strides if block == 0 else 1
            inner = nn.Sequential(
                _convolution(width, filters, strides=first), _convolution(filters, filters, activation=nn.Identity())
            )
            shortcut = nn.Conv2d(width, filters, 1, first) if width != filters else None
            layers.append(_Residual(inner, shortcut, nn.ReLU()))
            width = filters
    return nn.Sequential(*layers, _Mean(2, 3), nn.Linear(64, 10))


def resnet_50():
    """Returns ResNet-50."""
    layers, width = [_convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for filters, blocks, strides in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            first = strides if block == 0 else 1
            inner = nn.Sequential(
                _convolution(width, filters, 1, first),
                _convolution(filters, filters),
                _convolution(filters, 4 * filters, 1, activation=nn.Identity()),
            )
            shortcut = _convolution(width, 4 * filters, 1, first, activation=nn.Identity()) if block == 0 else None
            layers.append(_Residual(inner, shortcut, nn.ReLU()))
            width = 4 * filters
    return nn.Sequential(*layers, _Mean(2, 3), nn.Linear(width, 10))


def mobilenet_v2():
    """Returns MobileNetV2."""
    layers, width = [_convolution(3, 32, strides=2, activation=nn.ReLU6())], 32
    for expansion, filters, blocks, strides in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for block in range(blocks):
            first, wide = strides if block == 0 else 1, expansion * width
            inner = nn.Sequential(
                _convolution(width, wide, 1, activation=nn.ReLU6()) if expansion > 1 else nn.Identity(),
                _convolution(wide, wide, 3, first, groups=wide, activation=nn.ReLU6()),
                _convolution(wide, filters, 1, activation=nn.Identity()),
            )
            layers.append(_Residual(inner) if first == 1 and width == filters else inner)
            width = filters
    return nn.Sequential(*layers, _convolution(width, 1280, 1, activation=nn.ReLU6()), _Mean(2, 3), nn.Linear(1280, 10))


def _double(inputs: int, filters: int):
    return nn.Sequential(_convolution(inputs, filters), _convolution(filters, filters))


class _UNet(nn.Module):
    """The U-Net of three levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_double(3, 16), _double(16, 32)])
        self.bottom = _double(32, 64)
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.joined = nn.ModuleList([_double(64, 32), _double(32, 16)])
        self.logits = nn.Conv2d(16, 10, 1)

    def forward(self, x):
        passed = []
        for layer in self.down:
            x = layer(x)
            passed.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat([passed.pop(), up(x)], 1))
        return self.logits(x)


class _Recurrent(nn.Module):
    """A recurrent layer over texts, whose padding may be masked."""

    def __init__(self, layer: nn.Module, outputs: int, masked: bool) -> None:
        super().__init__()
        self.words, self.layer, self.masked = nn.Embedding(WORDS, 64), layer, masked
        self.logits = nn.Linear(outputs, 10)

    def forward(self, x):
        embedded = self.words(x)
        if self.masked:
            lengths = (x != 0).sum(1)
            embedded = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        _, states = self.layer(embedded)
        last = states[0] if isinstance(states, tuple) else states
        return self.logits(torch.cat(list(last), -1))


def masked_gru():
    """Returns a bidirectional GRU over texts, whose padding is masked."""
    return _Recurrent(nn.GRU(64, 64, batch_first=True, bidirectional=True), 128, masked=True)


def lstm():
    """Returns an LSTM over texts of 64 words."""
    return _Recurrent(nn.LSTM(64, 64, batch_first=True), 64, masked=False)


class _Autoencoder(nn.Module):
    """A variational autoencoder, which also returns the distance of its samples from the normal distribution as a loss."""

    def __init__(self) -> None:
        super().__init__()
        down = [nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        self.encoder = nn.Sequential(*down, nn.Linear(64 * 7 * 7, 16), nn.ReLU(), nn.Linear(16, 4))
        up = [nn.ConvTranspose2d(64, 64, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), nn.ReLU()]
        dense = [nn.Linear(2, 7 * 7 * 64), nn.ReLU(), nn.Unflatten(1, (64, 7, 7))]
        self.decoder = nn.Sequential(*dense, *up, nn.Conv2d(32, 1, 3, padding=1), nn.Sigmoid())

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        distance = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return self.decoder(mean + (0.5 * log_variance).exp() * torch.randn_like(mean)), distance


class _Attention(nn.Module):
    """Self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.inwards, self.outwards = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.inwards(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*parts)
        return self.outwards(attended.transpose(1, 2).reshape(batch, length, width))


class _Positions(nn.Module):
    """Adds a trained vector to each position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(64, width).uniform_(-0.05, 0.05))

    def forward(self, x):
        return x + self.table


def _encoder(blocks: int, width: int, heads: int, inner: int, activation: nn.Module):
    layers: list[nn.Module] = [nn.Embedding(WORDS, width), _Positions(width)]
    for _ in range(blocks):
        wide = [nn.Linear(width, inner), activation, nn.Linear(inner, width)]
        for part in ([_Attention(width, heads)], wide):
            layers += [_Residual(nn.Sequential(*part, nn.Dropout(0.1)), output=nn.LayerNorm(width, 1e-3))]
    return nn.Sequential(*layers, _Mean(1), nn.Linear(width, 10))


def transformer():
    """Returns two blocks of a transformer over texts of 64 words."""
    return _encoder(2, 64, 4, 128, nn.ReLU())


def bert_base():
    """Returns the twelve blocks of BERT base, narrowed to 128 units and two heads."""
    return _encoder(12, 128, 2, 512, nn.GELU("tanh"))


NETWORKS = {
    "mlp": mlp,
    "small-convolutions": small_convolutions,
    "convolutions": convolutions,
    "resnet-20": resnet_20,
    "resnet-50": resnet_50,
    "mobilenet-v2": mobilenet_v2,
    "u-net": _UNet,
    "masked-gru": masked_gru,
    "autoencoder": _Autoencoder,
    "transformer": transformer,
    "bert-base": bert_base,
    "lstm": lstm,
}
