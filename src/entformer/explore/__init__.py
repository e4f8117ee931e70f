"""The explorer of a trained run: a web application with a page and a JSON API.

    from entformer.explore import create_app
    app = create_app("runs/demo")                    # uvicorn.run(app), or main.mount("/explore", app)

A request passes security.py (host, size), app.py (addresses), model_queue.py (one request at a time) and engine.py (text,
search, heads); messages.py describes requests and responses, page.py builds the page.
"""

from entformer.explore.app import create_app

__all__ = ["create_app"]
