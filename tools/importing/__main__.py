"""`python -m importing` is `scripts/import_pair`."""

from importing.command import app

if __name__ == "__main__":
    app(prog_name="scripts/import_pair")
