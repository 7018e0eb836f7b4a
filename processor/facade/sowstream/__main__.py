"""`python -m sowstream`: the command `sowstream`, where its script is not on the path."""

from processor.cli.main import main

if __name__ == "__main__":
    main()
