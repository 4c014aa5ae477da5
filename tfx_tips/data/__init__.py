"""Records and input pipelines."""
