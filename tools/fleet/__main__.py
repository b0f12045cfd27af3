"""`scripts/fleet` after the set-up."""

import signal


def main() -> None:
    # A Ctrl-C during the imports, before there is anything to stop, ends without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fleet.command import app

    app(prog_name="scripts/fleet")


if __name__ == "__main__":
    main()
