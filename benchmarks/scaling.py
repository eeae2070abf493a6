"""What devices that share a batch exchange in an update, when that is much, and what sharing costs here.

    .venv/bin/python benchmarks/scaling.py bytes
    .venv/bin/python benchmarks/scaling.py weak [--presets svhn quickstart] [--turns 9] [--seconds 5]

`bytes` compiles an update on two devices of this CPU and adds up the operands of the collectives in
the optimised program; it counts operations, and works out with stated speeds of devices and links from
which batch on the exchange takes less than a tenth of an update. None of that depends on what else the
machine does. `weak` does: it times one process with one core and a batch against two with one core and
half of twice the batch each, in turns, and needs a machine with two cores and nothing else to do. Each
prints one JSON object.
"""

import argparse
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

SHAPES = {"svhn": (32, 32, 3), "svhn-paper": (32, 32, 3), "celeba": (64, 64, 3)}
SIZES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "f16": 2, "bf16": 2, "pred": 1}
SIZES |= {"s8": 1, "u8": 1}
COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"

# Stated, not measured: there is no GPU and no such link here. Bytes per second in one direction, and
# seconds that one message of a ring takes beside its bytes.
LINKS = {
    "25 Gbit/s Ethernet": (25e9 / 8, 20e-6),
    "400 Gbit/s InfiniBand": (400e9 / 8, 5e-6),
    "NVLink, 300 GB/s": (300e9, 3e-6),
}
ATTAINED = {"5 TFLOP/s": 5e12, "30 TFLOP/s": 30e12}  # of a device on these models
DEVICES = (2, 8, 64)
SHARE = 0.1  # of an update that the exchange may take


# Bytes, operations, and the model.


def collectives(program):
    """The collectives of an optimised program: what they do, the bytes of their operands, where they are."""
    found, place = [], ""
    for line in program.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            place = line.removeprefix("ENTRY ").split()[0].lstrip("%")
        match = re.search(rf"= (.*?) ({COLLECTIVES})(?:-start)?\(", line)
        if not match:
            continue
        sizes = [
            SIZES[kind] * math.prod(int(n) for n in dims.split(",") if n)
            for kind, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", match[1])
        ]
        found.append({"kind": match[2], "bytes": sum(sizes), "arrays": len(sizes), "in": place})
    return found


def operations(settings, shape):
    """Floating-point operations of an update for each example, those of its products and convolutions.

    A multiply and an add for each tap of each pixel; a gradient is two more passes, one with respect to
    the latents alone one more.
    """
    from kaem.bench.training import flops_of_decoder

    model = settings.model(shape)
    decoder = flops_of_decoder(model)
    if settings.kinds["learner"] == "langevin":
        return (2 * settings.learner().steps + 3) * decoder
    encoder, pixels = 2 * model.encoder.head.size, shape[0] * shape[1]
    for kernel in model.encoder.weights:
        pixels //= 4
        encoder += 2 * pixels * kernel.size
    return 3 * (decoder + encoder)


def estimate(settings, shape):
    """The same as JAX estimates it, for learners without loops, which it would count once."""
    import equinox as eqx
    import jax

    from kaem.training.parameters import parameters, with_parameters, without
    from kaem.training.plan import initial_state

    if settings.kinds["learner"] != "encoder":
        return None
    plan, batch = settings.plan(), settings.training.batch_size
    state = initial_state(settings.model(shape), plan, batch)
    trained = parameters(state.model, None)
    arrays, static = eqx.partition(without(state.model, trained), eqx.is_array)

    def loss(trained, arrays, x, key, memory):
        model = with_parameters(eqx.combine(arrays, static), trained)
        return plan.learner.objective(model, x, key, memory, 0.5)[0]

    x = jax.ShapeDtypeStruct((batch, *shape), "float32")
    lowered = jax.jit(jax.grad(loss)).lower(trained, arrays, x, jax.random.key(0), state.memory)
    return lowered.cost_analysis()["flops"] / batch


def ring_seconds(size, devices, link):
    """Seconds that a ring all-reduce takes: 2 (N - 1) messages of an Nth of the bytes."""
    bandwidth, latency = LINKS[link]
    return 2 * (devices - 1) * (size / devices / bandwidth + latency)


def least_batch(size, flops, devices, link, speed):
    """The smallest batch of a device for which the exchange is at most `SHARE` of an update."""
    compute = (1 / SHARE - 1) * ring_seconds(size, devices, link)
    return math.ceil(compute * ATTAINED[speed] / flops)


def measure_bytes(presets):
    """Compile and run an update of each preset on two devices, and read the program that was run."""
    folder = tempfile.mkdtemp()
    os.environ["JAX_NUM_CPU_DEVICES"] = "2"
    os.environ["XLA_FLAGS"] = (
        f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*_run.*"
    )
    import jax

    from kaem.bench.training import preset
    from kaem.runs.timing import updater
    from kaem.training.parameters import parameters

    results, details = {}, {}
    for name in presets:
        shape = SHAPES[name]
        settings = preset(name, training={"batch_size": 2})  # what is exchanged is of the model
        before = set(Path(folder).glob("*_after_optimizations.txt"))
        updater(settings, shape)()
        programs = set(Path(folder).glob("*_after_optimizations.txt")) - before
        assert len(programs) == 1, programs
        found = collectives(programs.pop().read_text())
        trained = jax.tree.leaves(parameters(settings.model(shape).trainable(), None))
        total = sum(entry["bytes"] for entry in found)
        count, flops = sum(leaf.size for leaf in trained), operations(settings, shape)
        own = preset(name).training.batch_size
        results[name] = {
            "bytes": total,
            "parameters": count,
            "bytes_over_4_parameters": total / (4 * count),
            "flop_per_example": flops,
            "flop_per_example_by_jax": estimate(preset(name), shape),
            "least_batch": {
                speed: {
                    link: {str(n): least_batch(total, flops, n, link, speed) for n in DEVICES}
                    for link in LINKS
                }
                for speed in ATTAINED
            },
            "batch_of_preset": own,
        }
        details[name] = found
    for path in sorted(Path(folder).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Path(folder).rmdir()
    details["stated"] = {
        "links": {
            name: dict(zip(("bytes_per_second", "seconds_per_message"), link, strict=True))
            for name, link in LINKS.items()
        },
        "attained_flop_per_second": ATTAINED,
        "share": SHARE,
    }
    details["jax"] = jax.__version__
    return {"benchmark": "scaling_bytes", "results": results, "details": details}


# Weak scaling.


def worker(name, batch, core, address, processes, process):
    """Make updates on one core, so many as standard input says; answer with the seconds they took."""
    os.sched_setaffinity(0, {core})
    os.environ["JAX_NUM_CPU_DEVICES"] = "1"
    import time

    import jax

    from kaem.bench.training import preset
    from kaem.processes import connect, disconnect
    from kaem.runs.timing import updater

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    if processes > 1:
        connect(address, processes, process)
    shape = SHAPES.get(name, (28, 28, 1))
    call = updater(preset(name, training={"batch_size": batch}), shape, count=10)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            jax.block_until_ready(call())
        print(time.perf_counter() - began, file=answers, flush=True)
    disconnect()


class Workers:
    """Processes that make updates together."""

    def __init__(self, name, batch, cores):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, __file__, "worker", name, str(batch)]
        number, pipe = str(len(cores)), subprocess.PIPE
        self.running = [
            subprocess.Popen(
                [*command, str(core), address, number, str(i)], stdin=pipe, stdout=pipe, text=True
            )
            for i, core in enumerate(cores)
        ]

    def rate(self, calls):
        """Updates per second, of so many calls of ten."""
        for one in self.running:
            print(calls, file=one.stdin, flush=True)
        return 10 * calls / max(float(one.stdout.readline()) for one in self.running)

    def end(self):
        for one in self.running:
            one.stdin.close()
        for one in self.running:
            one.wait()


def measure_weak(presets, turns, seconds):
    """Time one process on each of two cores, one after the other, and two on both, in turns."""
    from kaem.bench.training import preset

    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("weak scaling is measured on two cores, and this process may use one.")
    results, details = {}, {}
    for name in presets:
        batch = preset(name).training.batch_size
        variants = {f"one_on_core_{core}": Workers(name, batch, [core]) for core in cores}
        variants["two"] = Workers(name, 2 * batch, cores)
        rates = {variant: [] for variant in variants}
        calls = {}
        for variant, workers in variants.items():
            workers.rate(1)  # compiles
            calls[variant] = max(1, round(seconds * workers.rate(1) / 10))
        for _ in range(turns):
            for variant, workers in variants.items():
                rates[variant].append(workers.rate(calls[variant]))
        for workers in variants.values():
            workers.end()
        details[name] = dict(rates)
        two, alone = median(rates.pop("two")), [median(found) for found in rates.values()]
        results[name] = {
            "ratio": two / (sum(alone) / len(alone)),
            "updates_per_second_of_two": two,
            "updates_per_second_of_one": alone,
            "batch_of_one": batch,
        }
    return {"benchmark": "scaling_weak", "results": results, "details": details}


def main():
    if sys.argv[1:2] == ["worker"]:
        name, batch, core, address, processes, process = sys.argv[2:]
        worker(name, int(batch), int(core), address, int(processes), int(process))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("bytes", "weak"))
    parser.add_argument("--presets", nargs="+")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    options = parser.parse_args()
    if options.what == "bytes":
        report = measure_bytes(options.presets or list(SHAPES))
    else:
        presets = options.presets or ["svhn", "quickstart"]
        report = measure_weak(presets, options.turns, options.seconds)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
