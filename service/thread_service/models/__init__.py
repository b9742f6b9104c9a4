"""Embedding models: one interface (`embedder`), models on this machine (`local`), and hosted ones (`hosted`)."""
