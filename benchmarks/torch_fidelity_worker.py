"""FID, KID and features by torch-fidelity: a worker for `fid_vs_torch_fidelity.py`.

Runs in an environment of its own. Reads `real`, `fake` and the weights of the network from a
folder, and writes `features.npz` and `metrics.json` there.
"""

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch

# It imports torchvision for data and networks that are not used here.
if importlib.util.find_spec("torchvision") is None:
    for name in ("", ".datasets", ".transforms", ".transforms.functional", ".models"):
        sys.modules[f"torchvision{name}"] = mock.MagicMock()

from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torch_fidelity.metric_fid import fid_featuresdict_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_kid import kid_features_to_metric

BATCH = 16

folder = Path(sys.argv[1])
images = {}
with np.load(folder / "images.npz") as file:
    for side in ("real", "fake"):
        images[side] = torch.from_numpy(file[side].transpose(0, 3, 1, 2).copy())
with np.load(folder / "weights.npz") as file:
    state = {name: torch.from_numpy(file[name]) for name in file.files}
state |= {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008)}
torch.save(state, folder / "weights.pth")

network = FeatureExtractorInceptionV3("inception", ["2048"], str(folder / "weights.pth"))
features = {}
for side, x in images.items():
    with torch.no_grad():
        features[side] = torch.cat([network(some)[0] for some in x.split(BATCH)])
np.savez(folder / "features.npz", **{side: x.numpy() for side, x in features.items()})

# All images as one subset, in place of random ones.
settings = {"kid_subsets": 1, "kid_subset_size": len(features["real"]), "verbose": False}
statistics = [fid_featuresdict_to_statistics({"2048": x}, "2048") for x in features.values()]
metrics = fid_statistics_to_metric(*statistics, verbose=False)
metrics |= kid_features_to_metric(*features.values(), **settings)
metrics |= {name: importlib.metadata.version(name) for name in ("torch", "torch-fidelity")}
(folder / "metrics.json").write_text(json.dumps(metrics))
