"""Prints the steps of a demo on a terminal: each with its results, and the checks that failed."""


class Story:
    """Prints the steps and remembers whether a check failed."""

    def __init__(self):
        self.number, self.wrong = 0, []

    def step(self, title):
        """Begins the next step."""
        self.number += 1
        print(f"\n{self.number:2}. {title}", flush=True)

    def shows(self, text):
        """Prints a result."""
        print(f"      {text}", flush=True)

    def must(self, holds, text):
        """Prints a result that must hold."""
        self.shows(text if holds else f"NOT AS TOLD: {text}")
        if not holds:
            self.wrong.append(f"step {self.number}: {text}")

    def end(self):
        """Prints the verdict; returns the matching exit status."""
        for wrong in self.wrong:
            print(f"not as told: {wrong}")
        print("\nEverything was as told." if not self.wrong else "\nNot everything was as told.")
        return 1 if self.wrong else 0
