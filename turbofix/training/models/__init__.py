"""The layers of a model: attention, convolutions, products, formulas, and what a compiler makes of them."""
