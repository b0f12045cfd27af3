"""`python -m card_guard` is `card-guard`."""

from card_guard.command import app

if __name__ == "__main__":
    app()
