#!/usr/bin/env python3
"""Classify handwritten digits with inference-engine and draw one in the terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import engine

HERE = Path(__file__).parent
SHADES = " ░▒▓█"
PLAIN_SHADES = " .+*#"  # for terminals and pipes that know only ASCII
HIGHEST = 16  # value of a fully inked pixel


def draw(image: np.ndarray) -> str:
    """Return an 8x8 image of pixels 0..16 as text, two characters a pixel."""
    try:
        SHADES.encode(sys.stdout.encoding or "ascii")
        shades = SHADES
    except UnicodeEncodeError:
        shades = PLAIN_SHADES
    levels = np.ceil(image * (len(shades) - 1) / HIGHEST).astype(int)
    return "\n".join("".join(2 * shades[level] for level in row).rstrip() for row in levels)


def options(count: int) -> argparse.Namespace:
    """Read the command line; `count` is how many images there are."""
    parser = argparse.ArgumentParser(
        description="Classify handwritten digits that the network was not trained on.",
        epilog="examples:\n"
        "  python examples/digits/classify.py\n"
        "  python examples/digits/classify.py --index 7\n"
        "  python examples/digits/classify.py --target gpu",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--index",
        type=int,
        default=0,
        metavar="N",
        help=f"which image to draw, 0..{count - 1} (default: %(default)s)",
    )
    parser.add_argument(
        "--target",
        default="cpu",
        help="where to run: cpu, gpu, ascend or an installed backend (default: %(default)s)",
    )
    chosen = parser.parse_args()
    if not 0 <= chosen.index < count:
        parser.error(f"--index: expected 0..{count - 1}, got {chosen.index}")
    return chosen


def main() -> int:
    """Print the accuracy over all held-back images, then one image with its label."""
    with np.load(HERE / "test_images.npz") as held_back:
        images, labels = held_back["image"], held_back["label"]
    chosen = options(len(images))

    try:
        with engine.load(HERE / "digits.onnx", target=chosen.target) as model:
            outputs = model(image=images)
    except (engine.EngineError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1

    right = int((outputs["label"] == labels).sum())
    print(f"accuracy on held-back images: {right / len(labels):.4f} ({right} of {len(labels)})")
    print(f"\nimage {chosen.index}:\n")
    print(draw(images[chosen.index, 0]))
    predicted = int(outputs["label"][chosen.index])
    confidence = float(outputs["probabilities"][chosen.index, predicted])
    print(f"\npredicted {predicted} (confidence {confidence:.1%}), true {labels[chosen.index]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
