"""A diffusion model: a U-Net with 28 million parameters that tells the noise in pictures of 32 x 32."""

from __future__ import annotations

import itertools

from benchmarks.training.job import Job, Load, Setting


def flops(size: int, width: int) -> float:
    """Of one picture, forward and backward: three times the products of the forward pass."""
    dims = [width * each for each in (1, 1, 2, 2, 2)]
    pairs = list(itertools.pairwise(dims))
    time = 4 * width

    def conv(before: int, after: int, pixels: int, kernel: int = 3) -> float:
        return 2 * kernel**2 * before * after * pixels**2

    def block(before: int, after: int, pixels: int) -> float:
        skip = conv(before, after, pixels, 1) if before != after else 0
        return conv(before, after, pixels) + conv(after, after, pixels) + skip + 2 * time * after

    def attention(dim: int, pixels: int) -> float:
        return conv(dim, 4 * dim, pixels, 1) + 4 * pixels**4 * dim

    total, at = conv(3, width, size) + 2 * (width * time + time**2), size
    for level, (before, after) in enumerate(pairs):
        total += block(before, after, at) + block(after, after, at) + (attention(after, at) if at == 16 else 0)
        if level < len(pairs) - 1:
            at //= 2
            total += conv(after, after, at, 4)
    total += 2 * block(dims[-1], dims[-1], at) + attention(dims[-1], at)
    for level, (before, after) in enumerate(reversed(pairs)):
        total += block(2 * after, after, at) + block(2 * after, before, at) + (attention(before, at) if at == 16 else 0)
        if level < len(pairs) - 1:
            at *= 2
            total += conv(before, before, at)
    return 3 * (total + block(2 * width, width, size) + conv(width, 3, size, 1))


FULL = ("--epochs", "6", "--images", "12800", "--ema_start", "100")
TINY = (
    *("--epochs", "2", "--batch_size", "8", "--images", "96", "--image_size", "16", "--dim", "16", "--lr", "1e-3"),
    *("--ema_start", "6", "--print_every", "4", "--samples", "2", "--sample_steps", "3"),
)

JOB = Job(
    name="ddpm",
    title="DDPM's U-Net at 32 pixels, attention written by hand, an average of the weights, batches of 128",
    sample="image",
    source="two for each multiplication (8.9 billion forward by torch.utils.flop_counter), times three",
    full=Setting(Load(FULL, steps=600, samples=128), flops(32, 128)),
    tiny=Setting(
        Load(TINY, steps=24, samples=8),
        flops(16, 16),
        own={"library": Load((*TINY, "--workers", "0"), steps=24, samples=8)},
    ),
    loss=r"mean MSE (\d+\.\d+)",
    compile=(
        (
            "    model = Unet(dim=args.dim, img_size=args.image_size).to(device)\n",
            "    model = Unet(dim=args.dim, img_size=args.image_size).to(device)\n    model = torch.compile(model)\n",
        ),
    ),
    switches=(
        (
            "    torch.manual_seed(args.seed)\n",
            "    torch.manual_seed(args.seed)\n    torch.set_float32_matmul_precision('high')\n",
        ),
        (
            "            predicted_noise = model(x_t, t)\n            loss = mse(noise, predicted_noise)\n",
            (
                "            with torch.autocast(device_type=device, dtype=torch.bfloat16):\n"
                "                predicted_noise = model(x_t, t)\n"
                "                loss = mse(noise, predicted_noise)\n"
            ),
        ),
    ),
    expects=(
        *("sdpa", "autocast", "channels-last", "cudnn-benchmark", "fused-optimizer", "compile-model"),
        *("foreach-ema", "device-tensors", "defer-item", "loader-workers", "pin-memory", "non-blocking"),
    ),
    remarks=("the expert keeps the pictures and the schedule of the noise on the GPU",),
    silent={
        "compile-model": "the widths of its layers are computed in a list, so that their work is not known to be "
        "noticeable",
    },
)
