"""Makes what Hugging Face's examples would download: a tiny model, and the metric "accuracy". For scripts/wild.py.

    python wild_model.py MODEL METRIC

Out: MODEL, a directory with a vision transformer of random weights, always the same, and its image processor; METRIC, a
directory `accuracy` with a metric that `evaluate.load("accuracy")` finds when it is below the working directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

METRIC = '''"""The share of predictions that are right."""

import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description=__doc__, citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(predictions)}
'''
SIZE = 64


def make_model(directory: str) -> None:
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=SIZE,
        patch_size=16,
        num_labels=10,
    )
    ViTForImageClassification(config).save_pretrained(directory)
    ViTImageProcessor(size={"height": SIZE, "width": SIZE}).save_pretrained(directory)


if __name__ == "__main__":
    make_model(sys.argv[1])
    metric = Path(sys.argv[2]) / "accuracy.py"
    metric.parent.mkdir(parents=True)
    metric.write_text(METRIC)
