"""The pipeline: jobs described in `pipeline.yaml`, run by `sowstream-spark`."""
