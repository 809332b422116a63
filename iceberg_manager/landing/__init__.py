"""Files that arrive in a folder or a bucket, committed to their table exactly once."""
