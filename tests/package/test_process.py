"""A request to stop is heard at whatever instant its signal comes."""

import subprocess
import sys
import textwrap
import threading

from clawrl_trl.process import StopRequest


def test_a_signal_at_any_instant_is_heard() -> None:
    # With threading.Event one in fifty of these waits for ever: the handler wants the lock that its own thread holds.
    code = textwrap.dedent(
        """
        import signal
        from clawrl_trl.process import StopRequest

        for n in range(3000):
            stop = StopRequest()
            signal.signal(signal.SIGALRM, lambda *_: stop.set())
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + n * 1e-7)
            while not stop.wait(1e-5):
                pass
        print("heard", n + 1)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "heard 3000\n"


def test_a_signal_ends_a_long_wait() -> None:
    code = textwrap.dedent(
        """
        import signal
        from clawrl_trl.process import StopRequest

        stop = StopRequest()
        signal.signal(signal.SIGALRM, lambda *_: stop.set())
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        print(stop.wait(600))
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n"


def test_everyone_who_waits_goes_on() -> None:
    stop = StopRequest()
    assert not stop.is_set() and not stop.wait(0)
    heard: list[bool] = []
    waiting = [threading.Thread(target=lambda: heard.append(stop.wait(600)), daemon=True) for _ in range(4)]
    for thread in waiting:
        thread.start()
    stop.set()
    for thread in waiting:
        thread.join(60)
    assert heard == [True] * 4 and stop.is_set() and stop.wait(600)
