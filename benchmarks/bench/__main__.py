"""What `scripts/bench` does once everything is installed."""


def main() -> None:
    # Imported here: the draft's process imports this module again, and needs none of it.
    from bench.command import app

    app(prog_name="scripts/bench")


if __name__ == "__main__":
    main()
