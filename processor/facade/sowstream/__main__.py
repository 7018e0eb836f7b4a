"""The command `sowstream`, also as `python -m sowstream`: without the extra `worker` it says what to install."""

import sys


def main() -> None:
    """Run the command line; exit code 2 where its packages are missing."""
    try:
        from processor.cli.main import main as run  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("processor"):
            raise
        sys.stderr.write(f"sowstream: the commands need {error.name}: pip install 'sowstream[worker]'\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
