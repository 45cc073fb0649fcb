"""DCGAN on pictures of 64 x 64: two small networks, two optimizers."""

from __future__ import annotations

import itertools

from benchmarks.training.job import Job, Load, Setting


def flops(latent: int, width: int) -> float:
    """Of one real picture: what the two updates need.

    The generator goes forward and backward once (3 passes). The discriminator goes forward three times, backward for
    its own weights twice (2 passes each), and once to hand the gradient on (1 pass).
    """
    widths = [width * 8, width * 4, width * 2, width, 3]
    between: float = sum(4.0 * a * b * 64 * 4.0**level for level, (a, b) in enumerate(itertools.pairwise(widths)))
    generator = latent * widths[0] * 16 + between
    discriminator = between + widths[0] * 16
    return 2 * (3 * generator + 8 * discriminator)


FULL = ("--images", "25600", "--niter", "20")
TINY = ("--batchSize", "8", "--images", "96", "--nz", "16", "--ngf", "8", "--ndf", "8", "--niter", "2")

JOB = Job(
    name="dcgan",
    title="DCGAN at 64 pixels, BCELoss behind a sigmoid, five numbers read in every step, batches of 128",
    sample="image",
    source="two for each multiplication of the convolutions, in as many passes as the two updates need; an image is "
    "one real and one made picture",
    full=Setting(Load(FULL, steps=4000, samples=128), flops(100, 64)),
    tiny=Setting(
        Load(TINY, steps=24, samples=8),
        flops(16, 8),
        own={"library": Load((*TINY, "--workers", "0"), steps=24, samples=8)},
    ),
    loss=r"Loss_D:? (\d+\.\d+)",
    compile=(
        (
            "netD.apply(weights_init)\n",
            "netD.apply(weights_init)\nnetG, netD = torch.compile(netG), torch.compile(netD)\n",
        ),
    ),
    switches=(
        (
            "torch.manual_seed(opt.manualSeed)\n",
            "torch.manual_seed(opt.manualSeed)\ntorch.set_float32_matmul_precision('high')\n",
        ),
        *(
            (
                f"        {name} = {call}\n",
                (
                    f"        with torch.autocast(device_type=device.type, dtype=torch.bfloat16):\n"
                    f"            {name} = {call}\n"
                    f"        {name} = {name}.float()  # BCELoss takes no 16 bits\n"
                ),
            )
            for name, call in (
                ("output", "netD(real_cpu)"),
                ("fake", "netG(noise)"),
                ("output", "netD(fake.detach())"),
                ("output", "netD(fake)"),
            )
        ),
    ),
    expects=(
        *("autocast", "channels-last", "cudnn-benchmark", "fused-optimizer", "compile-model", "defer-item"),
        *("skip-unused-gradients", "loader-workers", "pin-memory", "non-blocking"),
    ),
    remarks=(
        (
            "the expert's step is one CUDA graph over pictures on the GPU; its discriminator ends in logits, whose "
            "loss is the same as that of a sigmoid's results"
        ),
    ),
    silent={
        "compile-model": "a step trains two networks",
    },
)
