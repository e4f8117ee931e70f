"""The explorer: type a sentence, watch the heads. In: a trained run. Out: a web application with a page and a JSON API.

    from entformer.explore import create_app
    app = create_app("runs/demo")                    # uvicorn.run(app), or main.mount("/explore", app)

The data's way: messages.py (what a request and an answer hold) -> app.py (addresses) -> gate.py (one request at a time uses
the model, none for ever) -> engine.py (text, search, heads) -> back. guard.py stands before all of it, page.py is what a
browser gets first.
"""

from entformer.explore.app import create_app

__all__ = ["create_app"]
