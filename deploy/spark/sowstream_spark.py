"""Runs `sowstream-spark` under `spark-submit`, which takes a file: `spark-submit … sowstream_spark.py run`."""

from spark_integration.cli import main

if __name__ == "__main__":
    main()
