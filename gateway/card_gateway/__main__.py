"""`python -m card_gateway` is `card-gateway`."""

from card_gateway.command import app

if __name__ == "__main__":
    app()
