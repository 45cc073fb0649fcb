"""Make small data of the right shape. Run in the folder that a script is run in, by its interpreter.

    python makers.py "mnist data 256 ; text data/input.txt 20000"

Numbers come from one seed, so that every run of a script sees the same data.
"""

from __future__ import annotations

import pickle
import random
import string
import sys
from pathlib import Path

import numpy as np

ROLL = np.random.default_rng(0)
random.seed(0)


def there(path: str) -> Path:
    """A path whose folder exists."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path)


def folder(*paths: str) -> None:
    """Empty folders."""
    for path in paths:
        Path(path).mkdir(parents=True, exist_ok=True)


def mnist(root: str, many: str) -> None:
    """The four files of MNIST, with so many digits of noise in each half."""
    for half in ("train", "t10k"):
        pixels = ROLL.integers(0, 256, (int(many), 28, 28), dtype=np.uint8)
        labels = np.arange(int(many), dtype=np.uint8) % 10
        for name, magic, values in (("images-idx3", 2051, pixels), ("labels-idx1", 2049, labels)):
            head = b"".join(number.to_bytes(4, "big") for number in (magic, *values.shape))
            there(f"{root}/MNIST/raw/{half}-{name}-ubyte").write_bytes(head + values.tobytes())


def cifar10(root: str, many: str) -> None:
    """The files of CIFAR-10: so many pictures for training in all, a fifth of them for testing."""
    each = int(many) // 5
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        rows = {"data": ROLL.integers(0, 256, (each, 3072), dtype=np.uint8), "labels": [n % 10 for n in range(each)]}
        there(f"{root}/cifar-10-batches-py/{name}").write_bytes(pickle.dumps(rows))
    there(f"{root}/cifar-10-batches-py/batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))


def images(path: str, many: str, width: str, height: str) -> None:
    """PNG files of noise."""
    from PIL import Image

    for number in range(int(many)):
        pixels = ROLL.integers(0, 256, (int(height), int(width), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(there(f"{path}/{number:04}.png"))


def array(path: str, *shape: str) -> None:
    """An array of NumPy, with values between 0 and 1."""
    values = ROLL.random(tuple(map(int, shape)), dtype=np.float32)
    with there(path).open("wb") as out:
        np.savez(out, data=values) if path.endswith(".npz") else np.save(out, values)


def text(path: str, many: str) -> None:
    """Words of random letters, so many characters of them."""
    words = ["".join(random.choices(string.ascii_lowercase, k=random.randint(2, 8))) for _ in range(300)]
    said = ""
    while len(said) < int(many):
        said += " ".join(random.choices(words, k=8)) + ".\n"
    there(path).write_text(said[: int(many)])


def table(path: str, rows: str, separator: str, *columns: str) -> None:
    """A table: a column is NAME=number, NAME=below:MOST, NAME=date or NAME=word; without names it has no header."""
    names, makers = zip(*(column.rpartition("=")[::2] for column in columns), strict=True)
    between = {"tab": "\t", "semicolon": ";"}.get(separator, separator)

    def cell(maker: str, number: int) -> str:
        kind, _, more = maker.partition(":")
        if kind == "below":
            return str(ROLL.integers(int(more)))
        if kind == "date":
            day = str(np.datetime64("2020-01-01") + np.timedelta64(number, "D"))
            return day.replace("-", "") if more else day
        return random.choice(string.ascii_lowercase) * 4 if kind == "word" else f"{ROLL.random():.4f}"

    lines = [between.join(cell(maker, number) for maker in makers) for number in range(int(rows))]
    there(path).write_text("\n".join(([between.join(names)] if any(names) else []) + lines) + "\n")


def sequences(path: str, users: str, items: str, length: str) -> None:
    """Lines of a user and an item, so many of each user."""
    lines = [f"{u} {ROLL.integers(1, int(items) + 1)}" for u in range(1, int(users) + 1) for _ in range(int(length))]
    there(path).write_text("\n".join(lines) + "\n")


def ratings(path: str, users: str, items: str, each: str) -> None:
    """The three files of a benchmark of collaborative filtering: ratings, one held out of each user, and negatives."""
    train, held, negatives = [], [], []
    for user in range(int(users)):
        taken = ROLL.permutation(int(items))
        train += [f"{user}\t{item}\t1\t0" for item in taken[: int(each)]]
        held.append(f"{user}\t{taken[int(each)]}\t1\t0")
        negatives.append("\t".join([f"({user},{taken[int(each)]})", *map(str, taken[int(each) + 1 : int(each) + 12])]))
    train.append(f"{int(users) - 1}\t{int(items) - 1}\t1\t0")
    for name, lines in (("train.rating", train), ("test.rating", held), ("test.negative", negatives)):
        there(f"{path}.{name}").write_text("\n".join(lines) + "\n")


def cora(path: str, nodes: str, words: str) -> None:
    """A graph of papers: their words and classes, and who cites whom."""
    many = int(nodes)
    content = [f"p{n} {' '.join(map(str, ROLL.integers(0, 2, int(words))))} class{n % 7}" for n in range(many)]
    cites = [f"p{n} p{(n + step) % many}" for n in range(many) for step in (1, 2, 7)]
    there(f"{path}.content").write_text("\n".join(content) + "\n")
    there(f"{path}.cites").write_text("\n".join(cites) + "\n")


def planetoid(root: str, name: str, nodes: str, words: str) -> None:
    """The raw files of a citation graph, as PyTorch Geometric reads them: half of the nodes are labelled ones."""
    from scipy.sparse import csr_matrix

    many, classes, test = int(nodes), 4, int(nodes) // 4
    features = csr_matrix((ROLL.random((many, int(words))) < 0.1).astype(np.float32))
    labels = np.eye(classes, dtype=np.int32)[np.arange(many) % classes]
    known, seen = classes * 20, many - test
    graph = {n: [(n + 1) % many, (n - 1) % many, (n + 9) % many] for n in range(many)}
    parts = {"x": features[:known], "y": labels[:known], "allx": features[:seen], "ally": labels[:seen]}
    parts |= {"tx": features[seen:], "ty": labels[seen:], "graph": graph}
    for part, value in parts.items():
        there(f"{root}/raw/ind.{name}.{part}").write_bytes(pickle.dumps(value))
    there(f"{root}/raw/ind.{name}.test.index").write_text("\n".join(map(str, range(seen, many))) + "\n")


def bert(path: str) -> None:
    """A tiny BERT with random weights, and a tokenizer of letters, as `from_pretrained` reads them."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    letters = string.ascii_lowercase + string.digits + ".,'!?"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    there(f"{path}/vocab.txt").write_text("\n".join(words) + "\n")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=512, **sizes)
    BertForSequenceClassification(config).save_pretrained(path)
    BertTokenizerFast(f"{path}/vocab.txt").save_pretrained(path)


def tokens(path: str, rows: str, length: str) -> None:
    """A data set of Hugging Face on the disk: ids, their mask, and a label."""
    from datasets import Dataset

    ids = [[2, *map(int, ROLL.integers(5, 60, int(length) - 2)), 3] for _ in range(int(rows))]
    columns = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids], "label": [0, 1] * (len(ids) // 2)}
    Dataset.from_dict(columns).save_to_disk(path)


def patches(path: str, many: str, size: str) -> None:
    """A file of HDF5 with patches of one channel, one data set each."""
    import h5py

    with h5py.File(there(path), "w") as out:
        for number in range(int(many)):
            out.create_dataset(str(number), data=ROLL.random((1, int(size), int(size)), dtype=np.float32))


def criteo(path: str, rows: str) -> None:
    """Advertisements: clicked or not, 13 numbers and 26 words."""
    table(path, rows, "tab", "=below:2", *["=below:100"] * 13, *["=word"] * 26)


def gone(*paths: str) -> None:
    """Files that a script would make from others, removed."""
    for path in paths:
        Path(path).unlink(missing_ok=True)


def settings(path: str, content: str) -> None:
    """A file of one line."""
    there(path).write_text(content)


if __name__ == "__main__":
    for order in sys.argv[1].split(" ; "):
        name, *given = order.split()
        globals()[name](*given)
