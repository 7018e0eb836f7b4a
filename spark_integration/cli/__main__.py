"""Runs `sowstream-spark` where the script is not installed, and under `spark-submit`."""

from spark_integration.cli import main

if __name__ == "__main__":
    main()
