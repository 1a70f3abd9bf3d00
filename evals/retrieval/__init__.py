"""Quality of retrieval."""
