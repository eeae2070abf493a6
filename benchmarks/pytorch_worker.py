"""The Langevin hot loop in PyTorch eager, channels-last: a worker for `hot_loop_vs_pytorch.py`.

Runs in an environment of its own with torch. Reads lines from stdin: `run` times one call, `gemm`
one matrix product; answers with seconds. Same sizes as the `svhn-paper` preset: batch 50, 40 ULA steps,
Q = 81 coordinates of P = 40 Morlet components, a 128-64-32 generator.
"""

import sys
import time
from itertools import pairwise

import torch
from torch.nn import functional as F

BATCH, STEPS, Q, P, NOISE, ETA = 50, 40, 81, 40, 0.3, 0.01
CHANNELS = [128, 128, 64, 32, 3]

torch.manual_seed(0)
projection, bias = torch.randn(512, Q) / Q**0.5, torch.zeros(512)
kernels = [
    (torch.randn(i, o, 4, 4) / (4 * i) ** 0.5).contiguous(memory_format=torch.channels_last)
    for i, o in pairwise(CHANNELS)
]
biases = [torch.zeros(o) for o in CHANNELS[1:]]
centre, weight = torch.randn(Q, P) * 0.13, torch.randn(Q, P) * 0.13
width = (torch.rand(Q, P) * 0.05 + 0.0025).sqrt()
x = torch.rand(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
start = torch.randn(BATCH, Q)
square = torch.randn(2048, 2048)


def generate(z):
    h = F.leaky_relu(F.linear(z, projection, bias)).view(-1, 128, 2, 2)
    h = h.contiguous(memory_format=torch.channels_last)
    for i, (kernel, b) in enumerate(zip(kernels, biases, strict=True)):
        h = F.conv_transpose2d(h, kernel, b, stride=2, padding=1)
        h = F.leaky_relu(h) if i < 3 else torch.sigmoid(h)
    return h


def log_joint(z):
    likelihood = -((generate(z) - x) ** 2).sum() / (2 * NOISE**2)
    u = (z[:, :, None] - centre) / width
    energy = weight * torch.cos(u) * torch.exp(-0.5 * u * u) - 0.5 * z[:, :, None] ** 2
    return likelihood + torch.logsumexp(energy, -1).sum()


def hot_loop():
    z = start
    for _ in range(STEPS):
        z = z.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(log_joint(z), z)
        with torch.no_grad():
            z = z + ETA * gradient + (2 * ETA) ** 0.5 * torch.randn_like(z)
    return z


calls = {"run": hot_loop, "gemm": lambda: square @ square}
for call in calls.values():
    call()
print(torch.__version__, flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    calls[line.strip()]()
    print(time.perf_counter() - began, flush=True)
