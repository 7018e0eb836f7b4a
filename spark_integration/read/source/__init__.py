"""`spark.read.format("sow")`: a SOW topic through Spark's data source API."""
