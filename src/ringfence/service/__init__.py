"""The service: runs, boxes, pools and bundles over HTTP, and a page that shows what happens.

docs/reference/service.md has its routes and settings.

A door like the others: it turns requests into jobs and policies, and outcomes into JSON. It adds access control, and
limits on how much of the machine a request may take. Starlette and uvicorn, of the extra
``service``, are loaded when it is used.
"""
