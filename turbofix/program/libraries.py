"""What is known of torch and its neighbours, as tables: which name is which, and which call makes what.

A qualified name is canonical when it is the shortest one that the library documents: ``torch.optim.Adam``, not
``torch.optim.adam.Adam``. Names of libraries that are not listed here stay as the program writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from turbofix.regex import regex


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


EXTERNAL = words(
    """
    accelerate absl apex argparse builtins click cv2 deepspeed diffusers einops fire horovod hydra imageio ipdb
    joblib librosa lightning matplotlib nltk numpy omegaconf pandas PIL psutil pynvml pytorch_lightning rich scipy
    seaborn simple_parsing skimage sklearn spacy sympy tensorboard tensorboardX tensorflow tiktoken timm tokenizers
    torch torch_geometric torchaudio torchmetrics torchtext torchvision tqdm transformers typer tyro wandb xformers
    yaml bitsandbytes torchdata abc array ast asyncio base64 bisect collections contextlib copy csv ctypes
    dataclasses datetime decimal enum errno functools gc glob gzip hashlib heapq html importlib inspect io itertools
    json logging math multiprocessing numbers operator os pathlib pdb pickle pprint random re select shutil signal
    socket sqlite3 ssl string struct subprocess sys tarfile tempfile textwrap threading time traceback typing
    typing_extensions unittest urllib uuid warnings weakref xml zipfile __future__
    """
)
"""Packages that are taken from the library even where the project has a file of that name, whose source is not read.

Only a script that lies in such a package means its own."""

LOSSES = frozenset(
    "torch.nn.functional." + name
    for name in words(
        """
        binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss
        gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss linear_cross_entropy
        margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
        nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
        triplet_margin_with_distance_loss
        """
    )
)
"""Functions that compute a loss."""

SCALAR_LOSSES = frozenset(
    "torch.nn." + name
    for name in words(
        """
        BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss GaussianNLLLoss HingeEmbeddingLoss
        HuberLoss KLDivLoss L1Loss MSELoss MarginRankingLoss MultiLabelMarginLoss MultiLabelSoftMarginLoss
        MultiMarginLoss NLLLoss PoissonNLLLoss SmoothL1Loss SoftMarginLoss TripletMarginLoss
        """
    )
)
"""Modules whose result has no dimension unless ``reduction`` says otherwise."""


class Gone(NamedTuple):
    """A row of ``gone.tsv``, which says what its columns are."""

    name: str
    instead: str
    since: str
    torch: str
    note: str


def rows_of(name: str) -> list[list[str]]:
    """The rows of a table beside this file, by columns."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


OPTIMIZER_PARAMETERS = {name: tuple(given.split()) for name, given in rows_of("parameters.tsv")}
"""The parameters of torch's optimizers, in order."""

LOADER_PARAMETERS = OPTIMIZER_PARAMETERS.pop("torch.utils.data.DataLoader")
"""The parameters of ``torch.utils.data.DataLoader``, in order."""


@cache
def _shorter() -> dict[str, str]:
    return {row[0]: row[1] for row in rows_of("packages.tsv")}


@cache
def _gone() -> dict[str, Gone]:
    return {row[0]: Gone(*row) for row in rows_of("gone.tsv")}


@lru_cache(maxsize=8192)
def dropped(qualname: str) -> Gone | None:
    """What of a qualified name is gone."""
    parts = qualname.split(".")
    heads = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((_gone()[head] for head in heads if head in _gone()), None)


REDUCTIONS = words("sum mean prod")
"""Functions and methods of tensors that give a tensor without a dimension where they are told none."""

_FLOAT32 = words(
    """
    pow __pow__ __rpow__ __rdiv__ __rtruediv__ acos asin cosh sinh tan cdist dist cosine_similarity cumprod cumsum
    erfinv exp expm1 log log10 log2 log1p log_softmax softmax softmin softplus layer_norm group_norm norm nuclear_norm
    normalize pdist prod reciprocal rsqrt sum renorm logsumexp pairwise_distance float double square
    Softmax LogSoftmax Softmin Softplus LayerNorm GroupNorm CosineSimilarity PairwiseDistance Embedding
    """
)
_CASTS = frozenset({"float", "double"})
_HALF = words(
    """
    matmul mm bmm baddbmm addmm addmv addbmm addr chain_matmul mv einsum tensordot linear bilinear __matmul__ prelu
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention
    Linear Bilinear LazyLinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LSTM GRU RNN
    LSTMCell GRUCell RNNCell MultiheadAttention Transformer TransformerEncoder TransformerDecoder
    TransformerEncoderLayer TransformerDecoderLayer
    """
)


NO_KERNEL, NO_MIXING = "has no kernel for 16 bits", "does not mix 16 and 32 bits"
_NO_KERNEL = words(
    """
    cholesky cholesky_inverse cholesky_solve complex det eig geqrf inverse istft logdet lstsq lu lu_solve nanquantile
    pinverse polar qr quantile slogdet stft svd svd_lowrank symeig triangular_solve view_as_complex
    """
)
_MIXED: Mapping[str, tuple[tuple[str, int], ...]] = {
    **dict.fromkeys(("index_add", "scatter", "scatter_add", "scatter_reduce"), (("source", 2), ("src", 2))),
    **dict.fromkeys(("smm", "spmm", "sspaddmm"), ()),
    "index_copy": (("tensor", 2), ("source", 2)),
    "index_put": (("values", 1),),
    "lerp": (("end", 0), ("weight", 1)),
    "masked_scatter": (("source", 1),),
}
"""What takes operands of one type, and which of them can be given that of the first: by name, or place in a method."""
_PAIRS = words("cholesky_solve complex lstsq lu_solve polar solve solve_ex solve_triangular triangular_solve")
_UNFIT_PACKAGES = {
    "torch.linalg.": NO_KERNEL,
    "torch.fft.": NO_KERNEL,
    "torch.sparse.": NO_MIXING,
    "torch_scatter.": NO_MIXING,
    "torch_sparse.": NO_MIXING,
}
_FIT = words(
    """
    fftfreq rfftfreq fftshift ifftshift norm vector_norm matrix_norm cross diagonal vecdot matmul multi_dot matrix_power
    """
)
"""What of those packages computes in 16 bits, or is widened by autocast."""
_OF_COMPLEX = ("torch.fft.i", "torch.fft.hfft", "torch.istft", "Tensor.istft")


@lru_cache(maxsize=1024)
def unfit_for_half(name: str) -> str | None:
    """Why an operation raises where one of its operands comes in 16 bits, as under autocast; None for most.

    That there is no kernel was seen on torch 2.13, each called with bfloat16; in float16 some have none either.
    """
    owner, _, last = name.rstrip("_").rpartition(".")
    if owner in ("torch", "Tensor"):
        if last in _NO_KERNEL:
            return NO_KERNEL
        if last in _MIXED:
            return NO_MIXING
    if owner in ("torch.linalg", "torch.fft") and last in _FIT:
        return None
    return next((why for package, why in _UNFIT_PACKAGES.items() if name.startswith(package)), None)


def is_sigmoid(name: str) -> bool:
    """Whether a call gives probabilities, of which 16 bits round those near 1 to 1."""
    return name in ("torch.sigmoid", "Tensor.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit")


def widened_operands(name: str) -> tuple[tuple[str, int], ...]:
    """The operands of what is unfit for 16 bits that can be given another type, by name and by place in the call.

    Nothing where they may be complex numbers, which have no other type.
    """
    owner, _, last = name.rstrip("_").rpartition(".")
    method = owner == "Tensor"
    if owner in ("torch", "Tensor") and last in _MIXED:
        return tuple((key, place + (not method)) for key, place in _MIXED[last])
    if not is_sigmoid(name) and (unfit_for_half(name) != NO_KERNEL or name.startswith(_OF_COMPLEX)):
        return ()
    places = ("input", "real", "abs", "A"), ("other", "imag", "angle", "B")
    return tuple((key, place - method) for place in range(1 + (last in _PAIRS)) for key in places[place])


def is_product(name: str) -> bool:
    """Whether a call multiplies matrices: a function of torch, or a method or operator of a tensor."""
    owner, _, last = name.rpartition(".")
    return owner in ("torch", "Tensor", "torch.nn.functional") and last in _HALF


def precision_of(name: str, *, half: bool) -> bool:
    """Whether an operation of torch gives 16 bits under autocast, where ``half`` says whether its operands have them.

    The lists are those of torch's page on autocast; what they do not name takes the precision of its operands.
    """
    last = name.rpartition(".")[2]
    return last in _HALF or (half and last not in _FLOAT32 and unfit_for_half(name) != NO_KERNEL)


def is_widened(name: str) -> bool:
    """Whether autocast lets an operation of torch compute in 32 bits; outside of it the operands' 16 bits stay."""
    owner, _, last = name.rpartition(".")
    return owner in ("torch", "Tensor", "torch.nn.functional") and last in _FLOAT32 - _CASTS


_SEVERAL = words(
    """
    LSTM GRU RNN LSTMCell MultiheadAttention AdaptiveLogSoftmaxWithLoss ModuleList ModuleDict DataParallel
    """
)
_CLASSIFIERS = ("alexnet", "convnext", "densenet", "efficientnet", "mobilenet", "resnet", "shufflenet", "vgg", "vit")


def returns_tensor(module: str) -> bool:
    """Whether a library's module gives one tensor, whatever it is given."""
    package, _, name = module.rpartition(".")
    if package in ("torch.nn", "timm"):
        return name not in _SEVERAL
    return package.startswith("torchvision.models") and "segmentation" not in package and name.startswith(_CLASSIFIERS)


FACTORIES = words(
    """
    arange as_tensor asarray bartlett_window blackman_window complex empty empty_like eye from_file from_numpy
    frombuffer full full_like hamming_window hann_window linspace logspace normal ones ones_like rand rand_like
    randint randint_like randn randn_like randperm scalar_tensor sparse_coo_tensor sparse_csr_tensor tensor
    tril_indices triu_indices zeros zeros_like Tensor FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor
    IntTensor ShortTensor ByteTensor CharTensor BoolTensor
    """
)
"""Members of ``torch`` that make a tensor. Those named ``..._like`` make it where another tensor is."""

LIKE_TENSORS = ("torch.", "torchvision.transforms.", "torchaudio.", "einops.", "torch_geometric.data.")
"""Packages whose functions and classes give tensors, or what is pinned and moved as tensors are."""

FROM_HOST = frozenset(
    {"from_numpy", "tensor", "as_tensor", "asarray", "frombuffer", "FloatTensor", "LongTensor", "Tensor"}
)
"""Factories whose content comes from the host's ordinary (pageable) memory."""

NO_TENSOR = words(
    """
    are_deterministic_algorithms_enabled can_cast finfo get_autocast_dtype get_autocast_gpu_dtype get_default_device
    get_default_dtype get_float32_matmul_precision get_num_interop_threads get_num_threads get_rng_state iinfo
    initial_seed is_autocast_enabled is_complex is_floating_point is_grad_enabled is_nonzero is_storage is_tensor
    manual_seed numel save seed set_anomaly_enabled set_default_device set_default_dtype set_default_tensor_type
    set_deterministic_debug_mode set_float32_matmul_precision set_flush_denormal set_num_interop_threads
    set_num_threads set_printoptions set_rng_state set_warn_always typename use_deterministic_algorithms result_type
    promote_types
    """
)
"""Functions of ``torch`` that do not return a tensor."""

SWITCHES = words(
    """
    torch.set_float32_matmul_precision torch.use_deterministic_algorithms torch.set_deterministic
    torch.set_default_dtype torch.set_default_tensor_type torch.set_default_device torch.set_num_threads
    torch.set_num_interop_threads torch.set_anomaly_enabled torch.manual_seed torch.cuda.manual_seed
    torch.cuda.manual_seed_all torch.cuda.set_device torch.set_deterministic_debug_mode torch.set_flush_denormal
    torch.backends.cuda.enable_flash_sdp torch.backends.cuda.enable_math_sdp
    torch.backends.cuda.enable_mem_efficient_sdp torch.backends.cuda.enable_cudnn_sdp
    torch.multiprocessing.set_start_method torch.multiprocessing.set_sharing_strategy
    multiprocessing.set_start_method random.seed numpy.random.seed transformers.set_seed
    torch.cuda.set_per_process_memory_fraction
    """
)
"""Calls that set a switch for the whole process."""

RUNTIME = words(
    """
    os.cpu_count multiprocessing.cpu_count torch.multiprocessing.cpu_count os.getpid os.process_cpu_count
    torch.cuda.is_available torch.cuda.device_count torch.cuda.current_device torch.cuda.is_bf16_supported
    torch.cuda.get_device_capability torch.cuda.get_device_name torch.cuda.get_device_properties
    torch.cuda.is_initialized torch.cuda.mem_get_info torch.cuda.memory_allocated torch.cuda.max_memory_allocated
    torch.cuda.memory_reserved torch.cuda.max_memory_reserved torch.distributed.get_rank
    torch.distributed.get_world_size torch.distributed.is_available torch.distributed.is_initialized
    torch.backends.mps.is_available torch.backends.mps.is_built torch.backends.cudnn.is_available
    torch.backends.cudnn.version torch.xpu.is_available torch.accelerator.is_available
    torch.accelerator.device_count torch.mps.is_available torch.npu.is_available torch.backends.cuda.is_built
    os.sched_getaffinity
    """
)
"""Calls whose result depends on the machine or the launch."""

PROGRESS = words(
    """
    tqdm.tqdm tqdm.trange tqdm.tqdm_notebook tqdm.tnrange tqdm.contrib.tenumerate rich.progress.track
    fastprogress.progress_bar fastprogress.master_bar fastprogress.fastprogress.progress_bar
    fastprogress.fastprogress.master_bar progressbar.progressbar progressbar.ProgressBar alive_progress.alive_it
    click.progressbar
    """
)
"""Calls that put a progress bar around an iterable."""

BARS = PROGRESS - words("tqdm.trange tqdm.tnrange progressbar.ProgressBar click.progressbar") | words(
    "accelerate.utils.tqdm accelerate.utils.tqdm.tqdm"
)
"""Those that give, one by one, all that their first argument gives."""

PARSERS = words(
    """
    argparse.ArgumentParser configargparse.ArgumentParser configargparse.ArgParser configargparse.ArgParse
    jsonargparse.ArgumentParser optparse.OptionParser simple_parsing.ArgumentParser
    """
)
"""Classes that parse a command line by declared arguments."""

NAMESPACES = words(
    """
    argparse.Namespace types.SimpleNamespace easydict.EasyDict dotmap.DotMap munch.Munch box.Box addict.Dict
    attrdict.AttrDict ml_collections.ConfigDict yacs.config.CfgNode fvcore.common.config.CfgNode
    omegaconf.DictConfig mmcv.Config
    """
)
"""Classes whose objects carry values as attributes."""

STRUCTURED_CLI = words(
    """
    tyro.cli simple_parsing.parse draccus.parse pyrallis.parse pyrallis.wrap draccus.wrap chanfig.parse
    jsonargparse.CLI jsonargparse.auto_cli tap.tapify cyclopts.run fire.Fire typer.run absl.app.run defopt.run
    plac.call
    """
)
"""Calls that fill a dataclass, or a function's parameters, from the command line."""

CLASS_PARSERS = frozenset({"transformers.HfArgumentParser", "trl.TrlParser", "trl.H4ArgumentParser"})
"""Parsers that are made of dataclasses."""

FROM_ARGPARSE = words("lightning.pytorch.Trainer.from_argparse_args pytorch_lightning.Trainer.from_argparse_args")
"""Calls that make a trainer of parsed options and of arguments, which take precedence."""

PASS_THROUGH = words(
    """
    copy.copy copy.deepcopy torch.autograd.Variable torch.jit.script torch.jit.trace torch.jit.ignore
    torch.jit.export torch.jit.unused torch.compiler.disable torch._dynamo.disable torch.fx.symbolic_trace
    torch.nn.utils.spectral_norm torch.nn.utils.weight_norm torch.nn.utils.parametrizations.spectral_norm
    torch.nn.utils.parametrizations.weight_norm torch.nn.utils.remove_weight_norm
    torch.nn.SyncBatchNorm.convert_sync_batchnorm apex.parallel.convert_syncbn_model ipex.optimize
    torch.quantization.prepare_qat torch.quantization.prepare functools.lru_cache functools.cache functools.wraps
    peft.get_peft_model peft.prepare_model_for_kbit_training ray.train.torch.prepare_model
    ray.train.torch.prepare_data_loader thop.clever_format typing.cast omegaconf.OmegaConf.to_container
    omegaconf.OmegaConf.create torch.cuda.make_graphed_callables
    """
)
"""Calls that give back their first argument (``cast`` its second), or a copy or a wrapper that behaves like it."""

COLLATES = words("torch.utils.data.default_collate torch.utils.data.default_convert")
"""Calls that make a batch of a list of items, as loaders do that are given no function for it."""

_TENSOR_FUNCTIONS = words("einops.rearrange einops.reduce einops.repeat torchvision.utils.make_grid")
_TENSOR_PACKAGES = (
    "torchvision.transforms.functional.",
    "torchvision.transforms.v2.functional.",
    "torchaudio.functional.",
)


def gives_tensors(qualname: str) -> bool:
    """Whether a library's function makes a tensor of tensors, as torch's own operations do."""
    return qualname in _TENSOR_FUNCTIONS or qualname.startswith(_TENSOR_PACKAGES)


LAUNCHERS = words(
    """
    torch.multiprocessing.spawn torch.multiprocessing.start_processes accelerate.notebook_launcher
    accelerate.debug_launcher torch.distributed.launcher.api.elastic_launch
    """
)
"""Calls that run a function in processes of its own; the function is the first argument."""

TRAINERS_START = words(
    """
    lightning.pytorch.Trainer.fit pytorch_lightning.Trainer.fit transformers.Trainer.train
    transformers.Seq2SeqTrainer.train
    """
)
"""Methods by which a framework's own trainer reads its loaders and trains."""

STARTERS = ("multiprocessing.Process", "multiprocessing.spawn", "multiprocessing.start_processes")
"""How calls end that start processes, to which what the script has set is not handed down."""

PROCESSES = words("multiprocessing.Process torch.multiprocessing.Process threading.Thread")
"""Calls that run ``target=`` with ``args=``."""

CLIPS = words(
    """
    torch.nn.utils.clip_grad_norm_ torch.nn.utils.clip_grad_value_ torch.nn.utils.clip_grad_norm
    torch.nn.utils.clip_grads_with_norm_ timm.utils.dispatch_clip_grad timm.utils.adaptive_clip_grad
    """
)
"""Calls that clip gradients."""

TRACKERS = words(
    """
    wandb.log mlflow.log_metric mlflow.log_metrics neptune.log_metric comet_ml.log_metric swanlab.log trackio.log
    logging.info logging.debug logging.warning logging.error logging.log logging.critical loguru.logger.info
    loguru.logger.debug builtins.print rich.print pprint.pprint click.echo typer.echo sys.stdout.write
    sys.stderr.write tqdm.tqdm.write
    """
)
"""Calls that show or log their arguments."""

SHOWING_METHODS = words(
    """
    set_postfix set_postfix_str set_description set_description_str add_scalar add_scalars add_histogram add_image
    add_images add_text add_figure add_embedding log_metric log_metrics log_dict
    """
)
"""Methods that show or log their arguments, on whatever object."""

LOGGING_METHODS = frozenset({"info", "debug", "warning", "error", "critical", "log", "write", "exception"})
"""Methods of loggers, writers and files that show or log their arguments."""

PREPARES = words(
    """
    prepare setup prepare_model prepare_data_loader setup_dataloaders setup_module setup_optimizers
    prepare_optimizer prepare_scheduler
    """
)
"""Methods by which Accelerate and Fabric take models, optimizers and loaders over."""

DEAD_ENDS = frozenset({"sys.exit", "os._exit", "builtins.exit", "builtins.quit", "os.abort"})
"""Calls that do not return."""

# --- canonical names ------------------------------------------------------------------------------------------------

_FLATTENED = (
    ("torch.nn.modules.", "torch.nn."),
    *((f"torchvision.models.{kind}.",) * 2 for kind in ("detection", "optical_flow", "segmentation", "video")),
    ("torchvision.models.", "torchvision.models."),
    ("torchvision.datasets.", "torchvision.datasets."),
    ("transformers.models.", "transformers."),
)
"""Packages that re-export the members of all their modules."""

_OPTIMIZER_MODULES = words(
    """
    adadelta adagrad adam adamw adamax asgd lbfgs nadam optimizer radam rmsprop rprop sgd sparse_adam adafactor
    _adafactor
    """
)
_SAME = {
    "torch.amp.autocast": "torch.autocast",
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.enable_grad": "torch.enable_grad",
    "torch.autograd.inference_mode": "torch.inference_mode",
    "torch.autograd.set_grad_enabled": "torch.set_grad_enabled",
    "torch.GradScaler": "torch.amp.GradScaler",
    "torch.tensor.Tensor": "torch.Tensor",
    "torch._tensor.Tensor": "torch.Tensor",
    "torch.concat": "torch.cat",
    "torch.concatenate": "torch.cat",
    "tqdm.tqdm.tqdm": "tqdm.tqdm",
    "timm.models.create_model": "timm.create_model",
    "lightning.LightningModule": "lightning.pytorch.LightningModule",
    "lightning.Trainer": "lightning.pytorch.Trainer",
    "lightning.Fabric": "lightning.fabric.Fabric",
    "lightning_fabric.Fabric": "lightning.fabric.Fabric",
    "absl.flags.flags": "absl.flags",
}


@lru_cache(maxsize=8192)
def canonical(qualname: str) -> str:
    """The canonical name of a library's member."""
    if "." not in qualname:
        return qualname
    package, _, member = qualname.rpartition(".")
    if package in _shorter():
        qualname = f"{_shorter()[package]}.{member}"
    elif member[:1].isupper() or package.startswith("torchvision.models."):
        for prefix, short in _FLATTENED:
            if package.startswith(prefix) or package + "." == prefix:
                qualname = short + member
                break
        else:
            if package.startswith("torch.optim.") and package[12:] in _OPTIMIZER_MODULES:
                qualname = f"torch.optim.{member}"
    return _SAME.get(qualname, qualname)


# --- which call makes what ------------------------------------------------------------------------------------------

_KINDS = {name: kind for kind, names in rows_of("kinds.tsv") for name in names.split()}

_OPEN_PACKAGES: tuple[tuple[str, str, str], ...] = (
    ("torch.optim.lr_scheduler.", "Upper", "scheduler"),
    ("torch.optim.swa_utils.SWALR", "Upper", "scheduler"),
    ("torch.optim.", "Upper", "optimizer"),
    ("torch_optimizer.", "Upper", "optimizer"),
    ("timm.optim.", "Upper", "optimizer"),
    ("timm.scheduler.", "Upper", "scheduler"),
    ("torch.nn.utils.", "", ""),
    ("torch.nn.init.", "", ""),
    ("torch.nn.functional.", "", ""),
    ("torch.nn.parallel.", "", ""),
    ("torch.nn.attention.", "", ""),
    ("torch.nn.", "Upper", "module"),
    ("torchvision.models.", "any", "module"),
    ("torchvision.datasets.", "Upper", "dataset"),
    ("torchvision.transforms.", "Upper", "transform"),
    ("torchaudio.datasets.", "Upper", "dataset"),
    ("torchaudio.transforms.", "Upper", "transform"),
    ("torchaudio.models.", "Upper", "module"),
    ("torchtext.datasets.", "any", "dataset"),
    ("torch_geometric.datasets.", "Upper", "dataset"),
    ("torch_geometric.nn.", "Upper", "module"),
    ("torch_geometric.transforms.", "Upper", "transform"),
    ("torchmetrics.", "Upper", "meter"),
    ("timm.loss.", "Upper", "criterion"),
    ("timm.models.layers.", "Upper", "module"),
    ("timm.layers.", "Upper", "module"),
    ("albumentations.", "Upper", "transform"),
    ("timm.data.create_transform", "any", "transform"),
    ("medmnist.", "Upper", "dataset"),
    ("apex.normalization.", "Upper", "module"),
    ("segmentation_models_pytorch.losses.", "Upper", "criterion"),
    ("segmentation_models_pytorch.", "Upper", "module"),
    ("monai.networks.", "Upper", "module"),
    ("monai.losses.", "Upper", "criterion"),
    ("dgl.nn.", "Upper", "module"),
    ("torchvision.ops.", "Upper", "module"),
    ("vit_pytorch.", "Upper", "module"),
    ("x_transformers.", "Upper", "module"),
    ("torchsummary.", "", ""),
)
"""Packages whose members (or classes: "Upper") all make one kind of object; the first that fits decides."""

_PRETRAINED = frozenset({"transformers", "diffusers", "peft", "efficientnet_pytorch", "sentence_transformers"})
_PRETRAINED_CALLS = frozenset({"from_pretrained", "from_config", "from_name"})

MODULE_BASES = words(
    """
    torch.nn.Module torch.jit.ScriptModule lightning.pytorch.LightningModule pytorch_lightning.LightningModule
    lightning.LightningModule transformers.PreTrainedModel diffusers.ModelMixin torch_geometric.nn.MessagePassing
    """
)
"""Classes from which models derive, besides torch's own layers."""


@lru_cache(maxsize=8192)
def kind_of(qualname: str) -> str | None:
    """The kind of object that calling this name makes (see ``values.Made``); None where it is not known to make one."""
    kind = _KINDS.get(qualname)
    if kind is not None:
        return kind
    package, _, member = qualname.rpartition(".")
    if qualname in PARSERS:
        return "argparse"
    if qualname in PROGRESS:
        return "progress"
    top = package.partition(".")[0]
    if member in _PRETRAINED_CALLS and top in _PRETRAINED:
        cls = package.rpartition(".")[2]
        if any(part in cls for part in ("Tokenizer", "Processor", "Extractor")):
            return "tokenizer"
        if "Config" in cls:
            return "config"
        return "scheduler_config" if "Scheduler" in cls else "module"
    if top == "transformers":
        return _transformers_kind(package, member)
    if top == "diffusers" and member[:1].isupper():
        return "module" if member.endswith("Model") or member.startswith("Autoencoder") else None
    if package in ("torch.utils.data", "torch_geometric.loader", "torch_geometric.data", "dgl.dataloading"):
        if member.endswith("Sampler"):
            return "sampler"
        if member.endswith(("Loader", "DataLoader")):
            return "loader"
        return None
    if top == "torchtext" and (member.endswith("Iterator") or package.endswith("Iterator")):
        return "loader"
    for prefix, which, kind in _OPEN_PACKAGES:
        if qualname.startswith(prefix):
            if not kind or (which == "Upper" and not (member[:1].isupper() or member == "*")):
                return None
            return "criterion" if kind == "module" and member.endswith("Loss") else kind
    return "module" if is_named_as_convolutional(qualname) else None


_ARCHITECTURE = regex(
    r"\w+(\.\w+)*\.((Wide|SE)?(Dense|Efficient|Google|Mnas|Mobile|Reg|Res|Shuffle|Squeeze)_?Net|Inception|ResNe[sx]t|VGG"
    r"|DeepLab|(Nested|Attention|R2|Attn)?_?U_?Net)(?!\w*(Block|Config|Data|Encoder|Layer|Loss|Score|Transform|Weights))\w*",
    re.IGNORECASE,
)


def is_named_as_convolutional(qualname: str) -> bool:
    """Whether a library's class has the name of an architecture of convolutions."""
    class_like = qualname.rpartition(".")[2][:1].isupper()
    others = qualname.startswith(("torch.", "tensorflow.", "keras.", "jax.", "flax.", "monai.", "transformers."))
    return class_like and not others and _ARCHITECTURE.fullmatch(qualname) is not None


def _transformers_kind(package: str, member: str) -> str | None:
    if member.startswith("get_") and "schedule" in member:
        return "scheduler"
    if member.endswith("Config"):
        return "config"
    if member.endswith(("Tokenizer", "TokenizerFast", "Processor")):
        return "tokenizer"
    home = package == "transformers" or package.startswith("transformers.modeling_")  # the modules of old versions
    if member[:1].isupper() and ("Model" in member or "For" in member) and home:
        return "module"
    return None


@cache
def star_names() -> dict[str, frozenset[str]]:
    """What ``from module import *`` brings, of the names that programs use."""
    return {module: words(names) for modules, names in rows_of("star.tsv") for module in modules.split()}


WEIGHED = regex(
    r"torch\.nn\.(Linear|Bilinear|Conv\w*|LazyConv\w*|LazyLinear|Embedding\w*|LSTM|GRU|RNN|Transformer\w*|Multihead\w*)$"
    r"|torchvision\.models\.|timm\.|transformers\.|torch\.hub\."
)
"""Modules that certainly have weights."""
