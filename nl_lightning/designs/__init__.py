"""Design matrices, one file a structure."""
