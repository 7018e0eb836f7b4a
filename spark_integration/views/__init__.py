"""Views on Spark: their rows computed from SOW records, without the workers' stages."""
