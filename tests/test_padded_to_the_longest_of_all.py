"""Texts that one call pads to the longest of them all, long before there are batches."""

from __future__ import annotations

from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.training.model import Target

DATA = """
from torch.utils.data import Dataset

class Reviews(Dataset):
    def __init__(self, texts, labels, tokenizer):
        self.labels = labels
        self.encoded = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")

    def __getitem__(self, index):
        return {**{key: part[index] for key, part in self.encoded.items()}, "labels": self.labels[index]}

    def __len__(self):
        return len(self.labels)
"""
MODEL = """
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments
from rows import labels, texts
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
"""
TRAINED = """
class Own(Trainer):
    def __init__(self, name, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.name = name

Own("a", model=model, args=TrainingArguments("out"), train_dataset=Reviews(texts, labels, tokenizer)).train()
"""
MAPPED = """
from datasets import load_dataset
from transformers import DataCollatorWithPadding

def tokenize(rows):
    return tokenizer(rows["text"], padding=True, truncation=True)

reviews = load_dataset("imdb", split="train").map(tokenize, batched=True)
collator = DataCollatorWithPadding(tokenizer)
Trainer(model, TrainingArguments("out"), data_collator=collator, train_dataset=reviews).train()
"""


def told(text: str) -> tuple[list[str], list[str]]:
    """What dynamic-padding offers, and what it does not."""
    chosen = [each for each in registry.load() if each.name == "dynamic-padding"]
    found = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), chosen, Target()).findings
    here = [each for each in found if each.codemod == "dynamic-padding"]
    return [each.message for each in here if each.fixable], [each.why_not or "" for each in here if not each.fixable]


def test_what_a_class_of_data_pads_is_cut_for_each_batch() -> None:
    offered, refused = told(MODEL + DATA + TRAINED)
    assert len(offered) == 1 and offered[0].startswith("all texts are padded to the longest of them")
    assert refused == []
    taken = TRAINED.replace("name, *args, **kwargs", "name, data_collator=None, *args, **kwargs")
    assert told(MODEL + DATA + taken)[0] == []  # what it does with a collator is its own


def test_a_text_by_itself_is_not_padded() -> None:
    each = "[tokenizer(text, padding=True) for text in texts]"
    data = DATA.replace('tokenizer(texts, padding=True, truncation=True, return_tensors="pt")', each)
    assert data != DATA
    assert told(MODEL + data + TRAINED) == ([], [])


def test_what_is_mapped_in_thousands_wants_a_collator_that_pads() -> None:
    assert len(told(MODEL + MAPPED)[0]) == 1
    assert told(MODEL + MAPPED.replace(", batched=True", "")) == ([], [])
    offered, refused = told(MODEL + MAPPED.replace("data_collator=collator, ", ""))
    assert offered == [] and "leave out `padding` here" in refused[0]


def test_a_length_that_is_only_sometimes_fixed() -> None:
    chosen = 'padding="max_length" if tokenizer.pad_token_id else "do_not_pad"'
    offered, _ = told(MODEL + MAPPED.replace("padding=True", chosen))
    assert offered == ["every text is padded to a fixed length, and the model computes for the padding, too"]


def test_an_import_goes_above_a_cell_although_others_stand_below() -> None:
    offered, refused = told(MODEL + MAPPED + "import torch\nimport functools\n")
    assert len(offered) == 1 and refused == []
