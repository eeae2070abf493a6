"""Presets: they are the paper's tables, and each makes a model."""

import numpy as np
import pytest

from kaem.settings import PRESETS, Settings, read_preset


def preset(name):
    """Settings of a preset, and the arguments of its model, prior and generator."""
    settings = Settings.from_dict(read_preset(name))
    return settings, *(settings.arguments[part] for part in ("model", "prior", "generator"))


def test_presets_are_table_hp_nist():
    for name in ("mnist-paper", "fashion-mnist-paper", "mnist-paper-uniform", "mnist-paper-none"):
        settings, m, p, g = preset(name)
        t, o, grid, learner = (
            settings.training,
            settings.optimiser,
            settings.upkeep.grid,
            settings.learner(),
        )
        assert (p["latents"], p["basis"], p["activation"], p["grid_size"]) == (
            40,
            "rbf",
            "relu",
            20,
        )
        assert (p["amplitude"], p["base_mean"]) == (0.1, 1.0)
        assert (p["base_scale"], p["basis_scale"]) == (1.0, 1.0)
        assert (g["depth"], g["output"]) == (2, "sigmoid")
        assert (m["generator_noise"], m["noise"]) == (0.1, 0.1)
        assert (learner.samples, learner.threshold, learner.resampler) == (100, 0.5, "residual")
        assert (grid.interval, grid.decay, grid.ratio) == (100, 0.999, 0.05)
        assert (settings.data.limit, t.batch_size, t.steps) == (50_000, 100, 5000)
        assert (o.prior_rate, o.generator_rate, o.betas) == (1e-3, 1e-3, (0.9, 0.999))
        model = settings.model((28, 28, 1))
        assert model.prior.shape == (81, 40)
        expected = {"gaussian": (-1.5, 1.5), "uniform": (0.0, 1.0), "none": (-1.2, 1.2)}
        np.testing.assert_allclose(model.prior.domain[0], expected[p["reference"]])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_model(name):
    settings = Settings.from_dict(read_preset(name))
    size = settings.data.size or 28
    shape = (size, size, settings.data.channels or 1)
    assert settings.model(shape).data_shape == shape
    settings.plan()


def test_rgb_presets_are_the_papers():
    for name in ("svhn", "cifar10", "celeba"):
        for suffix in ("-paper", "-paper-thermo"):
            settings, m, p, g = preset(name + suffix)
            learner, t = settings.learner(), settings.training
            assert (settings.kinds["prior"], p["basis"]) == ("mixture", "morlet")
            assert (p["latents"], p["domain"]) == (40, (-12, 12))
            assert (p["proportions"], p["reference"], p["activation"]) == (
                "uniform",
                "gaussian",
                None,
            )
            widths = {
                "svhn": (128, 64, 32),
                "cifar10": (256, 128, 64),
                "celeba": (256, 128, 64, 32),
            }
            assert g["widths"] == widths[name]
            assert (t.batch_size, m["noise"], learner.step_size) == (50, 0.3, 0.01)
            assert settings.data.size == (64 if name == "celeba" else 32)
            assert (learner.steps, learner.persistent, t.steps) == (40, False, 80_000)
            assert settings.optimiser.generator_rate == 1e-4
            assert settings.optimiser.prior_rate == 2e-5
            assert settings.data.limit == 40_000
            if suffix == "-paper-thermo":
                assert settings.kinds["learner"] == "thermodynamic"
                assert learner.temperatures == 10
                assert (learner.p_start, learner.p_end, learner.cycles) == (2, 0.5, 0)
    assert len(PRESETS) >= 16
