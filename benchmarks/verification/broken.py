"""Rewrites that break the training, in the ways that a hurried hand or a wrong rule would break it.

Each kind stands on every script where it changes what is learned or recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    UNET,
    UNET_32,
    VIT,
    VIT_32,
    Edit,
    Subject,
    table,
)

LATE = """
def late(batches):
    last = None
    for batch in batches:
        yield batch if last is None else last
        last = batch


"""


def late(anchor: str, loop: str, batches: str) -> tuple[Edit, ...]:
    """Every batch but the first is the one before, as after a prefetch that is off by one."""
    return (anchor, f"{LATE}{anchor}"), (loop, loop.replace(batches, f"late({batches})"))


LEARNING_RATES: Mapping[Subject, str] = {
    CNN: "lr=0.05",
    TRANSFORMER: "lr=args.lr",
    LSTM: "lr=5e-3",
    GAN: "lr=1e-3",
    ACCUMULATION: "[2e-3, 8e-3]",
    UNET: "lr=config.lr",
    VIT: "lr=LR",
    TABULAR: 'lr=CONFIG["lr"]',
}


def scaled_rates(factor: float) -> dict[Subject, tuple[Edit, ...]]:
    def scaled(text: str) -> str:
        if text.startswith("["):
            return f"[{factor} * rate for rate in {text}]"
        name, _, value = text.partition("=")
        return f"{name}={factor} * {value}"

    return {subject: ((text, scaled(text)),) for subject, text in LEARNING_RATES.items()}


KINDS: dict[str, dict[Subject, tuple[Edit, ...]]] = {
    "missing zero_grad": {
        CNN: (("        optimizer.zero_grad()\n", ""),),
        TRANSFORMER: (("            optimizer.zero_grad()\n", ""),),
        GAN: (("        netG.zero_grad()\n", ""),),
        # With a scaler what is left over has been unscaled, and weighs 1 / scale beside the next gradient: nothing.
        LSTM_32: (("        self.optimizer.zero_grad()\n", ""),),
        ACCUMULATION_32: (("scheduler.step()\n                optimizer.zero_grad()\n", "scheduler.step()\n"),),
        UNET_32: (("        self.optimizer.zero_grad()\n", ""),),
        VIT_32: (("            optimizer.zero_grad()\n", ""),),
        TABULAR_32: (("                    optimizer.zero_grad()\n", ""),),
    },
    "no division": {
        TRANSFORMER: ((" / args.accum\n", "\n"), ("loss.item() * args.accum", "loss.item()")),
        ACCUMULATION: (("                loss = loss / accumulation_steps\n", ""),),
        UNET: (("loss / self.config.accumulate", "loss"),),
        VIT: (("loss / ACCUM)", "loss)"),),
        TABULAR: (('loss / CONFIG["accumulate"]', "loss"),),
    },
    "wrong divisor": {
        TRANSFORMER: ((" / args.accum\n", " / args.batch_size\n"),),
        ACCUMULATION: (("loss = loss / accumulation_steps", "loss = loss / len(loader)"),),
        UNET: (("loss / self.config.accumulate", "loss / self.config.batch_size"),),
        VIT: (("loss / ACCUM)", "loss / (ACCUM + 1))"),),
        TABULAR: (('loss / CONFIG["accumulate"]', "loss / (number % 2 + 1)"),),
    },
    "missing unscale_": {
        LSTM: (("        self.scaler.unscale_(self.optimizer)\n", ""),),
        ACCUMULATION: (("                scaler.unscale_(optimizer)\n", ""),),
        UNET: (("        self.scaler.unscale_(self.optimizer)\n", ""),),
        VIT: (("            scaler.unscale_(optimizer)\n", ""),),
        TABULAR: (("                    scaler.unscale_(optimizer)\n", ""),),
    },
    "learning rate × 2": scaled_rates(2),
    "learning rate × 1.1": scaled_rates(1.1),
    "stale batch": {
        CNN: late("device = ", "for images, labels in train_loader:", "train_loader"),
        TRANSFORMER: late("def train_one_epoch", "in enumerate(loader):", "loader"),
        LSTM: late("class Trainer:", "in self.train_loader:", "self.train_loader"),
        GAN: late("device = ", "in enumerate(loader):", "loader"),
        ACCUMULATION: late("def train(", "in enumerate(loader, 1):", "loader"),
        UNET: late("class Engine:", "in enumerate(self.loader):", "self.loader"),
        VIT: late("protos = ", "in enumerate(train_loader):", "train_loader"),
        TABULAR: (
            ('order[start : start + CONFIG["batch"]]', 'order[max(start - CONFIG["batch"], 0) :][: CONFIG["batch"]]'),
        ),
    },
    "zero before step": {
        CNN: (("        optimizer.step()\n", "        optimizer.zero_grad()\n        optimizer.step()\n"),),
        TRANSFORMER: (
            ("            optimizer.step()\n", "            optimizer.zero_grad()\n            optimizer.step()\n"),
        ),
        LSTM: (
            ("        self.optimizer.zero_grad()\n", ""),
            ("        self.scaler.step(", "        self.optimizer.zero_grad()\n        self.scaler.step("),
        ),
        GAN: (
            ("        optimizerG.step()\n", "        netG.zero_grad(set_to_none=False)\n        optimizerG.step()\n"),
        ),
        ACCUMULATION: (
            (
                "                scaler.step(optimizer)\n",
                "                optimizer.zero_grad(set_to_none=False)\n                scaler.step(optimizer)\n",
            ),
        ),
        UNET: (
            ("        self.optimizer.zero_grad()\n", ""),
            ("        self.scaler.step(", "        self.optimizer.zero_grad()\n        self.scaler.step("),
        ),
        VIT: (
            (
                "            scaler.step(optimizer)\n",
                "            optimizer.zero_grad()\n            scaler.step(optimizer)\n",
            ),
        ),
        TABULAR: (("scaler.step(optimizer)\n", "(model.zero_grad(), scaler.step(optimizer))\n"),),
    },
    "zero each micro-batch": {
        TRANSFORMER: (("        loss.backward()\n", "        optimizer.zero_grad()\n        loss.backward()\n"),),
        ACCUMULATION: (
            ("            with autocast(", "            optimizer.zero_grad()\n            with autocast("),
        ),
        UNET: (
            (
                "            loss = self.loss(images, masks)\n",
                "            loss = self.loss(images, masks)\n            self.optimizer.zero_grad()\n",
            ),
        ),
        VIT: (
            (
                "        with torch.cuda.amp.autocast(",
                "        optimizer.zero_grad()\n        with torch.cuda.amp.autocast(",
            ),
        ),
        TABULAR: (("                rows = ", "                model.zero_grad()\n                rows = "),),
    },
    "evaluation mode": {
        CNN: (("    model.train()\n", ""),),
        TRANSFORMER: (("    model.train()\n", ""),),
        LSTM: (("            self.model.train()\n", ""),),
        GAN: (("netG = Generator().to(device)", "netG = Generator().to(device).eval()"),),
        ACCUMULATION: (("        model.train()\n", ""),),
        UNET: (("        self.net.train()\n", ""),),
        VIT: (("    model.train()\n", ""),),
        TABULAR: (("            model.train()\n", ""),),
    },
    "removed clip": {
        TRANSFORMER: (("            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n", ""),),
        LSTM: (("        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=0.25)\n", ""),),
        GAN: (("        nn.utils.clip_grad_norm_(netD.parameters(), 0.5)\n", ""),),
        ACCUMULATION: (("                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n", ""),),
        UNET: (("        nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)\n", ""),),
        VIT: (("            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""),),
        TABULAR: (('                    nn.utils.clip_grad_norm_(model.parameters(), CONFIG["clip"])\n', ""),),
    },
    "frozen parameters": {
        CNN: (("optimizer = ", "model[0].requires_grad_(False)\noptimizer = "),),
        TRANSFORMER: (("optim.Adam(model.parameters()", "optim.Adam(list(model.parameters())[1:]"),),
        LSTM: (
            (
                "        self.criterion = ",
                "        self.model.embed.weight.requires_grad = False\n        self.criterion = ",
            ),
        ),
        GAN: (("criterion = ", "netG.net[6:].requires_grad_(False)\ncriterion = "),),
        ACCUMULATION: (('{"params": model[2:].parameters()}', '{"params": model[3:].parameters()}'),),
        UNET: (
            (
                "        self.optimizer = ",
                "        self.net.head.bias.requires_grad_(False)\n        self.optimizer = ",
            ),
        ),
        VIT: (("        x = torch.cat([self.cls.", "        x = torch.cat([self.cls.detach()."),),
        TABULAR: (("self.kind(kinds)]", "self.kind(kinds).data]"),),
    },
    "double step": {
        CNN: (("        optimizer.step()\n", "        optimizer.step()\n        optimizer.step()\n"),),
        TRANSFORMER: (
            ("            optimizer.step()\n", "            optimizer.step()\n            optimizer.step()\n"),
        ),
        LSTM: (
            (
                "        self.scaler.step(self.optimizer)\n",
                "        self.scaler.step(self.optimizer)\n        self.optimizer.step()\n",
            ),
        ),
        GAN: (("        optimizerD.step()\n", "        optimizerD.step()\n        optimizerD.step()\n"),),
        ACCUMULATION: (
            (
                "                scaler.step(optimizer)\n",
                "                scaler.step(optimizer)\n                optimizer.step()\n",
            ),
        ),
        UNET: (
            (
                "        self.scaler.step(self.optimizer)\n",
                "        self.scaler.step(self.optimizer)\n        self.optimizer.step()\n",
            ),
        ),
        VIT: (("            scaler.update()\n", "            scaler.update()\n            optimizer.step()\n"),),
        TABULAR: (("scaler.step(optimizer)\n", "(scaler.step(optimizer), optimizer.step())\n"),),
    },
    "shifted labels": {
        CNN: (
            (
                "        loss = F.cross_entropy(outputs, labels)\n",
                "        loss = F.cross_entropy(outputs, labels.roll(1))\n",
            ),
        ),
        TRANSFORMER: (("sequences.flip(1))", "sequences.flip(1).roll(1, 1))"),),
        LSTM: (("return word[:-1], word[1:]", "return word[:-1], word[:-1]"),),
        GAN: (("criterion(netD(real, quarter)", "criterion(netD(real, quarter.roll(1))"),),
        ACCUMULATION: (('"y": self.y[idx]', '"y": self.y[idx - 1]'),),
        UNET: (
            ("            masks = masks.to(self.device)\n", "            masks = masks.to(self.device).roll(1, -1)\n"),
        ),
        VIT: (("loss = criterion(pred, y)", "loss = criterion(pred, (y + 1) % 5)"),),
        TABULAR: (("prices[rows])\n", "prices[rows - 1])\n"),),
    },
    "lost shuffling": {
        **dict.fromkeys((CNN, TRANSFORMER, LSTM, GAN, ACCUMULATION, UNET, VIT), ((", shuffle=True", ""),)),
        TABULAR: (("torch.randperm(len(prices))", "torch.arange(len(prices))"),),
    },
    "dropped last batch": {
        **dict.fromkeys(
            (CNN, TRANSFORMER, LSTM, GAN, ACCUMULATION, UNET, VIT), (("shuffle=True", "shuffle=True, drop_last=True"),)
        ),
        TABULAR: (
            ('range(0, len(prices), CONFIG["batch"])', 'range(0, len(prices) - CONFIG["batch"] + 1, CONFIG["batch"])'),
        ),
    },
    "Adam to AdamW with decay": {
        TRANSFORMER: (("torch.optim.Adam(", "torch.optim.AdamW("),),
        LSTM: (("torch.optim.Adam(", "torch.optim.AdamW("),),
        GAN: (("optimizerG = torch.optim.Adam(", "optimizerG = torch.optim.AdamW("),),
        ACCUMULATION: (("torch.optim.Adam(", "torch.optim.AdamW("),),
        UNET: (("torch.optim.Adam(", "torch.optim.AdamW("),),
        VIT: (("torch.optim.Adam(", "torch.optim.AdamW("),),
        TABULAR: (("torch.optim.Adam(", "torch.optim.AdamW("),),
    },
    "BatchNorm momentum": {
        CNN: (("nn.BatchNorm2d(16)", "nn.BatchNorm2d(16, momentum=0.05)"),),
        GAN: (("nn.BatchNorm2d(8)", "nn.BatchNorm2d(8, momentum=0.2)"),),
        ACCUMULATION: (("nn.BatchNorm1d(width)", "nn.BatchNorm1d(width, momentum=0.01)"),),
        UNET: (
            (
                "nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b)",
                "nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b, momentum=0.05)",
            ),
        ),
        TABULAR: (("self.bn = nn.BatchNorm1d(9)", "self.bn = nn.BatchNorm1d(9, momentum=None)"),),
    },
}

# The same mistakes where no name, setting or count shows them: the numbers alone can.
DISGUISED: dict[str, dict[Subject, tuple[Edit, ...]]] = {
    "learning rate × 1.1, after the step": {
        CNN: (
            (
                "        optimizer.step()\n",
                """\
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        with torch.no_grad():
            for p, old in zip(model.parameters(), before):
                p.add_(p - old, alpha=0.1)
""",
            ),
        ),
        TRANSFORMER: (
            (
                "            optimizer.step()\n",
                """\
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            for p, old in zip(model.parameters(), before):
                p.data += 0.1 * (p.data - old)
""",
            ),
        ),
    },
    "weight decay, before the step": {
        LSTM: (
            (
                "        self.scaler.update()\n",
                "        self.scaler.update()\n        for p in self.model.parameters(): p.data *= 0.9999\n",
            ),
        ),
        VIT: (
            (
                "            scaler.step(optimizer)\n",
                "            for p in model.parameters(): p.data.mul_(0.9999)\n            scaler.step(optimizer)\n",
            ),
        ),
    },
    "one layer's statistics doubled": {
        CNN: (("        loss.backward()\n", "        loss.backward()\n        model[1].running_var.mul_(1.05)\n"),),
        UNET: (
            (
                "            total += loss.detach()\n",
                "            total += loss.detach()\n            self.net.down2[1].running_mean.zero_()\n",
            ),
        ),
    },
    "one gradient halved": {
        GAN: (("        optimizerG.step()\n", "        netG.label.weight.grad /= 2\n        optimizerG.step()\n"),),
        ACCUMULATION: (
            (
                "                scaler.step(optimizer)\n",
                "                model[3].body[4].bias.grad /= 2\n                scaler.step(optimizer)\n",
            ),
        ),
        TABULAR: (("scaler.step(optimizer)\n", "(model.kind.weight.grad.div_(2), scaler.step(optimizer))\n"),),
    },
    "checkpointing over BatchNorm": {
        ACCUMULATION: (
            (
                "torch.relu(x + self.body(x))",
                "torch.relu(x + torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False))",
            ),
            ("import torch\n", "import torch\nimport torch.utils.checkpoint\n"),
        ),
        UNET: (
            (
                "b = self.down2(F.max_pool2d(a, 2))",
                "b = torch.utils.checkpoint.checkpoint(self.down2, F.max_pool2d(a, 2), use_reentrant=False)",
            ),
            ("import torch\n", "import torch\nimport torch.utils.checkpoint\n"),
        ),
    },
}

REWRITES = table({**KINDS, **DISGUISED})
