"""One training of the demo in a process of its own. In: the words of `entformer train`. Out: a run folder.

`python -m entformer.cli.demo_child train demo --out RUN` does what `entformer train demo --out RUN` does, and also stops, with
everything saved, when the demo that started it is gone: standard input is a pipe whose other end only the demo holds.
"""

import os
import signal
import threading

from entformer.cli.main import main


def _stop_with_the_demo() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_the_demo, daemon=True).start()
    main()
