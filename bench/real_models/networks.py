"""Networks that have no package of their own here, written from their papers, for exports.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


def _prelu(channels: int) -> nn.PReLU:
    layer = nn.PReLU(channels)
    nn.init.uniform_(layer.weight, 0.05, 0.4)  # as training leaves it: one slope a channel
    return layer


class _FaceBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inside), nn.Conv2d(inside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside), _prelu(outside),
            nn.Conv2d(outside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.short = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.short(x)


class IResNet(nn.Module):
    """Face recognition with the ArcFace loss: a ResNet with PReLU, 112 x 112."""

    def __init__(self, layers: tuple[int, ...] = (2, 2, 2, 2)) -> None:
        super().__init__()
        blocks: list[nn.Module] = [
            nn.Conv2d(3, 64, 3, 1, 1, bias=False),
            nn.BatchNorm2d(64),
            _prelu(64),
        ]
        inside = 64
        for width, count in zip((64, 128, 256, 512), layers, strict=True):
            for index in range(count):
                blocks.append(_FaceBlock(inside, width, 1 if index else 2))
                inside = width
        self.body = nn.Sequential(
            *blocks, nn.BatchNorm2d(512), nn.Flatten(), nn.Linear(512 * 49, 512)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class MobileFaceNet(nn.Module):
    """Face recognition for phones: inverted residuals with PReLU, 112 x 112."""

    def __init__(self) -> None:
        super().__init__()

        def convolution(a: int, b: int, size: int, stride: int, groups: int = 1) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False),
                nn.BatchNorm2d(b), _prelu(b),
            )  # fmt: skip

        class Bottleneck(nn.Module):
            def __init__(self, a: int, b: int, stride: int, wide: int) -> None:
                super().__init__()
                self.body = nn.Sequential(
                    convolution(a, wide, 1, 1), convolution(wide, wide, 3, stride, wide),
                    nn.Conv2d(wide, b, 1, bias=False), nn.BatchNorm2d(b),
                )  # fmt: skip
                self.adds = stride == 1 and a == b

            def forward(self, x: Tensor) -> Tensor:
                return x + self.body(x) if self.adds else self.body(x)

        layers = [convolution(3, 64, 3, 2), convolution(64, 64, 3, 1, 64)]
        inside = 64
        for expand, width, count, stride in (
            (2, 64, 5, 2), (4, 128, 1, 2), (2, 128, 6, 1), (4, 128, 1, 2), (2, 128, 2, 1)
        ):  # fmt: skip
            for index in range(count):
                layers.append(Bottleneck(inside, width, 1 if index else stride, inside * expand))
                inside = width
        self.body = nn.Sequential(
            *layers, convolution(128, 512, 1, 1), nn.Conv2d(512, 512, 7, groups=512), nn.Flatten(),
            nn.Linear(512, 128),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class OutputNet(nn.Module):
    """The last stage of MTCNN's face detection, 48 x 48, a batch of candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3), _prelu(32), nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(32, 64, 3), _prelu(64), nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(64, 64, 3), _prelu(64), nn.MaxPool2d(2, 2, ceil_mode=True),
            nn.Conv2d(64, 128, 2), _prelu(128), nn.Flatten(), nn.Linear(1152, 256), _prelu(256),
        )  # fmt: skip
        self.heads = nn.ModuleList([nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.body(x)
        score, box, points = self.heads
        return score(x).softmax(1), box(x), points(x)


class Fsrcnn(nn.Module):
    """Super-resolution by 3: PReLU, and a transposed convolution at the end."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 56, 5, padding=2), _prelu(56), nn.Conv2d(56, 12, 1), _prelu(12)]
        for _ in range(4):
            layers += [nn.Conv2d(12, 12, 3, padding=1), _prelu(12)]
        layers += [nn.Conv2d(12, 56, 1), _prelu(56), nn.ConvTranspose2d(56, 1, 9, 3, 4, 2)]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class ConvTasNet(nn.Module):
    """Separation of speakers in a waveform: 1-D convolutions, PReLU, normalisation over all."""

    def __init__(self, width: int = 128, wide: int = 256, repeats: int = 2) -> None:
        super().__init__()

        class Block(nn.Module):
            def __init__(self, dilation: int) -> None:
                super().__init__()
                self.body = nn.Sequential(
                    nn.Conv1d(width, wide, 1), nn.PReLU(), nn.GroupNorm(1, wide, 1e-8),
                    nn.Conv1d(wide, wide, 3, padding=dilation, dilation=dilation, groups=wide),
                    nn.PReLU(), nn.GroupNorm(1, wide, 1e-8),
                )  # fmt: skip
                self.residual, self.skip = nn.Conv1d(wide, width, 1), nn.Conv1d(wide, width, 1)

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                inner = self.body(x)
                return x + self.residual(inner), self.skip(inner)

        self.encoder = nn.Conv1d(1, 256, 16, 8, bias=False)
        self.entry = nn.Sequential(nn.GroupNorm(1, 256, 1e-8), nn.Conv1d(256, width, 1))
        self.blocks = nn.ModuleList([Block(2**power) for _ in range(repeats) for power in range(8)])
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(width, 512, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(256, 1, 16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.relu(self.encoder(x))
        inner = self.entry(waves)
        total = torch.zeros_like(inner)
        for block in self.blocks:
            inner, skip = block(inner)
            total = total + skip
        masks = self.mask(total).reshape(2, 256, -1)
        return self.decoder(masks * waves)


class EcgResNet(nn.Module):
    """Classification of 12-lead electrocardiograms: a ResNet of 1-D convolutions."""

    def __init__(self) -> None:
        super().__init__()

        class Block(nn.Module):
            def __init__(self, a: int, b: int, stride: int) -> None:
                super().__init__()
                self.body = nn.Sequential(
                    nn.Conv1d(a, b, 15, stride, 7, bias=False), nn.BatchNorm1d(b), nn.ReLU(),
                    nn.Conv1d(b, b, 15, 1, 7, bias=False), nn.BatchNorm1d(b),
                )  # fmt: skip
                self.short = nn.Sequential(
                    nn.Conv1d(a, b, 1, stride, bias=False), nn.BatchNorm1d(b)
                )

            def forward(self, x: Tensor) -> Tensor:
                return torch.relu(self.body(x) + self.short(x))

        widths = [64, 64, 128, 196, 256]
        self.body = nn.Sequential(
            nn.Conv1d(12, 64, 15, 2, 7, bias=False), nn.BatchNorm1d(64), nn.ReLU(),
            nn.MaxPool1d(3, 2, 1),
            *[Block(a, b, 2) for a, b in pairwise(widths)],
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(256, 6),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class DiffusionUNet(nn.Module):
    """The denoiser of a small diffusion model: GroupNorm, SiLU, attention, nearest upsampling."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256)) -> None:
        super().__init__()

        class Residual(nn.Module):
            def __init__(self, a: int, b: int) -> None:
                super().__init__()
                self.first = nn.Sequential(
                    nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1)
                )
                self.second = nn.Sequential(
                    nn.GroupNorm(32, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1)
                )
                self.short = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

            def forward(self, x: Tensor) -> Tensor:
                return self.second(self.first(x)) + self.short(x)

        class SelfAttention(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.norm, self.all = nn.GroupNorm(32, width), nn.Linear(width, 3 * width)
                self.last = nn.Linear(width, width)

            def forward(self, x: Tensor) -> Tensor:
                n, c, h, w = x.shape
                rows = self.norm(x).reshape(n, c, h * w).transpose(1, 2)
                q, k, v = self.all(rows).reshape(n, h * w, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
                scores = torch.softmax(q @ k.transpose(-1, -2) * (c // 4) ** -0.5, -1)
                rows = self.last((scores @ v).transpose(1, 2).reshape(n, h * w, c))
                return x + rows.transpose(1, 2).reshape(n, c, h, w)

        self.entry = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for a, b in pairwise(widths):
            self.down.append(nn.ModuleList([Residual(a, a), nn.Conv2d(a, b, 3, 2, 1)]))
            self.up.insert(0, nn.ModuleList([nn.Conv2d(b, a, 3, padding=1), Residual(2 * a, a)]))
        self.middle = nn.Sequential(
            Residual(widths[-1], widths[-1]),
            SelfAttention(widths[-1]),
            Residual(widths[-1], widths[-1]),
        )
        self.exit = nn.Sequential(
            nn.GroupNorm(32, widths[0]), nn.SiLU(), nn.Conv2d(widths[0], 4, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        kept = []
        for residual, shrink in self.down:
            x = residual(x)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x)
        for grow, residual in self.up:
            x = grow(nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = residual(torch.cat([x, kept.pop()], 1))
        return self.exit(x)


class SpeechTagger(nn.Module):
    """A front end of 1-D convolutions and two bidirectional GRUs, as in keyword spotting."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, 128, 5, padding=2), nn.BatchNorm1d(128), nn.SiLU(),
            nn.Conv1d(128, 128, 5, 2, 2), nn.BatchNorm1d(128), nn.SiLU(),
        )  # fmt: skip
        self.rows = nn.GRU(128, 128, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(256, 40)

    def forward(self, x: Tensor) -> Tensor:
        rows, _ = self.rows(self.front(x).transpose(1, 2))
        return self.head(rows).log_softmax(-1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "iresnet18": (IResNet, (1, 3, 112, 112)),
    "mobilefacenet": (MobileFaceNet, (1, 3, 112, 112)),
    "mtcnn-onet": (OutputNet, (8, 3, 48, 48)),
    "fsrcnn": (Fsrcnn, (1, 1, 96, 96)),
    "conv-tasnet": (ConvTasNet, (1, 1, 8000)),
    "ecg-resnet": (EcgResNet, (1, 12, 4096)),
    "diffusion-unet": (DiffusionUNet, (1, 4, 32, 32)),
    "speech-tagger": (SpeechTagger, (1, 80, 200)),
}
