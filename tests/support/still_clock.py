"""A clock that shows what it is set to."""


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now
