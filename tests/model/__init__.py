"""The model of ``model/``: its traces, and their replay by the verbs on real databases."""
