"""What there is once in a process: RUNTIME holds all of it, and observers look on from outside."""

from sentinel.runtime.observing import Observer, Watch, observe, tell, tell_of_layer
from sentinel.runtime.process import RUNTIME, TickSink

__all__ = ["RUNTIME", "Observer", "TickSink", "Watch", "observe", "tell", "tell_of_layer"]
