"""`python -m staticjob`."""

from staticjob.cli import main

if __name__ == "__main__":
    main(prog_name="staticjob")
