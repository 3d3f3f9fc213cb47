"""`python -m example_site`: build, publish and serve the magazine by hand."""

import argparse
import signal
import time
from pathlib import Path

from example_site.build import STORIES, Site
from example_site.serve import serve


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m example_site", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="write a new magazine into a directory")
    publish = commands.add_parser("publish", help="add stories to the magazine in a directory")
    server = commands.add_parser("serve", help="serve the magazine in a directory; Ctrl-C ends it")
    for command in (build, publish, server):
        command.add_argument("directory", type=Path)
    build.add_argument("--stories", type=int, default=STORIES)
    publish.add_argument("count", type=int)
    server.add_argument("--build", action="store_true", help="write the magazine if there is none")
    server.add_argument("--host", default="127.0.0.1", help="0.0.0.0 listens to other machines too")
    server.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()

    if options.command == "build":
        report(Site.build(options.directory, options.stories))
    elif options.command == "publish":
        report(Site.open(options.directory).publish(options.count))
    else:
        if options.build and not options.directory.exists():
            Site.build(options.directory)
        run(options.directory, options.port, options.host)


def report(site: Site) -> None:
    """Say what is in a directory now."""
    truth = site.truth()
    print(f"{len(truth.stories)} stories, {len(truth.hubs)} listings in {site.directory}")


def run(directory: Path, port: int, host: str) -> None:
    """Serve until Ctrl-C, or until the process is asked to end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with serve(directory, port, host) as server:
        print(f"Fell & Ford is at {server.url}")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print("closed")


if __name__ == "__main__":
    main()
