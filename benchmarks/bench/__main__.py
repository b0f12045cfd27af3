"""The commands of `scripts/bench`, from suite to ways."""


def main() -> None:
    # Not above: the draft's process imports this module again, and needs none of it.
    import typer

    from bench.family import family
    from bench.fleet import fleet
    from bench.guest import guest
    from bench.lag import lag
    from bench.publishing import publishing
    from bench.shapes import shapes
    from bench.streams import streams
    from bench.suite import suite
    from bench.ways import ways

    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        help="Measure how fast this machine decodes.",
    )
    for command in (suite, family, streams, fleet, guest, lag, publishing, shapes, ways):
        app.command()(command)
    app(prog_name="scripts/bench")


if __name__ == "__main__":
    main()
