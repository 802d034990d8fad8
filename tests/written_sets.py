"""Small public sets, written where and as TFDS keeps the real ones."""

import importlib
import io

import numpy as np
import pytest
from PIL import Image

from seqmodels.data.public_sets import SOURCES

tfds = pytest.importorskip("tensorflow_datasets")


def real_builder(name, data_dir):
    importlib.import_module(f"tensorflow_datasets.{SOURCES[name].package}")
    return tfds.builder(name, data_dir=data_dir)


def prepare_like(name, data_dir, splits):
    """Writes examples where TFDS keeps the set, with its features, version and config."""
    real = real_builder(name, data_dir)

    class Written(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = real.version
        BUILDER_CONFIGS = [
            tfds.core.BuilderConfig(name=config.name, version=config.version or real.version)
            for config in [real.builder_config]
            if config
        ]

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self, features=real.info.features, disable_shuffling=True
            )

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in splits}

        def _generate_examples(self, split):
            yield from enumerate(splits[split])

    Written.name = real.name
    builder = Written(data_dir=data_dir, file_format="array_record")
    assert builder.data_dir == real.data_dir
    builder.download_and_prepare(file_format="array_record")


def example(name, number, image=None):
    """Example `number` of a set, its texts being made of that number."""
    source = SOURCES[name]
    found = {
        "image": lambda: png(image),
        "text": lambda: f"Text {number}, é",
        "language": lambda: f"Line {number}\n",
    }
    known = {feature: found[source.kind]() for feature in source.features}
    if source.classes:
        known["label"] = number % source.classes
    others = {"id": str(number), "idx": number}
    features = real_builder(name, "/nowhere").info.features
    return known | {key: others[key] for key in features if key not in known}


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(), None).save(file, format="PNG")
    return file.getvalue()


def images(name, count, seed=0):
    pixels, channels = SOURCES[name].shape
    side = int(pixels**0.5)
    shape = (count, side, side, channels)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
