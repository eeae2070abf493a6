r"""Posterior expectations by importance sampling, with the prior as proposal (Algorithm 2).

The $N$ proposals are shared by the batch: one pass of the generator serves every example, and
the squared distances between examples and proposals are one matrix product. Weights are
$w_{b,s} = \mathrm{softmax}_s \log p(x_b \mid z_s)$; where the effective sample size
$1/\sum_s w_{b,s}^2$ falls below $\gamma N$, they are replaced by resampled counts.
"""

from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..errors import UserError
from ..parallel import gathered, of_batch, place
from ..posterior.resampling import RESAMPLERS
from ..priors import AbstractPrior, open_uniform
from ._learner import AbstractLearner, Memory, Objective, number

if TYPE_CHECKING:
    from ..models import KAEM


class ImportanceInfo(NamedTuple):
    """What importance sampling saw, averaged over the batch."""

    log_likelihood: Float[Array, ""]  # E_posterior[log p(x | z)]
    log_prior: Float[Array, ""]  # E_posterior[log p(z)]
    log_marginal: Float[Array, ""]  # log 1/N sum_s p(x | z_s)
    ess: Float[Array, ""]  # effective sample size, mean
    ess_min: Float[Array, ""]
    collapsed: Float[Array, ""]  # share of examples that rest on a single proposal
    resampled: Float[Array, ""]  # share of examples that were resampled


class ImportanceSampling(AbstractLearner):
    """Self-normalised importance sampling with ESS-gated resampling."""

    samples: int = eqx.field(static=True, default=100)
    threshold: float = eqx.field(static=True, default=0.5)
    resampler: str = eqx.field(static=True, default="residual")
    negative_phase: str = eqx.field(static=True, default="quadrature")

    def __check_init__(self) -> None:
        if self.resampler not in RESAMPLERS:
            raise ValueError(
                f"unknown resampler {self.resampler!r}; choose one of {', '.join(RESAMPLERS)}."
            )
        if self.negative_phase not in ("quadrature", "sampled"):
            raise ValueError(
                f"negative_phase must be 'quadrature' or 'sampled', got {self.negative_phase!r}."
            )
        if self.samples < 1 or not 0 <= self.threshold <= 1:
            raise ValueError(
                f"importance sampling needs samples >= 1 and a threshold in [0, 1], "
                f"got {self.samples} and {self.threshold}."
            )

    @property
    def info_names(self) -> tuple[str, ...]:
        return ImportanceInfo._fields

    def weights(
        self, log_likelihood: Float[Array, "B N"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "B N"], Float[Array, " B"], Float[Array, " B"]]:
        """Return weights [B, N] after gating and resampling, the effective sample sizes, and who resampled."""
        log_w = jax.nn.log_softmax(log_likelihood, axis=1)
        w = jnp.exp(log_w)
        ess = jnp.exp(-jax.nn.logsumexp(2 * log_w, axis=1))
        resample = RESAMPLERS[self.resampler]
        if resample is None:
            return w, ess, jnp.zeros_like(ess)
        low = ess < self.threshold * w.shape[1]
        counts = jax.vmap(resample)(jax.random.split(key, w.shape[0]), w)
        return jnp.where(low[:, None], counts / w.shape[1], w), ess, low.astype(w.dtype)

    def expected_log_joint(
        self, model: "KAEM", x: Float[Array, "B ..."], key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], ImportanceInfo]:
        r"""Return the batch mean of $\mathbb{E}_{p(z\mid x)}[\log p(x\mid z) + \log p(z)]$ (eq. learning-grad).

        Its gradient in the model's parameters is the maximum-likelihood gradient; samples and
        weights are held fixed. Where devices share a batch, they share the proposals instead: each
        decodes its part of them, and weighs it for all examples.
        """
        sample_key, noise_key, weight_key, negative_key = jax.random.split(key, 4)
        prior = model.prior.uncache()
        log_density = prior.log_density_on_nodes()
        table = prior.build_table(log_density)
        index, devices = place()
        mine = self.samples // devices
        u = of_batch(lambda shape: open_uniform(sample_key, shape), (*prior.shape, mine), axis=-1)
        z = jax.lax.stop_gradient(table).inverse_cdf(u)

        x = gathered(x)
        means = model.decode(jnp.moveaxis(z, -1, 0), noise_key)
        mine_log_lik = model.log_likelihood_matrix(x, means)
        log_lik = gathered(jax.lax.stop_gradient(mine_log_lik), axis=1)
        w, ess, resampled = self.weights(log_lik, weight_key)
        # `devices` times the part of this one: all are averaged in the end.
        w = devices * jax.lax.dynamic_slice_in_dim(jax.lax.stop_gradient(w), index * mine, mine, 1)

        likelihood = jnp.sum(w * mine_log_lik) / x.shape[0]
        log_z = prior.log_normaliser(log_density)
        if self.negative_phase == "sampled":
            log_z = self._sampled(prior, jax.lax.stop_gradient(table), log_z, negative_key)
        log_prior = prior.expected_log_prob(z, jnp.mean(w, axis=0), log_z)
        log_marginal = jax.nn.logsumexp(log_lik, axis=1) - jnp.log(self.samples)
        info = ImportanceInfo(
            log_likelihood=likelihood,
            log_prior=log_prior,
            log_marginal=jnp.mean(log_marginal),
            ess=jnp.mean(ess),
            ess_min=jnp.min(ess),
            collapsed=jnp.mean(ess < 1.5),
            resampled=jnp.mean(resampled),
        )
        return likelihood + log_prior, jax.lax.stop_gradient(info)

    def _sampled(
        self, prior: AbstractPrior, table: Any, log_z: Float[Array, "Q P"], key: PRNGKeyArray
    ) -> Float[Array, "Q P"]:
        r"""$\log Z$ with the gradient $\frac1N\sum_s\nabla f(z_s)$, $z_s \sim p$: the paper's negative phase."""
        z = table.inverse_cdf(open_uniform(key, (*prior.shape, self.samples)))
        energy = prior.energies.expectation(z, jnp.full(self.samples, 1 / self.samples))
        return jax.lax.stop_gradient(log_z) + energy - jax.lax.stop_gradient(energy)

    def check(self, model: Any) -> None:
        self._folded(model)
        exact = hasattr(getattr(model, "prior", None), "expected_log_prob")
        self._needs(
            model, exact, "a prior of one-dimensional densities, which can be drawn exactly"
        )
        self._leaves_no_encoder(model)
        if self.negative_phase == "sampled" and len(model.prior.shape) == 1:
            raise UserError(
                "a mixture prior has an exact negative phase only: leave learner.negative_phase at "
                "quadrature, or use prior.kind = univariate for the ablation."
            )

    def splits(self, batch: int) -> int:
        # The cores of one CPU share the large products already: split, an update takes a tenth longer.
        alone = jax.default_backend() == "cpu" and jax.process_count() == 1
        return 1 if alone else gcd(batch, self.samples)

    def objective(
        self, model: "KAEM", x: Array, key: PRNGKeyArray, memory: Memory, progress: Any
    ) -> Objective:
        """Return `expected_log_joint`, what was seen, and what to keep."""
        value, info = self.expected_log_joint(model, x, key)
        return value, (info._asdict(), memory)

    def advice(self, metrics: dict[str, float]) -> str | None:
        if metrics.get("collapsed", 0.0) <= 0.5:
            return None
        return (
            f"the effective sample size has collapsed: {metrics['collapsed']:.0%} of the "
            f"examples rest on one of {self.samples} proposals (mean ESS "
            f"{metrics['ess']:.1f}); learning goes on as nearest-proposal matching, and a "
            "larger learner.samples or model.noise spreads the weight"
        )

    def facts(self, last: dict[str, Any]) -> list[tuple[str, str]]:
        return [("effective sample size", f"{number(last, 'ess', '.1f')} of {self.samples}")]
