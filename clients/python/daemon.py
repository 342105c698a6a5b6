"""Where the suites' daemon is, and what they do with it beside asking through a client."""

import contextlib
import os
import socket
import subprocess
import time
import urllib.request

URL = os.environ["ZLLM_URL"]
MODEL = os.environ["ZLLM_MODEL"]


def restart():
    """Has the daemon killed, as a power cut would, and started again; returns when it is ready."""
    host, port = os.environ["ZLLM_RESTART"].split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        assert connection.recv(16) == b"ready\n", "the daemon did not come back"


def zllmctl(*args):
    """What `zllmctl` prints; it finds the daemon by `ZLLM_SOCKET`."""
    ran = subprocess.run([os.environ["ZLLM_CTL"], *args], check=True, capture_output=True, text=True, timeout=60)
    return ran.stdout


@contextlib.contextmanager
def keys(*names):
    """Keys with tenants of these names. The daemon wants a key of everybody until they are taken back at the end."""
    made = []
    try:
        for name in names:
            made.append((name, zllmctl("keys", "add", name).strip()))
        yield [key for _, key in made]
    finally:
        for name, _ in made:
            zllmctl("keys", "revoke", name)


def metric(name):
    """The value of one of the daemon's metrics, with its labels as `/metrics` has them."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def wait_until_idle(within_s=2.0):
    """Waits until no job runs or waits; fails when one still does."""
    give_up = time.monotonic() + within_s
    while True:
        jobs = {state: metric(f'zllm_jobs{{state="{state}"}}') for state in ("running", "queued")}
        if not any(jobs.values()):
            return
        assert time.monotonic() < give_up, f"after {within_s} s there are still {jobs}"
        time.sleep(0.02)
