"""Rewrites that keep the training what it is, written as an expert would write them; no verification may fail one.

Where a kind is about 16 bits and the script has them already, its variant in float32 is what is rewritten.
"""

from __future__ import annotations

from benchmarks.verification.rewrites import (
    ACCUMULATION,
    ACCUMULATION_32,
    CNN,
    GAN,
    LSTM,
    LSTM_32,
    TABULAR,
    TABULAR_32,
    TRANSFORMER,
    TRANSFORMER_EVEN,
    UNET,
    UNET_32,
    VIT,
    VIT_32,
    VIT_EVEN,
    Edit,
    Subject,
    table,
)
from turbofix.findings import Risk

CHECKPOINT: Edit = ("import torch\n", "import torch\nfrom torch.utils.checkpoint import checkpoint\n")

# CNN, the transformer and the GAN in 16 bits: (what is wrapped, and how it reads inside)
CNN_FORWARD = (
    "        outputs = model(images)\n        loss = F.cross_entropy(outputs, labels)\n",
    "            outputs = model(images)\n            loss = F.cross_entropy(outputs, labels)\n",
)
TRANSFORMER_FORWARD = (
    "        logits = model(src)\n        loss = criterion(",
    "            logits = model(src)\n            loss = criterion(",
)


def cnn_in(dtype: str) -> Edit:
    old, new = CNN_FORWARD
    return old, f"        with torch.autocast(device.type, dtype=torch.{dtype}):\n{new}"


def transformer_in(dtype: str) -> Edit:
    old, new = TRANSFORMER_FORWARD
    return old, f'        with torch.autocast("cuda", dtype=torch.{dtype}):\n{new}'


def gan_in(dtype: str) -> tuple[Edit, ...]:
    context = f'        with torch.autocast("cuda", dtype=torch.{dtype}):\n'
    lines = (
        "        errD_real = criterion(netD(real, quarter), torch.ones(n, device=device))\n",
        """\
        fake = netG(torch.randn(n, latent, device=device), quarter)
        errD_fake = criterion(netD(fake.detach(), quarter), torch.zeros(n, device=device))
""",
        "        errG = criterion(netD(fake, quarter), torch.ones(n, device=device))\n",
    )
    return tuple((line, context + line.replace("        ", "            ")) for line in lines)


KINDS: dict[str, dict[Subject, tuple[Edit, ...]]] = {
    "bf16 autocast": {
        CNN: (cnn_in("bfloat16"),),
        TRANSFORMER: (transformer_in("bfloat16"),),
        GAN: gan_in("bfloat16"),
        LSTM_32: (("dtype=torch.float16, enabled=AMP", "dtype=torch.bfloat16"),),
        ACCUMULATION_32: (("autocast(enabled=use_amp)", "autocast(dtype=torch.bfloat16)"),),
        UNET_32: (("dtype=torch.float16, enabled=self.config.amp", "dtype=torch.bfloat16"),),
        VIT_32: (("autocast(enabled=AMP)", "autocast(dtype=torch.bfloat16)"),),
        TABULAR_32: (('dtype=torch.float16, enabled=CONFIG["amp"]', "dtype=torch.bfloat16"),),
    },
    "fp16 with scaler": {
        CNN: (
            cnn_in("float16"),
            ("scheduler = ", 'scaler = torch.amp.GradScaler("cuda")\nscheduler = '),
            (
                "        loss.backward()\n        optimizer.step()\n",
                "        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()\n",
            ),
        ),
        TRANSFORMER: (
            transformer_in("float16"),
            ("    model.train()\n", '    model.train()\n    scaler = torch.amp.GradScaler("cuda", init_scale=512.0)\n'),
            ("        loss.backward()\n", "        scaler.scale(loss).backward()\n"),
            ("            torch.nn.utils", "            scaler.unscale_(optimizer)\n            torch.nn.utils"),
            ("            optimizer.step()\n", "            scaler.step(optimizer)\n            scaler.update()\n"),
        ),
        GAN: (
            *gan_in("float16"),
            ("criterion = ", 'scaler = torch.amp.GradScaler("cuda", init_scale=256.0)\ncriterion = '),
            ("errD_real.backward()", "scaler.scale(errD_real).backward()"),
            ("errD_fake.backward()", "scaler.scale(errD_fake).backward()"),
            ("        nn.utils.clip", "        scaler.unscale_(optimizerD)\n        nn.utils.clip"),
            ("optimizerD.step()", "scaler.step(optimizerD)"),
            ("errG.backward()", "scaler.scale(errG).backward()"),
            ("        optimizerG.step()\n", "        scaler.step(optimizerG)\n        scaler.update()\n"),
        ),
        LSTM_32: (("AMP = False", "AMP = True"),),
        ACCUMULATION_32: (("use_amp=False", "use_amp=True"),),
        UNET_32: (("amp: bool = False", "amp: bool = True"),),
        VIT_32: (("AMP = False", "AMP = True"),),
        TABULAR_32: (('"amp": False', '"amp": True'),),
    },
    "fused optimizer": {
        CNN: (("weight_decay=5e-4", "weight_decay=5e-4, fused=True"),),
        LSTM: (("lr=5e-3", "lr=5e-3, fused=True"),),
        GAN: (("lr=2e-3,", "lr=2e-3, fused=True,"), ("lr=1e-3,", "lr=1e-3, fused=True,")),
        ACCUMULATION: (("lr=4e-3", "lr=4e-3, fused=True"),),
        TABULAR: (('lr=CONFIG["lr"]', 'lr=CONFIG["lr"], fused=True'),),
    },
    "compile": {
        CNN: (
            ("optimizer = ", "compiled = torch.compile(model)\noptimizer = "),
            ("        outputs = model(images)\n        loss", "        outputs = compiled(images)\n        loss"),
        ),
        TRANSFORMER: (("    criterion = nn", "    model.compile()\n    criterion = nn"),),
        VIT: (("criterion = nn", "model.compile()\ncriterion = nn"),),
        TABULAR_32: (("    optimizer = ", "    model.compile()\n    optimizer = "),),
        ACCUMULATION_32: (
            ("build().to(gpu)", "torch.compile(build().to(gpu))"),
            ("model[:2]", "model._orig_mod[:2]"),
            ("model[2:]", "model._orig_mod[2:]"),
            ("model.state_dict()", "model._orig_mod.state_dict()"),
        ),
    },
    "set_to_none": {
        CNN: (("zero_grad()", "zero_grad(set_to_none=True)"),),
        LSTM: (("zero_grad()", "zero_grad(set_to_none=True)"),),
        GAN: (
            ("netD.zero_grad()", "netD.zero_grad(set_to_none=True)"),
            ("netG.zero_grad()", "netG.zero_grad(set_to_none=True)"),
        ),
        ACCUMULATION: (
            (
                "scheduler.step()\n                optimizer.zero_grad()",
                "scheduler.step()\n                optimizer.zero_grad(set_to_none=True)",
            ),
        ),
        VIT: (("zero_grad()", "zero_grad(set_to_none=True)"),),
    },
    "workers": {
        CNN: (("shuffle=True", "shuffle=True, num_workers=2, persistent_workers=True"),),
        LSTM: (("shuffle=True", "shuffle=True, num_workers=2"),),
        GAN: (("shuffle=True", "shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=4"),),
        ACCUMULATION: (("shuffle=True", "shuffle=True, num_workers=2, persistent_workers=True"),),
        VIT: (("shuffle=True", "shuffle=True, num_workers=2, persistent_workers=True"),),
    },
    "pinning": {
        CNN: (
            ("shuffle=True", "shuffle=True, pin_memory=True"),
            ("labels.to(device)\n        optimizer", "labels.to(device, non_blocking=True)\n        optimizer"),
        ),
        LSTM: (("shuffle=True", "shuffle=True, pin_memory=True"),),
        GAN: (
            ("shuffle=True", "shuffle=True, pin_memory=True"),
            (
                "real.to(device), quarter.to(device)",
                "real.to(device, non_blocking=True), quarter.to(device, non_blocking=True)",
            ),
        ),
        ACCUMULATION: (
            ("shuffle=True", "shuffle=True, pin_memory=True"),
            ('["x"].to(device)\n', '["x"].to(device, non_blocking=True)\n'),
        ),
        VIT: (
            ("shuffle=True", "shuffle=True, pin_memory=True"),
            ("x.to(device), y.to(device)", "x.to(device, non_blocking=True), y.to(device, non_blocking=True)"),
        ),
    },
    "deferred reads": {
        CNN: (
            (
                "    running_loss = 0.0\n    correct = 0\n",
                "    running_loss = torch.zeros((), dtype=torch.float64, device=device)\n    correct = 0\n",
            ),
            ("running_loss += loss.item()", "running_loss += loss.detach()"),
            ("running_loss / len", "running_loss.item() / len"),
            ("labels).sum().item()\n    scheduler", "labels).sum()\n    scheduler"),
        ),
        TRANSFORMER: (
            (
                "    model.train()\n    total = 0.0",
                "    model.train()\n    total = torch.zeros((), dtype=torch.float64, device=device)",
            ),
            ("total += loss.item() * args.accum", "total += loss.detach().double() * args.accum"),
        ),
        ACCUMULATION: (
            ("losses.append(loss.item() * accumulation_steps)", "losses.append(loss.detach())"),
            ("sum(losses)", "sum(one.item() * accumulation_steps for one in losses)"),
        ),
        VIT: (
            ("train_loss += loss.item()", "train_loss += loss.detach().double()"),
            (
                "train_acc += (pred.argmax(1) == y).float().mean().item()",
                "train_acc += (pred.argmax(1) == y).float().mean().double()",
            ),
        ),
        TABULAR: (
            ("epoch_loss += loss.item() * len(rows)", "epoch_loss += loss.detach().double() * len(rows)"),
            ("round(epoch_loss /", "round(epoch_loss.item() /"),
        ),
    },
    "SDPA": {
        TRANSFORMER: (
            (
                """\
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = self.drop(att.softmax(dim=-1))
""",
                "        dropout = self.drop.p if self.training else 0.0\n",
            ),
            (
                "(att @ v).transpose",
                "nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose",
            ),
        ),
        VIT: (
            ("        attn = (q @ k.transpose(-2, -1)) * self.scale\n        attn = attn.softmax(dim=-1)\n", ""),
            ("(attn @ v).transpose", "nn.functional.scaled_dot_product_attention(q, k, v).transpose"),
        ),
    },
    "checkpointing": {
        TRANSFORMER: (CHECKPOINT, ("h = block(h)", "h = checkpoint(block, h, use_reentrant=False)")),
        VIT: (
            CHECKPOINT,
            ("self.layers(x)[:, 0]", "self.layers[1](checkpoint(self.layers[0], x, use_reentrant=False))[:, 0]"),
        ),
        LSTM: (
            CHECKPOINT,
            ("h, _ = self.lstm(self.embed(x))", "h, _ = checkpoint(self.lstm, self.embed(x), use_reentrant=False)"),
        ),
        CNN: (
            CHECKPOINT,
            (
                "outputs = model(images)\n        loss = ",
                "outputs = model[3:](checkpoint(model[2], model[:2](images), use_reentrant=False))\n        loss = ",
            ),
        ),
        TABULAR: (
            CHECKPOINT,
            ("return self.layers(torch", "return checkpoint(self.layers[4:], self.layers[:4](torch"),
            (", 1)).squeeze(1)", ", 1)), use_reentrant=False).squeeze(1)"),
        ),
    },
    "larger batch": {
        TRANSFORMER_EVEN: (
            ('"--batch-size", type=int, default=8', '"--batch-size", type=int, default=32'),
            ('"--accum", type=int, default=4', '"--accum", type=int, default=1'),
        ),
        VIT_EVEN: (("BATCH, ACCUM, LR = 5, 6, 3, 2e-3", "BATCH, ACCUM, LR = 5, 18, 1, 2e-3"),),
    },
    "channels last": {
        CNN: ((").to(device)\n\noptimizer", ").to(device, memory_format=torch.channels_last)\n\noptimizer"),),
        UNET: (("UNet().to(self.device)", "UNet().to(self.device, memory_format=torch.channels_last)"),),
        GAN: (
            (
                "netD = Discriminator().to(device)",
                "netD = Discriminator().to(device, memory_format=torch.channels_last)",
            ),
        ),
    },
    "modern mixed precision": {
        ACCUMULATION: (
            ("torch.cuda.amp import", "torch.amp import"),
            ("GradScaler(enabled", 'GradScaler("cuda", enabled'),
            ("autocast(enabled", 'autocast("cuda", enabled'),
        ),
        VIT: (
            ("torch.cuda.amp.GradScaler(init", 'torch.amp.GradScaler("cuda", init'),
            ("torch.cuda.amp.autocast(", 'torch.autocast("cuda", dtype=torch.float16, '),
        ),
    },
}

EXACT = ("set_to_none", "workers", "pinning", "deferred reads", "modern mixed precision")

REWRITES = table(KINDS, dict.fromkeys(EXACT, Risk.EXACT))
