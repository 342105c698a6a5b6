"""Runs every suite of this folder, one test after the other, and prints TAP, which `cargo xtask clients` counts.

With arguments, only the tests whose names contain one of them.
"""

import sys
import time
import unittest


class Tap(unittest.TestResult):
    """Prints each result when it is known."""

    began = time.monotonic()

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def say(self, outcome, test, about=""):
        took = time.monotonic() - self.began
        print(f"{outcome} - {name(test)} ({took:.2f} s)", flush=True)
        for line in about.splitlines():
            print(f"  {line}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say("not ok", test, self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.say("not ok", test, self.errors[-1][1])


def name(test):
    """`file.Class.test_name` as words."""
    return test.id().replace("test_", "").replace("_", " ")


def chosen(suite, words):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from chosen(test, words)
        elif not words or any(word in test.id() for word in words):
            yield test


if __name__ == "__main__":
    folder = __file__.rpartition("/")[0] or "."
    found = unittest.TestLoader().discover(folder, pattern="test_*.py")
    result = Tap()
    unittest.TestSuite(chosen(found, sys.argv[1:])).run(result)
    sys.exit(not result.wasSuccessful())
