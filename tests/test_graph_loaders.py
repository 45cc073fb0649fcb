"""Loaders that put graphs together in Python get workers, wherever the graphs come from."""

from __future__ import annotations

from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.training.model import Target

GRAPHS = """\
import torch
from torch import nn
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

def train():
    dataset = TUDataset("data", name="PROTEINS").shuffle()
    loader = DataLoader(dataset, batch_size=128, shuffle=True)
    layer = GINConv(nn.Linear(dataset.num_features, 2)).to("cuda")
    optimizer = torch.optim.Adam(layer.parameters())
    for epoch in range(100):
        for data in loader:
            data = data.to("cuda")
            optimizer.zero_grad()
            out = global_add_pool(layer(data.x, data.edge_index), data.batch)
            loss = nn.functional.cross_entropy(out, data.y)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    train()
"""


def workers(text: str) -> list[int]:
    report = pipeline.analyze(ENTRY, MemoryWorkspace({ENTRY: text}), registry.load(), Target())
    return [each.site.line for each in report.findings if each.codemod == "loader-workers" and each.fixable]


def test_collating_graphs_is_work() -> None:
    assert workers(GRAPHS) == [9]


def test_so_it_is_where_the_graphs_lie_in_a_list() -> None:
    own = "class Graphs(torch.utils.data.Dataset):\n    def __init__(self, graphs):\n        self.graphs = graphs\n"
    own += "    def __len__(self):\n        return len(self.graphs)\n"
    own += "    def __getitem__(self, index):\n        return self.graphs[index]\n\n"
    listed = GRAPHS.replace("def train", f"{own}def train").replace(
        "DataLoader(dataset,", "DataLoader(Graphs(dataset),"
    )
    assert workers(listed) == [17]
    plain = listed.replace("from torch_geometric.loader", "from torch.utils.data")
    assert workers(plain) == []


def test_sampling_neighbours_in_memory_is_left_alone() -> None:
    sampled = GRAPHS.replace("loader import DataLoader", "loader import NeighborLoader")
    sampled = sampled.replace("DataLoader(dataset,", "NeighborLoader(dataset, [10],")
    assert workers(sampled) == []
