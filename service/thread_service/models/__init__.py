"""Embedding models: one interface (`embedder`), models on this machine's CPU (`local`), and hosted ones (`hosted`)."""
