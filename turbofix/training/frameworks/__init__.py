"""Trainings whose loop a framework owns, and the switches of Trainer, Lightning, Accelerate and Fabric."""
