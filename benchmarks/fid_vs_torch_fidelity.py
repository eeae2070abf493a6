"""FID and KID by kaem and by torch-fidelity, on the same images with the same weights.

    .venv/bin/python benchmarks/fid_vs_torch_fidelity.py REAL FAKE --python PYTHON --weights FILE

REAL and FAKE are datasets or files of RGB images, as for `kaem train --data`; the first `--images`
of each are used. PYTHON is the interpreter of an environment with torch and torch-fidelity; it runs
`torch_fidelity_worker.py` beside this script. KID is of all images, without subsets, so that it
does not depend on how they are drawn. Prints one JSON object.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(os.cpu_count()))  # as `kaem` does

import numpy as np

from kaem.data import load
from kaem.metrics.inception.features import Extractor, checked_pair, extract
from kaem.metrics.inception.weights import read_weights

PARTS = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")


def by_kaem(images, extractor):
    from kaem.metrics.distances.frechet import frechet_distance, statistics
    from kaem.metrics.distances.kernel import mmd

    real, fake = (extract(images[side], extractor) for side in ("real", "fake"))
    fid = frechet_distance(statistics(real), statistics(fake))
    return {"real": real, "fake": fake}, {"fid": fid, "kid": mmd(real, fake)}


def by_torch_fidelity(images, weights, python):
    arrays = {}
    for name, values in read_weights(weights).items():
        arrays |= {f"{name}.{part}": value for part, value in zip(PARTS, values, strict=True)}
        arrays[f"{name}.bn.num_batches_tracked"] = np.array(0)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "images.npz", **images)
        np.savez(Path(folder) / "weights.npz", **arrays)
        script = Path(__file__).with_name("torch_fidelity_worker.py")
        subprocess.run([python, str(script), folder], check=True)
        with np.load(Path(folder) / "features.npz") as file:
            features = dict(file)
        return features, json.loads((Path(folder) / "metrics.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("real")
    parser.add_argument("fake")
    parser.add_argument("--python", required=True, help="of an environment with torch-fidelity")
    parser.add_argument("--weights", help="as for `kaem evaluate`")
    parser.add_argument("--images", type=int, default=1000, help="of each side")
    options = parser.parse_args()
    sides = (load(source, limit=options.images) for source in (options.real, options.fake))
    real, fake = checked_pair(*sides, (options.real, options.fake))
    count = min(len(real), len(fake))
    images = {"real": real[:count], "fake": fake[:count]}
    extractor = Extractor(options.weights)
    ours, values = by_kaem(images, extractor)
    theirs, metrics = by_torch_fidelity(images, extractor.path, options.python)
    fid = metrics["frechet_inception_distance"]
    kid = metrics["kernel_inception_distance_mean"]
    features = max(float(np.max(np.abs(ours[side] - theirs[side]))) for side in images)
    results = {
        "fid_kaem": values["fid"],
        "fid_torch_fidelity": fid,
        "fid_relative_difference": abs(values["fid"] / fid - 1),
        "kid_kaem": values["kid"],
        "kid_torch_fidelity": kid,
        "kid_relative_difference": abs(values["kid"] / kid - 1),
        "largest_difference_of_features": features,
        "images": count,
        "weights_sha256": extractor.sha256,
        "torch": metrics["torch"],
        "torch_fidelity": metrics["torch-fidelity"],
    }
    print(json.dumps({"benchmark": "fid_vs_torch_fidelity", "results": results}, indent=2))


if __name__ == "__main__":
    main()
