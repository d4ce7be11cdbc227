"""keras.Model.fit: what it reads in each epoch of image_dataset_from_directory, of a tf.data pipeline, of a PyDataset.

Nothing of Keras is replaced: the files are real images of one pixel, whose colour is their number, and the model notes
what each step is given. Keras has one backend a process, so each backend has a process of its own.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import Any

from oracles.case import Case

DISTRIBUTION = "keras"
BACKENDS = ("tensorflow", "jax")
SAMPLERS = ("keras", "tf-data", "keras-pydataset")
EPOCHS = 3

# A drawn run: the job that a user would register for it, the data set's length, and what the script does.
Run = dict[str, Any]


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Data sets of three kinds, read by fit alone, with validation, with evaluate in between, or by steps_per_epoch."""
    for name in ("keras", *BACKENDS):
        version(name if name != "tensorflow" else "tensorflow-cpu")  # an ImportError here, and not in another process
    pools = {backend: _process(backend) for backend in BACKENDS}
    try:
        for number in range(count):
            backend = BACKENDS[number % 4 == 3]
            run = _draw(draw, backend, SAMPLERS[number % 3])
            passes, words = pools[backend].submit(_read, run).result()
            if words:
                run["job"]["words_before"] = words
            yield Case(run["job"], run["n"], [(epoch, 0, indices) for epoch, indices in enumerate(passes)])
    finally:
        for pool in pools.values():
            pool.shutdown()


def _process(backend: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"), _begin, (backend,))


def _begin(backend: str) -> None:
    os.environ |= {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    set_start_method("fork", force=True)  # of a PyDataset's workers, as in a script of its own


def _draw(draw: random.Random, backend: str, sampler: str) -> Run:
    """A run and its job.

    On TensorFlow each epoch begins two passes over a tf.data.Dataset and reads the first; with steps_per_epoch one
    pass follows the other, however long an epoch is. On JAX each epoch begins one, but the model is built of a batch
    of a pass before the first epoch.
    """
    n, batch = draw.randint(6, 90), draw.randint(1, 8)
    seed = draw.choice((0, 1, draw.randrange(1 << 32)))
    job: dict[str, Any] = {"sampler": sampler, "batch_size": batch, "seed": seed}
    does = ["fit", "validated"]
    does += ["fit"] if sampler == "keras-pydataset" else ["validation", "evaluated", "steps"]
    run: Run = {"job": job, "n": n, "does": draw.choice(does)}
    if run["does"] == "steps":
        run["steps"] = draw.randint(1, math.ceil(n / batch))
    elif backend == "tensorflow" and sampler != "keras-pydataset":
        job["passes_between"] = 1
    if backend == "jax" and run["does"] != "validation":
        job["passes_before"] = 1
    if sampler == "tf-data":
        job["buffer_size"] = draw.choice((2, 7, n, 100))
        if draw.random() < 0.5:
            job["list_seed"] = draw.randrange(1 << 31)
            job["shuffle"] = draw.random() < 0.5
    if sampler == "keras-pydataset":
        run |= {"workers": 1, "processes": False, "layers": draw.randrange(4)}
        if backend == "tensorflow":  # several on JAX leave batches of the pass that builds the model to the first epoch
            run |= {"workers": draw.choice((1, 3)), "processes": draw.random() < 0.3}
    elif draw.random() < 0.5:
        job["global_seed"] = seed  # of keras.utils.set_random_seed
    return run


def _read(run: Run) -> tuple[list[list[int]], int]:
    """What a run reads, pass by pass, and how many words of Python's generator were drawn before; in a backend's."""
    job, n, does = run["job"], run["n"], run["does"]
    trained: list[list[int]] = []
    tested: list[list[int]] = []
    model, words = _model(run, trained, trained if does == "evaluated" else tested)
    with tempfile.TemporaryDirectory() as root:
        make: Callable[[Run, str], Any] = {"keras": _images, "tf-data": _pipeline}.get(job["sampler"], _py_dataset)
        data = make(run, root)
        options: dict[str, Any] = {"verbose": 0, "epochs": EPOCHS}
        if does == "steps":
            epochs = EPOCHS * math.ceil(math.ceil(n / job["batch_size"]) / run["steps"])
            model.fit(data, verbose=0, epochs=epochs, steps_per_epoch=run["steps"])
            read = [index for epoch in trained for index in epoch]
            return [read[at : at + n] for at in range(0, EPOCHS * n, n)], 0
        if does == "evaluated":
            model.fit(data, verbose=0)
            model.evaluate(data, verbose=0)
            model.predict(data, verbose=0)
            model.fit(data, verbose=0)
        elif does == "fit":
            model.fit(data, **options)
        else:
            model.fit(data, validation_data=make(run, f"{root}/validation"), **options)
    return (tested if does == "validation" else trained), words


def _model(run: Run, trained: list[list[int]], tested: list[list[int]]) -> tuple[Any, int]:
    """A model that notes the numbers it is given, a list a pass; and what making it drew of Python's generator."""
    import keras
    import numpy as np
    from tensorflow.python.eager import context

    def note(where: list[list[int]], data: Any) -> None:
        pixels = np.asarray(data[0]).reshape(-1, 3).astype(int)
        where[-1] += (pixels[:, 0] + 256 * pixels[:, 1]).tolist()

    def answered(what: Any, *state: Any) -> Any:
        return (what, *state) if state else what  # JAX's steps are given the model's state first, and return it

    class Noting(keras.Model):
        def call(self, x: Any) -> Any:
            return keras.ops.mean(x, axis=(1, 2, 3))[:, None]

        def train_step(self, *given: Any) -> Any:
            note(trained, given[-1])
            return answered({"loss": keras.ops.zeros(())}, *given[:-1])

        def test_step(self, *given: Any) -> Any:
            note(tested, given[-1])
            return answered({"loss": keras.ops.zeros(())}, *given[:-1])

        def predict_step(self, *given: Any) -> Any:
            note(tested, given[-1])
            return answered(keras.ops.zeros((len(given[-1][0]), 1)), *given[:-1])

    class Passes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            trained.append([])

        def on_test_begin(self, logs: Any = None) -> None:
            tested.append([])

        def on_predict_begin(self, logs: Any = None) -> None:
            tested.append([])

    class Model(Noting):
        def fit(self, *args: Any, **options: Any) -> Any:
            return super().fit(*args, callbacks=[Passes()], **options)

        def evaluate(self, *args: Any, **options: Any) -> Any:
            return super().evaluate(*args, **{"callbacks": [Passes()]} | options)

        def predict(self, *args: Any, **options: Any) -> Any:
            return super().predict(*args, callbacks=[Passes()], **options)

    seed = run["job"]["seed"]
    keras.utils.set_random_seed(seed)
    if "global_seed" not in run["job"]:
        context.context()._set_global_seed(None)  # as in a script that calls keras.utils.set_random_seed not at all
    made = Model()
    made.layers_of_its_own = [keras.layers.Dense(2) for _ in range(run.get("layers", 0))]
    made.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    words, again = 0, random.Random(seed)
    while "layers" in run and again.getstate() != random.getstate():
        again.getrandbits(32)
        words += 1
    return made, words


def _pixel(index: int) -> list[int]:
    return [index % 256, index // 256, 0]


def _write_images(n: int, root: str) -> None:
    import tensorflow as tf

    for index in range(n):
        path = Path(root, f"class{index * 3 // n}", f"{index:04d}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(tf.constant([[_pixel(index)]], tf.uint8)).numpy())


def _images(run: Run, root: str) -> Any:
    """Keras' own data set of a directory."""
    import keras

    _write_images(run["n"], root)
    job = run["job"]
    return keras.utils.image_dataset_from_directory(
        root, image_size=(1, 1), seed=job["seed"], batch_size=job["batch_size"], verbose=False
    )


def _pipeline(run: Run, root: str) -> Any:
    """What people write themselves."""
    import tensorflow as tf

    _write_images(run["n"], root)
    job = run["job"]
    files = tf.data.Dataset.list_files(f"{root}/*/*.png", seed=job.get("list_seed"), shuffle="list_seed" in job)

    def load(path: Any) -> Any:
        image = tf.io.decode_png(tf.io.read_file(path), 3)
        return tf.cast(image, tf.float32), tf.zeros(1)

    if job.get("shuffle", True):
        files = files.shuffle(job["buffer_size"], seed=job["seed"])
    return files.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(job["batch_size"]).prefetch(2)


def _py_dataset(run: Run, root: str) -> Any:
    """Batches of numbers, as threads or processes hand them out."""
    import keras
    import numpy as np

    n, batch = run["n"], run["job"]["batch_size"]

    class Numbers(keras.utils.PyDataset):
        def __len__(self) -> int:
            return math.ceil(n / batch)

        def __getitem__(self, number: int) -> Any:
            pixels = [_pixel(index) for index in range(n)[number * batch :][:batch]]
            return np.array(pixels, dtype=np.float32).reshape(-1, 1, 1, 3), np.zeros((len(pixels), 1))

    return Numbers(workers=run["workers"], use_multiprocessing=run["processes"])
