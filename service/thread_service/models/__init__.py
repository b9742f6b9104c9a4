"""Embedding models: one interface (`embedder`), and the model that runs on this machine's CPU (`local`)."""
